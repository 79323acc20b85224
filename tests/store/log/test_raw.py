"""A log copied as raw bytes: the same bytes, the same queues and index; whatever is not whole and in place is refused."""

from __future__ import annotations

import json
import pathlib
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.clock import seeded
from metaq.errors import NotLeading, StoreError, StoreFailed, StoreFull
from metaq.model.message import SysFlag
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.store.log.writer import PutRecord
from metaq.store.message_store import MessageStore
from metaq.store.queues.index_file import ENTRY
from metaq.testing.faults import FaultyDisk
from tests.crash.simulation.bare import log_files, read_log, read_units
from tests.store.support import checkpoint, crash, message, open_store, put, read_all, small_options

TOPICS = ("orders", "bills", SCHEDULE_TOPIC)


def fill(store: MessageStore, messages: int = 400) -> None:
    """Over several log files, queue files and index files; some have no place in a queue, some wait to be delivered."""
    for number in range(messages):
        store.clock.advance(0.1)
        topic, body = TOPICS[number % 2], b"%d:" % number + b"x" * (number * 37 % 900)
        if number % 50 == 7:
            half = message(topic, 0, body)
            half.sys_flag = int(SysFlag.PREPARED)
            store.writer.put([half])
        elif number % 20 == 3:
            store.writer.put([delayed(body, number % 2 + 1, store.clock.now_ms())])
        elif number % 10 == 5:
            put(store, topic, 1, body, body + b"2", body + b"3", tag="a", key=f"k{number}")
        else:
            put(store, topic, number % 3, body, tag="ab"[number % 2], key=f"k{number}")


def delayed(body: bytes, level: int, now_ms: int) -> PutRecord:
    record = message(SCHEDULE_TOPIC, level - 1, body)
    record.properties = f"DELAY\x01{level}\x02REAL_TOPIC\x01orders\x02REAL_QID\x010".encode()
    record.tags_code = now_ms + (1000, 5000)[level - 1]
    return record


def raw_log(root: pathlib.Path, start: int, stop: int) -> bytes:
    """The log's bytes [start, stop)."""
    found = b""
    for path in log_files(root):
        base, data = int(path.name), path.read_bytes()
        found += data[max(0, start - base) : max(0, stop - base)]
    return found


def borders(root: pathlib.Path, end: int) -> list[int]:
    """Where records begin, each file's blank record included, and the log's end."""
    found = [record.log_offset for record in read_log(root, stop=end)]
    blanks = [
        record.log_end
        for record in read_log(root, stop=end)
        if record.log_end not in set(found) and record.log_end < end
    ]
    return sorted({*found, *blanks, *(int(path.name) for path in log_files(root) if int(path.name) <= end), end})


def entries(store: MessageStore) -> list[tuple[int, int]]:
    """(hash, log offset) of all that is indexed."""
    return [
        ENTRY.unpack_from(file.file.buffer, file.entries_at(ordinal))[:2]
        for file in store.index.files
        for ordinal in range(1, file.header.next_ordinal)
    ]


def assert_same(copy: MessageStore, store: MessageStore) -> None:
    """Log files, units, and what is found by key."""
    one, other = store.folder.root, copy.folder.root
    assert copy.log.end == store.log.end
    for path in log_files(one):
        if int(path.name) < store.log.end:
            assert (other / "commitlog" / path.name).read_bytes() == path.read_bytes()
    assert {key: queue.max_offset for key, queue in copy.reader.queues().items() if queue.max_offset} == {
        key: queue.max_offset for key, queue in store.reader.queues().items() if queue.max_offset
    }
    for (topic, queue_id), queue in store.reader.queues().items():
        assert read_units(other, topic, queue_id) == read_units(one, topic, queue_id)
        assert copy.reader.queue(topic, queue_id).units(0, 10_000) == queue.units(0, 10_000)
        assert read_all(copy, topic, queue_id) == read_all(store, topic, queue_id)
    assert entries(copy) == entries(store)
    for number in range(0, 400, 23):
        for topic in TOPICS:
            assert copy.reader.query(topic, f"k{number}", 9, 0, 1 << 60) == store.reader.query(
                topic, f"k{number}", 9, 0, 1 << 60
            )


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with open_store(tmp_path_factory.mktemp("master"), message_delay_level="1s 5s") as store:
        fill(store)
        yield store


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chance=st.randoms(use_true_random=False))
def test_a_log_that_is_copied_in_pieces_is_the_same_log(tmp_path_factory, master, chance):
    """Whatever the pieces: one record, all of a file, or several files at once."""
    places = borders(master.folder.root, master.log.end)
    with open_store(tmp_path_factory.mktemp("copy"), message_delay_level="1s 5s") as copy:
        start = 0
        while start < len(places) - 1:
            stop = min(len(places) - 1, start + chance.choice((1, 2, 7, 40, 300)))
            data = raw_log(master.folder.root, places[start], places[stop])
            if not data:
                start = stop
                continue
            appended = copy.writer.append_raw(data, places[start])
            assert (appended.log_offset, appended.log_end) == (places[start], copy.log.end)
            assert copy.log.end == places[stop] or copy.log.file_bytes - copy.log.end % copy.log.file_bytes == 0
            start = places.index(copy.log.end)
        assert_same(copy, master)
        done = put(copy, "orders", 0, b"and on")
        assert done.log_offset == master.log.end
        assert read_all(copy, "orders", 0) == [*read_all(master, "orders", 0), b"and on"]


@pytest.mark.parametrize("seed", range(6))
def test_a_log_that_is_copied_in_pieces_cut_anywhere_is_the_same_log(tmp_path, master, seed):
    """Within records and within the blank ones that end files, as a RocketMQ master sends it: what is cut is left."""
    chance = seeded(f"pieces {seed}")
    data = raw_log(master.folder.root, 0, master.log.end)
    places = set(borders(master.folder.root, master.log.end))
    with open_store(tmp_path, message_delay_level="1s 5s") as copy:
        stop = 0
        while stop < len(data):
            stop = min(len(data), stop + chance.choice((1, 3, 8, 500, 32 << 10, 200_000)))
            appended = copy.writer.append_raw(data[copy.log.end : stop], copy.log.end, partial=True)
            assert appended.log_end == copy.log.end == max(place for place in places if place <= stop)
        assert_same(copy, master)


def test_a_copy_opens_again_after_an_orderly_end_and_after_a_kill(tmp_path, master):
    """What recovery makes of the log is what was made of the bytes."""
    data = raw_log(master.folder.root, 0, master.log.end)
    with open_store(tmp_path / "a", message_delay_level="1s 5s") as copy:
        copy.writer.append_raw(data, 0)
    with open_store(tmp_path / "a", message_delay_level="1s 5s") as copy:
        assert_same(copy, master)
        put(copy, "orders", 0, b"new")
        killed = crash(copy, tmp_path / "b")
    with open_store(killed, message_delay_level="1s 5s") as copy:
        assert read_all(copy, "orders", 0)[-1] == b"new"
        assert copy.log.end > master.log.end


def test_queues_that_grew_are_told(tmp_path, master):
    """For those who wait for messages there."""
    with open_store(tmp_path) as store:
        put(store, "orders", 2, b"a")
        put(store, "bills", 0, b"b", b"c")
        data, end = raw_log(tmp_path, 0, store.log.end), store.log.end
    with open_store(tmp_path / "copy") as copy:
        assert copy.writer.append_raw(data, 0) == (0, end, {("orders", 2), ("bills", 0)}, frozenset())
        assert copy.writer.append_raw(b"", end) == (end, end, frozenset(), frozenset())


def test_a_copy_of_a_log_whose_begin_is_gone_begins_where_that_does(tmp_path):
    """The first queue offsets are not 0 there; a start takes them as they are, and so does this."""
    with open_store(tmp_path / "a", file_reserved_time=0) as store:
        fill(store)
        assert store.keeper.retain(store.clock.now_ms() + 1, at_once=True)
        data = raw_log(tmp_path / "a", store.log.min, store.log.end)
        with open_store(tmp_path / "b") as copy:
            with pytest.raises(StoreError, match="or begin a log file"):
                copy.writer.append_raw(data, store.log.min + 1)
            copy.writer.append_raw(data, store.log.min)
            assert (copy.log.min, copy.log.end) == (store.log.min, store.log.end)
            for topic, queue_id in store.reader.queues():
                assert read_all(copy, topic, queue_id) == read_all(store, topic, queue_id)
            killed = crash(copy, tmp_path / "c")
        with open_store(killed) as copy:
            assert copy.log.end == store.log.end
            assert read_all(copy, "bills", 1) == read_all(store, "bills", 1)


def changed(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def test_a_unit_of_a_log_that_was_here_before_does_not_hold_up_a_copy(tmp_path):
    """A power cut brought it back, and left of the log what begins later: the queue goes on where the master's does."""
    with open_store(tmp_path / "master") as store:
        file_bytes = store.log.file_bytes
        while store.log.end < 3 * file_bytes:
            put(store, "orders", 0, b"x" * 900)
        there = store.reader.existing_queue("orders", 0)
        first, after = there.first_at(2 * file_bytes), there.max_offset
        data = raw_log(tmp_path / "master", 2 * file_bytes, store.log.end)
    queue = tmp_path / "copy" / "consumequeue" / "orders" / "0"
    queue.mkdir(parents=True)
    (tmp_path / "copy" / "commitlog").mkdir()
    (tmp_path / "copy" / "commitlog" / f"{2 * file_bytes:020d}").write_bytes(bytes(file_bytes))
    (queue / f"{0:020d}").write_bytes(
        struct.pack(">QIq", 567, 207, 0).ljust(small_options(tmp_path).mapped_file_size_consume_queue, b"\0")
    )
    with open_store(tmp_path / "copy") as store:
        assert store.reader.existing_queue("orders", 0).max_offset == 1
        store.writer.append_raw(data, 2 * file_bytes)
        there = store.reader.existing_queue("orders", 0)
        assert (there.min_offset, there.max_offset) == (first, after)


def test_what_does_not_go_on_with_the_log_whole_is_refused_and_nothing_is_appended(tmp_path):
    """Gaps, torn records, wrong checksums and places, zeros, other file sizes, queues that miss a message."""
    with open_store(tmp_path / "a") as store:
        for number in range(8):
            put(store, "T", 0, b"%d" % number * 100)
        first, second, third = (unit.log_offset for unit in store.reader.queue("T", 0).units(0, 3))
        data = raw_log(tmp_path / "a", 0, store.log.end)
        for number in range(8, 500):
            put(store, "T", 0, b"%d" % number * 100)
        blank = store.log.file_bytes - len(raw_log(tmp_path / "a", 0, store.log.file_bytes).rstrip(b"\0")) + 8
        whole_file = raw_log(tmp_path / "a", 0, store.log.file_bytes)
    before = data[:second]
    wrong = [
        (data[third:], third, "cannot be appended to a log that ends at"),
        (data[first:], first, "cannot be appended to a log that ends at"),
        (data[second:-1], second, "a record that runs past the end"),
        (data[second : second + 2], second, "a record that runs past the end"),
        (changed(data, third + 95, b"!")[second:], second, "a broken record"),
        (changed(data, third + 35, b"!")[second:], second, "a broken record"),
        (changed(data, third, bytes(4))[second:], second, "untouched bytes"),
        (data[third:], second, "a broken record"),
        (changed(data, second + 27, b"\x05")[second:], second, "goes on with queue offset 1, and the record"),
        (changed(data, third - 5, b"/")[second:third], second, "a broken record|of topic"),
        (whole_file[second:-1], second, "of a blank record"),
        (whole_file[second:][:-blank] + struct.pack(">I", 900), second, "a blank record|runs past|untouched"),
    ]
    with open_store(tmp_path / "b") as copy:
        copy.writer.append_raw(before, 0)
        for bad, place, why in wrong:
            with pytest.raises(StoreError, match=why):
                copy.writer.append_raw(bad, place)
            assert copy.log.end == second
            assert copy.reader.queue("T", 0).max_offset == 1
            assert raw_log(tmp_path / "b", 0, 60_000) == before + bytes(60_000 - len(before))
        assert copy.writer.append_raw(whole_file[second:], second).log_end == copy.log.file_bytes
    with open_store(tmp_path / "c", mapped_file_size_commit_log=128 << 10) as other:
        with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
            other.writer.append_raw(whole_file, 0)
        assert other.log.end == 0
        assert log_files(tmp_path / "c") == []


@pytest.mark.parametrize(
    "begin",
    [
        b"\0\0\0\0\xda\xa3",
        b"\0\0\0\x20\xda\xa3 \xa7",
        b"\0\x7f\0\0",
        (60 << 10).to_bytes(4, "big") + b"\xda\xa3 \xa8",
        (60 << 10).to_bytes(4, "big") + b"\xcb\xd4\x31\x94",
    ],
)
def test_what_can_never_become_a_record_is_not_waited_for(tmp_path, begin):
    """Zeros, sizes that no record has or that run past the file, other magics; a blank record that does not end the file."""
    with open_store(tmp_path / "a") as store:
        put(store, "T", 0, b"x" * 9000)
        data = raw_log(tmp_path / "a", 0, store.log.end)
    with open_store(tmp_path / "b") as copy:
        with pytest.raises(StoreError, match="none of them was appended"):
            copy.writer.append_raw(data + begin, 0, partial=True)
        assert copy.log.end == 0
        copy.writer.append_raw(data + data[:60], 0, partial=True)
        assert copy.log.end == len(data)


def test_a_replica_takes_no_message_of_its_own(tmp_path):
    """By whichever way; what its master has appended is taken, and after a promotion messages again."""
    with open_store(tmp_path / "a") as store:
        put(store, "T", 0, b"a")
        data = raw_log(tmp_path / "a", 0, store.log.end)
    with open_store(tmp_path / "b") as copy:
        copy.state.follow("a slave")
        for carrying in (False, True):
            with pytest.raises(NotLeading, match="a slave"):
                copy.writer.put([message("T", 0, b"b")], carrying=carrying)
        copy.writer.append_raw(data, 0)
        with pytest.raises(NotLeading):
            put(copy, "T", 0, b"b")
        copy.state.follow(None)
        put(copy, "T", 0, b"b")
        assert read_all(copy, "T", 0) == [b"a", b"b"]
        copy.state.follow("a slave")
        copy.state.set_writable(False)
        with pytest.raises(StoreFull):
            copy.writer.append_raw(data, copy.log.end)


def test_a_topic_that_was_made_again_begins_its_queues_anew(tmp_path):
    """As at its master: queue offset 0 behind others."""
    with open_store(tmp_path / "a") as store:
        put(store, "T", 0, b"old", b"older")
        store.writer.delete_topic("T")
        put(store, "T", 0, b"new")
        data = raw_log(tmp_path / "a", 0, store.log.end)
        first = store.reader.existing_queue("T", 0).unit(0).log_offset
    with open_store(tmp_path / "b") as copy:
        assert copy.writer.append_raw(data[:first], 0).restarted == frozenset()
        assert copy.writer.append_raw(data[first:], first).restarted == {("T", 0)}
        assert read_all(copy, "T", 0) == [b"new"]


def test_a_deletion_that_comes_behind_the_new_topics_messages_takes_the_old_ones_alone(tmp_path):
    """Queues that got no new message are emptied, those that did have the new ones; after a crash too."""
    with open_store(tmp_path / "a") as store:
        for queue_id in range(3):
            put(store, "T", queue_id, b"old", b"older")
        store.writer.delete_topic("T")
        place = store.log.end
        put(store, "T", 1, b"new")
        put(store, "T", 3, b"newer")
        data = raw_log(tmp_path / "a", 0, store.log.end)
    with open_store(tmp_path / "b") as copy:
        copy.writer.append_raw(data, 0)
        assert read_all(copy, "T", 0) == [b"old", b"older"]
        checkpoint(copy)
        copy.writer.delete_topic("T", place)
        (tmp_path / "b/config/metaqDeleted.json").write_text(json.dumps({"deletedTopics": {"T": place}}))
        assert [read_all(copy, "T", queue_id) for queue_id in range(4)] == [[], [b"new"], [], [b"newer"]]
        assert copy.reader.existing_queue("T", 0) is None
        put(copy, "T", 0, b"next")
        copy.flusher.flush()
        crash(copy, tmp_path / "c")
        queue = copy.reader.existing_queue("T", 0)
        assert (queue.min_offset, queue.max_offset) == (0, 1)
    with open_store(tmp_path / "c") as found:
        assert [read_all(found, "T", queue_id) for queue_id in range(4)] == [[b"next"], [b"new"], [], [b"newer"]]


def test_a_full_disk_leaves_whole_records_and_it_goes_on_from_there(tmp_path, master):
    """Every place where room runs out; what is there is what the master has."""
    places = borders(master.folder.root, master.log.end)
    refused = 0
    for room in range(0, 700_000, 50_000):
        disk = FaultyDisk(room=room)
        with open_store(tmp_path / f"{room}", disk=disk, message_delay_level="1s 5s") as copy:
            try:
                copy.writer.append_raw(raw_log(master.folder.root, 0, master.log.end), 0)
            except StoreFull:
                refused += 1
            assert copy.log.end in places
            disk.room = None
            copy.writer.append_raw(raw_log(master.folder.root, copy.log.end, master.log.end), copy.log.end)
            assert_same(copy, master)
    assert refused > 3


def test_a_store_that_failed_takes_no_bytes(tmp_path):
    """As it takes no message."""
    with open_store(tmp_path) as store:
        store.state.fail("a test says so")
        with pytest.raises(StoreFailed):
            store.writer.append_raw(b"", 0)
