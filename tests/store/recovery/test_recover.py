"""Opening after an orderly end, after kill -9, after a power cut, and what RocketMQ leaves."""

from __future__ import annotations

import shutil
import struct

import pytest

from metaq.store.checkpoint import Tails
from metaq.store.config_file import ConfigFile
from tests.store.support import (
    START_MS,
    checkpoint,
    crash,
    log_file,
    message,
    open_store,
    overwrite,
    put,
    read_all,
)  # fmt: skip


def fill(store, count=60, start=0):
    for i in range(start, start + count):
        put(store, "T", i % 3, b"%d" % i * 40, tag="t", key=f"k{i}")


def expected(queue_id, count=60):
    return [b"%d" % i * 40 for i in range(count) if i % 3 == queue_id]


def assert_whole(store, count=60):
    for queue_id in range(3):
        assert read_all(store, "T", queue_id) == expected(queue_id, count)
    for i in range(0, count, 7):
        assert any(b"%d" % i * 40 in record for record in store.reader.query("T", f"k{i}", 64, 0, 1 << 60))


def test_an_orderly_end_and_a_start_change_nothing(tmp_path):
    """No file of the log, the queues or the index is written again."""
    with open_store(tmp_path) as store:
        fill(store)
    before = {
        path: path.read_bytes()
        for part in ("commitlog", "consumequeue", "index")
        for path in (tmp_path / part).rglob("*")
        if path.is_file()
    }
    with open_store(tmp_path) as store:
        assert store.recovered.records == 0
        assert_whole(store)
    assert {path: path.read_bytes() for path in before} == before


def test_after_a_kill_only_what_followed_the_checkpoint_is_read(tmp_path):
    """60 records before it, 3 after it: the newest of the 60 is looked at again, and the three."""
    store = open_store(tmp_path / "a")
    fill(store)
    checkpoint(store)
    fill(store, 3, 60)
    with open_store(crash(store, tmp_path / "b")) as store:
        assert store.recovered.records == 4
        assert_whole(store, 63)


def test_a_folder_of_rocketmqs_without_our_tails_opens(tmp_path):
    """Clean or not: by the checkpoint, from the newest file that is old enough."""
    store = open_store(tmp_path / "a", mapped_file_size_commit_log=64 * 1024)
    for i in range(900):
        put(store, "T", i % 3, b"%d" % i * 40, tag="t", key=f"k{i}")
        store.clock.advance(0.1)
    checkpoint(store)
    copy = crash(store, tmp_path / "b")
    for root in (tmp_path / "a", copy):
        for name in ("metaqTails.json", "metaqTails.json.bak"):
            (root / "config" / name).unlink()
        with open_store(root) as store:
            assert 0 < store.recovered.start.log_offset < store.log.end
            assert_whole(store, 900)


def test_units_that_rocketmq_left_behind_its_tail_are_not_believed(tmp_path):
    """A unit whose place in the log holds another queue's record."""
    with open_store(tmp_path) as store:
        fill(store, 9)
        first = store.reader.queue("T", 0).unit(0)
    for name in ("metaqTails.json", "metaqTails.json.bak"):
        (tmp_path / "config" / name).unlink()
    path = tmp_path / "consumequeue/T/1/00000000000000000000"
    overwrite(path, 3 * 20, path.read_bytes()[40:60])
    overwrite(path, 4 * 20, first.log_offset.to_bytes(8, "big") + first.size.to_bytes(4, "big") + bytes(8))
    with open_store(tmp_path) as store:
        assert_whole(store, 9)
        assert store.reader.queue("T", 1).max_offset == 3


def test_torn_record_is_cut_off_and_its_place_is_used_again(tmp_path):
    """A record whose body lost a byte; what is put next takes its queue offset and its log offset."""
    store = open_store(tmp_path / "a")
    fill(store, 6)
    torn = put(store, "T", 0, b"torn" * 10)
    root = crash(store, tmp_path / "b")
    overwrite(log_file(root), torn.log_offset + 90, b"\0")
    with open_store(root) as store:
        assert store.log.end == torn.log_offset
        assert_whole(store, 6)
        again = put(store, "T", 0, b"again")
        assert (again.log_offset, again.queue_offset) == (torn.log_offset, torn.queue_offset)
        assert read_all(store, "T", 0) == [*expected(0, 6), b"again"]


def stale_tail(tmp_path, advance_ms, *, topic="T"):
    """A log as RocketMQ leaves it: cut before record 6, not zeroed, and record 6 written anew with the same size."""
    store = open_store(tmp_path / "a")
    for i in range(12):
        put(store, "T", 0, b"%d" % (10 + i) * 40)
    place = store.reader.queue("T", 0).unit(6).log_offset
    root = crash(store, tmp_path / "b")
    for name in ("metaqTails.json", "metaqTails.json.bak"):
        (root / "config" / name).unlink(missing_ok=True)
    overwrite(log_file(root), place, bytes(8))
    shutil.copy(log_file(root), tmp_path / "log")
    overwrite(tmp_path / "log", place, log_file(tmp_path / "a").read_bytes()[place : place + 8])
    store = open_store(root)
    assert store.reader.queue("T", 0).max_offset == 6
    store.clock.set_wall(START_MS + advance_ms)
    new = put(store, topic, 0, b"NN" * 40)
    root = crash(store, tmp_path / "c")
    tail = (tmp_path / "log").read_bytes()[new.log_end : new.log_end + 2000]
    overwrite(log_file(root), new.log_end, tail)
    return root


@pytest.mark.parametrize("before", [0, 3], ids=["the first messages of all", "behind durable ones"])
def test_a_record_that_lost_the_end_of_its_properties_is_cut_off(tmp_path, before):
    """What was put and never synced ends at a sector's border, where nothing but properties is missing: no checksum
    covers them, and the record of a store of ours never ends in zeros."""
    store = open_store(tmp_path / "store")
    for number in range(before):
        put(store, "orders", 0, b"%d" % number)
    checkpoint(store)
    whole = put(store, "orders", 0, b"%d" % before, tag="a" * 40)
    overhead = whole.log_end - whole.log_offset - 1
    torn = put(store, "orders", 0, bytes((20 - whole.log_end - overhead) % 512), tag="a" * 40)
    assert torn.log_end % 512 == 20
    crashed = crash(store, tmp_path / "crashed")
    overwrite(log_file(crashed), torn.log_end - 20, bytes(20))
    with open_store(crashed) as store:
        assert read_all(store, "orders", 0) == [b"%d" % number for number in range(before + 1)]


def test_old_records_behind_a_cut_tail_do_not_come_back_to_life(tmp_path):
    """They have checksum, place and even queue offset right, and are older than the record before them."""
    with open_store(stale_tail(tmp_path, 5000)) as store:
        assert read_all(store, "T", 0) == [b"%d" % (10 + i) * 40 for i in range(6)] + [b"NN" * 40]
        assert "a record stored 5000 ms before" in store.recovered.why_end
        put(store, "T", 0, b"after")
    data = (tmp_path / "c/commitlog/00000000000000000000").read_bytes()
    assert b"19" * 40 not in data, "they were zeroed, too"


def test_old_records_of_the_same_moment_are_told_by_their_queue_offset(tmp_path):
    """The new record went to another queue: the old ones do not continue theirs."""
    store = open_store(tmp_path / "a")
    put(store, "T", 0, b"0" * 40)
    put(store, "T", 0, b"1" * 40)
    last = put(store, "T", 0, b"2" * 40)
    root = crash(store, tmp_path / "b")
    checkpointed = (
        (root / "config/metaqTails.json").read_bytes() if (root / "config/metaqTails.json").exists() else None
    )
    data = bytearray(log_file(root).read_bytes())
    data[last.log_offset + 20 : last.log_offset + 28] = (7).to_bytes(8, "big")
    log_file(root).write_bytes(data)
    shutil.rmtree(root / "consumequeue")
    assert checkpointed is not None
    with open_store(root) as store:
        assert read_all(store, "T", 0) == [b"0" * 40, b"1" * 40]
        assert "queue offset 7 where queue 0 of topic T goes on with 2" in store.recovered.why_end


def test_a_clock_that_was_set_back_loses_nothing_that_has_its_unit(tmp_path):
    """RocketMQ's store times follow the clock; a record that a consume queue points at is believed."""
    store = open_store(tmp_path / "a")
    fill(store, 3)
    later = put(store, "T", 0, b"late" * 40)
    root = crash(store, tmp_path / "b")
    overwrite(log_file(root), later.log_offset + 56, (START_MS - 3_600_000).to_bytes(8, "big"))
    with open_store(root) as store:
        assert store.log.end == later.log_end


def test_store_time_never_steps_back_over_a_restart(tmp_path):
    """The clock was set back by an hour while the broker was down."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"x")
    store = open_store(tmp_path)
    store.clock.set_wall(START_MS - 3_600_000)
    assert put(store, "T", 0, b"y").store_ms == START_MS
    store.close()


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/T", "consumequeue/T/1", "index"])
@pytest.mark.parametrize("clean", [True, False])
def test_what_is_derived_is_rebuilt(tmp_path, lost, clean):
    """A folder that was deleted, all of it or one queue."""
    store = open_store(tmp_path / "a")
    fill(store, 700)
    checkpoint(store)
    if clean:
        store.close()
        root = tmp_path / "a"
    else:
        root = crash(store, tmp_path / "b")
    shutil.rmtree(root / lost)
    with open_store(root) as store:
        assert_whole(store, 700)
        put(store, "T", 1, b"next")
        assert read_all(store, "T", 1)[-1] == b"next"


def test_an_empty_file_of_a_consume_queue_is_rebuilt(tmp_path):
    """A crash of RocketMQ leaves one; RocketMQ itself then refuses to start."""
    with open_store(tmp_path) as store:
        fill(store)
    (tmp_path / "consumequeue/T/2/00000000000000000000").write_bytes(b"")
    with open_store(tmp_path) as store:
        assert_whole(store)


def test_without_tails_that_fit_a_missing_abort_file_proves_nothing(tmp_path):
    """A power cut before the first checkpoint took the header of an index file, and somebody took the abort file away."""
    store = open_store(tmp_path / "a")
    for start in range(0, 700, 70):
        fill(store, 70, start)
        store.clock.advance(1)  # index files are named after the time
    root = crash(store, tmp_path / "b")
    (root / "abort").unlink()
    first, *others = sorted((root / "index").iterdir())
    assert others
    overwrite(first, 0, bytes(40))
    with open_store(root) as store:
        assert_whole(store, 700)


def test_a_torn_index_is_rebuilt_after_the_machine_restarted(tmp_path):
    """Header and entries no longer fit each other."""
    store = open_store(tmp_path / "a")
    fill(store, 100)
    root = crash(store, tmp_path / "b")
    (path,) = (root / "index").iterdir()
    overwrite(path, 40 + 200 + 20 * 50, bytes(20 * 50))
    with open_store(root) as store:
        assert_whole(store, 100)


def test_a_queue_whose_first_file_alone_was_lost_is_made_again(tmp_path):
    """A power cut may take the name of a queue's first file and leave that of its second. The second holds nothing then
    that counts: it goes before the queue is written anew.
    """
    store = open_store(tmp_path / "a")
    put(store, "U", 0, b"other")
    checkpoint(store)
    for number in range(300):
        put(store, "T", 0, b"%d" % number)
    root = crash(store, tmp_path / "b")
    first, *others = sorted((root / "consumequeue/T/0").iterdir())
    assert others
    first.unlink()
    with open_store(root) as store:
        assert read_all(store, "T", 0) == [b"%d" % number for number in range(300)]
        assert put(store, "T", 0, b"next").queue_offset == 300


def test_a_queue_is_rebuilt_though_the_head_of_its_messages_is_gone(tmp_path):
    """Offsets go on where they were; the units before are filled."""
    with open_store(tmp_path, file_reserved_time=0) as store:
        for i in range(500):
            put(store, "T", 0, b"%d" % i * 100)
        store.keeper.retain(store.clock.now_ms(), at_once=True)
        low, high = store.reader.queue("T", 0).min_offset, store.reader.queue("T", 0).max_offset
        bodies = read_all(store, "T", 0)
        assert (low > 0, high) == (True, 500)
    shutil.rmtree(tmp_path / "consumequeue")
    with open_store(tmp_path) as store:
        queue = store.reader.queue("T", 0)
        assert (queue.min_offset, queue.max_offset) == (low, high)
        assert read_all(store, "T", 0) == bodies
        assert put(store, "T", 0, b"next").queue_offset == 500


def test_a_topic_that_was_deleted_and_made_again_counts_from_zero(tmp_path):
    """Also when everything is rebuilt from a log that still holds the old messages."""
    store = open_store(tmp_path / "a")
    put(store, "T", 0, *[b"old"] * 5)
    put(store, "U", 0, b"other")
    store.writer.delete_topic("T")
    assert not (tmp_path / "a/consumequeue/T").exists()
    store.writer.delete_topic("T")
    assert store.reader.existing_queue("T", 0) is None
    assert put(store, "T", 0, b"new", b"newer").queue_offset == 0
    root = crash(store, tmp_path / "b")
    shutil.rmtree(root / "consumequeue")
    with open_store(root) as store:
        assert read_all(store, "T", 0) == [b"new", b"newer"]
        assert read_all(store, "U", 0) == [b"other"]


def test_a_deleted_topic_stays_away_after_a_kill(tmp_path):
    """Its records before the deletion are not dispatched again."""
    store = open_store(tmp_path / "a")
    put(store, "T", 0, b"old")
    put(store, "U", 0, b"other")
    store.writer.delete_topic("T")
    checkpoint(store)
    with open_store(crash(store, tmp_path / "b")) as store:
        assert store.reader.existing_queue("T", 0) is None
        assert read_all(store, "U", 0) == [b"other"]


def test_leftovers_of_files_under_construction_are_removed(tmp_path):
    """A kill while the next log file or queue file was being made."""
    store = open_store(tmp_path / "a")
    fill(store, 3)
    root = crash(store, tmp_path / "b")
    (root / "commitlog/00000000000000065536.tmp").write_bytes(b"x" * 100)
    (root / "consumequeue/T/0/00000000000000002000.tmp").write_bytes(b"x")
    with open_store(root) as store:
        assert_whole(store, 3)
    assert not list(root.rglob("*.tmp"))


def test_half_messages_are_in_the_log_and_in_no_queue(tmp_path):
    """Prepared and rollback types; the queue offsets of others go on without them, also after a rebuild."""
    store = open_store(tmp_path / "a")
    put(store, "T", 0, b"one")
    half = message("T", 0, b"half", key="h")
    half.sys_flag = 0x4
    done = store.writer.put([half])
    rollback = message("T", 0, b"rollback", key="r")
    rollback.sys_flag = 0xC
    store.writer.put([rollback])
    put(store, "T", 0, b"two")
    root = crash(store, tmp_path / "b")
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    with open_store(root) as store:
        assert read_all(store, "T", 0) == [b"one", b"two"]
        assert b"half" in store.reader.record_at(done.log_offset)
        assert len(store.reader.query("T", "h", 10, 0, 1 << 60)) == 1
        assert store.reader.query("T", "r", 10, 0, 1 << 60) == []


def test_a_crash_during_recovery_is_recovered_from(tmp_path):
    """The act stops after any number of its file operations; the next start makes the same of it."""
    store = open_store(tmp_path / "a")
    fill(store, 200)
    root = crash(store, tmp_path / "b")
    shutil.rmtree(root / "consumequeue/T/1")

    class Stop(Exception):
        pass

    class StoppingDisk(type(store.disk)):
        left = 0

        def reserve(self, *args):
            self.left -= 1
            if self.left < 0:
                raise Stop
            super().reserve(*args)

    for left in range(8):
        disk = StoppingDisk()
        disk.left = left
        try:
            open_store(root, disk=disk).close()
            break
        except Stop:
            continue
    with open_store(root) as store:
        assert_whole(store, 200)


def test_tails_that_are_not_whole_are_as_good_as_none(tmp_path):
    """Cut short, empty, or of another kind."""
    for text in ("", "{", "[]", '{"log_end": "x"}', "\x00\x00"):
        (tmp_path / "t.json").write_text(text)
        assert Tails.load(ConfigFile(tmp_path / "t.json")) is None


def test_tails_of_another_log_are_not_believed(tmp_path):
    """RocketMQ has run in the folder since, and cut and rewritten the log: the checkpoint rules."""
    with open_store(tmp_path) as store:
        fill(store, 30)
    tails = Tails.load(ConfigFile(tmp_path / "config/metaqTails.json"))
    overwrite(log_file(tmp_path), tails.last_record, bytes(64 * 1024 - tails.last_record))
    with open_store(tmp_path) as store:
        assert store.log.end == tails.last_record
        assert_whole(store, 29)


def test_an_index_entry_cut_short_by_a_kill_loses_no_other(tmp_path):
    """Slot written, header not: the chain behind the slot is still found, and the record is indexed again."""
    store = open_store(tmp_path / "a", max_hash_slot_num=1)
    fill(store, 20)
    root = crash(store, tmp_path / "b")
    (path,) = (root / "index").iterdir()
    header = path.read_bytes()[:40]
    overwrite(path, 36, (int.from_bytes(header[36:], "big") - 1).to_bytes(4, "big"))
    with open_store(root, max_hash_slot_num=1) as store:
        assert_whole(store, 20)
        for i in range(20):
            assert (
                len([r for r in store.reader.query("T", f"k{i}", 64, 0, 1 << 60) if b"k%d" % i == r[-len(f"k{i}") :]])
                == 1
            )


def test_many_queues_are_made_durable_together_and_all_come_back(tmp_path):
    """Above 64 dirty queues one sync of the file system stands for one of each."""
    store = open_store(tmp_path / "a")
    for i in range(150):
        put(store, f"T{i % 10}", i // 10, b"%d" % i)
    checkpoint(store)
    assert all(queue.synced == 1 for queue in store.reader.queues().values())
    with open_store(crash(store, tmp_path / "b")) as store:
        assert [read_all(store, f"T{i % 10}", i // 10) for i in range(150)] == [[b"%d" % i] for i in range(150)]
        assert store.recovered.records == 1


def test_a_deleted_topics_files_go_in_the_background_and_at_the_latest_at_the_next_start(tmp_path):
    """The caller does not wait; a kill in between leaves a folder that no topic can be named after."""
    store = open_store(tmp_path / "a")
    put(store, "T", 0, b"old")
    store._housekeeper.stop()
    store.writer.delete_topic("T")
    put(store, "T", 0, b"new")
    store.writer.delete_topic("T")
    put(store, "T", 0, b"newer")
    assert len(list((tmp_path / "a/consumequeue").glob("T.deleted-*"))) == 2
    with open_store(crash(store, tmp_path / "b")) as store:
        assert read_all(store, "T", 0) == [b"newer"]
        assert not list((tmp_path / "b/consumequeue").glob("*.deleted-*"))
    assert not list((tmp_path / "a/consumequeue").glob("*.deleted-*"))


@pytest.mark.parametrize("left", ["units", "log"])
def test_a_missing_abort_file_alone_does_not_prove_that_the_last_run_ended_in_order(tmp_path, left):
    """A power cut took the newest records, and left their units or a torn one; then somebody removed `abort`. What lies
    behind the ends that the tails tell is cut off: it would be met by the search for the oldest message, and the next start.
    """
    root, changes = tmp_path / "store", {"mapped_file_size_consume_queue": 20 * 20}
    bodies = [b"%d" % number for number in range(15)]
    with open_store(root, **changes) as store:
        put(store, "T", 0, *bodies)
        end = store.log.end
    folder = root / "consumequeue" / "T" / "0"
    unit, header = struct.pack(">qiq", end + 1000, 100, 0), struct.pack(">II", 100, 0xDAA320A7)
    if left == "units":  # with a hole in front of them
        (folder / f"{400:020d}").write_bytes(unit.ljust(400, b"\0"))
        overwrite(folder / f"{0:020d}", 15 * 20, unit)
    else:
        overwrite(log_file(root), end, header + b"torn")
    for _ in range(2):
        with open_store(root, **changes) as store:
            assert (store.log.end, read_all(store, "T", 0)) == (end, bodies)
        assert [path.name for path in folder.iterdir()] == [f"{0:020d}"]
        assert not any((folder / f"{0:020d}").read_bytes()[15 * 20 :])
        assert not any(log_file(root).read_bytes()[end:])
