"""Where the slave's copy of each partition ends: asked when the slave comes, and again when it has refused a message.

If that is a place here, and the message before it is the same, the slave gets what it lacks, from there on. If it is none, or another
message lies there, the copy has other byte positions than the partition here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from metaq.broker.metaq1.pair.lanes import HEAD_BYTES, Lane, LaneState, waking
from metaq.broker.metaq1.pair.slave_link import SlaveLink
from metaq.broker.metaq1.position_bases import Bases
from metaq.errors import Refused
from metaq.log import RateLimitedLog
from metaq.model.metaq1.pair import AskEnd, AskHead, Heard, SamsaSettings, ToSlave
from metaq.saved import Saving
from metaq.store.metaq1.frames import FrameRun, FramesRead

SUCCESS: Final = 200
NOT_FOUND: Final = 404
QUESTIONS_MAX: Final = 256
"""Questions under way at most."""
QUESTION_SECONDS: Final = 10.0
"""Longest time without an answer to any question; then another connection is tried."""
UNFLUSHED_SECONDS: Final = 12.0
"""How long a slave that has come back may have less than it has acknowledged: until the original's unflushInterval, 10 s, is over."""


class Master(Protocol):
    """The master, which sends what the copies lack (`metaq.broker.metaq1.pair.samsa`)."""

    @property
    def link(self) -> SlaveLink | None:
        """The connection to the slave."""
        ...

    def next_opaque(self) -> int:
        """Return the opaque of the next command to the slave."""
        ...

    def read(self, run: FrameRun, done: Callable[[FramesRead | Refused], None], link: SlaveLink) -> None:
        """Read frames, and pass them, or why they cannot be read, to `done`; at once or later."""
        ...

    def begin(self, lane: Lane, queue_offset: int, position: int) -> None:
        """Send from this message on: the slave's copy ends before it, at this byte position."""
        ...

    def differ(self, lane: Lane, why: str) -> None:
        """Send what is put from now on: the slave's copy has other byte positions."""
        ...

    def refused(self, lane: Lane, heard: Heard) -> None:
        """Wait before the slave is asked again: it does not answer the question."""
        ...


class CopyEnds:
    """The ends of the copies at the slave of one master.

    Args:
        bases: byte positions of the partitions here.
        now: monotonic seconds.
    """

    def __init__(
        self, master: Master, bases: Bases, settings: SamsaSettings, now: Callable[[], float], faults: RateLimitedLog
    ) -> None:
        self._master, self._bases, self._settings, self._now, self._faults = master, bases, settings, now, faults
        self._asked: dict[int, Lane] = {}
        """By opaque of the question under way."""
        self._answer_by = 0.0
        """Monotonic seconds by which the slave has to answer some question, if there is one."""
        self.reached: dict[tuple[str, int], int] = {}
        """Partition → byte position up to which this slave has said that it has it."""
        self._patient_until = 0.0

    def attached(self) -> None:
        """The slave has come."""
        self._patient_until = self._now() + UNFLUSHED_SECONDS

    def detached(self) -> None:
        """The connection has ended: nothing is answered any more."""
        self._asked.clear()

    def ask(self, lane: Lane, link: SlaveLink) -> None:
        """Ask the slave where its copy of a partition ends, unless too many questions are under way."""
        if len(self._asked) >= QUESTIONS_MAX:
            return
        if lane.tail.next_offset == 0:
            lane.state = LaneState.OPEN
            return
        try:
            positions = self._bases.touch(lane.topic, lane.partition)
            positions.max  # noqa: B018  known from now on
            positions.min  # noqa: B018
        except Saving:
            return  # the next tick asks again
        except Refused as error:
            self._faults.warning("positions", "partition %s waits for its byte positions: %s", lane.name, error)
            return
        lane.state = LaneState.ASKING
        self._question(lane, AskEnd(lane.topic, lane.partition), link)

    def _question(self, lane: Lane, what: ToSlave, link: SlaveLink) -> None:
        lane.opaque = self._master.next_opaque()
        if not self._asked:
            self._answer_by = self._now() + QUESTION_SECONDS
        self._asked[lane.opaque] = lane
        link.send(lane.opaque, what)

    def answered(self, opaque: int, heard: Heard) -> bool:
        """Take an answer of the slave. Return whether a question was answered by it."""
        lane, link = self._asked.pop(opaque, None), self._master.link
        self._answer_by = self._now() + QUESTION_SECONDS
        if lane is None or link is None:
            return False
        if lane.opaque == opaque and lane.state is LaneState.ASKING:
            lane.opaque = None
            self._heard(lane, heard, link)
        return True

    def _heard(self, lane: Lane, heard: Heard, link: SlaveLink) -> None:
        if lane.asked is not None:
            behind, end, head = lane.asked
            lane.asked = None
            if heard.code != SUCCESS:
                self._master.refused(lane, heard)
            elif heard.body[:HEAD_BYTES] == head:
                self._master.begin(lane, behind, end)
            else:
                self._master.differ(lane, f"another message lies before position {end} there")
            return
        if lane.waking:
            lane.waking, lane.woken = False, True
            self._question(lane, AskEnd(lane.topic, lane.partition), link)
        elif heard.code == NOT_FOUND and not lane.woken:
            lane.waking = True
            self._question(lane, waking(lane), link)
        elif heard.code == NOT_FOUND:
            self._ends_at(lane, 0, link)
        elif heard.code == SUCCESS and heard.body.isdigit() and len(heard.body) < 20:
            self._ends_at(lane, int(heard.body), link)
        else:
            self._master.refused(lane, heard)

    def _ends_at(self, lane: Lane, end: int, link: SlaveLink) -> None:
        """The slave's copy ends at byte position `end`."""
        master = self._master
        try:
            positions = self._bases.touch(lane.topic, lane.partition)
            first, begin, stop = positions.min, positions.begin, positions.max
            if end < self.reached.get((lane.topic, lane.partition), 0) and self._now() < self._patient_until:
                # 1.4.6.2 does not count what it has acknowledged and not flushed.
                lane.pause(self._now())
                return
            if end == first and (self._settings.copy_backlog or first == stop):
                master.begin(lane, begin, end)
                return
            if end == 0 or not first < end <= stop:
                what = "is empty" if end == 0 else f"ends at position {end}"
                master.differ(lane, f"it {what} there, and here it has positions from {first} to {stop}")
                return
            place = positions.at(end - 1)
            behind = positions.position(place.queue_offset + 1)
        except Saving:
            lane.state = LaneState.UNKNOWN  # asked again
            return
        except (Refused, ValueError) as error:
            self._faults.warning("positions", "partition %s waits for its byte positions: %s", lane.name, error)
            lane.pause(self._now())
            return
        if behind != end:
            master.differ(lane, f"it ends at position {end} there, within a message of here")
            return
        size = end - place.position

        def read(found: FramesRead | Refused) -> None:
            if master.link is not link:
                return
            if isinstance(found, Refused) or len(found.body) < HEAD_BYTES:
                lane.pause(self._now())
                return
            lane.asked = place.queue_offset + 1, end, bytes(found.body[:HEAD_BYTES])
            self._question(lane, AskHead(lane.topic, lane.partition, place.position), link)

        master.read(FrameRun(lane.topic, lane.partition, place.queue_offset, 1, 0, size), read, link)

    def tick(self, now: float) -> None:
        """End a connection on which no question is answered."""
        link = self._master.link
        if self._asked and now > self._answer_by and link is not None:
            link.drop(f"it answers no question within {QUESTION_SECONDS:g} s")
