"""What a pass over many connections read: appended as if each had been read by itself, and the rest pointed out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import repeats
from tests.wire.hot.support import (
    BORN_HOST,
    FALLBACK,
    NATIVE,
    STORE_MS,
    Tails,
    both,
    needs_native,
    replies_of,
    send,
    stored,
)

HOSTS = [BORN_HOST, bytes(8), b"\x0a\x00\x00\x01\x00\x00\x1f\x90"]


def parts_of(pieces: list[tuple[int, bytes]]) -> tuple[bytearray, memoryview]:
    """A buffer, and the rows that say which piece is whose."""
    data, rows = bytearray(b"before"), []
    for slot, piece in pieces:
        rows += [slot, 1, len(data), len(data) + len(piece), len(data), 0]
        data += piece + b"gap"
    table = memoryview(bytearray(4 * len(rows))).cast("i")
    for place, number in enumerate(rows):
        table[place] = number
    return data, table


def append_parts(tails: Tails, pieces: list[tuple[int, bytes]]) -> list[tuple[int, int]]:
    """Returns of each part how many bytes were used, and where its answers end."""
    data, parts = parts_of(pieces)
    senders = [(tails.gates, host) for host in HOSTS] + [None]
    tails.hot.append_parts(
        data, parts, senders, tails.table, tails.log, tails.index, STORE_MS, tails.replies, tails.outcome
    )
    rows = [parts[at : at + 6].tolist() for at in range(0, len(parts), 6)]
    return [(used - start, answered) for _, _, start, _, used, answered in rows]


@both
def test_each_part_is_its_senders(hot):
    """The host is that of the connection, the answers stand in the order of the parts, and all counts are of the whole pass."""
    tails = Tails(hot)
    tails.queues[0].watched = tails.queues[1].watched = True
    pieces = [
        send(b"a", e="0", opaque=1),
        send(b"b", e="1", opaque=2),
        send(b"c", e="0", opaque=3) + send(b"d", e="0", opaque=4),
    ]
    done = append_parts(tails, list(enumerate(pieces)))
    assert [used for used, _ in done] == [len(piece) for piece in pieces]
    assert [(m.body, m.born_host_raw) for m in stored(tails)] == [
        (b"a", HOSTS[0]), (b"b", HOSTS[1]), (b"c", HOSTS[2]), (b"d", HOSTS[2])
    ]  # fmt: skip
    answers = tails.replies.take()
    assert done[-1][1] == len(answers)
    assert [a["opaque"] for a in replies_of(answers[: done[0][1]])] == [1]
    assert [a["opaque"] for a in replies_of(answers[done[1][1] :])] == [3, 4]
    assert (tails.outcome.messages, tails.outcome.size) == (4, tails.log.end)
    assert tails.outcome.touched == tails.queues


@both
def test_what_is_not_plain_is_left_and_stops_nobody_else(hot):
    """A part ends where the slow path must go on; a frame that is not whole, or is none, is left as it is."""
    tails, plain = Tails(hot), send(b"x", e="0")
    pieces = [
        (0, plain + send(b"delayed", i="DELAY\x013", e="0") + plain),
        (1, plain[:-1]),
        (1, plain + plain[:3]),
        (2, b"\xff" * 40),
        (3, plain),
        (2, plain),
        (0, send(b"y", e="9")),
        (0, b""),
    ]
    used = [used for used, _ in append_parts(tails, pieces)]
    assert used == [len(plain), 0, len(plain), 0, 0, len(plain), 0, 0]
    assert [m.body for m in stored(tails)] == [b"x"] * 3


@both
def test_what_has_no_room_is_left_but_not_what_has(hot):
    """The slow path makes the file; what fits goes on."""
    tails = Tails(hot, units=2)
    done = append_parts(tails, [(0, send(b"x", e="0")) for _ in range(3)] + [(0, send(b"y", e="1"))])
    assert [used > 0 for used, _ in done] == [True, True, False, True]
    assert tails.outcome.messages == 3


@both
def test_a_slot_that_nobody_has_is_refused(hot):
    tails = Tails(hot)
    for slot in (-1, 4, 1 << 30):
        with pytest.raises(IndexError, match="no sender"):
            append_parts(tails, [(0, send(b"x", e="0")), (slot, send(b"x", e="0"))])
    assert tails.outcome.messages == 1
    assert len(stored(tails)) == 3


@both
def test_rows_of_nothing_that_there_is(hot):
    """An end in front of its start is no bytes, as an end at it is; bytes outside the buffer are refused."""
    for start, end, error in (
        (9, 6, None),
        (9, -1, None),
        (1 << 30, 6, None),
        (0, 1 << 30, ValueError),
        (-9, 6, ValueError),
    ):
        tails = Tails(hot)
        data, parts = parts_of([(0, send(b"x", e="0"))] * 2)
        parts[2], parts[3], parts[4] = start, end, start
        arguments = (
            data, parts, [(tails.gates, BORN_HOST)], tails.table, tails.log, tails.index, STORE_MS, tails.replies, tails.outcome
        )  # fmt: skip
        if error is None:
            hot.append_parts(*arguments)
            assert [m.body for m in stored(tails)] == [b"x"]
            assert (parts[4], parts[10]) == (start, parts[9])
        else:
            with pytest.raises(error):
                hot.append_parts(*arguments)
            assert stored(tails) == []


PIECE = st.lists(
    st.one_of(
        st.builds(lambda n, q: send(b"m%d" % n, e=str(q), opaque=n), st.integers(0, 99), st.integers(-1, 2)),
        st.builds(lambda n: send(b"d%d" % n, i="DELAY\x011", e="0"), st.integers(0, 9)),
        st.builds(lambda n: send(b"o%d" % n, e="1", flag=2), st.integers(0, 9)),
        st.binary(max_size=12),
    ),
    max_size=4,
).map(b"".join)
PIECES = st.lists(
    st.tuples(st.integers(0, 3), st.tuples(PIECE, st.integers(0, 5)).map(lambda p: p[0][: len(p[0]) - p[1]])),
    max_size=8,
)


@needs_native
@settings(max_examples=repeats(150), deadline=None)
@given(PIECES)
def test_the_twins_agree(pieces):
    """Log, queues, index, answers and counts are the same, byte for byte."""
    native, fallback = Tails(NATIVE, units=6), Tails(FALLBACK, units=6)
    assert append_parts(native, pieces) == append_parts(fallback, pieces)
    left, right = native.everything(), fallback.everything()
    assert left[:9] == right[:9]
    assert left[11:13] == right[11:13]


@both
@settings(max_examples=repeats(100), deadline=None)
@given(pieces=PIECES)
def test_parts_are_appended_as_by_themselves(hot, pieces):
    """One pass and one call for each part leave the same behind."""
    together, singly = Tails(hot), Tails(hot)
    done = append_parts(together, pieces)
    for (slot, piece), (used, _) in zip(pieces, done, strict=True):
        if slot == len(HOSTS):
            assert used == 0
            continue
        taken = singly.table.scan(bytearray(piece), 0, len(piece))
        hosts = HOSTS[slot]
        singly.hot.append(
            singly.table, 0, len(singly.table), singly.gates, singly.log, singly.index, STORE_MS, hosts,
            singly.replies, singly.outcome,
        )  # fmt: skip
        rows = singly.outcome.row
        size = sum(4 + len(singly.table.frame(row)) for row in range(rows))
        assert used == (size if rows < len(singly.table) else taken)
    assert together.everything()[:9] == singly.everything()[:9]
