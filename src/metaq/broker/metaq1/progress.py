"""How far groups of MetaQ 1.x have come, in messages: their consumers keep byte positions, elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from metaq.broker.metaq1.position_bases import Bases
from metaq.broker.tables.topics import Topics
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model.topics.topic import check_group
from metaq.saved import Pending, Saving
from metaq.store.queues.table import QueueKey

_KEPT_SECONDS: Final = 2.0
"""Several questions of one command are answered by one look."""
_KEPT_MAX: Final = 100

OnPositions = Callable[[Mapping[QueueKey, int] | None], None]
"""Takes (topic, partition) → position, or None: nobody can tell now."""
AskPositions = Callable[[str, str | None, OnPositions], None]
"""Finds out how far a group has come, in a topic or all, and tells it in the broker's thread, later."""


class _Look(Struct):
    """One look at a group's positions."""

    pending: Pending
    positions: Mapping[QueueKey, int]
    at: float
    """When it was over, or begun."""


class PartitionProgress:
    """Looks up how far 1.x groups are, when a tool asks; without a way to ask (`ask_by`) no group has read anything."""

    def __init__(self, clock: Clock, topics: Topics, bases: Bases) -> None:
        self._clock, self._topics, self._bases = clock, topics, bases
        self._ask: AskPositions | None = None
        self._looks: dict[tuple[str, str | None], _Look] = {}

    def ask_by(self, ask: AskPositions) -> None:
        """From now on, groups' positions are found out so."""
        self._ask = ask

    def of(self, group: str, topic: str | None) -> Mapping[QueueKey, int]:
        """(topic, queue) → the queue offset of the first message that the group has not read; empty if it has read nothing here.

        Raises Saving while that is found out; Refused BUSY: so much is being found out that it must be asked again.
        """
        if self._ask is None or not _may_be(group):
            return {}
        look = self._look(group, topic)
        if not look.pending.done:
            raise Saving(look.pending)
        found = {}
        for (name, queue_id), position in look.positions.items():
            config = self._topics.get(name)
            positions = self._bases.find(name, queue_id)
            if config is not None and queue_id < config.read_queues and positions is not None:
                found[name, queue_id] = positions.at(position).queue_offset
        return found

    def _look(self, group: str, topic: str | None) -> _Look:
        now, key = self._clock.monotonic(), (group, topic)
        look = self._looks.get(key)
        if look is not None and (not look.pending.done or now - look.at < _KEPT_SECONDS):
            return look
        if len(self._looks) >= _KEPT_MAX:
            self._looks = {known: old for known, old in self._looks.items() if not old.pending.done}
        if len(self._looks) >= _KEPT_MAX:  # whoever can be asked is slow: more would only wait behind these
            raise Refused(
                Reason.BUSY, f"how far {len(self._looks)} groups of MetaQ 1.x are is being found out already, try again"
            )
        look = self._looks[key] = _Look(Pending(), {}, now)
        begun = look

        def tell(positions: Mapping[QueueKey, int] | None) -> None:
            begun.positions, begun.at = positions or {}, self._clock.monotonic()
            begun.pending.finish()

        assert self._ask is not None
        self._ask(group, topic, tell)
        return look


def _may_be(group: str) -> bool:
    try:
        check_group(group)
    except Refused:
        return False
    return True
