"""Progress of consumer groups, carried over to the target: messages consumed in the source count as consumed there.

A group is carried over until a member of it connects to the target; from then on its progress there is its own.
Its progress in the target only ever grows, and never passes a message that the group has not consumed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from metaq.model import MessageQueue
from metaq.pipelines.mirror.state import MirrorState
from metaq.pipelines.mirror.table import together
from metaq.spark.cluster.client import ClusterClient

_LOG = logging.getLogger(__name__)

AT_HOME: Final = "it has members in the target: it has moved over"
UNKNOWN: Final = "it has consumed nothing of these topics in the source"
OWN: Final = "it has messages of its own to consume in the target, from before the mirror"
NOT_MIRRORED: Final = (
    "it has still to consume messages of the source that are not mirrored, because the mirror began behind them"
)


class QueueProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Result for a group in one target queue."""

    queue: str
    sources: dict[str, int | None]
    """Source queue → the group's offset there."""
    offset: int | None
    """Offset of the group in the target; None: it is not known there."""
    why: str = ""
    """Reason why it is not carried over; empty: it is."""


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Result for a group."""

    group: str
    why: str = ""
    """Reason why none of its queues is carried over; empty: some are."""
    queues: list[QueueProgress] = []


def placed(
    state: MirrorState,
    target: MessageQueue,
    consumed: Mapping[MessageQueue, int | None],
    starts: Mapping[MessageQueue, int],
    now: int | None,
) -> QueueProgress:
    """Compute the offset of a group in one target queue.

    Args:
        consumed: source queue → the group's offset.
        starts: source queue → min offset.
        now: its offset in the target.

    Returns: the result, with the offset to set: `now` or more.
    """
    sources = state.sources_of(target)
    told = {str(source): consumed.get(source) for source in sources}

    def stays(why: str) -> QueueProgress:
        return QueueProgress(queue=str(target), sources=told, offset=now, why=why)

    if all(consumed.get(source) is None for source in sources):
        return stays(UNKNOWN)
    found = []
    for source in sources:
        table, position = state.tables.get(source), consumed.get(source)
        # Nothing of the queue is in the target yet: its first copy will lie behind all that was searched.
        if table is None:
            found.append(state.seen[target])
            continue
        if now is not None and now < table.begin[1]:
            return stays(OWN)
        if position is not None and max(position, starts.get(source, 0)) < table.begin[0]:
            return stays(NOT_MIRRORED)
        found.append(table.begin[1] if position is None else table.translate(max(position, table.begin[0])))
    place = together(found, state.foreign.get(target))
    if place is None or (now is not None and place <= now):
        return stays("")
    return QueueProgress(queue=str(target), sources=told, offset=place)


class Carrier:
    """Carries groups over, one by one. Not thread-safe."""

    def __init__(self, source: ClusterClient, target: ClusterClient, groups: list[str]) -> None:
        self._source, self._target, self._groups = source, target, groups
        self._why: dict[str, str] = {}

    def carry(self, state: MirrorState) -> list[GroupProgress]:
        """Carry all groups over, as far as the mirror has copied. Raises as `ClusterClient`."""
        return [self._carry(state, group) for group in self._groups]

    def _carry(self, state: MirrorState, group: str) -> GroupProgress:
        told = self._judged(state, group)
        # Logged only when it changes: groups are looked at every groupSeconds.
        if told.why != self._why.get(group, ""):
            self._why[group] = told.why
            if told.why:
                _LOG.info("the group %s is not carried over: %s", group, told.why)
        return told

    def _judged(self, state: MirrorState, group: str) -> GroupProgress:
        targets = sorted(state.seen)
        if not targets:
            return GroupProgress(group=group, why="nothing is mirrored yet")
        if self._target.members(group):
            return GroupProgress(group=group, why=AT_HOME)
        known, there = self._source.consumed(group), self._target.consumed(group)
        consumed = {queue: known.get(queue) for queue in state.queues}
        before = {queue: there.get(queue) for queue in targets}
        late = [
            queue
            for queue, at in consumed.items()
            if at is not None and queue in state.tables and at < state.tables[queue].begin[0]
        ]
        # Asked only if a group is before the mirror's beginning: else the answer makes no difference.
        starts = self._source.starts(late) if late else {}
        queues = {target: placed(state, target, consumed, starts, before[target]) for target in targets}
        moved = {
            target: one.offset
            for target, one in queues.items()
            if one.offset is not None and one.offset != before[target]
        }
        if moved:
            self._target.report(group, moved)
        reasons = {one.why for one in queues.values()}
        why = UNKNOWN if reasons == {UNKNOWN} else next((one for one in (OWN, NOT_MIRRORED) if one in reasons), "")
        return GroupProgress(group=group, why=why, queues=list(queues.values()))


def to_json(told: list[GroupProgress], now: str) -> dict[str, Any]:
    """Return the content of `groups.json`."""
    return {"v": 1, "at": now, "groups": msgspec.to_builtins(told)}
