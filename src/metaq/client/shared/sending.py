"""Sending of one request with retries: choice of the queue, number of tries, and time-out.

The rules are those of RocketMQ's producer, with three additions. A try that can only go to the broker that has just
failed is delayed a little, so that the tries are not used up while a broker restarts. SYSTEM_BUSY, a broker's
flow control, costs no try: it is repeated within the time-out. Nor does a route that no name server tells.

A try whose response was lost may have stored the messages: a re-send, under the same unique ids, stores them twice. Consumers see
the ids.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

from msgspec import Struct

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.latency import BrokerLatencies
from metaq.client.conversation.retry import Judgement, Purpose, judge
from metaq.client.conversation.sending.sending import Outgoing, Send, Stored, Template
from metaq.client.shared.core import ClientCore
from metaq.errors import ConnectionFailed, MetaqError, NoRoute, RequestTimeout, SendFailed
from metaq.model import MessageQueue, SendStatus

T = TypeVar("T")

ROUTE_PAUSE = 0.2
"""Between two look-ups of a route while no name server can be reached, s."""


async def found_within(seconds: float, look_up: Callable[[], Awaitable[T]]) -> T:
    """Look a route up, again and again while no name server can be reached. Raises what the last try in `seconds` has raised."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await look_up()
        except (ConnectionFailed, RequestTimeout):
            if loop.time() + ROUTE_PAUSE >= deadline:
                raise
        await asyncio.sleep(ROUTE_PAUSE)


class SendRules(Struct, frozen=True):
    """Retry rules of a producer."""

    retries: int = 2
    """Tries after the first."""
    another_when_not_ok: bool = False
    """Try another broker after a status other than SEND_OK (retryAnotherBrokerWhenNotStoreOK)."""
    avoid_slow: bool = False
    """Avoid slow and failed brokers for a while (`metaq.client.conversation.latency`)."""
    template: Template = Template()


class QueueRotation:
    """Round robin over a topic's queues, shared by all sends of a producer."""

    def __init__(self, start: int) -> None:
        self._count = itertools.count(start)

    def next(self, queues: list[MessageQueue], failed: Collection[str] = ()) -> MessageQueue:
        """Return the next queue: on a broker that has not failed, else on another one than the last that has."""
        for avoided in (failed, list(failed)[-1:]):
            for _ in queues:
                queue = queues[next(self._count) % len(queues)]
                if queue.broker not in avoided:
                    return queue
        return queues[next(self._count) % len(queues)]


class FirstTry(Struct, frozen=True):
    """A first try that was made on a direct link (`metaq.client.producing.direct`)."""

    queue: MessageQueue
    outcome: Stored | MetaqError
    seconds: float
    """Duration, s."""


Choose = Callable[[list[MessageQueue]], MessageQueue]
"""Chooses one of the writable queues. Called for every try, since the list may have changed."""


class Sender:
    """Sends requests with retries, on the background loop."""

    def __init__(self, core: ClientCore, group: str, rules: SendRules) -> None:
        self._core, self._group, self.rules = core, group, rules
        self.rotation = QueueRotation(core.clock.random_below(1 << 16))
        self.latencies = BrokerLatencies()
        self._waits = core.shared().transport.waits

    async def send(
        self,
        outgoing: Outgoing,
        timeout: float,
        choose: Choose | None = None,
        *,
        insist: bool = False,
        first: FirstTry | None = None,
    ) -> Stored:
        """Send until stored, until the tries are used up, or for `timeout` seconds.

        `choose` None rotates over the queues, and leaves a broker that failed. `insist`: a status other than SEND_OK is a
        reason to try again, and the last such status is the outcome if no try brings a better one. `first`: a try that was
        made already, and counts.

        Raises: SendFailed with what each try said; NoRoute; BrokerError: the broker refuses this message for good.
        """
        loop = asyncio.get_running_loop()
        before = first.seconds if first is not None else 0.0
        tries = _Tries(outgoing, self.rules.retries, loop.time() - before, timeout, strict=insist)
        while True:
            queue, queues, began = None, [], loop.time()
            try:
                # The first try uses the cached route. After a failure a fresh one is needed: the broker may be gone.
                known = self._core.routes.publish_queues_now(outgoing.topic) if not tries.count else None
                if first is not None:
                    # Before the route is asked for, which may fail: what has become of this try must be told all the same.
                    made, first = first, None
                    queue, queues, began = made.queue, known or [], loop.time() - made.seconds
                    # Judged below like the failure of a try that was made here.
                    if isinstance(made.outcome, MetaqError):
                        raise made.outcome
                    stored = made.outcome
                else:
                    queues = known or await self._queues(outgoing.topic, tries.deadline, fresh=tries.count > 0)
                    began = loop.time()
                    queue = choose(queues) if choose is not None else self._next(queues, tries.failed, began)
                    if self._waits.until:  # of any broker: almost never
                        await self._wait_for_quota(queue, tries.deadline)
                        began = loop.time()
                    stored = await self._try(outgoing, queue, tries.deadline - began)
            except FAULTS as error:
                judgement = judge(error, Purpose.SEND, tries.waits + 1)
                if not judgement.again:
                    if tries.kept is not None:  # an earlier try was stored, with another status than SEND_OK
                        return tries.kept
                    raise
                # A failure counts as 30 s of latency, as in RocketMQ.
                if queue is not None and self.rules.avoid_slow:
                    self.latencies.failed(queue.broker, loop.time() - began, loop.time())
                if queue is None and isinstance(error, ConnectionFailed | RequestTimeout):
                    pause = tries.unrouted(error)
                else:
                    pause = tries.failure(error, judgement, queue, queues if choose is None else [])
                if tries.over(loop.time() + pause):
                    if tries.kept is not None:
                        return tries.kept
                    if tries.nowhere and isinstance(error, NoRoute):
                        raise
                    raise tries.error(loop.time(), pause) from error
            else:
                # The send may have created the topic, whose route was a guess until now.
                self._core.routes.forget_guess(outgoing.topic)
                if self.rules.avoid_slow:
                    self.latencies.answered(queue.broker, loop.time() - began, loop.time())
                if stored.status is SendStatus.SEND_OK or not self.wants_better(choose, insist):
                    return stored
                pause = tries.not_ok(stored, queue, queues if choose is None else [])
                if tries.over(loop.time() + pause):
                    return stored
            await asyncio.sleep(pause)

    async def _wait_for_quota(self, queue: MessageQueue, deadline: float) -> None:
        """Wait as long as the queue's broker has told this client to, but not beyond the deadline."""
        left = self._waits.left(self._master_of(queue))
        await asyncio.sleep(min(left, max(0.0, deadline - asyncio.get_running_loop().time())))

    def wants_better(self, choose: Choose | None, insist: bool) -> bool:
        """Return whether to try again after a status other than SEND_OK. Arguments as of `send`."""
        return insist or (self.rules.another_when_not_ok and choose is None)

    def next_queue(self, queues: list[MessageQueue], now: float) -> MessageQueue:
        """Any thread: return the queue of a first try. `now`: time of the loop, s."""
        return self._next(queues, (), now)

    def _next(self, queues: list[MessageQueue], failed: Collection[str], now: float) -> MessageQueue:
        if not self.rules.avoid_slow:
            return self.rotation.next(queues, failed)
        avoided = {queue.broker for queue in queues if not self.latencies.available(queue.broker, now)}
        usable = [queue for queue in queues if queue.broker not in avoided]
        if not usable:
            best = self.latencies.pick(avoided)
            usable = [queue for queue in queues if queue.broker == best]
        return self.rotation.next(usable, failed)

    async def _queues(self, topic: str, deadline: float, *, fresh: bool) -> list[MessageQueue]:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._core.routes.publish_queues(topic, fresh=fresh, template=self.rules.template)
        except TimeoutError:
            raise RequestTimeout(f"no name server told the route of topic {topic} in time") from None

    def _try(self, outgoing: Outgoing, queue: MessageQueue, seconds: float) -> Coroutine[Any, Any, Stored]:
        address = self._master_of(queue)
        if seconds <= 0:
            # `sent` False: the caller may repeat the send without a duplicate.
            late = RequestTimeout("the time given was over before the request was sent")
            late.sent = False
            raise late
        return self._core.ask(address, self._call(outgoing, queue), seconds)

    def _master_of(self, queue: MessageQueue) -> str:
        data = self._core.routes.broker(queue.broker)
        if data is None or data.master is None:
            raise NoRoute(f"broker {queue.broker} has no master that is up")
        return data.master

    def _call(self, outgoing: Outgoing, queue: MessageQueue) -> Send:
        return Send(self._group, outgoing, queue, self._core.clock.now_ms(), self.rules.template)

    async def send_oneway(self, outgoing: Outgoing, choose: Choose | None = None) -> None:
        """Send one-way: no response, no retry.

        Raises NoRoute, ConnectionFailed: it was not even sent.
        """
        queues = await self._core.routes.publish_queues(outgoing.topic, template=self.rules.template)
        now = asyncio.get_running_loop().time()
        queue = choose(queues) if choose is not None else self._next(queues, (), now)
        await self._core.send_oneway(self._master_of(queue), self._call(outgoing, queue))


class _Tries:
    """The tries of one send: errors so far, and whether another one may be made."""

    def __init__(self, outgoing: Outgoing, retries: int, now: float, timeout: float, *, strict: bool) -> None:
        self._outgoing, self._retries, self._timeout, self._started = outgoing, retries, timeout, now
        self._strict = strict
        self.deadline = now + timeout
        self.count = self.waits = 0
        """Failed tries; and those of them after which only the same broker could be tried."""
        self.failed: dict[str, None] = {}
        """Brokers, in the order in which they failed."""
        self.kept: Stored | None = None
        """The last outcome with another status than SEND_OK."""
        self._attempts: list[tuple[str, str]] = []
        self._unknown = False

    def failure(
        self, error: MetaqError, judgement: Judgement, queue: MessageQueue | None, others: list[MessageQueue]
    ) -> float:
        """Note a failed try; `others` may be tried next. Returns the pause before, s."""
        self._unknown = self._unknown or (queue is not None and judgement.maybe_done)
        broker = queue.broker if queue is not None else None
        self._note(broker or "name server", error)
        if broker is not None:
            self.failed.pop(broker, None)
            # Moved to the end: the last broker that failed is avoided the longest.
            self.failed[broker] = None
        if judgement.only_busy:
            return judgement.pause
        self.count += 1
        if judgement.elsewhere and any(one.broker != broker for one in others):
            return 0.0
        self.waits += 1
        return judgement.pause

    def unrouted(self, error: MetaqError) -> float:
        """Note that no name server told the route, which costs no try. Returns the pause before the next look-up, s."""
        self._note("name server", error)
        return ROUTE_PAUSE

    def _note(self, peer: str, error: MetaqError) -> None:
        # A peer that is busy or away for seconds would otherwise fill the error with the same line.
        if (attempt := (peer, str(error))) not in self._attempts:
            self._attempts.append(attempt)

    def not_ok(self, stored: Stored, queue: MessageQueue, others: list[MessageQueue]) -> float:
        """Note a try with another status than SEND_OK. Returns the pause before the next, s."""
        self.kept = stored
        self.failed.pop(queue.broker, None)
        self.failed[queue.broker] = None
        self.count += 1
        if any(one.broker != queue.broker for one in others):
            return 0.0
        self.waits += 1
        return judge(RequestTimeout(""), Purpose.SEND, self.waits).pause

    def over(self, next_at: float) -> bool:
        """Return whether no try is left at `next_at`."""
        return self.count > self._retries or next_at >= self.deadline

    @property
    def nowhere(self) -> bool:
        """Whether no broker could be asked at all."""
        return len(self._attempts) == 1 and not self.failed

    def error(self, now: float, pause: float) -> SendFailed:
        """Make the error for the user, after the last try."""
        count = "1 try" if self.count == 1 else f"{self.count} tries" if self.count else "no try at a broker"
        late = now + pause >= self.deadline
        why = f"the timeout of {self._timeout:g} s is over" if late else f"retries={self._retries}"
        reasons = "; ".join(f"{broker}: {text}" for broker, text in self._attempts)
        outcome = (
            "Whether a try without an answer was stored is unknown: sending again may store it twice"
            if self._unknown
            else f"{'All tries failed before a' if self.count else 'No'} broker took it, so nothing was stored"
        )
        stays = ". In strict order it goes to no other queue" if self._strict else ""
        return SendFailed(
            f"sending to topic {self._outgoing.topic} failed after {count} in {now - self._started:.2f} s, {why} "
            f"({reasons}){stays}. {outcome}",
            tuple(self._attempts),
        )
