"""How one request full of messages reaches a broker: which queue, how often, and until when.

The rules are RocketMQ's (reference section 5.3), with two additions. Tries that can only go to the broker that has just
failed wait a little first, so that a broker that restarts is met again and the tries are not used up at once. And
SYSTEM_BUSY, with which a broker slows its producers down, is waited for within the time given and costs no try.

A try whose answer never came may have stored the messages all the same: a re-send under the same unique ids stores
them twice. Consumers see the ids.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.conversation.sending import Outgoing, Send, Stored
from metaq.client.core import ClientCore
from metaq.errors import NoRoute, RequestTimeout, SendFailed
from metaq.model import MessageQueue


class QueueRotation:
    """Round robin over a topic's queues, shared by all senders of a producer."""

    def __init__(self, start: int) -> None:
        self._count = itertools.count(start)

    def next(self, queues: list[MessageQueue], failed_broker: str | None = None) -> MessageQueue:
        """The next queue, on another broker than `failed_broker` if there is one."""
        for _ in queues:
            queue = queues[next(self._count) % len(queues)]
            if queue.broker != failed_broker:
                return queue
        return queues[next(self._count) % len(queues)]


Choose = Callable[[list[MessageQueue]], MessageQueue]
"""A queue among those that can be written; called for every try, since the list may have changed."""


class Sender:
    """Sends requests with retries. Lives in the background loop."""

    def __init__(self, core: ClientCore, group: str, retries: int) -> None:
        self._core, self._group, self._retries = core, group, retries
        self.rotation = QueueRotation(core.clock.random_below(1 << 16))

    async def send(self, outgoing: Outgoing, timeout: float, choose: Choose | None = None) -> Stored:
        """Send until it is stored, the tries are used up, or `timeout` seconds have passed.

        `choose` None rotates over the queues, and leaves a broker that failed.

        Raises: SendFailed with what each try said; NoRoute; BrokerError: the broker refuses this message for good.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + timeout
        attempts: list[tuple[str, str]] = []
        tries, waits, failed_broker, unknown = 0, 0, None, False
        while True:
            queue, queues = None, []
            try:
                known = self._core.routes.publish_queues_now(outgoing.topic) if not tries else None
                queues = known or await self._queues(outgoing.topic, deadline, fresh=tries > 0)
                queue = choose(queues) if choose is not None else self.rotation.next(queues, failed_broker)
                stored = await self._try(outgoing, queue, deadline - loop.time())
            except FAULTS as error:
                judgement = judge(error, Purpose.SEND, waits + 1)
                if not judgement.again:
                    raise
                failed_broker = queue.broker if queue is not None else None
                unknown = unknown or (queue is not None and judgement.maybe_done)
                attempt = (failed_broker or "name server", str(error))
                if attempt not in attempts:
                    attempts.append(attempt)
                pause = judgement.pause
                if not judgement.only_busy:
                    tries += 1
                    if judgement.elsewhere and choose is None and any(one.broker != failed_broker for one in queues):
                        pause = 0.0
                    else:
                        waits += 1
                over = loop.time() + pause >= deadline
                if tries > self._retries or over:
                    if len(attempts) == 1 and queue is None and isinstance(error, NoRoute):
                        raise
                    count = "1 try" if tries == 1 else f"{tries} tries"
                    spent = f"{count} in {loop.time() - started:.2f} s"
                    why = f"the timeout of {timeout:g} s is over" if over else f"retries={self._retries}"
                    raise _failure(outgoing, attempts, f"{spent}, {why}", unknown=unknown) from error
                await asyncio.sleep(pause)
            else:
                self._core.routes.forget_guess(outgoing.topic)
                return stored

    async def _queues(self, topic: str, deadline: float, *, fresh: bool) -> list[MessageQueue]:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._core.routes.publish_queues(topic, fresh=fresh)
        except TimeoutError:
            raise RequestTimeout(f"no name server told the route of topic {topic} in time") from None

    def _try(self, outgoing: Outgoing, queue: MessageQueue, seconds: float) -> Coroutine[Any, Any, Stored]:
        address = self._master_of(queue)
        if seconds <= 0:
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
        return Send(self._group, outgoing, queue, self._core.clock.now_ms())

    async def send_oneway(self, outgoing: Outgoing, choose: Choose | None = None) -> None:
        """Hand it to a connection and forget it. Raises NoRoute, ConnectionFailed: it was not even sent."""
        queues = await self._core.routes.publish_queues(outgoing.topic)
        queue = choose(queues) if choose is not None else self.rotation.next(queues)
        await self._core.transport.tell(self._master_of(queue), self._call(outgoing, queue).request())


def _failure(outgoing: Outgoing, attempts: list[tuple[str, str]], spent: str, *, unknown: bool) -> SendFailed:
    reasons = "; ".join(f"{broker}: {text}" for broker, text in attempts)
    outcome = (
        "Whether a try without an answer was stored is unknown: sending again may store it twice"
        if unknown
        else "All tries failed before a broker took it, so nothing was stored"
    )
    return SendFailed(f"sending to topic {outgoing.topic} failed after {spent} ({reasons}). {outcome}", tuple(attempts))
