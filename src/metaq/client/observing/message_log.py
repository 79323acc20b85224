"""The message log: a line for each send and each delivery, so many a second and no more (logger `metaq.messages`)."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Self

from metaq.client.conversation.sending.sending import Outgoing
from metaq.client.observing.observing import Observing, Sends
from metaq.client.shared.core import ClientCore
from metaq.client.shared.futures import SendBatch
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.trace import Result

log = logging.getLogger("metaq.messages")

_RESULTS = {Result.SUCCESS: "ok", Result.TIMEOUT: "timed out", Result.EXCEPTION: "exception", Result.FAILED: "failed"}


class MessageLog:
    """The message log of one client. Safe to use from any thread."""

    def __init__(self, core: ClientCore, group: str, per_second: int) -> None:
        self._core, self._group, self._per_second = core, group, per_second
        self._lock = threading.Lock()
        self._second = 0.0
        """Start of the present second (monotonic seconds)."""
        self._lines = self._left_out = 0
        """Lines written in the present second; lines left out since the last report."""
        self._ticking: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, core: ClientCore, group: str, observing: Observing) -> Self | None:
        """The log of a client; None if none is wanted."""
        return cls(core, group, observing.message_log_rate) if observing.message_log else None

    def start(self) -> None:
        """In the loop."""
        self._ticking = self._core.every(1.0, self._tick)

    async def close(self) -> None:
        """In the loop: report what was left out."""
        if self._ticking is not None:
            self._ticking.cancel()
        self._tell_left_out()

    def wants(self, outgoing: Outgoing, batch: SendBatch) -> bool:  # noqa: ARG002  what is left out is counted line by line
        return log.isEnabledFor(logging.INFO)

    def sent(self, sends: Sends) -> None:
        """In the loop."""
        # Only messages that get a line are decoded: most of a fast producer's get none.
        room = self._room(sends.count)
        for one in sends.each(room) if room else ():
            keys = one.properties.get(props.KEYS, "-")
            if one.error is not None:
                log.info(
                    "not sent: topic %s, key %s, id %s, after %d ms: %s",
                    sends.outgoing.topic, keys, one.message_id, sends.cost_ms, one.error,
                )  # fmt: skip
            else:
                receipt = sends.batch.receipt(one.place)
                log.info(
                    "sent: topic %s, key %s, id %s, %s in %d ms, %s offset %d", sends.outgoing.topic, keys, one.message_id,
                    receipt.status.name, sends.cost_ms, receipt.queue, receipt.offset,
                )  # fmt: skip

    def begun(self, message: StoredMessage) -> object:  # noqa: ARG002  the end is what is logged
        return None

    def ended(self, message: StoredMessage, begun: object, result: Result, cost_ms: int) -> None:  # noqa: ARG002
        if log.isEnabledFor(logging.INFO) and self._room(1):
            log.info(
                "delivered: group %s, topic %s, key %s, id %s, attempt %d, %s in %d ms",
                self._group, message.topic, message.properties.get(props.KEYS, "-"), message.message_id,
                message.reconsume_times + 1, _RESULTS[result], cost_ms,
            )  # fmt: skip

    def _room(self, wanted: int) -> int:
        """Return how many of `wanted` lines may be written now, and count the others as left out."""
        now = self._core.clock.monotonic()
        with self._lock:
            # By the clock, not by `_tick`: a busy loop may tick late.
            if now - self._second >= 1.0:
                self._second, self._lines = now, 0
            given = min(wanted, self._per_second - self._lines)
            self._lines += given
            self._left_out += wanted - given
        return given

    async def _tick(self) -> None:
        self._tell_left_out()

    def _tell_left_out(self) -> None:
        with self._lock:
            count, self._left_out = self._left_out, 0
        if count:
            log.info(
                "%d more messages of group %s: message_log_rate is %d lines a second",
                count,
                self._group,
                self._per_second,
            )
