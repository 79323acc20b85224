"""Reading one slice of a queue: every record of [start, end), once, in order, or a report of what is gone.

Several pulls are under way at a time, so that the broker gathers the next megabytes while this one is decoded, and while
whoever takes what was decoded is busy with it. Each is sent before the one ahead of it is answered, so its offset is a guess:
that one asks for a *count* of messages that should fill the wanted bytes, the next begins behind that count. When an answer is shorter than asked (a RocketMQ gives 32 messages
and 256 KiB at most, our broker what `maxMsgBytes` says), what is missing is asked for again before going on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

from metaq.client.conversation.reading.pulling import EVERYTHING, Pull, PullResult, PullStatus
from metaq.errors import RemoteProtocolError
from metaq.model import MessageQueue, SubscriptionData

COUNT_FIRST = 1024
"""Messages of the first pull; later ones follow from the sizes that it brings."""
COUNT_MAX = 65_535
PULLS_UNDER_WAY = 4
"""So the broker always has the next pull while an answer is read."""
_GUESSES = 2
"""Pulls under way before the first answer shows how large the messages are."""


class Post(NamedTuple):
    """A step: send the pull. The conversation is sent the number of the request."""

    pull: Pull


class Receive(NamedTuple):
    """A step: wait for the answer to the request of that number. The conversation is sent the pull's outcome."""

    number: int
    pull: Pull


class Records(NamedTuple):
    """The records of [start, stop), back to back. Others than these offsets may be missing among them."""

    start: int
    stop: int
    body: memoryview
    max_offset: int


class Sifted(NamedTuple):
    """Those records of [start, stop) that the broker's filter let through, and perhaps some from `stop` on."""

    start: int
    stop: int
    body: memoryview
    max_offset: int


class Gone(NamedTuple):
    """Messages have left the log: [start, stop) is passed over."""

    start: int
    stop: int


class TooShort(NamedTuple):
    """The queue, which keeps `kept`, ends before the slice does: its broker may be restarting, and know more later."""

    kept: range


Step = Post | Receive | Records | Sifted | Gone | TooShort


class SliceReading:
    """How far a slice has been read. `pulls` goes on from there, over one connection after the other if need be."""

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
        """Args: pull_bytes: what one pull should bring. subscription: what the broker is to let through."""
        self.queue, self.next_offset, self.end = queue, start, end
        self._group, self._pull_bytes, self._subscription = group, pull_bytes, subscription
        self._count, self._under_way_max = COUNT_FIRST, _GUESSES
        self._leaving = self._of_slave = False

    @property
    def done(self) -> bool:
        """Whether the end is reached."""
        return self.next_offset >= self.end

    def leave(self) -> None:
        """Send no further pull over this connection: the conversation ends behind those under way."""
        self._leaving = True

    def pulls(self, *, of_slave: bool = False) -> Generator[Step, Any, None]:
        """The conversation over one connection, until the end is reached, or behind `leave`.

        `Records` (or, with a filter, `Sifted`), `Gone` and `TooShort` are what was found; nothing is sent in for them.
        After TooShort it ends: begin again later. `of_slave`: what the peer does not have is not gone, so it says TooShort
        in place of Gone. Raises RemoteProtocolError: the answer is none to what was asked.
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
            if not isinstance(found, Records):  # What is under way begins in the wrong place.
                while under_way:
                    yield under_way.popleft()
                if isinstance(found, TooShort):
                    yield found
                    return
                ask_at = found.stop
            else:
                if found.stop < pull.offset + pull.count and self._leaving:
                    while under_way:
                        yield under_way.popleft()
                elif found.stop < pull.offset + pull.count:
                    rest = self._pull(found.stop, pull.offset + pull.count - found.stop)
                    under_way.appendleft(Receive((yield Post(rest)), rest))
                self._learn(pull, found)
            self.next_offset = found.stop  # No sooner: the connection may break at any step before this.
            yield found

    def _sifting(self) -> Generator[Step, Any, None]:
        """Pull one after the other: only its answer says how far each has looked."""
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
        # Some room: the count aims at pull_bytes, and a pull that is cut short costs one more.
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
        if to > start:  # Units whose records are just being removed.
            return Gone(start, min(to, self.end))
        return TooShort(range(result.min_offset, result.max_offset))

    def _learn(self, pull: Pull, found: Records) -> None:
        """Choose the count of the next pulls: as many as fill pull_bytes, judged by this answer."""
        got = found.stop - found.start
        fitting = got * self._pull_bytes // max(1, len(found.body))
        # A short answer is the peer's limit, which is lower than ours: do not guess beyond it.
        self._under_way_max = PULLS_UNDER_WAY
        self._count = max(1, min(fitting, COUNT_MAX, pull.count * 8 if got == pull.count else got))
