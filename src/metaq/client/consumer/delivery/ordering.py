"""A group member that consumes in order: its queues, their locks, and its failed messages. Lives in the background loop."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Collection, Sequence

from metaq.client.consumer.delivery.delivery import Hold, QueueOwner, take_in
from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.leases import Leases
from metaq.client.consumer.delivery.orderly import Again, DeadLetter, Lease, OrderedQueue, Run, judge
from metaq.client.consumer.delivery.send_back import SendBack
from metaq.client.consumer.delivery.window import Window
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import Later
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.locks import LockQueues, UnlockQueues
from metaq.client.shared.core import ClientCore
from metaq.client.shared.pulling import PulledMessages
from metaq.errors import MetaqError
from metaq.model import MessageModel, MessageQueue, QueueLocks

log = logging.getLogger("metaq.client")

Queue = OrderedQueue[ReceivedMessage]


class OrderedDelivery:
    """One message of a queue in hand at a time, in the queues that are locked for us. See the module's text."""

    def __init__(
        self, core: ClientCore, group: str, retry_topic: str, options: GroupOptions, handover: Handover[ReceivedMessage],
        owner: QueueOwner,
    ) -> None:  # fmt: skip
        self._core, self._group, self._retry_topic, self._owner = core, group, retry_topic, owner
        self._handover, self._seconds = handover, options.seconds
        self._broadcast = options.model is MessageModel.BROADCASTING
        """Whether the group broadcasts: then there are no locks, and a failed message does not come again."""
        self._max = options.max_reconsume_times
        self._send_back = SendBack(core, group, self._max or 0, handover, options.seconds)
        self._leases = Leases()
        self._queues: dict[MessageQueue, Queue] = {}
        self._leaving: dict[MessageQueue, Queue] = {}
        """Windows of queues that went to other members, perhaps with a message still in hand."""
        self._giving_up: dict[MessageQueue, asyncio.Task[None]] = {}
        self._stopping = False
        self._reached: dict[MessageQueue, range] = {}
        """Queues whose lock ran out while their broker was out of reach → [progress that the broker last knew, finished
        here)."""
        self._renewing: set[str] = set()
        """Brokers whose renewals are under way."""
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = self._core.every(self._seconds.locks, self._keep_locks)

    # -------------------------------------------------------------- locks

    async def admit(self, wanted: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Lock queues."""
        free = [queue for queue in wanted if not self._still_in_hand(queue)]
        for queue in set(wanted).difference(free):
            log.info("group %s takes %s again when a message of it, handed out before, is finished", self._group, queue)
        if self._broadcast:
            return set(free)
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in free:
            by_broker.setdefault(queue.broker, []).append(queue)
        now = self._core.clock.monotonic()  # Before the request: a lease must not outlast the broker's lock.
        answers = await asyncio.gather(*(self._ask(broker, queues) for broker, queues in by_broker.items()))
        granted = set().union(*(answer for answer in answers if answer is not None))
        for queue in granted:
            self._leases.grant(queue, now)
        for queue in set(free) - granted:
            # Usual in a rebalance: the member that had it finishes its message in hand first. It is asked for again soon.
            log.debug("group %s: %s is locked by another member", self._group, queue)
        return granted

    async def _keep_locks(self) -> None:
        """Renew the locks that are due, and leave the queues whose lock ended. Called every second."""
        now = self._core.clock.monotonic()
        for queue in self._leases.over(now):
            # Finished here, but perhaps not committed: if the broker still has the old progress when the lock is ours
            # again, `start_of` goes on behind this.
            reached = self._queues[queue].window.finished_offset() if queue in self._queues else None
            self._lose(queue, "could not be renewed in time")
            if reached is not None:
                self._reached[queue] = range(self._owner.kept(queue), reached)
        due = self._leases.due(now)
        if unused := [queue for queues in due.values() for queue in queues if not self._in_use(queue)]:
            self._core.spawn(self._unlock(unused))  # Locked, but then not taken: it went to another member at once.
        for broker, queues in due.items():
            used = [queue for queue in queues if self._in_use(queue)]
            if used and broker not in self._renewing:
                self._renewing.add(broker)
                self._core.spawn(self._renew(broker, used, now))
        for queue in [queue for queue in self._leaving if not self._still_in_hand(queue)]:
            self._leaving.pop(queue, None)

    def _in_use(self, queue: MessageQueue) -> bool:
        return queue in self._queues or queue in self._giving_up

    async def _renew(self, broker: str, queues: Sequence[MessageQueue], now: float) -> None:
        try:
            granted = None if self._stopping else await self._ask(broker, queues)
        finally:
            self._renewing.discard(broker)
        if granted is None:
            return
        for queue in self._leases.answered(queues, granted, now):
            self._reached.pop(queue, None)
            self._lose(queue, "went to another member")
        for queue in granted:
            if (ordered := self._queues.get(queue)) is not None and ordered.idle:
                ordered.offer()  # It may have waited for its lock.

    def doubt(self, broker: str) -> None:
        """Renew the locks of a broker that could not be reached: when it is back, it may know nothing of them."""
        self._leases.doubt(broker)

    def leader_changed(self, broker: str) -> None:
        """Ask the new leader for our locks, before it gives them to others: they were in the former one's memory only."""
        self._leases.doubt(broker)
        # Those under way are asked of the former one, who may never answer.
        self._renewing.discard(broker)
        self._core.spawn(self._keep_locks())

    def _lose(self, queue: MessageQueue, why: str) -> None:
        log.warning("group %s leaves %s: its lock %s", self._group, queue, why)
        for ordered in (self._queues.get(queue), self._leaving.get(queue)):
            if ordered is not None:
                ordered.lose()
        self._owner.lost(queue)

    async def _ask(self, broker: str, queues: Sequence[MessageQueue]) -> frozenset[MessageQueue] | None:
        """Ask a broker for locks. Returns the queues that are locked for us; None: no answer."""
        try:
            return await self._core.ask_broker(broker, LockQueues(self._locks(queues)))
        except FAULTS as error:
            log.info("group %s cannot lock %d queues of broker %s: %s", self._group, len(queues), broker, error)
            return None

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        """Release locks that others wait for. If the broker cannot be reached, they end by themselves."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            # Before the request, so that no renewal takes the lock again behind it.
            self._leases.drop(queue)
            by_broker.setdefault(queue.broker, []).append(queue)
        if not self._broadcast:
            await asyncio.gather(
                *(self._core.ask_broker(broker, UnlockQueues(self._locks(its))) for broker, its in by_broker.items()),
                return_exceptions=True,
            )

    def _locks(self, queues: Sequence[MessageQueue]) -> QueueLocks:
        return QueueLocks(self._group, self._core.client_id, tuple(queues))

    # -------------------------------------------------------------- queues

    def window(self, queue: MessageQueue, offset: int) -> Window[ReceivedMessage]:
        window: Window[ReceivedMessage] = Window(queue, offset)
        lease = Lease() if self._broadcast else self._leases.lease(queue)
        self._queues[queue] = OrderedQueue(window, lease, self._core.clock.monotonic, self)
        return window

    def start_of(self, queue: MessageQueue, stored: int) -> int:
        """Where to begin: behind what was finished here, unless the group's progress was moved since, perhaps back."""
        finished = self._reached.pop(queue, range(0))
        return finished.stop if stored in finished else stored

    def deliver(self, window: Window[ReceivedMessage], pulled: PulledMessages[ReceivedMessage]) -> None:
        chunk = take_in(window, pulled, self._retry_topic)
        ordered = self._queues.get(window.queue)
        if chunk is None or ordered is None or ordered.window is not window:  # Left while it was pulled.
            return
        run = ordered.arrive(chunk)
        for message in run.messages:
            message._chunk = run  # noqa: SLF001  a slot for us
        for message, why in pulled.broken:
            self._core.spawn(self._file_broken(run, message, why))
        for message, error in pulled.undecodable:
            self._core.spawn(self._file_undecodable(run, message, error))
        ordered.offer()

    def hold(self, queue: MessageQueue) -> Hold:
        ordered = self._queues.get(queue)
        return Hold(self._leases.granted_at(queue), () if ordered is None else ordered.in_hand())

    def look(self, window: Window[ReceivedMessage]) -> None:
        if (ordered := self._queues.get(window.queue)) is not None and ordered.idle:
            ordered.offer()

    def dropped(self, window: Window[ReceivedMessage]) -> None:
        """Leave a queue. Its lock, if still held, is released when it is due for renewal, unless the queue is taken
        again before."""
        queue = window.queue
        self._reached.pop(queue, None)
        self._drop(queue)

    def _drop(self, queue: MessageQueue) -> None:
        """Leave a queue at once: acks of its message in hand count no more."""
        if (ordered := self._queues.pop(queue, None)) is not None:
            ordered.lose()
            self._leaving[queue] = ordered

    async def given_up(self, windows: Sequence[Window[ReceivedMessage]]) -> None:
        """Give up queues once their messages in hand are finished, or after `leave` seconds. In the background."""
        free: list[Queue] = []
        for window in windows:
            self._leaving[window.queue] = ordered = self._queues.pop(window.queue)
            if ordered.busy:
                self._give_up([ordered])
            else:
                free.append(ordered)
        # Together: they need one commit and one request per broker.
        if free:
            self._give_up(free)

    def _give_up(self, queues: Sequence[Queue]) -> None:
        task = self._core.spawn(self._leave(queues))
        for ordered in queues:
            self._giving_up[ordered.window.queue] = task
        task.add_done_callback(functools.partial(self._gave_up, queues))

    def _gave_up(self, queues: Sequence[Queue], task: asyncio.Task[None]) -> None:
        for ordered in queues:
            if self._giving_up.get(ordered.window.queue) is task:
                del self._giving_up[ordered.window.queue]

    async def _leave(self, queues: Sequence[Queue]) -> None:
        """Keep the progress of queues that are given up and unlock them, once no message of theirs is in hand."""
        until = self._core.clock.monotonic() + self._seconds.leave
        while (  # noqa: ASYNC110  it ends in any thread
            any(ordered.busy for ordered in queues) and not self._stopping and self._core.clock.monotonic() < until
        ):
            await asyncio.sleep(self._seconds.pause)
        finished: dict[MessageQueue, int] = {}
        for ordered in queues:
            if ordered.lost:
                continue
            if ordered.busy and not self._stopping:
                log.warning(
                    "group %s gives up %s although a message of it is still in hand after %.0f s: it will be delivered again",
                    self._group, ordered.window.queue, self._seconds.leave,
                )  # fmt: skip
            finished[ordered.window.queue] = ordered.window.finished_offset()
            ordered.lose()
        if finished:
            await self._owner.keep(finished)
            await self._unlock(finished)

    async def drain(self) -> None:
        self._stopping = True
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*self._giving_up.values(), return_exceptions=True)
        until = self._core.clock.monotonic() + self._seconds.drain
        while any(ordered.filing for ordered in self._queues.values()) and self._core.clock.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(self._seconds.pause)

    async def stopped(self) -> None:
        for ordered in self._queues.values():
            ordered.lose()
        await self._unlock(self._leases.queues)

    def _still_in_hand(self, queue: MessageQueue) -> bool:
        """Whether a message of the queue is still in hand from the last time that it was ours."""
        ordered = self._leaving.get(queue)
        return queue in self._giving_up or (ordered is not None and ordered.busy)

    # -------------------------------------------------------------- callbacks of ordered queues, from any thread

    def failed(self, run: Run[ReceivedMessage], message: ReceivedMessage, verdict: BaseException) -> None:
        self._core.thread.post(self._judge, run, message, verdict)

    def offer(self, queue: Queue) -> None:
        self._handover.put(queue.turn)

    def left(self, queue: Queue) -> None:
        if queue.window.paused:
            self._core.thread.post(self._owner.handed_out, queue.window)

    # -------------------------------------------------------------- failed messages

    def _judge(self, run: Run[ReceivedMessage], message: ReceivedMessage, verdict: BaseException) -> None:
        decision = judge(message.reconsume_times, verdict, self._max)
        if isinstance(decision, DeadLetter) or decision.counts:
            given_back = self._broadcast or isinstance(decision, DeadLetter)
            self._owner.count_failure(run.queue.window.queue, given_back)
        if isinstance(decision, Again) and not (self._broadcast and decision.counts):
            self._again(run, message, decision)
        elif self._broadcast:
            log.warning("%s failed; a broadcast message is not sent again", message)
            self._done_with(run, message)
        else:
            assert isinstance(decision, DeadLetter)
            run.queue.filing += 1
            self._core.spawn(self._file(run, message, exhausted=decision.exhausted))

    def _again(self, run: Run[ReceivedMessage], message: ReceivedMessage, decision: Again) -> None:
        again = run.queue.again(run, message, counts=decision.counts)
        again._chunk = run  # noqa: SLF001  a slot for us
        log.info("%s waits for %s, which comes again in %.1f s", run.queue.window.queue, message, decision.seconds)
        asyncio.get_running_loop().call_later(decision.seconds, run.queue.unblock)

    def _done_with(self, run: Run[ReceivedMessage], message: ReceivedMessage) -> None:
        run.marks[message.queue_offset - run.base] = 1
        run.queue.unblock()

    async def _file(self, run: Run[ReceivedMessage], message: ReceivedMessage, *, exhausted: bool) -> None:
        """File a message with the dead letters; while no broker takes it, it goes on blocking its queue."""
        try:
            await self._send_back.dead_letter(run.chunk, message, exhausted=exhausted)
        except MetaqError as error:
            log.warning("%s could not be filed with the dead letters and comes again: %s", message, error)
            retry = judge(message.reconsume_times, Later(), None)
            assert isinstance(retry, Again)
            self._again(run, message, retry)
        else:
            self._done_with(run, message)
        finally:
            run.queue.filing -= 1

    async def _file_undecodable(self, run: Run[ReceivedMessage], message: ReceivedMessage, error: Exception) -> None:
        """File a message with the dead letters at once: another try here would hold up its queue for nothing."""
        self._owner.count_failure(run.queue.window.queue, True)
        while not self._broadcast and not run.lost:
            try:
                await self._send_back.file_undecodable(run.chunk, message, error)
                break
            except MetaqError as failure:
                log.warning("%s, of which no value can be made, is not with the dead letters yet: %s", message, failure)
            await asyncio.sleep(self._seconds.again)
        run.marks[message.queue_offset - run.base] = 1

    async def _file_broken(self, run: Run[ReceivedMessage], message: ReceivedMessage, why: str) -> None:
        """File a message whose body cannot be read with the dead letters: no handler gets it."""
        self._owner.count_failure(run.queue.window.queue, True)
        while not self._broadcast and not run.lost:
            try:
                await self._send_back.dead_letter(run.chunk, message, exhausted=False)
                break
            except MetaqError as error:
                log.warning("%s, which cannot be read (%s), is not with the dead letters yet: %s", message, why, error)
            await asyncio.sleep(self._seconds.again)
        run.marks[message.queue_offset - run.base] = 1
