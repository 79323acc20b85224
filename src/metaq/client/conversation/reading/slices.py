"""Reading a slice of a queue: every record of [start, end) once and in order, or a report of what is gone.

Several pulls are pipelined, so the broker reads the next megabytes while this one is decoded. Each is sent before the
response of the one ahead, so its offset is a guess: a pull asks for a *count* of messages that should fill the wanted
bytes, and the next one begins behind that count. If a response is shorter (RocketMQ returns 32 messages or 256 KiB at
most, our broker `maxMsgBytes`), the rest is requested before going on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

from metaq.client.conversation.reading.pulling import EVERYTHING, Pull, PullResult, PullStatus
from metaq.errors import RemoteProtocolError
from metaq.model import MessageQueue, SubscriptionData

COUNT_FIRST = 1024
"""Messages of the first pull; later counts follow from the sizes in its response."""
COUNT_MAX = 65_535
PULLS_UNDER_WAY = 4
"""Pipelined pulls: the broker always has the next one while a response is read."""
_GUESSES = 2
"""Pipelined pulls before the first response shows the size of messages."""


class Post(NamedTuple):
    """Step: send the pull. The conversation receives the request's number."""

    pull: Pull


class Receive(NamedTuple):
    """Step: wait for the response to that request. The conversation receives the pull's outcome."""

    number: int
    pull: Pull


class Records(NamedTuple):
    """Records of [start, stop), back to back; some of these offsets may be missing."""

    start: int
    stop: int
    body: memoryview
    max_offset: int


class Sifted(NamedTuple):
    """Records of [start, stop) that have passed the broker's filter, and perhaps some from `stop` on."""

    start: int
    stop: int
    body: memoryview
    max_offset: int


class Gone(NamedTuple):
    """Messages [start, stop) have been deleted; they are skipped."""

    start: int
    stop: int


class TooShort(NamedTuple):
    """The queue (offsets `kept`) ends before the slice: its broker may be restarting, and have more later."""

    kept: range


Step = Post | Receive | Records | Sifted | Gone | TooShort


class SliceReading:
    """Progress in a slice. `pulls` continues from there, on a new connection if necessary."""

    def __init__(
        self,
        queue: MessageQueue,
        start: int,
        end: int,
        *,
        group: str,
        pull_bytes: int,
        subscription: SubscriptionData = EVERYTHING,
    ) -> None:
        """
        Args:
            pull_bytes: wanted bytes per pull.
            subscription: the broker's filter.
        """
        self.queue, self.next_offset, self.end = queue, start, end
        self._group, self._pull_bytes, self._subscription = group, pull_bytes, subscription
        self._count, self._under_way_max = COUNT_FIRST, _GUESSES
        self._leaving = self._of_slave = False

    @property
    def done(self) -> bool:
        """Whether the end of the slice is reached."""
        return self.next_offset >= self.end

    def leave(self) -> None:
        """Send no further pull on this connection; the conversation ends when the pipelined ones are answered."""
        self._leaving = True

    def pulls(self, *, of_slave: bool = False) -> Generator[Step, Any, None]:
        """Run the conversation on one connection, until the end of the slice, or after `leave`.

        The steps `Records` (with a filter `Sifted`), `Gone` and `TooShort` are results; they need no outcome. After
        TooShort the conversation ends, and can be repeated later. `of_slave`: what the peer lacks may exist at the
        master, so it yields TooShort instead of Gone. Raises RemoteProtocolError: a response does not match its
        request.
        """
        self._leaving, self._of_slave = False, of_slave
        if not self._subscription.takes_all:
            yield from self._sifting()
            return
        under_way: deque[Receive] = deque()
        ask_at = self.next_offset
        while not self.done and (under_way or not self._leaving):
            while len(under_way) < self._under_way_max and ask_at < self.end and not self._leaving:
                pull = self._pull(ask_at, min(self._count, self.end - ask_at))
                under_way.append(Receive((yield Post(pull)), pull))
                ask_at += pull.count
            oldest = under_way.popleft()
            pull = oldest.pull
            result: PullResult = yield oldest
            found = self._found(pull, result)
            if not isinstance(found, Records):  # pipelined pulls have wrong offsets: take their responses and drop them
                while under_way:
                    yield under_way.popleft()
                if isinstance(found, TooShort):
                    yield found
                    return
                ask_at = found.stop
            else:
                # The pulls behind this short answer would leave a gap: they are taken off the connection, and sent
                # again later.
                if found.stop < pull.offset + pull.count and self._leaving:
                    while under_way:
                        yield under_way.popleft()
                elif found.stop < pull.offset + pull.count:
                    # The rest of a short answer comes before the pulls that were sent behind it.
                    rest = self._pull(found.stop, pull.offset + pull.count - found.stop)
                    under_way.appendleft(Receive((yield Post(rest)), rest))
                self._learn(pull, found)
            # Not earlier: if the connection breaks at a step before this one, the records are read again.
            self.next_offset = found.stop
            yield found

    def _sifting(self) -> Generator[Step, Any, None]:
        """Pull one by one: with a filter, only the response tells the next offset."""
        while not self.done and not self._leaving:
            pull = self._pull(self.next_offset, COUNT_MAX)
            result: PullResult = yield Receive((yield Post(pull)), pull)
            start, to = pull.offset, result.next_offset
            found: Sifted | Gone | TooShort
            if result.status is PullStatus.FOUND and to > start and len(result.records):
                found = Sifted(start, min(to, self.end), memoryview(result.records), result.max_offset)
            elif self._of_slave and result.min_offset > start:
                yield TooShort(range(result.min_offset, result.max_offset))
                return
            elif result.status is PullStatus.NOTHING_MATCHED and to > start:
                self.next_offset = min(to, self.end)
                continue
            elif result.min_offset > start:
                found = Gone(start, min(result.min_offset, self.end))
            elif result.max_offset < self.end or self._of_slave:
                yield TooShort(range(result.min_offset, result.max_offset))
                return
            else:
                raise RemoteProtocolError(f"a pull of {self.queue} at {start} goes on at {to}, and brings nothing")
            self.next_offset = found.stop
            yield found

    def _pull(self, offset: int, count: int) -> Pull:
        # Twice the bytes aimed at: a response that is cut short costs a further pull.
        return Pull(
            group=self._group, queue=self.queue, offset=offset, count=count, bytes_max=2 * self._pull_bytes,
            subscription=self._subscription,
        )  # fmt: skip

    def _found(self, pull: Pull, result: PullResult) -> Records | Gone | TooShort:
        start, to = pull.offset, result.next_offset
        if result.status is PullStatus.FOUND:
            if start < to <= start + pull.count and len(result.records):
                return Records(start, to, memoryview(result.records), result.max_offset)
            raise RemoteProtocolError(
                f"asked for {pull.count} messages of {self.queue} at {start}, the answer goes on at {to}"
            )
        if self._of_slave:
            return TooShort(range(result.min_offset, result.max_offset))
        if result.min_offset > start:
            return Gone(start, min(result.min_offset, self.end))
        if to > start:  # consume-queue units whose records are being deleted
            return Gone(start, min(to, self.end))
        return TooShort(range(result.min_offset, result.max_offset))

    def _learn(self, pull: Pull, found: Records) -> None:
        """Choose the count of the next pulls to fill pull_bytes, by the sizes in this response."""
        got = found.stop - found.start
        fitting = got * self._pull_bytes // max(1, len(found.body))
        self._under_way_max = PULLS_UNDER_WAY
        # A short response shows the peer's own limit: do not ask for more.
        # At most eightfold: a few small messages at the beginning say little of those behind.
        self._count = max(1, min(fitting, COUNT_MAX, pull.count * 8 if got == pull.count else got))
