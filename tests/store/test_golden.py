"""Files byte for byte as RocketMQ 4.9 writes them (golden vectors of docs/formats, from live captures)."""

from __future__ import annotations

import struct

from metaq.store.checkpoint import Checkpoint
from metaq.store.disk import Disk
from metaq.store.queues.consume_queue import UNIT, ConsumeQueue, Unit
from metaq.store.queues.dispatch import Dispatcher, delays_of
from metaq.store.queues.index_file import HEADER, Index
from metaq.wire import hot
from metaq.wire.record import encode_record
from tests.store.support import BORN, HOST, open_store, put

QUEUE_UNITS = bytes.fromhex(
    "0000000000000000000000bf000000000027a807"
    "0000000000000aa8000000e9000000000027a80a"
    "00000000000010530000011200000000"
    "0027a81a"
)


def test_consume_queue_units_are_rocketmqs(tmp_path):
    """Offset, size and sign-extended tag hash of three captured units."""
    queue = ConsumeQueue(tmp_path, "TopicA", 1, 6000, Disk())
    for log_offset, size, tag in ((0, 191, b"TagA"), (2728, 233, b"TagD"), (4179, 274, b"TagT")):
        queue.put(Unit(log_offset, size, hot.java_hash(tag)))
    assert (tmp_path / "TopicA/1/00000000000000000000").read_bytes()[:60] == QUEUE_UNITS
    assert (tmp_path / "TopicA/1/00000000000000000000").stat().st_size == 6000


def test_schedule_topic_units_hold_the_time_of_delivery(tmp_path):
    """A delayed record at 982, level 2 of a ladder with 2 s, is due 2 s after its store time."""
    queue = ConsumeQueue(tmp_path, "SCHEDULE_TOPIC_XXXX", 1, 6000, Disk())
    record = encode_record(
        topic=b"SCHEDULE_TOPIC_XXXX", queue_id=1, queue_offset=0, log_offset=982, flag=0, sys_flag=0, born_ms=1,
        born_host=BORN, store_ms=0x1A1FBD73960 - 2000, store_host=HOST, reconsume_times=0, prepared_offset=0,
        body=b"x" * 129, properties=b"DELAY\x012",
    )  # fmt: skip
    assert len(record) == 246
    heads, _, _ = hot.scan_records(record, 0, len(record), 982, 10, True)
    Dispatcher(lambda *_: queue, None, delays_of("1s 2s 3s")).dispatch(heads[0], 0)
    data = (tmp_path / "SCHEDULE_TOPIC_XXXX/1/00000000000000000000").read_bytes()
    assert data[:20].hex() == "00000000000003d6000000f6000001a1fbd73960"


def test_first_unit_behind_zero_is_preceded_by_fill_units(tmp_path):
    """A queue whose oldest message has offset 1005 begins in its second file, after five units that say "nothing"."""
    queue = ConsumeQueue(tmp_path, "T", 0, 2000, Disk())
    queue.restart_at(1005)
    queue.put(Unit(77, 100, 0))
    assert [path.name for path in (tmp_path / "T/0").iterdir()] == ["00000000000000020000"]
    data = (tmp_path / "T/0/00000000000000020000").read_bytes()
    assert data[:120] == UNIT.pack(0, 0x7FFFFFFF, 0) * 5 + UNIT.pack(77, 100, 0)
    assert (queue.min_offset, queue.max_offset) == (1005, 1006)


def test_index_header_and_slot_are_rocketmqs(tmp_path):
    """The key TopicA#k1 has hash 1903240649 and slot 49 of 100; the header counts slots, and entries plus one."""
    index = Index(tmp_path, 100, 1000, Disk())
    index.put(b"TopicA#k1", 0, 0x1A1FBD73154, 1_700_000_000_123)
    index.put(b"TopicA#k2", 191, 0x1A1FBD73154 + 2500, 1_700_000_000_123)
    data = (tmp_path / index.files[0].name).read_bytes()
    assert len(data) == 40 + 4 * 100 + 20 * 1000
    assert HEADER.unpack_from(data) == (0x1A1FBD73154, 0x1A1FBD73154 + 2500, 0, 191, 2, 3)
    assert struct.unpack_from(">i", data, 40 + 4 * 49) == (1,)
    assert struct.unpack_from(">iqii", data, 40 + 400 + 20) == (1903240649, 0, 0, 0)
    assert struct.unpack_from(">iqii", data, 40 + 400 + 40)[1:3] == (191, 2)


def test_captured_index_header_reads_back():
    """36 slots in use and 43 entries, from the first to the last captured record."""
    header = HEADER.unpack(
        bytes.fromhex("000001a1fbd73154000001a1fbd7b26d000000000000000000000000000016b2000000240000002c")
    )
    assert header == (0x1A1FBD73154, 0x1A1FBD7B26D, 0, 0x16B2, 36, 44)


def test_checkpoint_is_three_times_in_4096_bytes(tmp_path):
    """Log, queues, index; the rest is zero."""
    checkpoint = Checkpoint(1_795_226_546_516, 1_795_226_546_517, 1_795_226_546_518)
    checkpoint.save(tmp_path / "checkpoint", Disk())
    data = (tmp_path / "checkpoint").read_bytes()
    assert data == struct.pack(">qqq", 1_795_226_546_516, 1_795_226_546_517, 1_795_226_546_518).ljust(4096, b"\0")
    assert Checkpoint.load(tmp_path / "checkpoint") == checkpoint


def test_a_checkpoint_that_is_missing_short_or_mad_counts_as_young(tmp_path):
    """Recovery then reads everything."""
    path = tmp_path / "checkpoint"
    assert Checkpoint.load(path) == Checkpoint()
    path.write_bytes(b"\0" * 10)
    assert Checkpoint.load(path) == Checkpoint()
    path.write_bytes(b"\xff" * 4096)
    assert Checkpoint.load(path) == Checkpoint()


def test_tree_is_rocketmqs(tmp_path):
    """Names, sizes and marker files of a running and of a stopped store."""
    store = open_store(tmp_path)
    put(store, "TopicA", 1, b"hello", tag="TagA", key="k1")
    assert (tmp_path / "abort").read_bytes() == b""
    assert (tmp_path / "lock").read_bytes() == b"lock"
    assert (tmp_path / "commitlog/00000000000000000000").stat().st_size == 64 * 1024
    assert (tmp_path / "consumequeue/TopicA/1/00000000000000000000").stat().st_size == 2000
    (index,) = (tmp_path / "index").iterdir()
    assert len(index.name) == 17
    assert index.name.isdigit()
    assert index.stat().st_size == 40 + 4 * 50 + 20 * 300
    store.close()
    assert not (tmp_path / "abort").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint", "commitlog", "config", "consumequeue", "index", "lock",
    ]  # fmt: skip


def test_a_full_log_file_ends_with_the_blank_record(tmp_path):
    """Its size is the rest of the file, its magic CBD43194, and the record that did not fit opens the next file."""
    with open_store(tmp_path) as store:
        first = put(store, "T", 0, b"x" * 40_000)
        second = put(store, "T", 0, b"y" * 40_000)
    assert second.log_offset == 64 * 1024
    data = (tmp_path / "commitlog/00000000000000000000").read_bytes()
    rest = 64 * 1024 - first.log_end
    assert data[first.log_end : first.log_end + 8] == rest.to_bytes(4, "big") + bytes.fromhex("cbd43194")
