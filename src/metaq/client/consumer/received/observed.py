"""Messages whose handling is watched: what consumers that trace or log hand out (`metaq.client.observing.observing`).

A delivery begins when the message is handed out and ends when it is finished or has failed, by whatever way.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from types import TracebackType

from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import Later, Pause, Reject
from metaq.client.consumer.received.replying import NO_KEYS, REPLY_SECONDS, ReplyFuture
from metaq.client.observing.observing import Carrying, DeliveryObserver
from metaq.clock import Clock
from metaq.model.trace import Result

log = logging.getLogger("metaq.client")


class Deliveries:
    """The watched deliveries of one consumer."""

    def __init__(self, observers: tuple[DeliveryObserver, ...], clock: Clock) -> None:
        self._observers, self._clock = observers, clock

    def each(self, messages: Generator[ReceivedMessage]) -> Generator[ReceivedMessage]:
        """The same messages, each begun when it is handed out."""
        try:
            for message in messages:
                self._begin(message)
                yield message
        # A generator that is left early hands its rest back when it is closed.
        finally:
            messages.close()

    def hands(self, hands: Generator[list[ReceivedMessage]]) -> Generator[list[ReceivedMessage]]:
        """The same, for lists."""
        try:
            for hand in hands:
                for message in hand:
                    self._begin(message)
                yield hand
        finally:
            hands.close()

    def _begin(self, message: ReceivedMessage) -> None:
        if isinstance(message, ObservedMessage):
            begun = []
            for observer in self._observers:
                try:
                    begun.append(observer.begun(message))
                except Exception:
                    log.exception("watching %s failed", message)
                    begun.append(None)
            message._delivery = ObservedDelivery(self, tuple(begun), self._clock.monotonic())  # noqa: SLF001  a slot for us

    def end(self, message: ReceivedMessage, begun: tuple[object, ...], since: float, result: Result) -> None:
        """Notify the observers that a delivery has ended."""
        cost_ms = round((self._clock.monotonic() - since) * 1000)
        for observer, token in zip(self._observers, begun, strict=True):
            try:
                observer.ended(message, token, result, cost_ms)
            except Exception:
                log.exception("watching %s failed", message)


class ObservedDelivery:
    """The delivery of one message that is in hand."""

    __slots__ = ("begun", "deliveries", "since")

    def __init__(self, deliveries: Deliveries, begun: tuple[object, ...], since: float) -> None:
        self.deliveries, self.begun, self.since = deliveries, begun, since


class ObservedMessage(ReceivedMessage):
    """A `ReceivedMessage` whose first verdict is reported to observers."""

    __slots__ = ("_delivery",)

    _delivery: ObservedDelivery | None

    def reply(
        self,
        body: bytes | bytearray | memoryview,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = NO_KEYS,
        properties: dict[str, str] | None = None,
        flag: int = 0,
        timeout: float = REPLY_SECONDS,
    ) -> ReplyFuture:
        delivery: ObservedDelivery | None = getattr(self, "_delivery", None)
        for token in delivery.begun if delivery is not None else ():
            if isinstance(token, Carrying):
                properties = token.carried_by(properties)
        return super().reply(body, tag=tag, keys=keys, properties=properties, flag=flag, timeout=timeout)

    def ack(self) -> None:
        super().ack()
        self._ended(Result.SUCCESS)

    def _fail(self, verdict: BaseException) -> None:
        super()._fail(verdict)
        self._ended(Result.FAILED if isinstance(verdict, Later | Reject | Pause) else Result.EXCEPTION)

    def timed_out(self) -> None:
        self._ended(Result.TIMEOUT)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.settle(error)

    def _ended(self, result: Result) -> None:
        delivery: ObservedDelivery | None = getattr(
            self, "_delivery", None
        )  # A copy has none, nor one never handed out.
        if delivery is not None:
            self._delivery = None
            delivery.deliveries.end(self, delivery.begun, delivery.since, result)
