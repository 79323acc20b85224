"""Chunks of decided transactions: their messages go to log, queue and index over every border of the files."""

from __future__ import annotations

import pytest

from metaq.errors import StoreFailed, StoreFull
from metaq.store.log.writer import PutRecord
from metaq.testing.faults import FaultyDisk
from metaq.wire import hot
from metaq.wire.record import copied_from, decode_record, encode_batch, encode_record
from tests.store.support import BORN, HOST, open_store, put, read_all

PLACE = 0
"""Where the chunks of these tests say that they lie."""


def chunk(bodies, *, queue=1, keyed=True):
    entries = [(0, body, f"UNIQ_KEY\x01{number:032d}".encode() if keyed else b"") for number, body in enumerate(bodies)]
    return encode_record(
        topic=b"rmq_sys_METAQ_STAGE", queue_id=0, queue_offset=0, log_offset=PLACE, flag=0, sys_flag=0, born_ms=1,
        born_host=BORN, store_ms=1, store_host=HOST, reconsume_times=0, prepared_offset=0, body=encode_batch(entries),
        properties=b"REAL_TOPIC\x01T\x02REAL_QID\x01%d" % queue,
    )  # fmt: skip


class Lane:
    """Gates for the topic T with three queues, and what came of an expansion."""

    def __init__(self, store):
        self.store = store
        self.gates = {b"T": hot.TopicGate(b"T", [store.reader.queue("T", i).tail for i in range(3)], 4 << 20)}
        self.outcome = hot.AppendOutcome()

    def run(self, record, row=0):
        self.outcome.row = row
        self.store.writer.expand(self.outcome, PLACE, self.gates, record=record)
        return self.outcome.stop, self.outcome.row, self.outcome.messages


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path) as store:
        yield store


def places(store, queue_id=1):
    queue = store.reader.existing_queue("T", queue_id)
    return [unit.log_offset for unit in queue.units(0, queue.max_offset)]


def test_a_chunk_lies_in_one_log_file(store):
    """Where the file has no room for all of it, all of it goes to the next."""
    put(store, "U", 0, b"x" * 60_000)
    record = chunk([b"y" * 900] * 10)
    assert Lane(store).run(record) == (hot.STOP_END, 10, 10)
    assert read_all(store, "T", 1) == [b"y" * 900] * 10
    assert places(store)[0] == 64 * 1024
    assert [record_of(store, place).body[:1] for place in places(store)] == [b"y"] * 10


def record_of(store, place):
    file = store.log.run.find(place)
    return decode_record(file.read(place, file.end - place))


def test_a_chunk_larger_than_any_file(store):
    """Several log files, queue files and index files: message by message, in order, each once."""
    bodies = [b"%d" % number * 60 for number in range(700)]
    fast_path = Lane(store)
    assert fast_path.run(chunk(bodies)) == (hot.STOP_END, 700, 700)
    assert read_all(store, "T", 1) == bodies
    assert {copied_from(record_of(store, place).prepared_offset) for place in places(store)} == {PLACE}
    assert len(store.log.run.files) > 2
    assert len(store.index.files) == 3
    assert [b"%d" % 555 * 60 in record for record in store.reader.query("T", f"{555:032d}", 5, 0, 1 << 60)] == [True]


def test_a_chunk_over_the_border_of_a_queue_file(store):
    put(store, "T", 1, *[b"before"] * 95)
    assert Lane(store).run(chunk([b"%d" % number for number in range(150)])) == (hot.STOP_END, 150, 150)
    assert read_all(store, "T", 1)[95:] == [b"%d" % number for number in range(150)]


def test_the_rest_of_a_chunk(store):
    assert Lane(store).run(chunk([b"a", b"b", b"c"]), 2) == (hot.STOP_END, 3, 1)
    assert read_all(store, "T", 1) == [b"c"]


def test_touched_names_a_watched_queue_once(store):
    """Though the run was cut by full files in between."""
    store.reader.queue("T", 1).tail.watched = True
    fast_path = Lane(store)
    fast_path.run(chunk([b"x" * 400] * 300))
    assert fast_path.outcome.touched == [store.reader.queue("T", 1).tail]
    assert fast_path.outcome.messages == 300


def test_a_queue_without_a_gate_stops_it(store):
    assert Lane(store).run(chunk([b"a"], queue=3)) == (hot.STOP_SLOW, 0, 0)


def test_a_full_disk_takes_all_of_a_chunk_or_none(tmp_path):
    """Nothing of it is written; it goes through when there is room."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk) as store:
        store._populator.stop()
        fast_path = Lane(store)
        put(store, "T", 1, *[b"before"] * 95)
        end, record = store.log.end, chunk([b"%d" % number for number in range(20)])
        disk.room = 0  # for the next queue file
        with pytest.raises(StoreFull):
            fast_path.run(record)
        assert (fast_path.outcome.row, fast_path.outcome.messages, store.log.end) == (0, 0, end)
        disk.room = None
        assert fast_path.run(record) == (hot.STOP_END, 20, 20)
        assert read_all(store, "T", 1)[95:] == [b"%d" % number for number in range(20)]


def test_a_failed_store_expands_nothing(store):
    store.state.fail("a test says so")
    with pytest.raises(StoreFailed, match="a test says so"):
        Lane(store).run(chunk([b"a"]))


def staged(store, bodies, **more):
    entries = [(0, body, b"") for body in bodies]
    return store.writer.put([
        PutRecord("rmq_sys_METAQ_STAGE", 0, encode_batch(entries), b"REAL_TOPIC\x01T\x02REAL_QID\x011", 0, 0, 1, BORN, **more)
    ]).log_offset  # fmt: skip


def test_a_chunk_in_the_current_file_is_read_there(store):
    """One in an older file is not, nor what is no record."""
    fast_path, place = Lane(store), staged(store, [b"a", b"b"])
    store.writer.expand(fast_path.outcome, place, fast_path.gates)
    assert (fast_path.outcome.stop, read_all(store, "T", 1)) == (hot.STOP_END, [b"a", b"b"])
    assert {copied_from(record_of(store, copy).prepared_offset) for copy in places(store)} == {place}
    for wrong in (place + 1, -1, store.log.end, 1 << 40):
        store.writer.expand(fast_path.outcome, wrong, fast_path.gates)
        assert (fast_path.outcome.stop, fast_path.outcome.messages) == (hot.STOP_SLOW, 0)
    put(store, "U", 0, b"x" * 60_000)
    put(store, "U", 0, b"x" * 60_000)
    store.writer.expand(fast_path.outcome, place, fast_path.gates)
    assert fast_path.outcome.stop == hot.STOP_SLOW
    fast_path.outcome.row = 0
    store.writer.expand(fast_path.outcome, place, fast_path.gates, record=store.reader.record_at(place))
    assert read_all(store, "T", 1) == [b"a", b"b"] * 2


def test_a_disk_that_is_nearly_full_takes_what_is_carried(store):
    """Commits that hold up retention are applied also then."""
    fast_path, place = Lane(store), staged(store, [b"a"])
    store.state.set_writable(False)
    with pytest.raises(StoreFull):
        store.writer.expand(fast_path.outcome, place, fast_path.gates)
    store.writer.expand(fast_path.outcome, place, fast_path.gates, carrying=True)
    assert read_all(store, "T", 1) == [b"a"]
