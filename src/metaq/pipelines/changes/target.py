"""Interface of targets, and what they share."""

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
    applied: int = 0
    """Applied changes."""
    puts: int = 0
    """Written rows: a key that changed several times counts once."""
    deletes: int = 0
    repeats: int = 0
    """Changes that had been applied before."""
    others: int = 0
    """Changes of tables that the options leave out."""
    problems: list[Problem] = field(default_factory=list)


class Judge(Protocol):
    """Judges a batch's problems before it is committed. Raises ChangesBroken: by the policy one of them stops the query."""

    def __call__(self, problems: list[Problem], *, last: bool) -> None:
        """Args: last: all of the batch's problems are known now; they are saved when this returns."""


class Target(Protocol):
    """Target of changes. A batch is applied atomically, together with its number."""

    def guard(self, checkpoint: Path) -> None:
        """Raises ConfigError: the target was written under another checkpoint."""

    @property
    def last(self) -> Mapping[str, Sequence_]:
        """Scope → sequence applied last, where sequences are watched by queue."""

    def has(self, query: str, batch: int) -> bool:
        """Whether the batch was applied before. Raises ConfigError: later ones were."""

    def apply(self, query: str, batch: int, rows: Any, judge: Judge) -> Applied:
        """Apply a batch. `rows` is a frame of `reading.ROW_SCHEMA`. Raises what `judge` does, and then nothing has changed."""

    def close(self) -> None:
        """Release what is held; no batch follows."""


def joined_columns(
    before: Mapping[str, Mapping[str, str]], keys: Mapping[str, tuple[str, ...]], notes: Notes
) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Columns of all tables with those of a batch, and the tables that had columns whose kind has become another.

    Args: before: table → column → kind. keys: table → columns of its key.
    Raises: ConfigError: a table's key has other columns than before, or a column of it another kind: rows could not be found
        again.
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
