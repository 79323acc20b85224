"""Sending of one request with retries: choice of the queue, number of tries, and time-out.

The rules are those of RocketMQ's producer, with additions (`metaq.client.conversation.sending.tries`): what surely was not stored,
because the broker was busy, away, or does not lead, costs no try, nor does a route that no name server tells. All of it ends with the
time-out. Who fails asks for the topic's route at once, and waits no longer than until it changes.

A try whose response was lost may have stored the messages: a re-send, under the same unique ids, stores them twice. Consumers see
the ids.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from msgspec import Struct

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.latency import BrokerLatencies
from metaq.client.conversation.retry import Purpose, judge, may_have_moved
from metaq.client.conversation.sending.sending import Outgoing, Send, Stored, Template
from metaq.client.conversation.sending.tries import ROUTE_PAUSE, Tries
from metaq.client.shared.core import ClientCore
from metaq.errors import ConnectionFailed, MetaqError, NoRoute, RequestTimeout
from metaq.model import MessageQueue, SendStatus

T = TypeVar("T")


async def found_within(seconds: float, look_up: Callable[[], Awaitable[T]]) -> T:
    """Look a route up, again and again while no name server can be reached, or only a leader is missing.

    Raises what the last try in `seconds` has raised.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await look_up()
        except (ConnectionFailed, RequestTimeout, NoRoute) as error:
            if (isinstance(error, NoRoute) and not error.away) or loop.time() + ROUTE_PAUSE >= deadline:
                raise
        await asyncio.sleep(ROUTE_PAUSE)


class SendRules(Struct, frozen=True):
    """Retry rules of a producer."""

    retries: int = 2
    """Tries after the first, of those that count."""
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
        tries = Tries(outgoing.topic, self.rules.retries, loop.time() - before, timeout, strict=insist)
        while True:
            queue, queues, began = None, [], loop.time()
            try:
                # The first try uses the cached route. After a failure a fresh one is needed: the broker may be gone.
                known = self._core.routes.publish_queues_now(outgoing.topic) if not tries.needs_route else None
                if first is not None:
                    # Before the route is asked for, which may fail: what has become of this try must be told all the same.
                    made, first = first, None
                    queue, queues, began = made.queue, known or [], loop.time() - made.seconds
                    # Judged below like the failure of a try that was made here.
                    if isinstance(made.outcome, MetaqError):
                        raise made.outcome
                    stored = made.outcome
                else:
                    queues = known or await self._queues(outgoing.topic, tries.deadline, fresh=tries.needs_route)
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
                    if queue is not None and may_have_moved(error):
                        self._core.leaders.doubt(queue.broker)
                    others = {one.broker for one in queues} if choose is None else ()
                    pause = tries.failure(error, judgement, queue.broker if queue is not None else None, others)
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
                others = {one.broker for one in queues} if choose is None else ()
                pause = tries.not_ok(stored, queue.broker, others)
                if tries.over(loop.time() + pause):
                    return stored
            if pause and queue is not None:
                await self._core.leaders.pause(queue.broker, pause)
            else:
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
                if fresh:
                    return await self._core.routes.recent_queues(topic, self.rules.template)
                return await self._core.routes.publish_queues(topic, template=self.rules.template)
        except TimeoutError:
            raise RequestTimeout(f"no name server told the route of topic {topic} in time") from None

    async def _try(self, outgoing: Outgoing, queue: MessageQueue, seconds: float) -> Stored:
        address = self._master_of(queue)
        if seconds <= 0:
            # `sent` False: the caller may repeat the send without a duplicate.
            late = RequestTimeout("the time given was over before the request was sent")
            late.sent = False
            raise late
        return await self._core.ask_leader(queue.broker, address, self._call(outgoing, queue), seconds)

    def _master_of(self, queue: MessageQueue) -> str:
        data = self._core.routes.broker(queue.broker)
        if data is None or data.master is None:
            missing = NoRoute(f"broker {queue.broker} has no master that is up")
            missing.away = True
            raise missing
        return data.master

    def _call(self, outgoing: Outgoing, queue: MessageQueue) -> Send:
        return Send(self._group, outgoing, queue, self._core.clock.now_ms(), self.rules.template)

    async def send_oneway(self, outgoing: Outgoing, timeout: float, choose: Choose | None = None) -> None:
        """Send one-way: no response. It is handed over once, to the first broker that can be reached within `timeout` seconds.

        Raises NoRoute, ConnectionFailed, SendFailed: it was not even sent.
        """
        loop = asyncio.get_running_loop()
        tries = Tries(outgoing.topic, self.rules.retries, loop.time(), timeout, strict=False)
        while True:
            queue, queues = None, []
            try:
                queues = await self._queues(outgoing.topic, tries.deadline, fresh=tries.needs_route)
                queue = choose(queues) if choose is not None else self._next(queues, tries.failed, loop.time())
                await self._core.send_oneway(self._master_of(queue), self._call(outgoing, queue))
            except FAULTS as error:
                judgement = judge(error, Purpose.SEND, tries.waits + 1)
                if not judgement.away:
                    raise
                if queue is not None:
                    self._core.leaders.doubt(queue.broker)
                others = {one.broker for one in queues} if choose is None else ()
                pause = tries.failure(error, judgement, queue.broker if queue is not None else None, others)
                if tries.over(loop.time() + pause):
                    raise
            else:
                return
            await asyncio.sleep(pause)
