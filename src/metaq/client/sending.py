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
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from metaq.client.core import ClientCore
from metaq.client.futures import Stored
from metaq.errors import (
    BadRequest,
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    NoRoute,
    RequestTimeout,
    SendFailed,
)
from metaq.model import MessageQueue, SendStatus
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request

STORED = {status.value: status for status in SendStatus}
"""Response codes of sends that are stored, with or without the promise asked for."""
_RETRIED = {
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.NO_PERMISSION,
    ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT,
}
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.05, 1.0
_BUSY_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is sent: one message, or a batch body. `properties` is "" for a batch, whose entries hold their own."""

    topic: str
    body: bytes
    sys_flag: int = 0
    flag: int = 0
    properties: str = ""
    batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


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
        waits = pauses()
        attempts: list[tuple[str, str]] = []
        tries, failed_broker, unknown = 0, None, False
        while True:
            queue, queues = None, []
            try:
                known = self._core.routes.publish_queues_now(outgoing.topic) if not tries else None
                queues = known or await self._queues(outgoing.topic, deadline, fresh=tries > 0)
                queue = choose(queues) if choose is not None else self.rotation.next(queues, failed_broker)
                return await self._try(outgoing, queue, deadline - loop.time())
            except (ClientError, BrokerError, BadRequest) as error:
                if _final(error):
                    raise
                failed_broker = queue.broker if queue is not None else None
                unknown = unknown or (queue is not None and _maybe_stored(error))
                attempt = (failed_broker or "name server", str(error))
                if attempt not in attempts:
                    attempts.append(attempt)
                if _busy(error):
                    pause = _BUSY_SECONDS
                else:
                    tries += 1
                    elsewhere = choose is None and any(other.broker != failed_broker for other in queues)
                    pause = 0.0 if elsewhere else next(waits)
                over = loop.time() + pause >= deadline
                if tries > self._retries or over:
                    if len(attempts) == 1 and queue is None and isinstance(error, NoRoute):
                        raise
                    count = "1 try" if tries == 1 else f"{tries} tries"
                    spent = f"{count} in {loop.time() - started:.2f} s"
                    why = f"the timeout of {timeout:g} s is over" if over else f"retries={self._retries}"
                    raise _failure(outgoing, attempts, f"{spent}, {why}", unknown=unknown) from error
                await asyncio.sleep(pause)

    async def _queues(self, topic: str, deadline: float, *, fresh: bool) -> list[MessageQueue]:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._core.routes.publish_queues(topic, fresh=fresh)
        except TimeoutError:
            raise RequestTimeout(f"no name server told the route of topic {topic} in time") from None

    async def _try(self, outgoing: Outgoing, queue: MessageQueue, seconds: float) -> Stored:
        data = self._core.routes.broker(queue.broker)
        address = data.master if data is not None else None
        if address is None:
            raise NoRoute(f"broker {queue.broker} has no master that is up")
        if seconds <= 0:
            late = RequestTimeout("the time given was over before the request was sent")
            late.sent = False
            raise late
        answer = await self._core.transport.call(address, self._command(outgoing, queue), seconds)
        status = STORED.get(answer.code)
        if status is None:
            raise BrokerError(answer.code, answer.remark or "", address, f"send to topic {outgoing.topic}")
        self._core.routes.forget_guess(outgoing.topic)
        said = headers.SendReplyHeader.from_ext(answer.ext)
        stored_in = queue._replace(queue_id=said.queue_id)
        return Stored(stored_in, said.queue_offset, status, said.message_id)

    def _command(self, outgoing: Outgoing, queue: MessageQueue) -> Command:
        header = headers.SendHeader(
            producer_group=self._group,
            topic=outgoing.topic,
            queue_id=queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_ms=self._core.clock.now_ms(),
            flag=outgoing.flag,
            properties=outgoing.properties,
            reconsume_times=outgoing.reconsume_times,
            max_reconsume_times=outgoing.max_reconsume_times,
            batch=outgoing.batch,
            broker_name=queue.broker,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if outgoing.batch else RequestCode.SEND_MESSAGE_V2
        return request(code, header, outgoing.body)

    async def send_oneway(self, outgoing: Outgoing, choose: Choose | None = None) -> None:
        """Hand it to a connection and forget it. Raises NoRoute, ConnectionFailed: it was not even sent."""
        queues = await self._core.routes.publish_queues(outgoing.topic)
        queue = choose(queues) if choose is not None else self.rotation.next(queues)
        data = self._core.routes.broker(queue.broker)
        if data is None or data.master is None:
            raise NoRoute(f"broker {queue.broker} has no master that is up")
        await self._core.transport.tell(data.master, self._command(outgoing, queue))


def _busy(error: Exception) -> bool:
    return isinstance(error, BrokerError) and error.code == ResponseCode.SYSTEM_BUSY


def _final(error: Exception) -> bool:
    """Whether no further try can help."""
    return isinstance(error, ClientClosed) or (
        isinstance(error, BrokerError) and error.code not in _RETRIED and not _busy(error)
    )


def pauses() -> Iterator[float]:
    """Seconds to wait before each further try: twice as long each time, up to a second."""
    pause = _PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def _maybe_stored(error: Exception) -> bool:
    """Whether the broker may have stored what was sent, although it did not say so."""
    return isinstance(error, ConnectionFailed | RequestTimeout) and error.sent


def _failure(outgoing: Outgoing, attempts: list[tuple[str, str]], spent: str, *, unknown: bool) -> SendFailed:
    said = "; ".join(f"{broker}: {text}" for broker, text in attempts)
    outcome = (
        "Whether a try without an answer was stored is unknown: sending again may store it twice"
        if unknown
        else "All tries failed before a broker took it, so nothing was stored"
    )
    return SendFailed(f"sending to topic {outgoing.topic} failed after {spent} ({said}). {outcome}", tuple(attempts))
