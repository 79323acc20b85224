"""Folding is the same as applying one change after the other."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from metaq.pipelines.changes.change import Change, Place
from metaq.pipelines.changes.folding import Put, Verdict, fold, judge

HERE = Place("t", "b", 0, 0)
OPS = st.sampled_from(["insert", "update", "delete"])
ROWS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3)


class Oracle:
    """A table in a dict, changed by one change at a time."""

    def __init__(self) -> None:
        self.rows: dict[int, dict] = {}
        self.applied: dict[int, int] = {}
        self.counts = {"applied": 0, "repeat": 0, "gap": 0, "step_back": 0}

    def apply(self, change: Change, *, by_key: bool, dense: bool) -> None:
        key, number = change.key["id"], change.sequence[0]
        last = self.applied.get(key)
        if by_key and last is not None and number <= last:
            self.counts["repeat" if number == last else "step_back"] += 1
            return
        if by_key and dense and last is not None and number > last + 1:
            self.counts["gap"] += 1
        self.counts["applied"] += 1
        self.applied[key] = number
        if change.op == "delete":
            self.rows.pop(key, None)
        elif change.op == "insert":
            self.rows[key] = dict(change.row)
        else:
            self.rows[key] = {**self.rows.get(key, {}), **change.row}


@st.composite
def changes(draw):
    return [
        Change(op, "t", {"id": key}, (number,), {} if op == "delete" else row)
        for op, key, number, row in draw(
            st.lists(st.tuples(OPS, st.integers(0, 3), st.integers(0, 12), ROWS), max_size=40)
        )
    ]


@given(changes(), st.lists(st.integers(0, 40)), st.booleans(), st.booleans())
def test_folding_batches_is_applying_one_by_one(all_changes, cuts, by_key, dense):
    """However the changes are cut into batches, with repeats, gaps and steps back among them."""
    oracle = Oracle()
    for change in all_changes:
        oracle.apply(change, by_key=by_key, dense=dense)
    rows, known, counts = {}, {}, {"applied": 0, "repeat": 0, "gap": 0, "step_back": 0}
    edges = sorted({0, len(all_changes), *(cut for cut in cuts if cut < len(all_changes))})
    for begin, end in itertools.pairwise(edges):
        folded = fold(((HERE, one) for one in all_changes[begin:end]), known, by_key=by_key, dense=dense)
        counts["applied"] += folded.applied
        counts["repeat"] += folded.repeats
        for problem in folded.problems:
            counts[problem.what] += 1
        for name, final in folded.finals.items():
            known[name] = final.sequence
            if final.put is Put.NOTHING:
                rows.pop(name, None)
            else:
                rows[name] = final.row if final.put is Put.ROW else {**rows.get(name, {}), **final.row}
    assert {f'{{"id":{key}}}': row for key, row in oracle.rows.items()} == rows
    assert counts == oracle.counts


@given(changes())
def test_a_batch_that_comes_again_changes_nothing(all_changes):
    """Where the sequences are the keys', every change of it is a repeat or a step back."""
    first = fold(((HERE, one) for one in all_changes), {})
    again = fold(((HERE, one) for one in all_changes), {name: one.sequence for name, one in first.finals.items()})
    assert (again.finals, again.applied) == ({}, 0)


def test_sequences_of_many_parts_are_compared_from_the_left():
    """A later binlog file is later, wherever in it."""
    assert judge((3, 484, 1), (4, 4, 0), dense=False, distinct=True) is Verdict.NEXT
    assert judge((3, 484, 1), (3, 484, 0), dense=False, distinct=True) is Verdict.STEP_BACK
    assert judge((3, 484, 1), (3, 484, 1), dense=False, distinct=True) is Verdict.REPEAT
    assert judge((3,), (3,), dense=False, distinct=False) is Verdict.NEXT
    assert judge((3,), (3,), dense=True, distinct=False) is Verdict.REPEAT
    assert judge((3,), (5,), dense=True, distinct=False) is Verdict.GAP


def test_problems_name_key_and_place():
    """So that somebody can look."""
    put = [Change("insert", "t", {"id": 1}, (number,), {"a": 1}) for number in (1, 3, 2)]
    folded = fold(((Place("orders", "broker-a", 2, 40 + i), one) for i, one in enumerate(put)), {}, dense=True)
    assert [str(problem) for problem in folded.problems] == [
        'orders, queue 2 of broker-a, offset 41: sequence 3 of {"id":1} comes after 1: something between them is missing',
        'orders, queue 2 of broker-a, offset 42: sequence 2 of {"id":1} comes after 3; it was left out',
    ]
