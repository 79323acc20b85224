"""Which records a pull returns, and their bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.hot_support import NATIVE, TWIN, both, needs_native


def units_of(*units):
    return b"".join(struct.pack(">qiq", *unit) for unit in units)


def seen(hot, data, *where):
    found = hot.select(data, *where)
    return (
        found.count,
        found.size,
        found.next_offset,
        found.first_log,
        found.last_log_end,
        found.contiguous,
        found.spans(),
    )


UNITS = units_of((0, 10, 1), (10, 20, 2), (30, 5, 1), (100, 7, -3), (107, 8, 1 << 40), (115, 9, 2))


@both
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((0, 0, 6, None, 32, 9999, 0, 999), (6, 59, 6, 0, 124, False, [(0, 35), (100, 24)])),
        ((0, 0, 3, None, 32, 9999, 0, 999), (3, 35, 3, 0, 35, True, [(0, 35)])),
        ((0, 1, 6, None, 2, 9999, 0, 999), (2, 25, 3, 10, 35, True, [(10, 25)])),
        ((0, 0, 6, None, 32, 30, 0, 999), (2, 30, 2, 0, 30, True, [(0, 30)])),
        ((0, 1, 6, None, 32, 1, 0, 999), (1, 20, 2, 10, 30, True, [(10, 20)])),
        ((0, 0, 6, frozenset({1}), 32, 9999, 0, 999), (2, 15, 6, 0, 35, False, [(0, 10), (30, 5)])),
        ((0, 0, 6, frozenset({2, -3}), 32, 9999, 0, 999), (3, 36, 6, 10, 124, False, [(10, 20), (100, 7), (115, 9)])),
        ((0, 0, 6, frozenset({0}), 32, 9999, 0, 999), (1, 8, 6, 107, 115, True, [(107, 8)])),
        ((0, 0, 6, frozenset({5, 1 << 40}), 32, 9999, 0, 999), (0, 0, 6, -1, -1, True, [])),
        ((0, 0, 6, frozenset(), 32, 9999, 0, 999), (0, 0, 6, -1, -1, True, [])),
        ((0, 0, 6, None, 32, 9999, 30, 999), (4, 29, 6, 30, 124, False, [(30, 5), (100, 24)])),
        ((0, 0, 6, None, 32, 9999, 0, 114), (4, 42, 4, 0, 107, False, [(0, 35), (100, 7)])),
        ((0, 2, 2, None, 32, 9999, 0, 999), (0, 0, 2, -1, -1, True, [])),
        ((0, 0, 6, None, 0, 9999, 0, 999), (0, 0, 0, -1, -1, True, [])),
        ((50, 51, 53, None, 32, 9999, 0, 999), (2, 25, 53, 10, 35, True, [(10, 25)])),
    ],
)  # fmt: skip
def test_select(hot, where, expected):
    """Counts, bytes, tags and the log's bounds each end or thin out a selection; the next offset tells where to go on."""
    assert seen(hot, UNITS, *where) == expected


@both
def test_units_without_a_size_are_passed_over(hot):
    """A unit that was never written, and the filler before a queue's first, hold no record."""
    data = units_of((0, 0, 0), (0, 0x7FFFFFFF, 0), (5, 6, 0), (9, -4, 0))
    assert seen(hot, data, 0, 0, 1, None, 9, 99, 0, 100)[:3] == (0, 0, 1)
    assert seen(hot, data, 0, 1, 4, None, 9, 99, 0, 100)[:3] == (0, 0, 1)
    assert seen(hot, data, 0, 2, 4, None, 9, 99, 0, 100)[:3] == (1, 6, 4)


@both
@pytest.mark.parametrize("where", [(0, 0, 7), (0, 3, 2), (5, 4, 6), (0, -1, 2), (-(1 << 62), 0, 1 << 62)])
def test_units_outside_the_buffer(hot, where):
    """A range that the buffer does not hold is refused."""
    with pytest.raises(ValueError, match="units"):
        hot.select(UNITS, *where, None, 32, 9999, 0, 999)


@both
def test_gather(hot):
    """The records' bytes back to back, out of a file that begins anywhere in the log."""
    log = bytes(range(130))
    chosen = hot.select(UNITS, 0, 1, 6, frozenset({2, -3}), 32, 9999, 0, 999)
    assert hot.gather(chosen, log[5:], 5) == log[10:30] + log[100:107] + log[115:124]
    assert hot.gather(hot.select(UNITS, 0, 0, 0, None, 1, 1, 0, 9), b"", 0) == b""
    for file_offset, data in ((11, log), (0, log[:123]), (-(1 << 62), log), (1 << 62, log)):
        with pytest.raises(ValueError, match="is not in the file"):
            hot.gather(chosen, data, file_offset)


@both
def test_read(hot):
    """Selection and bytes in one call; a long contiguous run is left to a view."""
    log = bytes(range(130))
    assert hot.read(UNITS, 0, 1, 6, frozenset({2, -3}), 32, 9999, 0, 999, log, 0, 30) == (
        3, 36, 6, 10, 124, log[10:30] + log[100:107] + log[115:124],
    )  # fmt: skip
    assert hot.read(UNITS, 0, 0, 3, None, 32, 9999, 0, 999, log, 0, 36)[5] == log[:35]
    assert hot.read(UNITS, 0, 0, 3, None, 32, 9999, 0, 999, log, 0, 35) == (3, 35, 3, 0, 35, None)
    assert hot.read(UNITS, 0, 2, 2, None, 32, 9999, 0, 999, log, 0, 35) == (0, 0, 2, -1, -1, b"")


numbers = st.integers(-5, 200)


@needs_native
@settings(max_examples=200, deadline=None)
@given(
    units=st.lists(st.tuples(numbers, st.integers(-2, 30), st.integers(-2, 2)), max_size=12),
    bounds=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    tags=st.one_of(st.none(), st.frozensets(st.integers(-2, 2))),
    limits=st.tuples(st.integers(0, 12), st.integers(0, 200), numbers, numbers),
)
def test_twin_and_native_select_alike(units, bounds, tags, limits):
    """Random units and limits, hostile ones too: the same selection or the same refusal, and the same bytes."""
    data, log = units_of(*units), bytes(range(256))
    start, stop = sorted(bounds)
    outcomes = []
    for hot in (NATIVE, TWIN):
        try:
            outcomes.append(seen(hot, data, 0, start, stop, tags, *limits))
            outcomes.append(hot.gather(hot.select(data, 0, start, stop, tags, *limits), log, 0))
        except ValueError as error:
            outcomes.append(str(error))
            outcomes.append(None)
    assert outcomes[:2] == outcomes[2:] or (outcomes[1] is None) == (outcomes[3] is None)
    if outcomes[1] is not None:
        assert outcomes[:2] == outcomes[2:]


@both
def test_pull_reply(hot):
    """The answer's head carries the four offsets in either form, and room for the body that follows it."""
    import json

    data = hot.pull_reply(7, False, 0, 'FO"UND', 0, 42, 1, 99, 1000)
    length, word = struct.unpack_from(">iI", data)
    assert (length, word) == (len(data) - 4 + 1000, len(data) - 8)
    assert json.loads(data[8:]) == {
        "code": 0, "flag": 1, "language": "PYTHON", "opaque": 7, "remark": 'FO"UND', "version": 409,
        "serializeTypeCurrentRPC": "JSON",
        "extFields": {"suggestWhichBrokerId": "0", "nextBeginOffset": "42", "minOffset": "1", "maxOffset": "99"},
    }  # fmt: skip


@needs_native
@given(
    opaque=st.integers(-(2**31), 2**31 - 1), binary=st.booleans(), code=st.integers(0, 300), remark=st.text(max_size=20),
    offsets=st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4), body=st.integers(0, 1 << 24),
)  # fmt: skip
def test_twin_and_native_answer_pulls_alike(opaque, binary, code, remark, offsets, body):
    """Any answer to a pull is the same from both modules, alone and among other answers."""
    alone, among = [], []
    for hot in (NATIVE, TWIN):
        alone.append(hot.pull_reply(opaque, binary, code, remark, *offsets, body))
        replies = hot.Replies(b"r", True)
        replies.add_pull(opaque, binary, code, remark, *offsets, bytearray(b"records"))
        among.append(replies.take())
        assert among[-1] == hot.pull_reply(opaque, binary, code, remark, *offsets, 7) + b"records"
    assert alone[0] == alone[1]
    assert among[0] == among[1]
