"""Progress of MetaQ 1.x groups in messages. Their consumers keep byte positions in ZooKeeper, or in a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct

from metaq.broker.metaq1.position_bases import Bases
from metaq.broker.tables.topics import Topics
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model.topics.topic import check_group
from metaq.saved import Pending, Saving
from metaq.store.queues.table import QueueKey

_KEPT_SECONDS: Final = 2.0
"""Time for which a result is reused, s: one tool command asks several times."""
_KEPT_MAX: Final = 100
ASKED_MAX: Final = 64
"""Groups that are asked about at once."""

Answer = TypeVar("Answer")

OnPositions = Callable[[Mapping[QueueKey, int] | None], None]
"""Callback with (topic, partition) → byte position; None: the source cannot be asked now."""
OnGroups = Callable[[Sequence[str] | None], None]
"""Callback with names of groups; None: the source cannot be asked now."""
AskGroups = Callable[[OnGroups], None]
"""Reads the names of all groups, and calls back on the event loop, later."""
AskPositions = Callable[[str, str | None, OnPositions], None]
"""Reads a group's byte positions, in one topic or all (None), and calls back on the event loop, later."""


class _Look(Struct):
    """A query of a group's positions."""

    pending: Pending
    positions: dict[QueueKey, int]
    at: float
    """Time of its end, or of its start while it runs (monotonic seconds)."""


class _Names(Struct):
    """A query of the groups' names."""

    pending: Pending
    names: set[str]
    at: float = 0.0
    """Time of its end."""


class PartitionProgress:
    """Answers tools' queries of 1.x groups' progress. Without a source (`ask_by`), no group has read anything.

    Of a position that several sources have, the furthest counts: the others were left behind when the group moved.
    """

    def __init__(self, clock: Clock, topics: Topics, bases: Bases) -> None:
        self._clock, self._topics, self._bases = clock, topics, bases
        self._sources: list[AskPositions] = []
        self._group_sources: list[AskGroups] = []
        self._names: _Names | None = None
        self._looks: dict[tuple[str, str | None], _Look] = {}

    def ask_by(self, ask: AskPositions, groups: AskGroups | None = None) -> None:
        """Add a source of positions and of groups."""
        self._sources.append(ask)
        if groups is not None:
            self._group_sources.append(groups)

    def groups(self) -> list[str]:
        """Return the names of the groups that the sources know, of all brokers. Raises Saving while they are being read."""
        if not self._group_sources:
            return []
        found = self._names
        if found is None or (found.pending.done and self._clock.monotonic() - found.at >= _KEPT_SECONDS):
            begun = found = self._names = _Names(Pending(), set())

            def take(names: Sequence[str] | None) -> None:
                begun.names.update(names or ())

            def done() -> None:
                begun.at = self._clock.monotonic()
                begun.pending.finish()

            _ask_all(self._group_sources, take, done)
        if not found.pending.done:
            raise Saving(found.pending)
        return sorted(name for name in found.names if _may_be(name))

    def of(self, group: str, topic: str | None) -> Mapping[QueueKey, int]:
        """Return (topic, queue id) → QueueOffset of the first message that the group has not read.

        Empty: it has read nothing here.

        Raises Saving while the positions are being read; Refused BUSY: too many queries are running.
        """
        if not self._sources or not _may_be(group):
            return {}
        look = self._look(group, topic)
        if not look.pending.done:
            raise Saving(look.pending)
        found = {}
        for (name, queue_id), position in look.positions.items():
            config = self._topics.get(name)
            positions = self._bases.find(name, queue_id)
            # ZooKeeper may have positions of partitions that are gone, or belong to other brokers.
            if config is not None and queue_id < config.read_queues and positions is not None:
                found[name, queue_id] = positions.at(position).queue_offset
        return found

    def in_topic(self, topic: str) -> dict[str, Mapping[int, int]]:
        """Return group → queue id → QueueOffset of the first message that it has not read, of all that have read some of a topic.

        Raises Saving while that is read; Refused: BUSY, as `of`; UNAVAILABLE, ZooKeeper knows more than `ASKED_MAX` groups.
        """
        found, pending, groups = dict[str, Mapping[int, int]](), list[Pending](), self.groups()
        if len(groups) > ASKED_MAX:
            raise Refused(
                Reason.UNAVAILABLE,
                f"what {len(groups)} groups of MetaQ 1.x have read of topic {topic} is not asked for, {ASKED_MAX} are at most: look at them, and trim by force",
            )
        for group in groups:
            try:
                if progress := self.of(group, topic):
                    found[group] = {queue_id: offset for (_, queue_id), offset in progress.items()}
            except Saving as saving:
                pending += saving.pending
        if pending:  # of all groups at once: a request may not wait for one after the other
            raise Saving(*pending)
        return found

    def _look(self, group: str, topic: str | None) -> _Look:
        now, key = self._clock.monotonic(), (group, topic)
        look = self._looks.get(key)
        # Kept for a moment: the request that waited for it (Saving) is carried out again, and finds it here.
        if look is not None and (not look.pending.done or now - look.at < _KEPT_SECONDS):
            return look
        if len(self._looks) >= _KEPT_MAX:
            self._looks = {known: old for known, old in self._looks.items() if not old.pending.done}
        if len(self._looks) >= _KEPT_MAX:  # ZooKeeper is slow: more queries would only wait behind these
            raise Refused(
                Reason.BUSY, f"how far {len(self._looks)} groups of MetaQ 1.x are is being found out already, try again"
            )
        look = self._looks[key] = _Look(Pending(), {}, now)
        begun = look

        def take(positions: Mapping[QueueKey, int] | None) -> None:
            for place, position in (positions or {}).items():
                begun.positions[place] = max(position, begun.positions.get(place, position))

        def done() -> None:
            begun.at = self._clock.monotonic()
            begun.pending.finish()

        _ask_all([partial(ask, group, topic) for ask in self._sources], take, done)
        return look


def _ask_all(
    sources: Sequence[Callable[[Callable[[Answer | None], None]], None]],
    take: Callable[[Answer | None], None],
    done: Callable[[], None],
) -> None:
    """Have `take` called with the answer of each source, and then `done`."""
    left = len(sources)

    def tell(answer: Answer | None) -> None:
        nonlocal left
        take(answer)
        left -= 1
        if not left:
            done()

    for ask in sources:
        ask(tell)


def _may_be(group: str) -> bool:
    try:
        check_group(group)
    except Refused:
        return False
    return True
