"""Interface of targets, and the merging of columns that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from metaq.errors import ConfigError
from metaq.pipelines.changes import kinds
from metaq.pipelines.changes.change import Problem, Sequence_
from metaq.pipelines.changes.reading import Notes


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """Figures of an applied batch."""

    messages: int = 0
    """Messages read."""
    applied: int = 0
    """Applied changes."""
    puts: int = 0
    """Written rows: a key that changed several times counts once."""
    deletes: int = 0
    """Deleted keys."""
    repeats: int = 0
    """Changes that had been applied before."""
    others: int = 0
    """Changes of tables that the options leave out."""
    problems: list[Problem] = field(default_factory=list)


class Judge(Protocol):
    """Judges a batch's problems before it is committed."""

    def __call__(self, problems: list[Problem], *, last: bool) -> None:
        """Raise ChangesBroken if the options stop at one of the problems.

        Args: last: whether these are all problems of the batch; they are then saved.
        """


class Target(Protocol):
    """Target of changes. A batch is applied atomically, together with its number."""

    def guard(self, checkpoint: Path) -> None:
        """Raise ConfigError if the target was written with another checkpoint."""

    @property
    def last(self) -> Mapping[str, Sequence_]:
        """Scope → sequence applied last, if sequences are checked by queue."""

    def has(self, query: str, batch: int) -> bool:
        """Return whether the batch is applied. Raises ConfigError: later ones are, so the checkpoint is an old copy."""

    def apply(self, query: str, batch: int, rows: Any, judge: Judge) -> Applied:
        """Apply a batch, a DataFrame of `reading.ROW_SCHEMA`. Raises what `judge` raises, with nothing changed."""

    def close(self) -> None:
        """Release resources; no batch follows."""


def joined_columns(
    before: Mapping[str, Mapping[str, str]], keys: Mapping[str, tuple[str, ...]], notes: Notes
) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Merge a batch's columns into those of all tables. Returns them, and the tables in which a column's kind has changed.

    Args:
        before: table → column → kind.
        keys: table → columns of its key.

    Raises: ConfigError: a table's key has other columns than before, or a key column another kind: rows could no longer be
        found by their key.
    """
    columns = {name: dict(its) for name, its in before.items()}
    widened: set[str] = set()
    for table, met in notes.keys.items():
        ways = met | ({tuple(sorted(keys[table]))} if table in keys else set())
        if len(ways) > 1:
            said = " and ".join(sorted(", ".join(way) for way in ways))
            raise ConfigError(
                f"the key of {table} is {said}: it must be one. Say which with keyColumns, or begin in another folder"
            )
        columns[table] = kinds.merge_all(before.get(table, {}), notes.columns.get(table, {}))
        for name, kind in before.get(table, {}).items():
            if columns[table][name] == kind:
                continue
            widened.add(table)
            if name in keys.get(table, ()):
                raise ConfigError(
                    f"{name}, of the key of {table}, was {kind} and is {notes.columns[table][name]} now: its rows could not "
                    "be found again. Begin in another folder"
                )
    return columns, widened
