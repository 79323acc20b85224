"""The table of keys that were handled: group, key, and when.

The primary key decides between two deliveries at once: the second waits until the first transaction ends. It finds the key
if that one was committed, and has it for itself if not. SQLite lets one writer in at all.
"""

from __future__ import annotations

from metaq.sql.statements import MYSQL, POSTGRESQL, SQLITE, Statements
from metaq.sql.tables import making, word

_INSERT = {
    SQLITE: "INSERT INTO {table} (consumer_group, message_key, seen_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
    # With a clause for duplicates, rows would be counted by whether the driver counts those that are found.
    MYSQL: "INSERT IGNORE INTO {table} (consumer_group, message_key, seen_ms) VALUES (?, ?, ?)",
    POSTGRESQL: "INSERT INTO {table} (consumer_group, message_key, seen_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
}
_DELETE = {
    SQLITE: "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE consumer_group = ? AND seen_ms < ? LIMIT {count})",
    MYSQL: "DELETE FROM {table} WHERE consumer_group = ? AND seen_ms < ? LIMIT {count}",
    POSTGRESQL: (
        "DELETE FROM {table} WHERE ctid = ANY(ARRAY("
        "SELECT ctid FROM {table} WHERE consumer_group = ? AND seen_ms < ? LIMIT {count} FOR UPDATE SKIP LOCKED))"
    ),
}


def create(on: Statements, table: str) -> None:
    """Create the table with its index, unless it is there."""
    text = word(on.kind, 255)
    columns = [
        f"consumer_group {text} NOT NULL", f"message_key {text} NOT NULL", "seen_ms BIGINT NOT NULL",
        "PRIMARY KEY (consumer_group, message_key)",
    ]  # fmt: skip
    for statement in making(on.kind, table, columns, {"age": ("consumer_group", "seen_ms")}):
        on.run(statement)


def record(on: Statements, table: str, group: str, key: str) -> bool:
    """Record a key. Returns False: it is there already."""
    return on.run(_INSERT[on.kind].format(table=table), (group, key, on.now_ms())) == 1


def forget(on: Statements, table: str, group: str, before_ms: int, count: int) -> int:
    """Delete at most `count` keys that are older. Returns their number."""
    return on.run(_DELETE[on.kind].format(table=table, count=count), (group, before_ms))
