"""Floors that an administrator moves: of a topic or of one queue, to any place in the log."""

from __future__ import annotations

import errno
import threading

import pytest

from metaq.clock import FakeClock
from metaq.model.upkeep.floors import queue_key
from metaq.store.offline.log_pieces import hidden_below
from metaq.store.reads.pull import ReadStatus
from metaq.store.upkeep.check import check
from metaq.testing.faults import FaultyDisk
from tests.store.support import START_MS, answer, checkpoint, crash, open_store, put, read_all
from tests.support import PATIENCE


def trim(store, floors):
    """Trim, and return what the housekeeping thread says of it."""
    said, done = [], threading.Event()
    store.keeper.trim(floors, lambda moved: (said.append(moved), done.set()))
    assert done.wait(PATIENCE)
    return said[0]


def fill(store, clock=None, messages=30):
    """Two queues of T and one of U in turn, 2 KB each: two log files. Returns the log offset of each message of T, by queue."""
    places = {0: [], 1: []}
    for number in range(messages):
        for queue_id in (0, 1):
            places[queue_id].append(put(store, "T", queue_id, b"%d " % number * 500, key=f"k{number}").log_offset)
        put(store, "U", 0, b"%d " % number * 500)
        if clock is not None:
            clock.advance(60)
    return places


def numbers(store, topic, queue_id=0):
    return [int(body.split()[0]) for body in read_all(store, topic, queue_id)]


def test_what_is_trimmed_is_gone_from_both_queues_and_nowhere_else(tmp_path):
    """In the middle of a log file; the file stays, and other topics' messages in it."""
    with open_store(tmp_path) as store:
        places = fill(store)
        floor = places[1][7]
        assert all(file.start != floor for file in store.log.run.files)
        assert trim(store, {"T": floor}) is True
        assert numbers(store, "T", 0) == list(range(8, 30))
        assert numbers(store, "T", 1) == list(range(7, 30))
        assert numbers(store, "U") == list(range(30))
        assert store.log.min == 0
        pulled = answer(store.reader.pull("T", 0, 0, 32))
        assert (pulled.status, pulled.next_offset, pulled.min_offset) == (ReadStatus.OFFSET_TOO_SMALL, 8, 8)
        assert store.reader.offset_at("T", 0, 0) == 8
        assert store.reader.query("T", "k7", 64, 0, 1 << 62) == [store.reader.record_at(places[1][7])]
        assert store.reader.query("T", "k6", 64, 0, 1 << 62) == []


def test_one_queue_is_trimmed_alone(tmp_path):
    """Searches by key find what the other queue still has."""
    with open_store(tmp_path) as store:
        places = fill(store)
        assert trim(store, {queue_key("T", 1): places[1][20]}) is True
        assert numbers(store, "T", 0) == list(range(30))
        assert numbers(store, "T", 1) == list(range(20, 30))
        assert store.reader.query("T", "k5", 64, 0, 1 << 62) == [store.reader.record_at(places[0][5])]
        assert (store.keeper.floor("T"), store.keeper.floor("T", 1)) == (0, places[1][20])
        assert store.keeper.floor("T", 0) == 0


def test_all_of_a_topic_goes_and_it_goes_on_counting(tmp_path):
    """The floor is the log's end then."""
    with open_store(tmp_path) as store:
        fill(store)
        assert trim(store, {"T": store.log.end}) is True
        assert numbers(store, "T", 0) == numbers(store, "T", 1) == []
        put(store, "T", 0, b"30 ")
        assert numbers(store, "T", 0) == [30]
        assert store.reader.existing_queue("T", 0).min_offset == 30


def test_floors_do_not_go_back(tmp_path):
    with open_store(tmp_path) as store:
        places = fill(store)
        assert trim(store, {"T": places[0][20]}) is True
        assert trim(store, {"T": places[0][10], queue_key("T", 1): places[1][5]}) is True
        assert numbers(store, "T", 0) == list(range(20, 30))
        assert numbers(store, "T", 1) == list(range(20, 30))


@pytest.mark.parametrize("queues_lost", [False, True])
@pytest.mark.parametrize("all_of_it", [False, True])
def test_what_was_trimmed_stays_gone_after_a_kill(tmp_path, queues_lost, all_of_it):
    """Also when the consume queues are made anew from the log, in which the records still lie."""
    store = open_store(tmp_path / "a")
    places = fill(store)
    floors = {"T": store.log.end} if all_of_it else {"T": places[0][10], queue_key("T", 1): places[1][15]}
    assert trim(store, floors) is True
    kept = [numbers(store, "T", queue_id) for queue_id in (0, 1)]
    folder = crash(store, tmp_path / "b")
    if queues_lost:
        for path in sorted((folder / "consumequeue").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    for _ in range(2):  # and a stop in order
        with open_store(folder) as store:
            assert [numbers(store, "T", queue_id) for queue_id in (0, 1)] == kept
            assert len(numbers(store, "U")) == 30
            assert store.reader.query("T", "k3", 64, 0, 1 << 62) == []


def test_the_floor_is_on_the_disk_before_a_message_is_gone(tmp_path):
    """If it cannot be saved nothing moves, which is told, and a later trim does it."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk) as store:
        places = fill(store)
        checkpoint(store)
        disk.make_error = errno.ENOSPC
        assert trim(store, {"T": places[0][10]}) is None
        assert len(numbers(store, "T", 0)) == 30
        disk.make_error = 0
        assert trim(store, {"T": places[0][10]}) is True
        assert hidden_below(tmp_path, store.log.end) == {"T": places[0][10]}


def test_a_trim_waits_for_those_who_need_the_messages(tmp_path):
    """They are asked again until they agree, for a minute; other work of the thread goes on meanwhile."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock, flush_interval_consume_queue=1) as store:
        places, answers, asked = fill(store), [False, False, True], []

        def ask(topic, floor):
            asked.append((topic, floor))
            return answers.pop(0) if answers else False

        store.keeper.before_letting_go(ask)
        assert trim(store, {queue_key("T", 1): places[1][3]}) is True
        assert asked == [("T", places[1][3])] * 3
        assert numbers(store, "T", 1)[0] == 3
        said, done = [], threading.Event()
        store.keeper.trim({"T": places[1][9]}, lambda moved: (said.append(moved), done.set()))
        while not done.wait(0.01):
            clock.advance(10)
        assert said == [False]
        assert numbers(store, "T", 0)[0] == 0


def test_a_trimmed_store_is_in_order_for_a_check(tmp_path):
    """`metaq store check` misses no unit, also where whole files of units went."""
    with open_store(tmp_path) as store:
        places = fill(store, messages=300)
        assert trim(store, {"T": places[0][150], queue_key("T", 1): places[1][250]}) is True
        files = len(store.reader.existing_queue("T", 1).run.files)
        assert files < 3
    found = check(tmp_path)
    assert found.damaged == 0, found.kinds
