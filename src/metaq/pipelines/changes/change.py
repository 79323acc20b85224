"""Row changes, and messages that are none."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from metaq.errors import MetaqError

INSERT, UPDATE, DELETE = "insert", "update", "delete"
"""Operations. An insert has the whole row; an update has some columns and leaves the others as they are."""

CORRUPT, STATEMENT, GAP, STEP_BACK = "corrupt", "statement", "gap", "step_back"
"""Kinds of problems: a body that cannot be read; a statement that changes no single row, such as DDL or TRUNCATE; a gap in
the sequence; a sequence number after a higher one."""

Sequence_ = tuple[int, ...]
"""A sequence: whole numbers, compared from the left. (binlog file, position, row) is one, and (7,) another."""


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
    """Columns and values, the key's among them. Of a delete: empty. A value is plain JSON: what it means is its kind's business
    (`metaq.pipelines.changes.kinds`)."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Column → kind, where the kind is known."""

    @property
    def key_text(self) -> str:
        return key_text(self.key)


class Place(NamedTuple):
    """Where a change was found: its message, and its number in it."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    number: int = 0

    def __str__(self) -> str:
        return f"{self.topic}, queue {self.queue_id} of {self.broker}, offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was not applied, or a gap before something that was."""

    what: str
    place: Place
    text: str
    """Sentence for people, without the place."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def key_text(key: Mapping[str, Any]) -> str:
    """Canonical text of a key, whatever the order of its columns."""
    return msgspec.json.encode(key, order="sorted").decode()


def bucket_of(key: str, buckets: int) -> int:
    """Bucket of a key's text. The function must never change: files are found by it."""
    return zlib.crc32(key.encode()) % buckets


def keys_named(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The `keyColumns` option: table, or nothing for all others, → columns. An entry is `column` or `table:column`."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        table, _, column = name.rpartition(":")
        found[table] = (*found.get(table, ()), column)
    return found
