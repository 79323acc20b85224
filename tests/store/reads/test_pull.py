"""What a pull returns, for every state of a queue."""

from __future__ import annotations

import pytest

from metaq.store.message_reader import RECORDS_OF_A_PIECE
from metaq.store.queues.index_file import ENTRIES_OF_A_PIECE
from metaq.store.reads.pull import ReadStatus
from metaq.testing import FaultyDisk
from metaq.wire import hot
from tests.store.support import answer, bodies_of, checkpoint, message, open_store, put, read_all


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path) as store:
        yield store


def test_status_table(store):
    """Each look-up status of RocketMQ's table, with the offset to go on with."""
    assert (store.reader.pull("nowhere", 0, 5, 32).status, store.reader.pull("nowhere", 0, 5, 32).next_offset) == (
        ReadStatus.NO_MATCHED_LOGIC_QUEUE,
        0,
    )
    store.reader.queue("T", 0)
    assert store.reader.pull("T", 0, 7, 32).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    put(store, "T", 0, *[b"%d" % i for i in range(5)], tag="a")
    found = store.reader.pull("T", 0, 1, 3)
    assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (ReadStatus.FOUND, 4, 0, 5)
    assert bodies_of(found.body) == [b"1", b"2", b"3"]
    at_end = store.reader.pull("T", 0, 5, 32)
    assert (at_end.status, at_end.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 5)
    beyond = store.reader.pull("T", 0, 9, 32)
    assert (beyond.status, beyond.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 5)
    other = store.reader.pull("T", 0, 0, 32, None, hot.Filter({hot.java_hash(b"b")}))
    assert (other.status, other.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 5)
    store.reader.queue("T", 0).min_offset = 2
    small = store.reader.pull("T", 0, 1, 32)
    assert (small.status, small.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, 2)


def test_tag_filter_takes_only_the_hashes_asked_for(store):
    """The offset to go on with lies behind all units looked at."""
    for i in range(12):
        put(store, "T", 0, b"%d" % i, tag="abc"[i % 3])
    found = store.reader.pull("T", 0, 0, 32, None, hot.Filter({hot.java_hash(b"b"), hot.java_hash(b"c")}))
    assert bodies_of(found.body) == [b"%d" % i for i in range(12) if i % 3]
    assert (found.count, found.next_offset) == (8, 12)


def test_first_record_comes_whatever_its_size(store):
    """A byte limit never starves a consumer."""
    put(store, "T", 0, b"x" * 30_000)
    assert bodies_of(store.reader.pull("T", 0, 0, 32, 100).body) == [b"x" * 30_000]


def test_byte_limit_ends_a_pull(store):
    """Records of 991 bytes: ten fit into 10 000."""
    for _ in range(20):
        put(store, "T", 0, b"x" * 899)
    assert store.reader.pull("T", 0, 0, 32, 10_000).count == 10


def test_old_records_come_in_small_portions_unless_more_is_asked_for(tmp_path):
    """Behind `accessMessageInMemoryMaxRatio` 8 records and 64 KiB; our own larger pulls are not cut."""
    with open_store(tmp_path, access_message_in_memory_max_ratio=0) as store:
        for i in range(40):
            put(store, "T", 0, b"%d" % i)
        assert store.reader.pull("T", 0, 0, 32).count == 8
        assert store.reader.pull("T", 0, 0, 32, 1 << 20).count == 32


def test_pulls_cross_log_and_queue_files_without_loss(store):
    """Files of 100 units and 64 KiB: 1 000 messages fill many of each."""
    bodies = [b"%d" % i * 60 for i in range(1000)]
    for body in bodies:
        put(store, "T", 0, body)
    assert len(store.log.run.files) > 2
    assert len(store.reader.queue("T", 0).run.files) == 10
    assert read_all(store, "T", 0) == bodies


def test_records_of_before_the_start_come_from_the_disk_though_they_are_new(tmp_path):
    """Who started a moment ago has none of them in memory, and a page fault would stall everybody."""
    disk = FaultyDisk()
    with open_store(tmp_path) as store:
        put(store, "T", 0, *[b"%d" % i for i in range(5)])
    with open_store(tmp_path, disk=disk) as store:
        put(store, "T", 0, b"fresh")
        old = store.reader.pull("T", 0, 0, 32)
        assert old.status is ReadStatus.COLD
        disk.cached = False
        assert old.cached() is None
        disk.cached = True
        assert bodies_of(old.cached().body) == [b"0", b"1", b"2", b"3", b"4", b"fresh"]
        assert bodies_of(store.reader.pull("T", 0, 5, 32).body) == [b"fresh"]


def test_a_batch_larger_than_the_rest_of_a_queue_file_is_contiguous(store):
    """90 units and then 250: one put, over three files."""
    put(store, "T", 0, *[b"a"] * 90)
    done = put(store, "T", 0, *[b"%d" % i for i in range(250)])
    assert done.queue_offset == 90
    assert read_all(store, "T", 0) == [b"a"] * 90 + [b"%d" % i for i in range(250)]


def test_cold_records_are_read_by_a_job_and_are_the_same(tmp_path):
    """Older than hotBytes: the loop gets a job, whose answer equals the one through the mapping; or has it at once, if it is
    in memory."""
    bodies = [b"%d" % i * 50 for i in range(300)]
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk, hot_bytes=10_000) as store:
        for i, body in enumerate(bodies):
            put(store, "T", 0, body, tag="ab"[i % 2])
        cold = store.reader.pull("T", 0, 0, 32)
        assert cold.status is ReadStatus.COLD
        assert bodies_of(cold.job().body) == bodies[:32]
        disk.cached = False
        assert cold.cached() is None
        disk.cached = True
        assert cold.cached() == cold.job()
        assert store.reader.pull("T", 0, 290, 32).status is ReadStatus.FOUND
        assert read_all(store, "T", 0) == bodies
        only_a = answer(store.reader.pull("T", 0, 0, 32, None, hot.Filter({hot.java_hash(b"a")})))
        assert bodies_of(only_a.body) == bodies[0:64:2]


def test_long_runs_go_out_as_a_view_of_the_mapping(tmp_path):
    """No copy; the view stays good after the log has rolled and the file was deleted."""
    with open_store(tmp_path, mapped_file_size_commit_log=1 << 20, file_reserved_time=0) as store:
        put(store, "T", 0, *[b"x" * 20_000] * 10)
        found = store.reader.pull("T", 0, 0, 32, 1 << 20)
        assert isinstance(found.body, memoryview)
        while store.log.min == 0:
            put(store, "T", 0, b"y" * 100_000)
            store.keeper.retain(store.clock.now_ms(), at_once=True)
        assert bodies_of(found.body) == [b"x" * 20_000] * 10


def test_a_unit_below_the_logs_begin_is_passed_over(tmp_path):
    """Retention has taken the file, the queue's min offset is not corrected yet."""
    with open_store(tmp_path) as store:
        for i in range(100):
            put(store, "T", 0, b"%d" % i * 1000)
        store.log.run.drop_before(2 * 64 * 1024)
        found = store.reader.pull("T", 0, 0, 32)
        assert found.status in {ReadStatus.MESSAGE_WAS_REMOVING, ReadStatus.FOUND}
        assert found.next_offset > 0


def test_record_at_takes_any_number(store):
    """Only the place of a record gives one."""
    done = put(store, "T", 0, b"hello")
    assert bodies_of(store.reader.record_at(done.log_offset)) == [b"hello"]
    for place in (-1, 1, 60, done.log_end, 1 << 40, 1 << 62, -(1 << 63)):
        assert store.reader.record_at(place) is None


def test_offset_at_finds_the_closest_message(tmp_path):
    """Exact hit, the closer neighbour, the older of two equally close, the last one for a time to come."""
    with open_store(tmp_path) as store:
        assert store.reader.offset_at("T", 0, 5) == 0
        begin = store.clock.now_ms()
        for i in range(4):
            put(store, "T", 0, b"%d" % i)
            store.clock.advance(0.1)
        for time, offset in ((-99, 0), (0, 0), (40, 0), (50, 0), (51, 1), (100, 1), (270, 3), (300, 3), (10**9, 3)):
            assert store.reader.offset_at("T", 0, begin + time) == offset, time
        assert store.reader.store_time("T", 0, 2) == begin + 200
        assert store.reader.store_time("T", 0, 4) == -1


def test_query_finds_by_key_within_times(tmp_path):
    """Newest first up to the count, returned oldest first; over several index files."""
    with open_store(tmp_path) as store:
        begin = store.clock.now_ms()
        for i in range(700):
            store.writer.put([message("T", 0, b"%d" % i, key=f"k{i % 7}")])
            store.clock.advance(1)
        assert len(store.index.files) > 1
        found = [bodies_of(record)[0] for record in store.reader.query("T", "k3", 5, 0, 1 << 60)]
        assert found == [b"%d" % i for i in range(3 + 7 * 95, 700, 7)][-5:]
        early = store.reader.query("T", "k3", 64, begin, begin + 20_000)
        assert [bodies_of(record)[0] for record in early] == [b"3", b"10", b"17"]
        assert store.reader.query("T", "k9", 5, 0, 1 << 60) == []
        assert store.reader.query("U", "k3", 5, 0, 1 << 60) == []


def test_keys_with_the_same_hash_do_not_hide_each_other(tmp_path):
    """The keys Aa and BB have one hash in Java. Keys are compared before they count, a few records at a time."""
    with open_store(tmp_path) as store:
        store.writer.put([message("T", 0, b"first", key="Aa")])
        for number in range(200):
            store.writer.put([message("T", 0, b"%d" % number, key="BB")])
        store.writer.put([message("T", 0, b"last", key="Aa")])
        found = [bodies_of(record)[0] for record in store.reader.query("T", "Aa", 2, 0, 1 << 60)]
        assert found == [b"first", b"last"]
        assert len(store.reader.query("T", "BB", 32, 0, 1 << 60)) == 32
        assert store.reader.query("T", "A", 32, 0, 1 << 60) == []
        pieces = store.reader.query_in_pieces("T", "Aa", 2, 0, 1 << 60)
        assert sum(1 for _ in pieces) >= 200 // RECORDS_OF_A_PIECE


def test_a_long_chain_of_other_keys_is_walked_in_pieces(tmp_path):
    """All of a slot's entries are in one chain, whatever their hashes; none of them is read."""
    with open_store(tmp_path, max_hash_slot_num=1, max_index_num=5000) as store:
        for number in range(3 * ENTRIES_OF_A_PIECE):
            store.writer.put([message("T", 0, b"x", key=f"k{number}")])
        pieces = store.reader.query_in_pieces("T", "other", 2, 0, 1 << 60)
        assert sum(1 for _ in pieces) >= 2


def test_reader_never_sees_bytes_beyond_the_logs_end(tmp_path):
    """A unit that points there waits, as if its message had not come yet."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"one")
        store.reader.queue("T", 0).tail.put(store.log.end, 100, 0)
        pulled = store.reader.pull("T", 0, 1, 32)
        assert (pulled.status, pulled.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 1)


def test_a_queue_file_that_went_meanwhile_is_no_error(tmp_path):
    """Retention and a pull met: the pull says so, and the next one finds the new beginning."""
    with open_store(tmp_path) as store:
        for i in range(250):
            put(store, "T", 0, b"%d" % i)
        queue = store.reader.queue("T", 0)
        file = queue.run.files[0]
        file.close()
        file.path.unlink()
        pulled = store.reader.pull("T", 0, 10, 32)
        assert (pulled.status, pulled.next_offset) == (ReadStatus.OFFSET_FOUND_NULL, 10)
        queue.run.files = queue.run.files[1:]
        pulled = store.reader.pull("T", 0, 10, 32)
        assert (pulled.status, pulled.next_offset) == (ReadStatus.OFFSET_FOUND_NULL, 100)
    with open_store(tmp_path / "cold", hot_bytes=0) as store:
        put(store, "T", 0, *[b"x"] * 250)
        checkpoint(store)
        pulled = store.reader.pull("T", 0, 0, 32)
        file = store.reader.queue("T", 0).run.files[0]
        file.close()
        file.path.unlink()
        assert pulled.job().status is ReadStatus.OFFSET_FOUND_NULL
