"""The offline reader: folders of stopped, running and killed brokers, without touching them."""

from __future__ import annotations

import zlib

import pytest

from metaq.errors import StoreCorrupt, StoreForeign
from metaq.store.offline.reader import StoreReader
from metaq.wire import hot
from tests.store.support import crash, dumped, log_file, message, open_store, overwrite, put


def test_reader_gives_every_record_in_log_order(tmp_path):
    """From the root or the commitlog folder, over several files, of all topics or of one."""
    with open_store(tmp_path) as store:
        for i in range(300):
            put(store, "TU"[i % 2], i % 3, b"%d" % i * 100)
    bodies = [b"%d" % i * 100 for i in range(300)]
    assert [found[3] for found in dumped(tmp_path)] == bodies
    assert [m.body for m in StoreReader(tmp_path / "commitlog").records()] == bodies
    assert [m.body for m in StoreReader(tmp_path).records(topics=["U"])] == bodies[1::2]
    assert [m.body for m in StoreReader(tmp_path).records(topics=["U", "T"])] == bodies


def test_reader_starts_at_any_record(tmp_path):
    """By its log offset."""
    with open_store(tmp_path) as store:
        places = [put(store, "T", 0, b"%d" % i * 100).log_offset for i in range(300)]
    assert [m.body for m in StoreReader(tmp_path).records(places[250])] == [b"%d" % i * 100 for i in range(250, 300)]


def test_reader_sees_what_a_running_broker_has_stored(tmp_path):
    """No lock, no change, and the end is where the untouched bytes begin."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"one")
        reader = StoreReader(tmp_path)
        assert [m.body for m in reader.records()] == [b"one"]
        assert (reader.end, reader.why) == (store.log.end, "untouched bytes")
        end = put(store, "T", 0, b"two").log_end
        assert [m.body for m in reader.records()] == [b"one", b"two"]
        assert reader.end == end


def test_reader_steps_over_a_broken_record_in_front_of_whole_ones(tmp_path):
    """And says where it lies."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"good")
        bad = put(store, "T", 0, b"evil")
        put(store, "T", 0, b"behind")
    overwrite(log_file(tmp_path), bad.log_offset + 90, b"X")
    reader = StoreReader(tmp_path)
    assert [m.body for m in reader.records()] == [b"good", b"behind"]
    assert [(found.place, found.size, found.why) for found in reader.damage] == [
        (bad.log_offset, bad.log_end - bad.log_offset, "a broken record")
    ]


def test_reader_does_not_take_old_bytes_for_records(tmp_path):
    """A whole record behind the tail, stored long before the one in front of it."""
    store = open_store(tmp_path / "a")
    store.clock.advance(100)
    end = put(store, "T", 0, b"new").log_end
    root = crash(store, tmp_path / "b")
    old = open_store(tmp_path / "old")
    put(old, "T", 0, b"x" * (end - 92))
    assert old.log.end == end
    stale = put(old, "T", 0, b"stale")
    old.close()
    overwrite(log_file(root), end, log_file(tmp_path / "old").read_bytes()[end : stale.log_end])
    reader = StoreReader(root)
    assert [m.body for m in reader.records()] == [b"new"]
    assert "stored 100000 ms before" in reader.why


def test_reader_expands_compressed_bodies_within_a_limit(tmp_path):
    """A bomb is left as it is stored, and the reader goes on."""
    bomb = b"".join([zlib.compress(bytes(80 * 1024 * 1024), 9)])
    with open_store(tmp_path, mapped_file_size_commit_log=1 << 20) as store:
        for data in (zlib.compress(b"hello" * 1000), bomb, zlib.compress(b"after")):
            record = message("T", 0, data)
            record.sys_flag = 0x1
            store.writer.put([record])
    assert [m.body for m in StoreReader(tmp_path).records()] == [b"hello" * 1000, bomb, b"after"]


def test_blocks_are_whole_records_for_the_column_decoder(tmp_path):
    """Bounded in size; their rows add up."""
    with open_store(tmp_path, mapped_file_size_commit_log=16 << 20) as store:
        for i in range(40):
            put(store, "T", 0, b"%d" % i * 100_000)
    blocks = list(StoreReader(tmp_path).blocks())
    assert sum(hot.decode_columns(block, 0, len(block))["rows"] for _, block in blocks) == 40
    assert max(len(block) for _, block in blocks) <= 4 * 1024 * 1024
    assert blocks[1][0] == len(blocks[0][1])


def test_reader_refuses_what_is_no_store(tmp_path):
    """An empty folder, none at all, and a log with a hole."""
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreForeign, match="holds no commit log"):
            StoreReader(path)
    with open_store(tmp_path / "s") as store:
        for _ in range(8):
            put(store, "T", 0, b"x" * 30_000)
    log_file(tmp_path / "s", 65_536).unlink()
    with pytest.raises(StoreCorrupt, match="begins at 131072, and the log file before it ends at 65536"):
        list(StoreReader(tmp_path / "s").records())
