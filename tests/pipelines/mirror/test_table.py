"""Translated progress never skips a message that was not consumed, whatever is in the target's queue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.pipelines.mirror import table as mirror_table
from metaq.pipelines.mirror.table import OffsetRun, Table, together

FOREIGN = -1


@st.composite
def targets(draw) -> list[tuple[int, int]]:
    """A target queue as a list: (source queue, offset) of each message, or one of others. Sources lose some of their own; an
    at-least-once sink repeats, and not always in order."""
    kept = [draw(st.lists(st.integers(0, 30), unique=True).map(sorted)) for _ in range(draw(st.integers(1, 3)))]
    queue: list[tuple[int, int]] = []
    left = [list(offsets) for offsets in kept]
    while any(left):
        which = draw(st.integers(FOREIGN, len(left) - 1))
        if which == FOREIGN:
            queue.append((FOREIGN, 0))
        elif left[which]:
            count = draw(st.integers(1, 5))
            queue += [(which, offset) for offset in left[which][:count]]
            del left[which][:count]
    if draw(st.booleans()):
        sent = [one for one in queue if one[0] != FOREIGN]
        for one in draw(st.lists(st.sampled_from(sent), max_size=5)) if sent else []:
            queue.insert(draw(st.integers(0, len(queue))), one)
    return queue


def tables_of(queue, sources: int, base: int) -> list[Table]:
    tables = [Table((0, base)) for _ in range(sources)]
    for place, (which, offset) in enumerate(queue):
        if which != FOREIGN:
            tables[which].add(OffsetRun(offset, base + place, 1))
    return tables


@given(targets(), st.integers(0, 50), st.lists(st.integers(0, 35), min_size=3, max_size=3))
def test_nothing_that_was_not_consumed_lies_before_the_translated_position(queue, base, consumed):
    """Neither of the sources nor, with the first of others told, of anybody."""
    tables = tables_of(queue, 3, base)
    foreign = next((base + place for place, (which, _) in enumerate(queue) if which == FOREIGN), None)
    found = together([table.translate(at) for table, at in zip(tables, consumed, strict=True)], foreign)
    first = {}
    for place, one in enumerate(queue):
        first.setdefault(one, base + place)
    waiting = [place for (which, offset), place in first.items() if which == FOREIGN or offset >= consumed[which]]
    assert found is not None
    assert found >= base
    assert not [place for place in waiting if place < found]


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 50), st.integers(0, 60))
def test_a_mirror_alone_in_its_queue_repeats_nothing(source, target, count, ahead):
    """Batches join to one run, and each position has its own."""
    table = Table((source, target))
    for batch in range(3):
        table.add(OffsetRun(source + batch * count, target + batch * count, count))
    assert table.runs == [OffsetRun(source, target, 3 * count)]
    assert table.translate(source + ahead) == target + min(ahead, 3 * count)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 60), st.integers(1, 8))
def test_a_table_that_was_shortened_still_skips_nothing(gaps, position, kept):
    """What was forgotten is told as the beginning."""
    runs, source, target = [], 0, 7
    for gap in gaps:
        runs.append(OffsetRun(source, target, 1))
        source, target = source + 1 + gap, target + 1 + gap // 2
    whole, short = Table((0, 7), runs), Table((0, 7))
    before, mirror_table.RUNS_MAX = mirror_table.RUNS_MAX, kept
    try:
        for run in runs:
            short.add(run)
    finally:
        mirror_table.RUNS_MAX = before
    assert len(short.runs) <= kept
    assert 7 <= short.translate(position) <= whole.translate(position)


def test_what_is_written_twice_counts_where_it_was_first():
    """A replayed batch into a target that takes it again."""
    table = Table((0, 0))
    table.add(OffsetRun(0, 0, 10))
    table.add(OffsetRun(5, 10, 10))
    assert table.runs == [OffsetRun(0, 0, 10), OffsetRun(10, 15, 5)]
    assert [table.translate(at) for at in (0, 9, 10, 12, 15, 99)] == [0, 9, 15, 17, 20, 20]
    assert together([], None) is None
