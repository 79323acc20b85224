"""Folding of a key's changes into one write, and the check of sequences. No I/O.

Changes come in order. Only the last state of a key counts, so a batch writes every key once however often it changed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from metaq.pipelines.changes.change import (
    DELETE,
    GAP,
    INSERT,
    STEP_BACK,
    Change,
    Place,
    Problem,
    Sequence_,
)

KEY, TABLE, QUEUE, NONE = "key", "table", "queue", "none"
"""Scopes in which sequences grow: a key, a table within a queue, a queue; `none`: they are not checked."""


class Verdict(enum.Enum):
    """Verdicts on a change's sequence, compared with the last one applied."""

    NEXT = "it follows"
    REPEAT = "it was applied before"
    GAP = "it follows, and something before it is missing"
    STEP_BACK = "a later one was applied before"


def judge(last: Sequence_ | None, found: Sequence_, *, dense: bool, distinct: bool) -> Verdict:
    """Return the verdict on the sequence `found` after `last`.

    Args:
        last: applied last; None: none.
        dense: each sequence is one more than the last.
        distinct: no two changes share a sequence, so that an equal one is a repeat.
    """
    if last is None:
        return Verdict.NEXT
    if found < last:
        return Verdict.STEP_BACK
    if found == last:
        return Verdict.REPEAT if distinct or dense else Verdict.NEXT
    return Verdict.GAP if dense and found != (*last[:-1], last[-1] + 1) else Verdict.NEXT


class Put(enum.Enum):
    """Kind of a key's pending write."""

    ROW = "it has this row, and nothing of an earlier one"
    COLUMNS = "these columns have these values, the others stay"
    NOTHING = "it is deleted"


@dataclass(slots=True)
class Final:
    """Pending write of one key, folded from its changes."""

    put: Put
    key: Mapping[str, Any]
    row: dict[str, Any]
    """Column → value."""
    sequence: Sequence_ | None
    """Of the last change."""

    def follow(self, change: Change) -> None:
        """Fold the next change into this write."""
        if change.op == DELETE:
            self.put, self.row = Put.NOTHING, {}
        # An update behind a delete makes a new row: nothing of the deleted one is left.
        elif change.op == INSERT or self.put is Put.NOTHING:
            self.put, self.row = Put.ROW, dict(change.row)
        else:
            self.row = {**self.row, **change.row}
        self.sequence = change.sequence


def begun(change: Change) -> Final:
    """Return the pending write of a key's first change in the batch."""
    put = {DELETE: Put.NOTHING, INSERT: Put.ROW}.get(change.op, Put.COLUMNS)
    return Final(put, change.key, dict(change.row), change.sequence)


@dataclass(slots=True)
class Sequences:
    """Checks the sequences of one scope: a key, a table of a queue, or a queue."""

    dense: bool
    """As of `judge`."""
    distinct: bool
    """As of `judge`."""
    last: dict[str, Sequence_] = field(default_factory=dict)
    """Name of the scope → sequence applied last."""
    repeats: int = 0
    problems: list[Problem] = field(default_factory=list)

    def take(self, name: str, found: Sequence_ | None, place: Place) -> bool:
        """Return whether to apply a change, always for one without a sequence. Notes problems of its sequence."""
        if found is None:
            return True
        last = self.last.get(name)
        verdict = judge(last, found, dense=self.dense, distinct=self.distinct)
        if verdict is Verdict.REPEAT:
            self.repeats += 1
            return False
        if verdict is Verdict.STEP_BACK:
            text = f"sequence {shown(found)} of {name} comes after {shown(last)}; it was left out"
            self.problems.append(Problem(STEP_BACK, place, text))
            return False
        if verdict is Verdict.GAP:
            text = f"sequence {shown(found)} of {name} comes after {shown(last)}: something between them is missing"
            self.problems.append(Problem(GAP, place, text))
        self.last[name] = found
        return True


def shown(sequence: Sequence_ | None) -> str:
    return "/".join(map(str, sequence or ()))


@dataclass(slots=True)
class Folded:
    """Result of folding."""

    finals: dict[str, Final]
    """Text of the key → pending write, of keys with an applied change."""
    applied: int
    """Number of applied changes."""
    repeats: int
    problems: list[Problem]


def fold(
    changes: Iterable[tuple[Place, Change]], known: Mapping[str, Sequence_], *, by_key: bool = True, dense: bool = False
) -> Folded:
    """Fold changes, in order.

    Args:
        known: text of the key → sequence applied last.
        by_key: whether sequences are checked per key: repeats and steps back are left out.
        dense: as of `judge`.
    """
    watch = Sequences(dense=dense, distinct=True, last=dict(known))
    finals: dict[str, Final] = {}
    applied = 0
    for place, change in changes:
        name = change.key_text
        if by_key and not watch.take(name, change.sequence, place):
            continue
        applied += 1
        if name in finals:
            finals[name].follow(change)
        else:
            finals[name] = begun(change)
    return Folded(finals, applied, watch.repeats, watch.problems)
