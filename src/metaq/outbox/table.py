"""Statements of the outbox's table. Each function runs in the transaction of whoever calls it.

A sender leases rows for a time; no transaction is open while messages are on their way. Whoever wants a lane leases its first waiting
row, and with it some behind it; of a lane of which any row is leased nobody else takes one. So a lane has one sender at a time.
Times are the database's, which all senders share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from metaq.outbox.entry import PARKED, SENT, WAITING, Entry
from metaq.sql.statements import MYSQL, POSTGRESQL, SQLITE, VALUES_MAX, Statements, places
from metaq.sql.tables import IDENTITY, making, word

_T = TypeVar("_T")
_BYTES = {SQLITE: "BLOB", MYSQL: "LONGBLOB", POSTGRESQL: "BYTEA"}
_LONG_TEXT = {SQLITE: "TEXT", MYSQL: "TEXT CHARACTER SET utf8mb4", POSTGRESQL: "TEXT"}
_SHOWN = "position, message_id, protocol, topic, lane, content, state, tries, due_ms, added_ms, ended_ms, error"
ERROR_CHARS_MAX = 1000


def create(on: Statements, table: str) -> None:
    """Create the table with its indexes, unless it is there."""

    def text(size: int) -> str:
        return word(on.kind, size)

    columns = [
        f"position {IDENTITY[on.kind]}", f"message_id {text(64)} NOT NULL", f"protocol {text(16)} NOT NULL",
        f"topic {text(255)} NOT NULL", f"lane {text(255)} NOT NULL", f"content {_BYTES[on.kind]} NOT NULL",
        f"state {text(16)} NOT NULL", "tries INTEGER NOT NULL", "due_ms BIGINT NOT NULL", "added_ms BIGINT NOT NULL",
        "ended_ms BIGINT NOT NULL", f"error {_LONG_TEXT[on.kind]} NOT NULL", f"owner {text(32)} NOT NULL",
        "lease_ms BIGINT NOT NULL", "UNIQUE (message_id)",
    ]  # fmt: skip
    indexes = {"state": ("state", "position"), "lane": ("lane", "state", "position"), "owner": ("owner",)}
    for statement in making(on.kind, table, columns, indexes):
        on.run(statement)


def add(on: Statements, table: str, message_id: str, protocol: str, topic: str, lane: str, content: bytes) -> None:
    on.run(
        f"INSERT INTO {table} (message_id, protocol, topic, lane, content, state, tries, due_ms, added_ms, ended_ms, error, owner, "  # noqa: S608
        f"lease_ms) VALUES ({places(13)})",
        (message_id, protocol, topic, lane, content, WAITING, 0, 0, on.now_ms(), 0, "", "", 0),
    )


# ------------------------------------------------------------------ what senders do


def lease(
    on: Statements, table: str, protocols: Sequence[str], owner: str, seconds: float, count: int, *, skips_locked: bool
) -> bool:
    """Lease rows for a new `owner`, at most `count`. To be committed, and then read by `leased`. Returns False: none is due.

    Args: skips_locked: the database can pass over rows that other senders are leasing. One that cannot lets senders choose the same
        rows at the same moment, of whom one gets them.
    """
    now = on.now_ms()
    heads = on.rows(
        f"SELECT position FROM {table} o WHERE state = ? AND due_ms <= ? AND lease_ms <= ? "  # noqa: S608
        f"AND protocol IN ({places(len(protocols))}) AND (lane = '' OR NOT EXISTS (SELECT 1 FROM {table} e WHERE e.lane = o.lane "
        f"AND e.state = ? AND (e.position < o.position OR e.lease_ms > ?))) ORDER BY position LIMIT {count}"
        # Other senders take other rows, instead of waiting for these.
        + (" FOR UPDATE SKIP LOCKED" if skips_locked else ""),
        (WAITING, now, now, *protocols, WAITING, now),
    )
    until = now + round(seconds * 1000)
    _take(on, table, [position for (position,) in heads], owner, now, until)
    mine = on.rows(f"SELECT lane FROM {table} WHERE owner = ?", (owner,))  # noqa: S608
    room = count - len(mine)
    for lanes in _pieces(sorted({lane for (lane,) in mine if lane})):
        if room <= 0:
            break
        behind = on.rows(
            f"SELECT position FROM {table} WHERE lane IN ({places(len(lanes))}) AND state = ? AND owner <> ? "  # noqa: S608
            f"ORDER BY position LIMIT {room}",
            (*lanes, WAITING, owner),
        )
        _take(on, table, [position for (position,) in behind], owner, now, until)
        room -= len(behind)
    return bool(mine)


def _take(on: Statements, table: str, positions: Sequence[int], owner: str, now: int, until: int) -> None:
    for some in _pieces(positions):
        on.run(
            f"UPDATE {table} SET owner = ?, lease_ms = ? WHERE position IN ({places(len(some))}) AND state = ? AND lease_ms <= ?",  # noqa: S608
            (owner, until, *some, WAITING, now),
        )


def leased(on: Statements, table: str, owner: str) -> list[Entry]:
    """Return what `owner` has, in order; lanes that two have leased at the same moment are given back, by both."""
    entries = [
        _entry(row)
        for row in on.rows(f"SELECT {_SHOWN} FROM {table} WHERE owner = ? ORDER BY position", (owner,))  # noqa: S608
    ]
    now, shared = on.now_ms(), set()
    for lanes in _pieces(sorted({entry.lane for entry in entries if entry.lane})):
        found = on.rows(
            f"SELECT DISTINCT lane FROM {table} WHERE lane IN ({places(len(lanes))}) AND state = ? AND lease_ms > ? AND owner <> ?",  # noqa: S608
            (*lanes, WAITING, now, owner),
        )
        shared |= {lane for (lane,) in found}
    release(on, table, owner, [entry.position for entry in entries if entry.lane in shared])
    return [entry for entry in entries if entry.lane not in shared]


def release(on: Statements, table: str, owner: str, positions: Sequence[int]) -> None:
    """Give rows back."""
    for some in _pieces(positions):
        on.run(
            f"UPDATE {table} SET owner = '', lease_ms = 0 WHERE position IN ({places(len(some))}) AND owner = ?",  # noqa: S608
            (*some, owner),
        )


def sent(on: Statements, table: str, owner: str, positions: Sequence[int], *, keep: bool) -> None:
    """Remove rows that were sent, or keep them as such."""
    now = on.now_ms() if keep else 0
    for some in _pieces(positions):
        which, values = f"WHERE position IN ({places(len(some))}) AND owner = ?", (*some, owner)
        if keep:
            on.run(
                f"UPDATE {table} SET state = ?, ended_ms = ?, owner = '', lease_ms = 0, error = '' {which}",  # noqa: S608
                (SENT, now, *values),
            )
        else:
            on.run(f"DELETE FROM {table} {which}", values)  # noqa: S608


def failed(on: Statements, table: str, owner: str, position: int, error: str, pause: float, *, park: bool) -> None:
    """Count a failed try; the row waits `pause` seconds, or is parked."""
    now = on.now_ms()
    on.run(
        f"UPDATE {table} SET tries = tries + 1, error = ?, state = ?, due_ms = ?, ended_ms = ?, owner = '', lease_ms = 0 "  # noqa: S608
        "WHERE position = ? AND owner = ?",
        (
            error[:ERROR_CHARS_MAX],
            PARKED if park else WAITING,
            now + round(pause * 1000),
            now if park else 0,
            position,
            owner,
        ),
    )


# ------------------------------------------------------------------ what operators do


def listed(on: Statements, table: str, state: str | None, topic: str | None, after: int, count: int) -> list[Entry]:
    """Return at most `count` entries behind position `after`, in order."""
    where, values = _where(state, topic)
    rows = on.rows(
        f"SELECT {_SHOWN} FROM {table} WHERE position > ?{where} ORDER BY position LIMIT {count}",  # noqa: S608
        (after, *values),
    )
    return [_entry(row) for row in rows]


def existing(on: Statements, table: str, message_ids: Sequence[str]) -> list[str]:
    """Return those of the ids that are there."""
    return [
        found
        for some in _pieces(message_ids)
        for (found,) in on.rows(
            f"SELECT message_id FROM {table} WHERE message_id IN ({places(len(some))})",  # noqa: S608
            some,
        )
    ]


def resend(on: Statements, table: str, message_ids: Sequence[str]) -> int:
    """Have parked, sent or waiting messages sent at once, with all their tries. Returns how many there are."""
    return sum(
        on.run(
            f"UPDATE {table} SET state = ?, tries = 0, due_ms = 0, ended_ms = 0 WHERE message_id IN ({places(len(some))}) AND lease_ms <= ?",  # noqa: S608
            (WAITING, *some, on.now_ms()),
        )
        for some in _pieces(message_ids)
    )


def drop(on: Statements, table: str, message_ids: Sequence[str]) -> int:
    """Delete messages, but not those that are being sent. Returns how many."""
    return sum(
        on.run(
            f"DELETE FROM {table} WHERE message_id IN ({places(len(some))}) AND lease_ms <= ?",  # noqa: S608
            (*some, on.now_ms()),
        )
        for some in _pieces(message_ids)
    )


def expired(on: Statements, table: str, keep: float, count: int) -> list[int]:
    """Return positions of at most `count` messages that were sent more than `keep` seconds ago."""
    before = on.now_ms() - round(keep * 1000)
    rows = on.rows(
        f"SELECT position FROM {table} WHERE state = ? AND ended_ms < ? ORDER BY position LIMIT {count}",  # noqa: S608
        (SENT, before),
    )
    return [position for (position,) in rows]


def delete_sent(on: Statements, table: str, positions: Sequence[int]) -> int:
    return sum(
        on.run(f"DELETE FROM {table} WHERE position IN ({places(len(some))}) AND state = ?", (*some, SENT))  # noqa: S608
        for some in _pieces(positions)
    )


def _where(state: str | None, topic: str | None) -> tuple[str, list[str]]:
    given = {name: value for name, value in (("state", state), ("topic", topic)) if value is not None}
    return "".join(f" AND {name} = ?" for name in given), list(given.values())


def _entry(row: Sequence[object]) -> Entry:
    values = list(row)
    values[5] = bytes(values[5])  # type: ignore[call-overload]  # a memoryview of some drivers
    return Entry(*values)  # type: ignore[arg-type]


def _pieces(values: Iterable[_T]) -> Iterator[list[_T]]:
    left = iter(values)
    while some := list(islice(left, VALUES_MAX)):
        yield some
