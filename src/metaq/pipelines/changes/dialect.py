"""Interface of database dialects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol


class Dialect(Protocol):
    """One kind of database. Statements have `%s` for values; `quote` quotes names."""

    errors: tuple[type[Exception], ...]
    """Exceptions of its driver."""
    upsert_needs_one_index: bool
    """Whether an upsert checks all unique indexes of a table, so that it may update a row with another key."""
    text_type: str
    """Column type of long texts."""
    key_text_type: str
    """Column type of texts in a key."""

    def connect(self) -> Any:
        """Return a new connection, without autocommit."""

    def passes(self, fault: Exception) -> bool:
        """Return whether a retry may succeed: the server is away, or another transaction held a lock."""

    def quote(self, name: str) -> str: ...

    def column_type(self, kind: str, *, key: bool) -> str: ...

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
        """Return an upsert statement."""

    def value(self, value: Any) -> Any:
        """Convert a value to one that the driver accepts."""

    def columns(self, cursor: Any, table: str) -> list[str]:
        """Return the columns of a table; []: there is no such table."""

    def unique_indexes(self, cursor: Any, table: str) -> Iterable[tuple[str, ...]]:
        """Return the columns of each unique index, the primary key included."""
