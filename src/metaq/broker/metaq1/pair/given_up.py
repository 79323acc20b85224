"""What the slave of a pair has taken lately, and what was given up: by message, for those who put it, and by place in the log."""

from __future__ import annotations

import bisect
from collections import OrderedDict, deque
from typing import Final

TAKEN_MAX: Final = 100_000
"""Newest messages that are known to be at the slave: answers ask within the time-out of a sync."""
KEPT_SECONDS: Final = 60.0


class Outcomes:
    """The outcomes of one master's syncs. `now`: monotonic seconds."""

    def __init__(self) -> None:
        self._taken: OrderedDict[int, None] = OrderedDict()
        self._topics: dict[int, str] = {}
        """Id → topic, of messages that were given up."""
        self._places: list[int] = []
        """LogOffsets of records that were given up, ascending."""
        self._old: deque[tuple[float, int, int | None]] = deque()

    def taken(self, message_id: int) -> None:
        """The slave has this message."""
        self._taken[message_id] = None
        if len(self._taken) > TAKEN_MAX:
            self._taken.popitem(last=False)

    def has(self, message_id: int) -> bool:
        """Return whether the slave is known to have a message of the last minute."""
        return message_id in self._taken

    def topic_of(self, message_id: int) -> str | None:
        """Return the topic of a message that was given up; None: it was not, or is long forgotten."""
        return self._topics.get(message_id)

    def gave_up(self, place: int, topic: str, message_id: int | None, now: float) -> None:
        """Whoever put the record at this LogOffset is told that the slave lacks it. `message_id`: None: it was not read yet."""
        bisect.insort(self._places, place)
        if message_id is not None:
            self._topics[message_id] = topic
        self._old.append((now, place, message_id))

    def lacks(self, begin: int, end: int) -> bool:
        """Return whether a record in this range of the log was given up."""
        at = bisect.bisect_left(self._places, begin)
        return at < len(self._places) and self._places[at] < end

    def forget_old(self, now: float) -> None:
        """Forget what nobody waits for any more."""
        while self._old and self._old[0][0] < now - KEPT_SECONDS:
            _, place, message_id = self._old.popleft()
            at = bisect.bisect_left(self._places, place)
            if at < len(self._places) and self._places[at] == place:
                del self._places[at]
            if message_id is not None:
                self._topics.pop(message_id, None)
