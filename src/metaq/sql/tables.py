"""Makes tables: databases differ in types of columns, and in how an index is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from metaq.sql.statements import MYSQL, POSTGRESQL, SQLITE, quoted

IDENTITY: Final = {
    SQLITE: "INTEGER PRIMARY KEY AUTOINCREMENT",
    MYSQL: "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
    POSTGRESQL: "BIGSERIAL PRIMARY KEY",
}
"""Type of a column that counts the rows."""
_WORD: Final = {
    SQLITE: "VARCHAR({size})",
    # One byte a character, compared byte by byte: three fit an index, and words that differ in case stay two.
    MYSQL: "VARCHAR({size}) CHARACTER SET ascii COLLATE ascii_bin",
    POSTGRESQL: 'VARCHAR({size}) COLLATE "C"',
}
_NAME_CHARS_MAX: Final = 63
"""PostgreSQL cuts longer names; then an index could have the name of its table."""


def word(kind: str, size: int) -> str:
    """Return the type of a column with ASCII text of at most `size` characters, compared byte by byte."""
    return _WORD[kind].format(size=size)


def making(
    kind: str, table: str, columns: Sequence[str], indexes: Mapping[str, Sequence[str]], *, quote: bool = False
) -> list[str]:
    """Return the statements that make a table with its indexes, unless they are there.

    Args:
        kind: of the database.
        table: as `checked_table` has it.
        columns: definitions of columns and constraints.
        indexes: end of the index's name → its columns, as they stand in statements.
        quote: whether names of tables and indexes are quoted.
    """

    def spelt(name: str) -> str:
        return quoted(kind, name) if quote else name

    plain = table.replace(".", "_")
    named = {
        spelt(f"{plain[: _NAME_CHARS_MAX - len(end) - 1]}_{end}"): ", ".join(names) for end, names in indexes.items()
    }
    inside = ", ".join(columns)
    if kind == MYSQL:
        more = "".join(f", INDEX {index} ({names})" for index, names in named.items())
        return [f"CREATE TABLE IF NOT EXISTS {spelt(table)} ({inside}{more}) ENGINE=InnoDB"]
    # SQLite's index has the schema of its table, which is named without it.
    at = spelt(table.rpartition(".")[2] if kind == SQLITE else table)
    made = [f"CREATE INDEX IF NOT EXISTS {index} ON {at} ({names})" for index, names in named.items()]
    return [f"CREATE TABLE IF NOT EXISTS {spelt(table)} ({inside})", *made]
