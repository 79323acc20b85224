"""The fast path of puts of MetaQ 1.x: native and pure-Python fallback, against each other and against the reader of lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.wire.hot import crc31
from metaq.wire.metaq1.commands import PutLine, Reader, ResultLine, encode, put_place
from metaq.wire.metaq1.frame import with_attribute
from metaq.wire.record import decode_record
from tests.wire.hot.support import BORN_HOST, FALLBACK, NATIVE, STORE_MS, Tails, both, needs_native, stored, units
from tests.wire.metaq1.test_commands import GOLDEN, MALFORMED

ID = 1661382015569653760


class Lines(Tails):
    """Tails with positions, and one call over them."""

    def __init__(self, hot, *, position_units: int = 1001, touched: bool = True, **more) -> None:
        super().__init__(hot, topic=b"test", **more)
        self.position_bytes = [bytearray(8 * position_units) for _ in self.queues]
        self.positions = [hot.PositionTail() if touched else None for _ in self.queues]
        for tail, memory in zip(self.positions, self.position_bytes, strict=True):
            if tail is not None:
                tail.attach(memory, 0, position_units)
        self.gate = hot.PartitionGate(b"test", self.queues, self.positions, min(self.body_bytes_max, 65_516), 7)

    def put(self, data: bytes, *, start: int = 0, ids: int = 256, born_host: bytes = BORN_HOST):
        self.used = []
        gates = {b"test": self.gate}
        self.hot.put_lines(
            data, start, gates, self.log, ID, ids, STORE_MS, born_host, self.replies, self.outcome, self.used
        )
        return self.outcome

    def everything(self):
        places = [tail and (tail.next_offset, tail.next_position) for tail in self.positions]
        memory = [bytes(each) for each in self.position_bytes]
        grown = self.gate.take_grown()
        return (*super().everything(), memory, places, grown, self.gate.puts, self.gate.put_bytes)


def line(body: bytes = b"hello", partition: int = 0, flag: int = 0, checksum: int = -1, opaque: int = 1) -> bytes:
    return encode(PutLine("test", partition, flag, body, opaque, checksum))


@both
def test_plain_puts_become_records_units_positions_and_answers(hot) -> None:
    """With and without a checksum; an attribute becomes the tag, and counts in the position all the same."""
    tails = Lines(hot)
    tagged = with_attribute("red-1", b"payload")
    data = line() + line(tagged, flag=7, checksum=crc31(tagged), opaque=-(2**31)) + line(b"", flag=-2)
    outcome = tails.put(b"rubbish" + data, start=7)
    assert (outcome.stop, outcome.row, outcome.messages) == (hot.STOP_END, 7 + len(data), 3)
    first, second, third = stored(tails)
    assert (first.body, first.flag, first.properties) == (
        b"hello",
        0,
        {"METAQ_ID": str(ID), "CLUSTER": "DefaultCluster"},
    )
    assert (second.body, second.flag, second.tag, second.properties["METAQ_ID"]) == (
        b"payload",
        6,
        "red-1",
        str(ID + 1),
    )
    assert (third.body, third.flag) == (b"", -2)
    assert [tags_code for _, _, tags_code in units(tails, 0)] == [0, hot.java_hash(b"red-1"), 0]
    reader, answers, start, found = Reader(1000), tails.replies.take(), 0, []
    while start < len(answers):
        answer, start = reader.next(answers, start)
        assert isinstance(answer, ResultLine)
        found.append((answer.code, answer.opaque, put_place(answer.body)))
    frame = 20 + len(tagged)
    assert found == [(200, 1, (ID, 0, 0)), (200, -(2**31), (ID + 1, 0, 25)), (200, 1, (ID + 2, 0, 25 + frame))]
    assert (tails.positions[0].next_offset, tails.positions[0].next_position) == (3, 45 + frame)
    assert (tails.gate.puts, tails.gate.put_bytes) == (3, 5 + len(tagged))


@both
@pytest.mark.parametrize(
    "data",
    [
        line(partition=2), line(partition=-2), line(checksum=5), line(b"hello", flag=1), line(with_attribute("", b"x"), flag=1),
        line(with_attribute("a b", b"x"), flag=1), line(with_attribute("x" * 65, b"x"), flag=1), line(b"\xff\xff\xff\xffab", flag=1),
        line(bytes(65_517)), line().replace(b"test", b"tests"), line().replace(b" 0 5", b" 0  5"),
        b"put test 0 5 0 00000000001\r\nhello", b"put test 0 5 0 2147483648\r\nhello", b"put test 0 5 0 1\rhello1",
        b"put test 0 1 0 TX:a:1 5\r\nx", b"put test 0 1 0 -1 null 5\r\nx", b"version 1\r\n", b"put test 0 -0 0 1\r\n",
    ],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
def test_what_is_not_plain_is_left_alone_with_all_that_follows(hot, data) -> None:
    """It stops there, and what came before is stored."""
    tails = Lines(hot)
    outcome = tails.put(line() + data + line())
    if data == b"put test 0 -0 0 1\r\n" and outcome.messages == 3:
        return  # both ways of reading a minus zero are right
    assert (outcome.stop, outcome.row, outcome.messages) == (hot.STOP_SLOW, len(line()), 1)
    assert len(stored(tails)) == 1


@both
def test_files_that_are_full_are_told_and_positions_that_are_behind_are_left_to_the_slow_path(hot) -> None:
    """Log, queue, positions; a queue that nobody has touched; a position tail that has not come as far as its queue."""
    assert Lines(hot, log_bytes=300).put(line() * 3).stop == hot.STOP_LOG_FULL
    full = Lines(hot, units=2)
    outcome = full.put(line() * 3)
    assert (outcome.stop, outcome.needed, outcome.queue, outcome.messages) == (
        hot.STOP_QUEUE_FULL,
        1,
        full.queues[0],
        2,
    )
    outcome = Lines(hot, position_units=3).put(line() * 3)
    assert (outcome.stop, outcome.messages) == (hot.STOP_SLOW, 2)
    assert Lines(hot, touched=False).put(line()).stop == hot.STOP_SLOW
    behind = Lines(hot)
    behind.queues[0].put(0, 100, 0)
    assert behind.put(line()).stop == hot.STOP_SLOW
    assert Lines(hot).put(line(), born_host=bytes(20)).stop == hot.STOP_SLOW
    for cut in range(len(line())):
        assert Lines(hot).put(line()[:cut]).messages == 0


@both
def test_only_so_many_are_put_at_once_and_watched_queues_are_told(hot) -> None:
    """`ids` bounds a call; partition -1 takes each queue in turn or by chance, but all of them."""
    tails = Lines(hot, queues=3)
    tails.queues[1].watched = True
    outcome = tails.put(line(partition=-1) * 100, ids=60)
    assert (outcome.stop, outcome.messages, outcome.row) == (hot.STOP_END, 60, 60 * len(line(partition=-1)))
    assert outcome.size == tails.log.end
    assert all(queue.next_offset > 5 for queue in tails.queues)
    assert outcome.touched == [tails.queues[1]]
    assert tails.used == [tails.gate]
    tails.put(line(partition=2))
    assert tails.used == [], "it is told once"
    assert tails.gate.take_grown() == [(number, queue.next_offset) for number, queue in enumerate(tails.queues)]
    assert tails.gate.take_grown() == []
    tails.put(line(partition=2) * 2)
    assert (tails.used, tails.gate.take_grown()) == ([tails.gate], [(2, 2)])


@both
def test_a_gate_without_queues_or_with_others_is_refused(hot) -> None:
    """And a place outside the data."""
    tails = Lines(hot)
    with pytest.raises(ValueError, match="0 queues with 0 positions"):
        hot.PartitionGate(b"t", [], [], 10, 0)
    with pytest.raises(ValueError, match="allowed are 1 to 127"):
        hot.PartitionGate(b"", tails.queues, tails.positions, 10, 0)
    with pytest.raises(TypeError, match="are no QueueTail and PositionTail"):
        hot.PartitionGate(b"t", [1], [None], 10, 0)
    with pytest.raises(IndexError):
        tails.put(b"", start=1)


ATTRIBUTES = st.sampled_from(["", "a", "red-1", "x" * 64, "x" * 65, "a b", "é", "a.b_c"])
BODIES = st.binary(max_size=40)
PUTS = st.builds(
    lambda body, attribute, partition, flag, right, opaque: line(
        sent := (body if attribute is None else with_attribute(attribute, body)),
        partition,
        flag | 1 if attribute is not None else flag & ~1,
        {0: -1, 1: crc31(sent), 2: 5}[right],
        opaque,
    ),
    BODIES, st.none() | ATTRIBUTES, st.integers(-2, 3), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 0, 1, 1, 2]),
    st.integers(-(2**31), 2**31 - 1),
)  # fmt: skip
DATA = st.lists(PUTS | st.sampled_from([data for data, _ in GOLDEN] + MALFORMED), max_size=6).map(b"".join)
DAMAGED = st.builds(
    lambda data, at, byte: data[:at] + bytes([byte]) + data[at + 1 :] if at < len(data) else data,
    DATA, st.integers(0, 80), st.integers(0, 255),
)  # fmt: skip


@needs_native
@given(DATA | DAMAGED | st.binary(max_size=60), st.integers(1, 4))
def test_native_and_fallback_do_the_same(data, ids) -> None:
    """Whatever comes: records, units, positions, answers, and where they stop."""
    left = []
    for hot in (NATIVE, FALLBACK):
        tails = Lines(hot, log_bytes=2000, units=6)
        tails.put(data, ids=ids)
        left.append(tails.everything())
    assert left[0] == left[1]


@both
@given(DATA | DAMAGED)
def test_what_the_path_takes_the_reader_reads_as_the_same_puts(hot, data) -> None:
    """Topic, partition, flag, body and opaque."""
    tails = Lines(hot)
    outcome = tails.put(data)
    reader, start = Reader(100_000), 0
    answers = tails.replies.take()
    for record in stored(tails):
        put, start = reader.next(data, start)
        assert isinstance(put, PutLine)
        assert (put.topic, put.transactional) == ("test", False)
        assert put.partition in {-1, record.queue_id}
        assert put.flag & ~1 == record.flag
        assert put.body == (with_attribute(record.tag, record.body) if put.flag & 1 else record.body)
        assert put.checksum in {-1, crc31(put.body)}
        answer, used = Reader(1000).next(answers)
        answers = answers[used:]
        assert (answer.opaque, put_place(answer.body)[:2]) == (
            put.opaque,
            (int(record.properties["METAQ_ID"]), record.queue_id),
        )
    assert (start, answers) == (outcome.row, b"")


def test_the_golden_record_of_a_put() -> None:
    """Byte for byte."""
    tails = Lines(FALLBACK)
    tails.put(line(b"hello"))
    record = decode_record(tails.log_bytes, 0)
    assert (record.topic, record.queue_offset, record.store_ms, record.born_ms) == ("test", 0, STORE_MS, STORE_MS)
    assert tails.written().endswith(b"\x04test\x00\x33METAQ_ID\x01%d\x02CLUSTER\x01DefaultCluster" % ID)
