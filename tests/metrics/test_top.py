"""Bounded names: whatever comes and goes, no sum ever goes back, and nothing is counted twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.metrics.top import PIECE, STAY, Others, Top


def drain(work):
    return [entry for entry in work if entry is not None]


def look(top, counts):
    drain(top.look(list(counts.items())))


def grown_from(before, now):
    """As Prometheus' `increase`: a counter that has gone back has begun anew."""
    return now - before if now >= before else now


KEYS = st.sampled_from([f"t{number}" for number in range(12)])
GROWTH = st.dictionaries(KEYS, st.integers(0, 1000), max_size=12)
ROUNDS = st.lists(st.tuples(GROWTH, st.sets(KEYS, max_size=3)), min_size=1, max_size=12)


@given(st.integers(1, 6), ROUNDS)
def test_named_counts_and_the_sum_of_the_others_only_grow_and_add_up_to_what_was_counted(most, rounds):
    top, others = Top[str](most), Others[str]()
    counts, before = dict[str, int](), dict[str, int]()
    total_before = 0
    for growth, dropped in rounds:
        for key, more in growth.items():
            counts[key] = counts.get(key, 0) + more
        look(top, counts)
        assert len(top.named) <= most and top.named <= set(counts)
        named = dict(drain(others.split(list(counts.items()), top.named)))
        assert set(named) == top.named
        assert named == {key: counts[key] for key in named}
        assert others.total >= total_before
        # What grew in this round is told once: by its name, or in the sum.
        assert others.total - total_before == sum(
            grown_from(before.get(key, 0), count) for key, count in counts.items() if key not in top.named
        )
        before, total_before = dict(counts), others.total
        for key in dropped:  # a deleted topic: its counter is gone, and begins anew if it comes again
            counts.pop(key, None)


@given(st.dictionaries(KEYS, st.integers(0, 1000)))
def test_no_limit_names_all(counts):
    top = Top[str](0)
    look(top, counts)
    assert top.named == set(counts)


def test_the_busiest_are_named_and_stay_until_another_is_clearly_busier():
    top, counts = Top[str](1), {"a": 100, "b": 50}
    look(top, counts)
    assert top.named == {"a"}
    counts = {"a": 200, "b": 150 + int(100 * (STAY - 1))}  # b grows more, but not so much that names change
    look(top, counts)
    assert top.named == {"a"}
    for _ in range(5):
        counts = {"a": counts["a"] + 10, "b": counts["b"] + 1000}
        look(top, counts)
    assert top.named == {"b"}


def test_long_tables_are_looked_at_in_pieces():
    counts = {f"t{number}": number for number in range(10_000)}
    pieces = len(counts) // PIECE
    assert sum(1 for _ in Top[str](5).look(counts.items())) >= pieces
    assert sum(1 for entry in Others[str]().split(counts.items(), set()) if entry is None) == pieces
