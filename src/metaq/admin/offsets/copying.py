"""Copies offsets of groups of MetaQ 1.x: to another broker id, another place, or both. What is there is never overwritten."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from typing import Final

from msgspec import Struct, structs

from metaq.admin.offsets.places import Kept, Place, kept_at
from metaq.errors import ConfigError
from metaq.registry.offset_table import PartitionOffset
from metaq.registry.zookeeper.layout import OffsetNode
from metaq.registry.zookeeper.offsets import Key

_PARTITION: Final = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)


class OffsetSelection(Struct, frozen=True, kw_only=True):
    """Which offsets are copied, and to which partitions. Empty: all, and to the same."""

    topic: str | None = None
    """Only of this topic; None: of all."""
    groups: tuple[str, ...] = ()
    """Only of these groups; empty: of all."""
    broker: int | None = None
    """Only of partitions of this broker id."""
    first: int | None = None
    """Number of the first partition; None: from 0 on."""
    last: int | None = None
    """Only of the partitions with these numbers."""
    to_broker: int | None = None
    """Broker id of the partitions that they are copied to; None: the same."""
    to_first: int | None = None
    """Number of the partition that `first` becomes; the others follow."""

    def check(self, *, same_place: bool) -> None:
        """Raises ConfigError: it does not say what goes where."""
        if self.first is not None and self.last is not None and self.last < self.first:
            raise ConfigError(f"partitions {self.first} to {self.last}: the last one is in front of the first one")
        if self.to_broker is not None and self.broker is None:
            raise ConfigError(
                "of which broker are the partitions that go to another one? Offsets of two would become one"
            )
        if self.to_first is not None and (self.first is None or self.broker is None):
            raise ConfigError("partitions get other numbers from a first one on, of one broker: say both")
        if same_place and self.to_broker in (None, self.broker) and self.to_first in (None, self.first):
            raise ConfigError("nothing would be copied: name another broker, other numbers, or another place")


class CopyOutcome(enum.StrEnum):
    """What became of one offset."""

    COPIED = "copied"
    """It is at the target now; of a dry run: it would be."""
    THERE = "there"
    """The target has one already, which stays."""
    UNREADABLE = "unreadable"
    """What stands at the source is no offset."""


class CopiedOffset(Struct, frozen=True, kw_only=True):
    """One offset that was copied, or not."""

    group: str
    """The group."""
    topic: str
    """The topic."""
    partition: str
    """At the source, `brokerId-number`."""
    to_partition: str
    """At the target, likewise."""
    text: str
    """At the source, as `messageId-offset`."""
    outcome: CopyOutcome
    """What became of it."""
    there: str | None = None
    """What the target had already, likewise."""


def target_of(partition: str, selection: OffsetSelection) -> str | None:
    """Return the partition to which the offset of one goes; None: it is not selected, or is none."""
    found = _PARTITION.fullmatch(partition)
    if found is None:
        return None
    broker, number = int(found[1]), int(found[2])
    if selection.broker not in (None, broker):
        return None
    if number < (selection.first or 0) or (selection.last is not None and number > selection.last):
        return None
    moved = number if selection.to_first is None else number - (selection.first or 0) + selection.to_first
    return f"{broker if selection.to_broker is None else selection.to_broker}-{moved}"


async def copy(
    source: Place, target: Place, selection: OffsetSelection, *, dry_run: bool = False
) -> list[CopiedOffset]:
    """Copy offsets; with `dry_run`, tell what would be copied.

    Raises ConfigError: the selection does not say what goes where. ConnectionFailed, MetaqError: a place cannot be read or written;
    what is copied then stays, and a repetition copies the rest.
    """
    selection.check(same_place=source == target)
    async with kept_at(source) as here:
        if source == target:
            return await _copy(here, here, selection, dry_run=dry_run)
        async with kept_at(target) as there:
            return await _copy(here, there, selection, dry_run=dry_run)


async def _copy(here: Kept, there: Kept, selection: OffsetSelection, *, dry_run: bool) -> list[CopiedOffset]:
    rows, odd = await read(here, selection.groups, selection.topic)
    wanted = {
        row.key: structs.replace(row, partition=place)
        for row in rows
        if (place := target_of(row.partition, selection)) is not None
    }
    if dry_run:
        before, odd_there = await read(there, selection.groups, selection.topic)
        taken = {row.key: _text(row) for row in before} | odd_there
    else:
        taken = await there.add(list(wanted.values()))
    found = []
    for key, row in wanted.items():
        had = taken.get(row.key)
        outcome = CopyOutcome.COPIED if had is None else CopyOutcome.THERE
        found.append(_told(key, row.partition, _text(row), outcome, had))
    for key, text in odd.items():
        if (place := target_of(key[2], selection)) is not None:
            found.append(_told(key, place, text, CopyOutcome.UNREADABLE, None))
    return sorted(found, key=lambda one: (one.group, one.topic, _order(one.partition)))


async def read(at: Kept, groups: Collection[str], topic: str | None) -> tuple[list[PartitionOffset], dict[Key, str]]:
    """Return offsets of some groups, or of all (none named); and what is no offset."""
    rows: list[PartitionOffset] = []
    odd: dict[Key, str] = {}
    wanted: list[str | None] = [*sorted(set(groups))] or [None]
    for group in wanted:
        some, others = await at.rows(group, topic)
        rows += some
        odd |= others
    return rows, odd


def _text(row: PartitionOffset) -> str:
    return OffsetNode(row.message_id, row.offset).text


def _told(key: Key, place: str, text: str, outcome: CopyOutcome, there: str | None) -> CopiedOffset:
    return CopiedOffset(
        group=key[0], topic=key[1], partition=key[2], to_partition=place, text=text, outcome=outcome, there=there
    )


def _order(partition: str) -> tuple[int, ...]:
    return tuple(int(part) for part in partition.split("-"))
