"""A log that is cut: what was behind is gone from log, queues and index, for good, and what comes there is served."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from metaq.clock import FakeClock, seeded
from metaq.errors import StoreError, StoreFailed
from metaq.store.message_store import MessageStore
from metaq.store.offline.reader import StoreReader
from metaq.testing import PowerLossDisk
from metaq.testing.faults import FaultyDisk
from tests.crash.simulation.bare import read_log, read_units
from tests.effort import repeats
from tests.store.log.test_raw import TOPICS, assert_same, borders, fill, raw_log
from tests.store.support import HOST, START_MS, crash, open_store, put, read_all, small_options


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with open_store(tmp_path_factory.mktemp("master"), message_delay_level="1s 5s") as store:
        fill(store)
        yield store


def copied(root: pathlib.Path, master: MessageStore, end: int) -> MessageStore:
    """A store that holds the master's log up to `end`."""
    copy = open_store(root, message_delay_level="1s 5s")
    copy.writer.append_raw(raw_log(master.folder.root, 0, end), 0)
    return copy


@pytest.mark.parametrize("part", [0.0, 0.03, 0.2, 0.41, 0.55, 0.8, 0.97, 1.0])
def test_a_log_that_was_cut_is_the_log_that_never_got_further(tmp_path, master, part):
    """Wherever it is cut: it takes the same bytes again, and a start, also after a kill, finds nothing of what was there."""
    places = borders(master.folder.root, master.log.end)
    place = places[int((len(places) - 1) * part)]
    with copied(tmp_path / "a", master, master.log.end) as store, copied(tmp_path / "b", master, place) as shorter:
        store.writer.truncate(place)
        assert store.state.flushed == store.log.end == place
        assert store.log.newest_ms == shorter.log.newest_ms
        assert_same(store, shorter)
        assert not any(raw_log(tmp_path / "a", place, 1 << 30)), "zeros behind the end"
        store.writer.append_raw(raw_log(master.folder.root, place, master.log.end), place)
        assert_same(store, master)
        store.writer.truncate(place)
        put(store, "orders", 0, b"another", key="k3")
        assert read_all(store, "orders", 0) == [*read_all(shorter, "orders", 0), b"another"]
        assert store.reader.query("orders", "k3", 9, 0, 1 << 60)[-1].find(b"another") > 0
        killed = crash(store, tmp_path / "c")
        log_end = shorter.log.end
        queues = {key: read_all(shorter, *key) for key in shorter.reader.queues()}
    for root in (killed, tmp_path / "a"):
        with open_store(root, message_delay_level="1s 5s") as store:
            for key, found in queues.items():
                assert read_all(store, *key) == found + ([b"another"] if key == ("orders", 0) else [])
            assert [record.body for record in read_log(root, log_end, store.log.end)] == [b"another"]


def test_a_place_where_no_record_begins_is_refused(tmp_path):
    """And nothing is changed."""
    with open_store(tmp_path, file_reserved_time=0) as store:
        for number in range(400):
            put(store, "T", 0, b"%d" % number * 200)
        store.keeper.retain(store.clock.now_ms() + 1, at_once=True)
        unit = store.reader.queue("T", 0).units(store.reader.queue("T", 0).min_offset + 5, 1)[0]
        for place in (unit.log_offset + 1, store.log.end + 1, store.log.min - 65_536, -1):
            with pytest.raises(StoreError, match="cannot be cut at"):
                store.writer.truncate(place)
        before = read_all(store, "T", 0)
        store.writer.truncate(store.log.end)
        assert read_all(store, "T", 0) == before
        store.writer.truncate(unit.log_offset)
        assert read_all(store, "T", 0) == before[:5]
        store.writer.truncate(store.log.min)
        assert read_all(store, "T", 0) == []
        assert store.log.end == store.log.min
        put(store, "T", 0, b"new")
        assert read_all(store, "T", 0) == [b"new"]
        killed = crash(store, tmp_path.with_name("b"))
    with open_store(killed) as store:
        assert read_all(store, "T", 0) == [b"new"]


def test_who_waits_for_what_was_cut_off_is_told_that_it_is_not_durable(tmp_path):
    """Newer bytes at the same place say nothing of the old ones."""
    options = small_options(tmp_path)
    with MessageStore(options, FakeClock(START_MS), HOST, "DefaultCluster", threads=False) as store:
        first, second = put(store, "T", 0, b"first"), put(store, "T", 0, b"second")
        told = []
        store.flusher.when_flushed(first.log_end, lambda good: told.append(("first", good)))
        store.flusher.when_flushed(second.log_end + 1, lambda good: told.append(("more", good)))
        store.writer.truncate(first.log_end)
        assert told == [("first", True), ("more", False)]


def test_a_mark_of_a_deleted_topic_goes_back_with_the_log(tmp_path):
    """Else it would cover what comes there."""
    with open_store(tmp_path) as store:
        first = put(store, "T", 0, b"first")
        put(store, "U", 0, b"x" * 5000)
        store.writer.delete_topic("T")
        store.writer.truncate(first.log_end)
        assert store.deleted == {"T": first.log_end}
        put(store, "T", 0, b"again")
        assert read_all(store, "T", 0) == [b"again"]


def test_a_cut_that_fails_in_the_middle_stops_the_store_and_a_start_goes_on(tmp_path):
    """What is left of the log is unknown until then: nothing more is taken."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk)
    for number in range(300):
        put(store, "T", 0, b"%d" % number * 300, key=f"k{number}")
    places = [unit.log_offset for unit in store.reader.queue("T", 0).units(0, 300)]
    store.keeper.checkpoint()
    calls, sync_folder = [], disk.sync_folder

    def failing(path):
        calls.append(path)
        if path.name == "commitlog":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync_folder(path)

    disk.sync_folder = failing
    with pytest.raises(StoreFailed, match="could not be cut at"):
        store.writer.truncate(places[20])
    disk.sync_folder = sync_folder
    with pytest.raises(StoreFailed):
        put(store, "T", 0, b"x")
    store.close()
    with open_store(tmp_path) as store:
        kept = read_all(store, "T", 0)
        assert 20 <= len(kept) <= 300
        assert kept == [b"%d" % number * 300 for number in range(len(kept))]
        store.writer.truncate(places[20])
        assert len(read_all(store, "T", 0)) == 20


class PowerGone(BaseException):
    """Nothing after it is done."""


@pytest.mark.parametrize("seed", range(repeats(60)))
def test_a_kill_or_a_power_cut_in_the_middle_leaves_a_store_that_opens(tmp_path, seed):
    """The log ends where it was to be cut, or further back; it is a beginning of what it was, and its queues are the log's.

    Once the cut has returned, it ends there.
    """
    chance = seeded(f"truncate {seed}")
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk)
        fill(store, chance.choice((30, 120, 300)))
        if chance.random() < 0.5:
            store.keeper.checkpoint()
        if chance.random() < 0.3:
            fill(store, 40)
        store.flusher.flush()
        whole = read_log(disk.root, stop=store.log.end)
        place = chance.choice(borders(disk.root, store.log.end))
        at, done, ended = disk.calls + chance.randint(1, 60), False, None

        def on_call(_name):
            if disk.calls >= at:
                raise PowerGone

        disk.on_call = on_call
        try:
            store.writer.truncate(place)
            done = True
        except PowerGone:
            pass
        disk.on_call = None
        ended = disk.cut(tmp_path / "b") if chance.random() < 0.6 else disk.kill(tmp_path / "b")
        store.folder.close()
    with ended:
        store = quiet(ended)
        found = read_log(ended.root, stop=store.log.end)
        assert found == whole[: len(found)]
        assert store.log.end >= place
        if done:
            assert store.log.end == place
        for topic in TOPICS:
            for queue_id in range(3):
                wanted = [
                    record.body
                    for record in found
                    if (record.topic, record.queue_id) == (topic, queue_id)
                    and b":" in record.body
                    and not is_half(record)
                ]
                assert read_all(store, topic, queue_id) == wanted
                units = read_units(ended.root, topic, queue_id)
                assert all(log_offset < store.log.end for log_offset, _ in units.values())
        for record in found:
            if record.topic in TOPICS[:2] and b"KEYS" in record.properties:
                key = record.properties.rpartition(b"KEYS\x01")[2].decode()
                assert any(record.body in data for data in store.reader.query(record.topic, key, 9, 0, 1 << 60))
        assert store.reader.indexed_log < max(1, store.log.end)
        put(store, "orders", 0, b"next")
        assert read_all(store, "orders", 0)[-1] == b"next"
        store.close()


@pytest.mark.parametrize("seed", range(12))
def test_log_files_whose_deletion_a_power_cut_undoes_are_no_damage(tmp_path, seed):
    """The file that is cut is zeroed on the disk, and the names of those behind it may come back. A start that still believed
    that they were durable would take the zeros for damage, and refuse to open.
    """
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk)
        fill(store, 400)
        store.keeper.checkpoint()
        place, before = borders(disk.root, store.log.end)[40], store.reader.queue("orders", 0).max_offset
        zeroed = False

        def on_call(name):
            nonlocal zeroed
            if store.reader.queue("orders", 0).max_offset < before:  # the queues are cut first
                if zeroed and name == "sync_folder":
                    raise PowerGone
                zeroed = name == "sync_file" and store.log.run.files[-1].start < place

        disk.on_call = on_call
        with pytest.raises(PowerGone):
            store.writer.truncate(place)
        disk.on_call = None
        cut = disk.cut(tmp_path / "b")
        store.folder.close()
    with cut:
        store = quiet(cut)
        assert store.log.end == place
        store.close()


def is_half(record) -> bool:
    """`fill` makes each fiftieth a prepared message, which is in no queue."""
    return int(record.body.partition(b":")[0]) % 50 == 7


def quiet(disk: PowerLossDisk) -> MessageStore:
    options = small_options(disk.root, message_delay_level="1s 5s")
    return MessageStore(options, FakeClock(START_MS), HOST, "DefaultCluster", disk=disk, threads=False)


def test_a_log_that_was_cut_where_a_file_begins_goes_on_there(tmp_path, master):
    """No file is there to write to until something comes; whoever reads the end at the writer's own place finds it there."""
    file_bytes = master.log.file_bytes
    assert master.log.end > 2 * file_bytes
    for name in ("raw", "put"):
        with copied(tmp_path / name, master, master.log.end) as store:
            store.writer.truncate(file_bytes)
            assert store.log.tail.end == store.log.end == store.state.flushed == file_bytes
            if name == "raw":
                store.writer.append_raw(raw_log(master.folder.root, file_bytes, master.log.end), file_bytes)
                assert_same(store, master)
            else:
                assert put(store, "orders", 0, b"another").log_offset == file_bytes


def test_a_tail_over_several_log_files_is_kept_for_the_offline_reader(tmp_path, master):
    """All messages that were cut off, also those behind the blank end of a file."""
    places = borders(master.folder.root, master.log.end)
    place = places[len(places) // 4]
    with copied(tmp_path / "a", master, master.log.end) as store:
        done = store.writer.keep_behind(place)
        store.writer.truncate(place)
        behind = [record.body for record in read_log(master.folder.root, place, master.log.end)]
        assert len(list(done.kept.folder.iterdir())) > 2
        assert [message.body for message in StoreReader(done.kept.folder).records()] == behind
