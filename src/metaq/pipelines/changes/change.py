"""Row changes, their place, and problems with them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from metaq.errors import MetaqError

INSERT, UPDATE, DELETE = "insert", "update", "delete"
"""Operations. An insert has the whole row; an update has some columns and leaves the others unchanged."""

CORRUPT, STATEMENT, GAP, STEP_BACK = "corrupt", "statement", "gap", "step_back"
"""Kinds of problems: a body that cannot be read; a statement without rows, such as DDL or TRUNCATE; a gap in the sequence; a
sequence number after a higher one."""

Sequence_ = tuple[int, ...]
"""A sequence: whole numbers, compared from the left, such as (binlog file, position, row) or (7,)."""


class NotAChange(MetaqError):
    """A body that cannot be read as changes. The text says why."""


class Statement(MetaqError):
    """A body about whole tables (DDL, TRUNCATE), which cannot be applied row by row. The text is the statement."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row."""

    op: str
    table: str
    """Name at the source, with its schema or database: `shop.orders`."""
    key: Mapping[str, Any]
    """The key's columns and values."""
    sequence: Sequence_ | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    """Columns and values, the key's among them; empty for a delete. Values are plain JSON, typed by their kind
    (`metaq.pipelines.changes.kinds`)."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Column → kind, where the kind is known."""

    @property
    def key_text(self) -> str:
        return key_text(self.key)


class Place(NamedTuple):
    """Location of a change: its message, and its number in that."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    number: int = 0

    def __str__(self) -> str:
        return f"{self.topic}, queue {self.queue_id} of {self.broker}, offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A change or body that was not applied, or a gap before a change that was."""

    what: str
    """Kind: CORRUPT, STATEMENT, GAP or STEP_BACK."""
    place: Place
    text: str
    """Description, without the place."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def key_text(key: Mapping[str, Any]) -> str:
    """Return the canonical text of a key, whatever the order of its columns."""
    return msgspec.json.encode(key, order="sorted").decode()


def bucket_of(key: str, buckets: int) -> int:
    """Return the bucket of a key's text. The function must never change: a key's row is looked for there only."""
    return zlib.crc32(key.encode()) % buckets


def keys_named(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse `keyColumns` to table (or "" for all others) → columns. An entry is `column` or `table:column`."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        table, _, column = name.rpartition(":")
        found[table] = (*found.get(table, ()), column)
    return found
