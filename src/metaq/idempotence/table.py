"""The table of keys that were handled: group, key, and when.

The primary key decides between two deliveries at once: the second waits until the first transaction ends. It finds the key
if that one was committed, and has it for itself if not. SQLite lets one writer in at all.
"""

from __future__ import annotations

from metaq.sql.statements import MYSQL, POSTGRESQL, SQLITE, Statements

_COLUMNS = "consumer_group {text} NOT NULL, message_key {text} NOT NULL, seen_ms BIGINT NOT NULL"
_TEXT = {
    SQLITE: "VARCHAR(255)",
    # One byte a character, compared byte by byte: both fit an index, and keys that differ in case stay two.
    MYSQL: "VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin",
    POSTGRESQL: 'VARCHAR(255) COLLATE "C"',
}
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
    columns = _COLUMNS.format(text=_TEXT[on.kind]) + ", PRIMARY KEY (consumer_group, message_key)"
    index = f"{table.replace('.', '_')}_age"
    if on.kind == MYSQL:
        on.run(f"CREATE TABLE IF NOT EXISTS {table} ({columns}, INDEX {index} (consumer_group, seen_ms)) ENGINE=InnoDB")
        return
    on.run(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
    on.run(
        f"CREATE INDEX IF NOT EXISTS {index} ON {table.rsplit('.', maxsplit=1)[-1] if on.kind == SQLITE else table} (consumer_group, seen_ms)"
    )


def record(on: Statements, table: str, group: str, key: str) -> bool:
    """Record a key. Returns False: it is there already."""
    return on.run(_INSERT[on.kind].format(table=table), (group, key, on.now_ms())) == 1


def forget(on: Statements, table: str, group: str, before_ms: int, count: int) -> int:
    """Delete at most `count` keys that are older. Returns their number."""
    return on.run(_DELETE[on.kind].format(table=table, count=count), (group, before_ms))
