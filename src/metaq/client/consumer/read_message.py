"""What readers and pull consumers hand out: messages that have a value.

They are reported to observers (`metaq.client.observing.observing`).

Nobody finishes such a message, so its delivery ends where it begins: as with RocketMQ's pull consumers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Generic

from metaq.client.observing.message_log import MessageLog
from metaq.client.observing.observing import DeliveryObserver, Observing
from metaq.client.observing.tracing import Tracer
from metaq.client.observing.wanted import delivery_spans
from metaq.client.shared.core import ClientCore
from metaq.client.shared.serializers import Decode
from metaq.client.shared.values import Received_co
from metaq.model import StoredMessage
from metaq.model.trace import Result

log = logging.getLogger("metaq.client")


class ReadMessage(StoredMessage, Generic[Received_co]):
    """A message as a `metaq.Reader` or a `metaq.PullConsumer` has read it: there is nothing to acknowledge."""

    __slots__ = ("_decode", "_fault", "_value")

    _decode: Decode
    _fault: str
    _value: Received_co

    @property
    def body_fault(self) -> str:
        """Why the body could not be decompressed: it is as it is stored. Empty: it is as it was sent."""
        return getattr(self, "_fault", "")

    @property
    def value(self) -> Received_co:
        """What `deserialize` makes of the body, when it is asked for; the body itself if there is none.

        Raises what that raises for a body of which it can make nothing.
        """
        try:
            return self._value
        except AttributeError:
            decode = getattr(self, "_decode", None)
        self._value = self.body if decode is None else decode(self.body)  # type: ignore[assignment]
        return self._value

    def __getstate__(self) -> dict[str, object]:
        state = super().__getstate__()
        if self.body_fault:
            state["_fault"] = self.body_fault
        if hasattr(self, "_decode"):
            with contextlib.suppress(Exception):  # A copy has no value then but its body, as one read without has.
                state["_value"] = self.value
        return state


class Readings:
    """The readings of one client, for its observers. `begin` and `close` in the loop, the rest in any thread."""

    def __init__(self, core: ClientCore, group: str, observing: Observing, decode: Decode | None) -> None:
        self._decode = decode
        watchers = (
            Tracer.of(core, group, observing, role="CONSUME"), MessageLog.of(core, group, observing), observing.meter(group),
        )  # fmt: skip
        self._observers: tuple[DeliveryObserver, ...] = tuple(one for one in watchers if one is not None)
        self._spans = delivery_spans(observing, core, group)
        self.idle = decode is None and not self._observers and self._spans is None
        """Whether handing out a message needs nothing: there are no observers, and no values to make."""

    def begin(self) -> None:
        for observer in self._observers:
            observer.start()

    async def close(self) -> None:
        for observer in self._observers:
            await observer.close()

    def hand_out(self, messages: Iterable[ReadMessage]) -> None:
        """Notify the observers of messages that are handed out now."""
        messages = list(messages)
        if self._spans is not None:
            self._spans.received(messages)
        for message in messages:
            if self._decode is not None:
                message._decode = self._decode  # noqa: SLF001  a slot for us
            for observer in self._observers:
                try:
                    observer.ended(message, observer.begun(message), Result.SUCCESS, 0)
                except Exception:
                    log.exception("watching %s failed", message)
