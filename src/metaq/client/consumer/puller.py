"""The pull loop of one queue: when there is room, what an answer means, how long to wait after a failure."""

from __future__ import annotations

import asyncio
import logging

from metaq.client.consumer.complaints import Complaints
from metaq.client.consumer.delivery import Delivery
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.received import ReceivedMessage
from metaq.client.consumer.subscriptions import Subscriptions
from metaq.client.consumer.window import Window
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.pulling import PLAIN_COUNT, PullResult, PullStatus
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.core import ClientCore
from metaq.client.pulling import Wanted, pull
from metaq.errors import MetaqError, RemoteProtocolError
from metaq.model import MessageModel, MessageQueue

log = logging.getLogger("metaq.client")


class Pulling:
    """What the pull loops of one member have in common."""

    def __init__(
        self, core: ClientCore, group: str, subscriptions: Subscriptions, options: GroupOptions, delivery: Delivery,
        complaints: Complaints,
    ) -> None:  # fmt: skip
        self.core, self.group, self.subscriptions, self.options = core, group, subscriptions, options
        self.delivery, self.complaints = delivery, complaints
        self.wanted = Wanted(group, ReceivedMessage, options.pull_bytes)
        self._heartbeat_from = 0.0
        """When a pull that is refused for want of a heartbeat may send the next (seconds, the core's even clock)."""

    def after_failure(self, queue: MessageQueue, error: MetaqError) -> float:
        """Seconds to wait before the next try. There is always one: a final answer today may be another tomorrow."""
        judgement = judge(error, Purpose.PULL)
        if judgement.no_heartbeat:
            now = self.core.clock.monotonic()
            if now >= self._heartbeat_from:  # One for the pulls of all queues.
                self._heartbeat_from = now + judgement.pause
                self.core.spawn(self.core.send_heartbeats())
        else:
            self.complaints.once(f"pull {queue}", f"group {self.group} cannot pull {queue}: {error}; trying again")
        return judgement.pause

    def skipped(self, queue: MessageQueue, gone: range) -> None:
        """Say which messages will never be handed out."""
        log.warning(
            "%d messages of %s were deleted before group %s consumed them: offsets %d to %d",
            len(gone), queue, self.group, gone.start, gone.stop - 1,
        )  # fmt: skip
        if self.options.on_skip is not None:
            try:
                self.options.on_skip(queue, gone)
            except Exception:
                log.exception("on_skip raised")


class QueuePuller:
    """One queue of a member, from the moment it is taken until it is released."""

    def __init__(self, pulling: Pulling, queue: MessageQueue, offset: int) -> None:
        self._pulling, self._options = pulling, pulling.options
        self.window: Window[ReceivedMessage] = Window(queue, offset, pulling.delivery.failed)
        self._wake = asyncio.Event()
        self.task = pulling.core.spawn(self._pull_for_ever())

    @property
    def queue(self) -> MessageQueue:
        return self.window.queue

    def look(self) -> None:
        """There may be room for more."""
        self._wake.set()

    def release(self) -> None:
        """Pull no more, and hand out nothing more."""
        self.window.dropped = True
        self.task.cancel()

    async def _pull_for_ever(self) -> None:
        while not self.window.dropped:
            if pause := await self._pull_once():
                await asyncio.sleep(pause)

    async def _pull_once(self) -> float:
        """One pull, when there is room for it. Returns how many seconds to wait before the next."""
        pulling, window, queue, seconds = self._pulling, self.window, self.queue, self._options.seconds
        count = await self._room()
        asked = pulling.core.clock.monotonic()
        try:
            pulled = await pull(
                pulling.core, pulling.wanted, queue, window.next_offset, count, pulling.subscriptions[queue.topic],
                commit_offset=self._commit_offset(), broker_id=window.broker_id,
            )  # fmt: skip
        except RemoteProtocolError as error:
            log.error("%s from %d on cannot be read: %s", queue, window.next_offset, error)  # noqa: TRY400  its traceback says nothing
            return seconds.retry
        except FAULTS as error:
            window.broker_id = 0
            return pulling.after_failure(queue, error)
        if window.dropped:
            return 0.0
        pulling.complaints.over(f"pull {queue}")
        result = pulled.result
        window.broker_id = result.suggested_broker_id
        if result.status is PullStatus.OUT_OF_RANGE:
            self._out_of_range(result)
            return seconds.pause
        pulling.delivery.deliver(window, pulled)
        # A broker that does not hold pulls must not be asked all the time.
        unheld = result.status is PullStatus.NOTHING_NEW and pulling.core.clock.monotonic() - asked < seconds.pause
        return seconds.pause if unheld else 0.0

    def _commit_offset(self) -> int:
        return self.window.finished_offset() if self._options.model is MessageModel.CLUSTERING else 0

    def _out_of_range(self, result: PullResult) -> None:
        wanted = self.window.next_offset
        if wanted < result.min_offset:
            self._pulling.skipped(self.queue, range(wanted, result.min_offset))
            self.window.add([], result.next_offset)
        else:
            log.warning(
                "%s ends at %d, group %s wanted %d: going on at %d",
                self.queue, result.max_offset, self._pulling.group, wanted, result.next_offset,
            )  # fmt: skip
            self.window.reset(result.next_offset)

    async def _room(self) -> int:
        """Wait until so little is unfinished that a pull is due; how many messages to ask for."""
        core, options, window = self._pulling.core, self._options, self.window
        most = options.pull_count if core.is_ours(self.queue.broker) else min(options.pull_count, PLAIN_COUNT)
        stalled_at = core.clock.monotonic() + options.seconds.stall
        while True:
            finished = window.finished_offset()
            free = options.queue_messages_max - window.unfinished
            if (
                free >= min(most, options.queue_messages_max)
                and window.next_offset - finished <= options.span_max
                and window.unfinished_bytes <= options.queue_bytes_max
            ):
                window.paused = False
                return max(1, min(most, free))
            window.paused = True
            if core.clock.monotonic() > stalled_at:
                self._warn_of_stall()
            self._wake.clear()
            try:
                async with asyncio.timeout(options.seconds.pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _warn_of_stall(self) -> None:
        self._pulling.complaints.once(
            f"stall {self.queue}",
            f"{self.window.unfinished} messages of {self.queue} have been unfinished for "
            f"{self._options.seconds.stall:.0f} s, and group {self._pulling.group} pulls no more of it until some are: are "
            "handlers slow or stuck, or messages taken without `with message:` or ack()?",
        )
