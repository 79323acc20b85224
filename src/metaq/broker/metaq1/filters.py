"""Server-side message filters of MetaQ 1.x groups (docs/predicates.md).

They are the operator's code and run in helper processes, like predicates (`broker/pulls/predicates.py`) and with
their limits. The frames of a response must be contiguous, because the client computes its next position from the
bytes received:

    + + - - +    accepted and rejected frames: a get of the first is answered with two frames,
        - - +    the next one with where the fifth begins (301),
            +    and the one after that with the fifth

A filter that raises rejects the message. If it takes too long, needs too much memory, or ends its process, the
message is delivered. (The original leaves out rejected frames in between, which breaks the client's positions.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from metaq.broker.channel import Channel
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.part import BrokerPart
from metaq.broker.pulls.predicates import Job, MakeHelper, Predicates
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model.filters.predicates import NO, RAISED
from metaq.model.metaq1.partition import FRAME_HEADER_BYTES, Frames, Got, Judged, Judging, Later, Moved, PartitionGet
from metaq.options import KIB, BrokerOptions
from metaq.saved import Saving

FRAMES_MAX: Final = 256
JUDGED_BYTES_MAX: Final = 256 * KIB
"""Bytes of one question to a helper process; a single frame may be larger."""
LOOK_SECONDS: Final = 1.0
"""Time for which a get reads on while all frames are rejected, s."""

MakeFilterHelper: TypeAlias = Callable[[Mapping[str, str]], MakeHelper]
"""Makes the factory of helper processes for these filters, name → `package.module:Name`."""
ReadOn: TypeAlias = Callable[[int], Got | Later]
"""Reads at a position. Raises as `Partitions.get`."""


class FilteredGet(Struct, frozen=True):
    """A get of a group with a filter."""

    get: PartitionGet
    name: str
    """The filter's name."""
    channel: Channel
    read_on: ReadOn
    deadline: float
    moved: bool = False
    """Whether all frames between the client's position and the get's are rejected, so that 301 can be answered."""


class PartitionFilters(BrokerPart):
    """The filters of one broker."""

    leads = False

    def __init__(
        self, options: BrokerOptions, clock: Clock, settings: Metaq1Settings, make_helper: MakeFilterHelper | None
    ) -> None:
        self._options, self._clock, self._settings, self._make_helper = options, clock, settings, make_helper
        self._pool: Predicates | None = None
        """None: no topic has a filter, or the part is not open."""

    def open(self) -> None:
        """Start the helper processes, if there are filters; a reload of the configuration replaces them."""
        self._pool = self._made()
        self._settings.watch(lambda _: self._exchanged())

    def _made(self) -> Predicates | None:
        names = {
            name: name for topic in self._settings.rules.topics.values() for name in topic.filters.values()
        }  # fmt: skip
        if not names:
            return None
        make = self._make_helper(names) if self._make_helper is not None else None
        pool = Predicates(self._options, self._clock, make, names)
        pool.open()
        return pool

    def _exchanged(self) -> None:
        """Replace the helper processes after a reload: the filters' code may have changed."""
        # The new ones are made first, so that there is no moment without filters.
        before, self._pool = self._pool, self._made()
        if before is not None:
            before.end("the filters were loaded anew")

    def name_of(self, topic: str, group: str) -> str:
        """Return the name of a group's filter for a topic; "": none."""
        return self._settings.rules.settings(topic).filters.get(group, "") if self._pool is not None else ""

    def tick(self) -> None:
        """Run the helpers' periodic work."""
        if self._pool is not None:
            self._pool.tick()

    def closed(self, channel: Channel) -> None:
        """Drop the questions of a closed connection."""
        if self._pool is not None:
            self._pool.closed(channel)

    def close(self) -> None:
        """End the helper processes, and wait for that."""
        if self._pool is not None:
            self._pool.close()

    def begin(self, get: PartitionGet, name: str, channel: Channel, read_on: ReadOn) -> FilteredGet:
        """A get of a group that has a filter."""
        return FilteredGet(get, name, channel, read_on, self._clock.monotonic() + LOOK_SECONDS)

    def sift(self, filtered: FilteredGet, found: Got | Later, *, whole: bool) -> Judged:
        """Filter what was read.

        `whole`: it begins at a frame's start; otherwise it cannot be parsed, and is returned as it is.
        """
        if isinstance(found, Later):
            return Later(found.job, lambda read: self.sift(filtered, found.finish(read), whole=whole))
        if isinstance(found, Moved):
            return found
        frames = _whole_frames(found.body) if whole else []
        if not frames:  # less than a frame: the client doubles its maxSize
            return Moved(filtered.get.position) if filtered.moved else found
        judged = sum(map(len, frames))
        # A copy of the part in question, so that the rest is not kept in memory.
        if judged + _size_at(found.body, judged) <= len(found.body):
            cut = Frames(bytes(found.body[:judged]))
            return Judging(functools.partial(self._judge, filtered, cut, _whole_frames(cut.body)))
        return Judging(functools.partial(self._judge, filtered, found, frames))

    def _judge(
        self,
        filtered: FilteredGet,
        found: Frames,
        frames: Sequence[memoryview],
        done: Callable[[Judged | Exception], None],
    ) -> None:
        get = filtered.get
        if self._pool is None:
            raise Refused(Reason.BUSY, "the filters were loaded anew; ask again")

        def judged(job: Job) -> None:
            try:
                outcome: Judged | Exception = self._outcome(filtered, found, frames, job)
            except Exception as error:  # noqa: BLE001  without a response the client would wait for ever
                outcome = error
            done(outcome)

        self._pool.judge(
            f"{get.group} of topic {get.topic}", filtered.name, frames, judged, owner=filtered.channel,
            head=head_of(get.group, get.topic),
        )  # fmt: skip

    def _outcome(self, filtered: FilteredGet, found: Frames, frames: Sequence[memoryview], job: Job) -> Judged:
        verdicts = job.verdicts
        if not verdicts:
            raise Refused(Reason.BUSY, f"[OVERLOAD]system busy: {job.why or f'{filtered.name} is slow'}; ask again")
        # FAILED (the helper died, or was too slow) counts as wanted: see the module's text.
        wanted = [verdict not in (NO, RAISED) for verdict in verdicts]
        first = wanted[0]
        count = next((number for number, one in enumerate(wanted) if one != first), len(wanted))
        size = sum(map(len, frames[:count]))
        if not first:
            return self._past(filtered, filtered.get.position + size, all_of_it=count == len(wanted))
        if filtered.moved:
            # Rejected frames lie between the client's position and these: first move it there (301), then it gets them.
            return Moved(filtered.get.position)
        if count == len(frames):
            return found  # with the beginning of the next frame, if there is one: the client asks for that again
        return Frames(found.body[:size])

    def _past(self, filtered: FilteredGet, position: int, *, all_of_it: bool) -> Judged:
        """Go on behind rejected frames."""
        # Answered in time also if everything is rejected: the client goes on from there.
        if not all_of_it or self._clock.monotonic() >= filtered.deadline:
            return Moved(position)
        get = PartitionGet(
            topic=filtered.get.topic, group=filtered.get.group, partition=filtered.get.partition, position=position,
            size_max=filtered.get.size_max,
        )  # fmt: skip
        further = FilteredGet(get, filtered.name, filtered.channel, filtered.read_on, filtered.deadline, moved=True)
        try:
            return self.sift(further, filtered.read_on(position), whole=True)
        except (Refused, Saving):  # nothing more, or not known yet: the client asks from there
            return Moved(position)


def head_of(group: str, topic: str) -> bytes:
    """Return the prefix of a question: group and topic, each behind its length in two bytes."""
    return b"".join(len(name).to_bytes(2, "big") + name for name in (group.encode()[:65535], topic.encode()))


def _whole_frames(body: bytes | memoryview) -> list[memoryview]:
    """Return the whole frames at the beginning, as many as one question takes."""
    view, at = memoryview(body), 0
    frames = list[memoryview]()
    while len(frames) < FRAMES_MAX and at + (size := _size_at(view, at)) <= len(view):
        if frames and at + size > JUDGED_BYTES_MAX:
            break
        frames.append(view[at : at + size])
        at += size
    return frames


def _size_at(data: bytes | memoryview, at: int) -> int:
    """Return the size of the frame that begins there; more than there is, if its header is cut off."""
    if len(data) - at < FRAME_HEADER_BYTES:
        return FRAME_HEADER_BYTES
    return FRAME_HEADER_BYTES + int.from_bytes(data[at : at + 4], "big")
