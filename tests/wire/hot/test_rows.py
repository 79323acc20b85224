"""Columns of messages become entries of a batch."""

from __future__ import annotations

import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.wire.record import decode_batch, encode_batch
from tests.wire.hot.support import FALLBACK, NATIVE, both, needs_native

PREFIX = b"7F00000128E55FFD2B27676F493F"


def column(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    offsets = array.array("i", [0])
    for value in values:
        offsets.append(offsets[-1] + len(value))
    return offsets.tobytes(), b"".join(values)


def numbers(values: Sequence[int]) -> bytes:
    return array.array("i", values).tobytes()


@both
def test_rows_become_the_entries_that_add_would_make(hot):
    """Bodies, properties and flags of each row, in order, the id behind the properties."""
    bodies, texts = [b"one", b"two", b"three"], [b"", b"TAGS\x01a", b"k\x01v\x02"]
    columns = hot.RowColumns(3, column(bodies), column(texts), numbers([0, -7, 5]))
    plain, named = hot.Batch(), hot.Batch(PREFIX)
    assert plain.add_rows(columns) == named.add_rows(columns) == 3
    assert plain.take() == encode_batch(list(zip([0, -7, 5], bodies, texts, strict=True)))
    unique = b"UNIQ_KEY\x01" + PREFIX
    assert [text for _, _, text in decode_batch(named.take())] == [
        unique + b"0000", b"TAGS\x01a\x02" + unique + b"0001", b"k\x01v\x02" + unique + b"0002",
    ]  # fmt: skip


@both
def test_only_the_chosen_rows_are_added_from_the_given_place_on(hot):
    """Row numbers may repeat and come in any order."""
    columns = hot.RowColumns(3, column([b"a", b"b", b"c"]))
    batch = hot.Batch()
    assert batch.add_rows(columns, 1, numbers([0, 2, 2, 1])) == 4
    assert [body for _, body, _ in decode_batch(batch.take())] == [b"c", b"c", b"b"]
    assert batch.add_rows(columns) == 0, "it was taken"


@both
def test_adding_stops_where_a_batch_is_full_and_at_a_row_that_no_batch_takes(hot):
    """The caller goes on there with another batch, or says what is wrong."""
    batch = hot.Batch(b"", 50)
    assert batch.add_rows(hot.RowColumns(3, column([b"abc"] * 3))) == 2
    assert hot.Batch().add_rows(hot.RowColumns(3, column([b"a", b"", b"c"]))) == 1
    text = column([b"x" * 32767, b"x" * 32768])
    assert hot.Batch().add_rows(hot.RowColumns(2, column([b"a", b"b"]), text)) == 1
    assert hot.Batch(PREFIX).add_rows(hot.RowColumns(2, column([b"a", b"b"]), text)) == 0
    many = hot.RowColumns(65537, column([b"a"] * 65537))
    assert hot.Batch().add_rows(many) == 65536


@both
def test_columns_that_do_not_fit_together_are_refused(hot):
    """Nothing beyond a buffer's end is ever read."""
    for count, bodies, flags in [
        (-1, (b"", b""), None),
        (2, column([b"a"]), None),
        (1, (numbers([0, 2]), b"a"), None),
        (1, (numbers([1, 0]), b"a"), None),
        (1, (numbers([-1, 0]), b"a"), None),
        (1, column([b"a"]), b"abc"),
    ]:
        with pytest.raises(ValueError):
            hot.RowColumns(count, bodies, None, flags)
    columns, batch = hot.RowColumns(1, column([b"a"])), hot.Batch()
    for rows in ([1], [-1], [0, 7]):
        with pytest.raises(IndexError, match="no row"):
            batch.add_rows(columns, 0, numbers(rows))
    with pytest.raises(IndexError):
        batch.add_rows(columns, -1)
    assert batch.count == 1
    assert batch.add_rows(columns, 5) == 5


@both
def test_empty_bodies_are_taken_only_where_they_are_wanted(hot):
    """In rows and one by one."""
    columns = hot.RowColumns(3, column([b"a", b"", b"c"]), column([b"k\x01v", b"", b""]))
    plain, wanted = hot.Batch(), hot.Batch(b"", 1000, True)
    assert (plain.add(0, b"", b""), plain.add_message(b"", None, None)) == (-1, -1)
    assert (wanted.add_rows(columns), wanted.add(7, b"", b"")) == (3, 3)
    assert [body for _, body, _ in decode_batch(wanted.take())] == [b"a", b"", b"c", b""]
    assert [columns.sizes(row) for row in range(3)] == [(1, 3), (0, 0), (1, 0)]
    assert hot.RowColumns(1, column([b"ab"])).sizes(0) == (2, 0)
    for row in (-1, 3):
        with pytest.raises(IndexError, match="no row"):
            columns.sizes(row)


@needs_native
@given(
    rows=st.lists(
        st.tuples(st.binary(max_size=20), st.binary(max_size=9), st.integers(-(2**31), 2**31 - 1)), max_size=9
    ),
    chosen=st.lists(st.integers(0, 8), max_size=12),
    prefix=st.sampled_from([b"", PREFIX]),
    room=st.integers(0, 400),
    empty=st.booleans(),
)
def test_fallback_and_native_alike(rows, chosen, prefix, room, empty):
    """Random columns give the same entries, and stop at the same place."""
    chosen = [row for row in chosen if row < len(rows)]
    results = []
    for hot in (NATIVE, FALLBACK):
        batch = hot.Batch(prefix, room, empty)
        columns = hot.RowColumns(
            len(rows),
            column([row[0] for row in rows]),
            column([row[1] for row in rows]),
            numbers([row[2] for row in rows]),
        )
        results.append(
            (batch.add_rows(columns), batch.add_rows(columns, 0, numbers(chosen)), batch.count, batch.take(),
             [columns.sizes(row) for row in range(len(rows))])
        )  # fmt: skip
    assert results[0] == results[1]
