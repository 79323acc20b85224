"""Records of bases of byte positions: their bodies, and which of them count."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.model.topics.system import POSITIONS_TOPIC
from metaq.store.metaq1.position_bases import (
    KIND_BASES,
    KIND_COMPLETE,
    KIND_DROPPED,
    Base,
    Known,
    Told,
    anew_behind,
    bases_below,
    bound_of,
    decode,
    encode_bases,
    encode_complete,
    encode_dropped,
    newest_bases,
)
from tests.store.support import open_store, put

GOLDEN_BASES = "0100000000000000000001740000000300000000000000070000000000001092066f726465727300000000" + (
    "0000000000000000" + "0000000000000000"
)
GOLDEN_COMPLETE = "0101000000000001e240"
GOLDEN_DROPPED = "01020000000000000000" + "0174" + "026162"
NAMES = st.text("abcXYZ019_-%", min_size=1, max_size=20)
NUMBERS = st.integers(0, (1 << 48) - 1)


def test_golden_bodies():
    """Bases of two queues, the end of a round, two deleted topics."""
    entries = [(("t", 3), 7, 4242), (("orders", 0), 0, 0)]
    assert encode_bases(entries).hex() == GOLDEN_BASES
    assert decode(bytes.fromhex(GOLDEN_BASES)) == Told(KIND_BASES, 0, {("t", 3): (7, 4242), ("orders", 0): (0, 0)}, ())
    assert encode_complete(123_456).hex() == GOLDEN_COMPLETE
    assert decode(bytes.fromhex(GOLDEN_COMPLETE)) == Told(KIND_COMPLETE, 123_456, {}, ())
    assert encode_dropped(["t", "ab"]).hex() == GOLDEN_DROPPED
    assert decode(bytes.fromhex(GOLDEN_DROPPED)) == Told(KIND_DROPPED, 0, {}, ("t", "ab"))


@given(st.dictionaries(st.tuples(NAMES, st.integers(0, (1 << 31) - 1)), st.tuples(NUMBERS, NUMBERS), max_size=8))
def test_what_is_written_is_read(bases):
    """Whatever the queues."""
    body = encode_bases((key, *place) for key, place in bases.items())
    assert decode(body) == Told(KIND_BASES, 0, bases, ())


@given(st.lists(NAMES, max_size=5), NUMBERS)
def test_other_kinds_are_read_as_written(topics, began):
    """Deleted topics, ends of rounds."""
    assert decode(encode_dropped(topics)) == Told(KIND_DROPPED, 0, {}, tuple(topics))
    assert decode(encode_complete(began)) == Told(KIND_COMPLETE, began, {}, ())


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"\x01\x00" + bytes(8) + rest))
def test_any_other_bytes_are_refused_or_of_a_later_version(body):
    """Nothing else is raised."""
    try:
        told = decode(body)
    except ValueError:
        return
    assert told is None or told.kind in {KIND_BASES, KIND_COMPLETE, KIND_DROPPED}


def test_a_later_version_is_passed_over_and_what_is_cut_short_is_refused():
    """A base that is half there is none."""
    whole = bytes.fromhex(GOLDEN_BASES)
    assert decode(b"\x02" + whole[1:]) is None
    for size in (0, 5, 11, 14, 20, len(whole) - 1):
        with pytest.raises(ValueError, match="no record of byte positions"):
            decode(whole[:size])


def test_the_newest_base_of_each_queue_counts_and_none_from_before_a_deletion(tmp_path: pathlib.Path):
    """A start reads back to where the newest complete round began; further if a record on the way cannot be read."""
    with open_store(tmp_path) as store:

        def say(body: bytes) -> int:
            return put(store, POSITIONS_TOPIC, 0, body).log_offset

        assert newest_bases(store) == Known({}, frozenset(), {}, {})
        old = say(encode_bases([(("a", 0), 0, 0), (("b", 0), 5, 0)]))
        before = say(encode_bases([(("c", 0), 1, 11)]))
        dropped = say(encode_dropped(["b"]))
        assert newest_bases(store) == Known(
            {("a", 0): Base(0, 0, old), ("c", 0): Base(1, 11, before)},
            frozenset({"b"}),
            {("b", 0): (Base(5, 0, old), dropped)},
            {"b": dropped},
        )
        began = store.log.end
        round_ = say(encode_bases([(("a", 0), 9, 99)]))
        say(encode_complete(began))
        again = say(encode_bases([(("b", 0), 0, 0)]))
        assert newest_bases(store) == Known(
            {("a", 0): Base(9, 99, round_), ("b", 0): Base(0, 0, again)}, frozenset(), {}, {}
        )
        assert bases_below(store, ("a", 0), 8) == Base(0, 0, old)
        assert bases_below(store, ("a", 0), 9) == Base(9, 99, round_)
        assert bases_below(store, ("b", 0), 9) == Base(0, 0, again)
        assert bases_below(store, ("d", 0), 9) is None
        say(b"\x01\x00 nothing that could be read")
        found = newest_bases(store).bases
        assert found["c", 0] == Base(1, 11, before)
        assert found["a", 0] == Base(9, 99, round_)


def test_positions_of_a_topic_made_anew_begin_behind_any_of_the_one_before():
    """Also behind what was told and lost with the power; but never near their end, where no message would have room."""
    for position in (0, 1, (1 << 30) - 1, 1 << 30, 3 << 40):
        assert position + (1 << 30) < anew_behind(position) <= position + (2 << 30)
        assert anew_behind(position) % (1 << 30) == 0
    assert anew_behind((1 << 47) - 1) == 0
    assert bound_of(Base(7, 100, 5000), 6000) >= 100 + 1000 * 1032
    assert bound_of(Base(7, 100, 5000), 4000) == 100
