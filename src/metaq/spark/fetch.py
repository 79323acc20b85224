"""Reads one slice of a queue: every message of [start, end), once, in order, or a loud account of what is gone.

Two pulls are under way at a time, so that the broker gathers the next megabyte while this one is decoded. The second is
sent before the first is answered, so its offset is a guess: the first asks for a *count* of messages that should fill
the wanted bytes, the second begins behind that count. When an answer is shorter than asked (a RocketMQ gives 32 messages
and 256 KiB at most, our broker what `maxMsgBytes` says), what is missing is asked for again before going on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from metaq.client import arrow
from metaq.errors import (
    BadRequest,
    BrokerError,
    MessagesLost,
    MetaqError,
    OffsetOutOfRange,
    RemoteProtocolError,
    RequestTimeout,
)
from metaq.model.queue import MessageQueue
from metaq.spark.cluster import PULL_CODES, Cluster, Patience
from metaq.spark.link import Link
from metaq.spark.offsets import Slice
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from metaq.wire.headers import PullHeader, PullReplyHeader

_LOG = logging.getLogger(__name__)

GROUP = "metaq-spark"
"""The consumer group that pulls are made for when no `progressGroup` is named."""
MIB = 1024 * 1024
PULL_BYTES = MIB
"""What one pull should bring: at this size the cost of a request is noise, and the pages are still in the cache."""
COUNT_FIRST = 1024
COUNT_MAX = 65_535
BATCH_ROWS = 5_000
BATCH_BYTES = 8 * MIB
"""An Arrow batch is handed on with this many rows or bytes (pulls are never cut, so it may hold one pull more)."""
PULLS_UNDER_WAY = 2

_SUBSCRIPTION_GIVEN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchSettings:
    """How slices are read. Plain values: it travels to workers."""

    group: str = GROUP
    fail_on_data_loss: bool = True
    retry_seconds: float = 30.0
    pull_bytes: int = PULL_BYTES


class Pulled(NamedTuple):
    """Answer of one pull: the records of [start, stop), back to back."""

    start: int
    stop: int
    body: memoryview
    max_offset: int


class _Asked(NamedTuple):
    opaque: int
    start: int
    messages: int


def read_slice(cluster: Cluster, wanted: Slice, settings: FetchSettings) -> Iterator[arrow.Decoded]:
    """The messages of `wanted`, decoded, about BATCH_ROWS at a time.

    Raises: MessagesLost: some have left the log, and `fail_on_data_loss` is set. Otherwise what `Cluster` raises, when
        trying again for `retry_seconds` did not help.
    """
    reader = _SliceReader(cluster, wanted, settings)
    waiting: list[Pulled] = []
    for pulled in reader.pulls():
        if waiting and pulled.start != waiting[-1].stop:  # Some were skipped, which has been told.
            yield reader.decode(waiting)
            waiting = []
        waiting.append(pulled)
        rows, size = pulled.stop - waiting[0].start, sum(len(part.body) for part in waiting)
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield reader.decode(waiting)
            waiting = []
    if waiting:
        yield reader.decode(waiting)


def tell_loss(queue: MessageQueue, lost: range, *, fail: bool) -> None:
    """Messages are gone. Raises MessagesLost, or logs it."""
    if fail:
        raise MessagesLost(queue, lost, "Set failOnDataLoss=false to go on without them.")
    _LOG.warning("%s", MessagesLost(queue, lost))


def tell_short(queue: MessageQueue, wanted: int, kept: range, *, fail: bool) -> None:
    """A queue ends before an offset that it once reached. Nothing is known to be gone: what lay there is not the queue's.

    Raises OffsetOutOfRange, or logs it.
    """
    why = "The queue once reached that offset: its topic was made anew, or the broker lost its newest messages."
    if fail:
        ways = "Begin with a new checkpoint, or set failOnDataLoss=false to go on at the queue's end."
        raise OffsetOutOfRange(queue, wanted, kept, f"{why} {ways}")
    _LOG.warning("%s Going on at its end.", OffsetOutOfRange(queue, wanted, kept, why))


class _NotReached(RequestTimeout):
    """The queue, which keeps `kept`, ends before the slice does."""

    def __init__(self, text: str, kept: range) -> None:
        super().__init__(text)
        self.kept = kept


class _SliceReader:
    def __init__(self, cluster: Cluster, wanted: Slice, settings: FetchSettings) -> None:
        self._cluster, self._queue, self._end, self._settings = cluster, wanted.queue, wanted.end, settings
        self._cursor = wanted.start
        self._count = COUNT_FIRST

    def pulls(self) -> Iterator[Pulled]:
        """Pulls until the end is reached, over broken connections and restarts of the broker."""
        patience = Patience(self._settings.retry_seconds)
        try:
            while self._cursor < self._end:
                try:
                    for pulled in self._pull_on(self._cluster.link_to(self._queue)):
                        patience.renew()
                        yield pulled
                except MetaqError as fault:
                    self._cluster.forget(self._queue)
                    self._wait(patience, fault)
        finally:
            if self._cursor < self._end:  # Left early: nobody will read what is still under way on that connection.
                self._cluster.forget(self._queue)

    def _wait(self, patience: Patience, fault: MetaqError) -> None:
        try:
            patience.wait(fault)
        except _NotReached as short:
            tell_short(self._queue, self._end, short.kept, fail=self._settings.fail_on_data_loss)
            self._cursor = self._end

    def decode(self, parts: list[Pulled]) -> arrow.Decoded:
        """One decoded run of neighbouring pulls. What it holds is what was asked for, or the difference is reported."""
        body: Any = parts[0].body if len(parts) == 1 else b"".join(part.body for part in parts)
        decoded = arrow.decode(body, self._queue, parts[-1].max_offset)
        offsets = decoded.queue_offsets
        start, stop = parts[0].start, parts[-1].stop
        wanted = np.arange(start, stop)
        if len(offsets) != len(wanted) or not np.array_equal(offsets, wanted):
            if np.any(np.diff(offsets) <= 0) or (len(offsets) and not start <= offsets[0] <= offsets[-1] < stop):
                raise RemoteProtocolError(f"asked for {self._queue} [{start}, {stop}), the answer holds other offsets")
            missing = np.setdiff1d(wanted, offsets)
            self._lost(int(missing[0]), int(missing[0]) + len(missing))
        return decoded

    # -------------------------------------------------------------- one connection
    def _pull_on(self, link: Link) -> Iterator[Pulled]:
        asked: deque[_Asked] = deque()
        ask_at = self._cursor
        while self._cursor < self._end:
            while len(asked) < PULLS_UNDER_WAY and ask_at < self._end:
                asked.append(self._ask(link, ask_at, min(self._count, self._end - ask_at)))
                ask_at += asked[-1].messages
            opaque, start, count = asked.popleft()
            answer = link.answer(opaque)
            pulled = self._understood(answer, start, count)
            if pulled is None:  # The cursor was moved: what is under way begins in the wrong place.
                for other in asked:
                    link.answer(other.opaque)
                asked.clear()
                ask_at = self._cursor
                continue
            self._cursor = pulled.stop
            if pulled.stop < start + count:
                asked.appendleft(self._ask(link, pulled.stop, start + count - pulled.stop))
            self._learn(count, pulled)
            yield pulled

    def _ask(self, link: Link, start: int, count: int) -> _Asked:
        header = PullHeader(
            group=self._settings.group, topic=self._queue.topic, queue_id=self._queue.queue_id, queue_offset=start,
            max_messages=count, sys_flag=_SUBSCRIPTION_GIVEN, subscription="*", expression_type="TAG",
            # Some room: the count aims at pull_bytes, and a pull that is cut short costs one more.
            max_msg_bytes=2 * self._settings.pull_bytes,
        )  # fmt: skip
        return _Asked(link.post(request(RequestCode.PULL_MESSAGE, header)), start, count)

    def _learn(self, count: int, pulled: Pulled) -> None:
        """Choose the count of the next pulls: as many as fill pull_bytes, judged by this answer."""
        got = pulled.stop - pulled.start
        fitting = got * self._settings.pull_bytes // max(1, len(pulled.body))
        # A short answer is the peer's limit, which is lower than ours: do not guess beyond it.
        self._count = max(1, min(fitting, COUNT_MAX, count * 8 if got == count else got))

    def _understood(self, answer: Command, start: int, count: int) -> Pulled | None:
        """The answer's records; None if it has none and the cursor was moved instead."""
        code = answer.code
        if code not in PULL_CODES:
            where = self._cluster.link_to(self._queue).address
            raise BrokerError(code, answer.remark or "", where, f"pull {self._queue} at {start}")
        try:
            header = PullReplyHeader.from_ext(answer.ext)
        except BadRequest as fault:
            raise RemoteProtocolError(f"the answer to a pull of {self._queue} cannot be read: {fault}") from None
        if code == ResponseCode.SUCCESS and start < header.next_offset <= start + count and len(answer.body):
            return Pulled(start, header.next_offset, memoryview(answer.body), header.max_offset)
        if code == ResponseCode.SUCCESS:
            raise RemoteProtocolError(
                f"asked for {count} messages of {self._queue} at {start}, the answer goes on at {header.next_offset}"
            )
        if header.min_offset > start:
            self._skip(start, header.min_offset)
        elif header.next_offset > start:  # Units whose records are just being removed.
            self._skip(start, header.next_offset)
        else:
            # The broker has not got that far: it may be restarting, and tell us later.
            kept = range(header.min_offset, header.max_offset)
            raise _NotReached(f"{self._queue} ends at {header.max_offset}, though it once reached {self._end}", kept)
        return None

    def _skip(self, start: int, to: int) -> None:
        to = min(to, self._end)
        self._lost(start, to)
        self._cursor = to

    def _lost(self, start: int, stop: int) -> None:
        tell_loss(self._queue, range(start, stop), fail=self._settings.fail_on_data_loss)


def average_record_bytes(cluster: Cluster, queue: MessageQueue, offset: int, settings: FetchSettings) -> float:
    """Bytes of a stored message, judged by one pull at `offset`: what turns a byte limit into a count."""
    sample = next(iter(_SliceReader(cluster, Slice(queue, offset, offset + 32), settings).pulls()))
    return len(sample.body) / (sample.stop - sample.start)
