"""Damage below what was durable: nothing wrong is served, nothing is skipped in silence, what is derived is mended."""

from __future__ import annotations

import logging
import shutil
import struct

import pytest

from metaq.clock import FakeClock
from metaq.errors import StoreError
from metaq.store.message_store import MessageStore
from metaq.store.reads.pull import ReadStatus
from metaq.wire import hot
from tests.store.support import (
    HOST,
    START_MS,
    answer,
    bodies_of,
    crash,
    log_file,
    message,
    open_store,
    overwrite,
    put,
    small_options,
)  # fmt: skip
from tests.support import eventually

BODIES = [b"%d:" % number + b"x" * (number % 90) for number in range(600)]
QUEUE_FILE = 1000 * 20


def filled(root, **changes):
    """Queue T:0 with all BODIES, others between them, over log and queue files; closed in order."""
    with open_store(root, mapped_file_size_consume_queue=QUEUE_FILE, **changes) as store:
        for number, body in enumerate(BODIES):
            store.writer.put([message("T", 0, body, tag="ab"[number % 2], key=f"k{number}")])
            put(store, "U", number % 3, b"other" * (number % 7))
    return root


def opened(root, **changes):
    """The store, its background threads left out: `drain` takes their steps."""
    options = small_options(root, mapped_file_size_consume_queue=QUEUE_FILE, **changes)
    return MessageStore(options, FakeClock(START_MS), HOST, "DefaultCluster", threads=False)


def drain(store, topic="T", queue_id=0, wanted=None, count_max=32):
    """Every body of a queue, mending what a pull cannot read, as the background thread does."""
    queue = store.reader.existing_queue(topic, queue_id)
    offset, found = queue.min_offset, []
    for _ in range(10_000):
        pulled = answer(store.reader.pull(topic, queue_id, offset, count_max, None, wanted))
        found += bodies_of(pulled.body)
        if pulled.status is ReadStatus.OFFSET_FOUND_NULL:
            assert pulled.next_offset == offset, "nothing may be skipped before it is known to be lost"
            store.reader.repairs.step()
        elif pulled.next_offset <= offset:
            return found
        offset = pulled.next_offset
    raise AssertionError("it goes on for ever")


def unit_place(offset):
    return offset * 20


ZEROS = bytes(204 * 20)
GARBAGE = {
    "zeroed page": (205, ZEROS),
    "first page": (0, ZEROS),
    "last units": (560, bytes(40 * 20)),
    "one unit": (300, bytes(20)),
    "another's record": (100, struct.pack(">qiq", 0, 99, 0) * 5),
    "beyond the log": (100, struct.pack(">qiq", 1 << 60, 99, 0)),
    "negative": (100, struct.pack(">qiq", -5, -7, 0)),
    "noise": (200, bytes(range(1, 251)) * 8),
}


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("name", sorted(GARBAGE))
def test_damaged_units_are_made_anew_from_the_log(tmp_path, name, cold, caplog):
    """Every message is served, in order, once; the log says what was mended."""
    filled(tmp_path)
    first, data = GARBAGE[name]
    overwrite(tmp_path / "consumequeue/T/0" / f"{0:020d}", unit_place(first), data)
    changes = {"hot_bytes": 0} if cold else {}
    with opened(tmp_path, **changes) as store:
        assert drain(store) == BODIES
        assert "did not lead to their messages" in caplog.text or "is rebuilt" in caplog.text
        assert store.keeper.trouble == ""
        caplog.clear()
        assert drain(store) == BODIES
        assert put(store, "T", 0, b"next").queue_offset == len(BODIES)
    with opened(tmp_path, **changes) as store:
        assert drain(store) == [*BODIES, b"next"]
        assert caplog.text == "", "what was mended is on the disk"


def test_damaged_units_are_mended_for_a_pull_by_tag_too(tmp_path):
    """A zeroed unit has no tag that could be wanted or not."""
    filled(tmp_path)
    overwrite(tmp_path / "consumequeue/T/0" / f"{0:020d}", unit_place(205), ZEROS)
    with opened(tmp_path) as store:
        assert drain(store, wanted=hot.Filter({hot.java_hash(b"a")})) == BODIES[::2]


def test_the_queue_of_another_topic_in_its_place_is_mended(tmp_path):
    """A folder that was copied over another: numbers and queue ids fit, the topic does not."""
    filled(tmp_path)
    shutil.copy(tmp_path / "consumequeue/T/0" / f"{0:020d}", tmp_path / "consumequeue/U/0" / f"{0:020d}")
    with opened(tmp_path) as store:
        found = drain(store, "U")
        assert found == [b"other" * (number % 7) for number in range(0, 600, 3)]


def test_the_background_thread_mends_without_being_asked(tmp_path):
    """A reader that tries again gets it."""
    filled(tmp_path)
    overwrite(tmp_path / "consumequeue/T/0" / f"{0:020d}", unit_place(205), ZEROS)
    with open_store(tmp_path, mapped_file_size_consume_queue=QUEUE_FILE) as store:
        assert answer(store.reader.pull("T", 0, 205, 32)).status is ReadStatus.OFFSET_FOUND_NULL
        eventually(lambda: answer(store.reader.pull("T", 0, 205, 32)).status is ReadStatus.FOUND)
        assert bodies_of(answer(store.reader.pull("T", 0, 205, 32)).body)[0] == BODIES[205]


def records_of(root):
    """(log offset, size) of each of T:0's records."""
    data = (root / "consumequeue/T/0" / f"{0:020d}").read_bytes()
    return [struct.unpack(">qi", data[place : place + 12]) for place in range(0, 600 * 20, 20)]


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("kind", ["checksum", "zeros", "page", "size"])
def test_a_damaged_log_is_not_served_and_the_loss_is_said(tmp_path, kind, cold, units, caplog):
    """A cleanly closed store whose log was damaged: what is whole is served, what is not is passed over and told."""
    filled(tmp_path)
    places = records_of(tmp_path)
    start, size = places[300]
    file = log_file(tmp_path, start - start % 65_536)
    inside = start % 65_536
    lost = {300}
    if kind == "checksum":
        overwrite(file, inside + 92, b"!")
    elif kind == "zeros":
        overwrite(file, inside, bytes(size))
    elif kind == "size":
        overwrite(file, inside, struct.pack(">i", size + 40))
    else:
        page = (inside // 4096) * 4096
        overwrite(file, page, bytes(4096))
        low = start - inside + page
        lost = {n for n, (at, length) in enumerate(places) if at < low + 4096 and at + length > low}
    if units:
        overwrite(tmp_path / "consumequeue/T/0" / f"{0:020d}", unit_place(290), bytes(30 * 20))
    with caplog.at_level(logging.INFO), opened(tmp_path, **({"hot_bytes": 0} if cold else {})) as store:
        wanted = [body for number, body in enumerate(BODIES) if number not in lost]
        assert drain(store) == wanted
        assert f"{len(lost)} messages, of offsets {min(lost)} to {max(lost)}, are damaged in the log" in caplog.text
        assert f"{len(lost)} messages of queue 0 of topic T are damaged" in store.keeper.trouble
        assert drain(store) == wanted
        assert drain(store, count_max=1) == wanted
        assert store.reader.record_at(start) is None
        put(store, "T", 0, b"next")
        assert drain(store)[-1] == b"next"


def test_what_this_process_wrote_is_not_summed_up_again(tmp_path):
    """Only what comes from a disk is: the hot path of a tailing reader pays nothing."""
    store = opened(tmp_path / "a")
    done = put(store, "T", 0, b"x" * 100)
    assert store._puller._fresh_from == 0
    overwrite(log_file(tmp_path / "a"), done.log_offset + 95, b"!")
    assert answer(store.reader.pull("T", 0, 0, 32)).count == 1
    root = crash(store, tmp_path / "b")
    with opened(root) as store:
        assert store.log.end == 0, "recovery sees it"


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("in_log", [False, True])
def test_a_long_pull_that_meets_damage_ends_there_and_the_next_one_goes_on(tmp_path, in_log, cold):
    """Its length was told before: the connection must end. What follows is mended, or passed over, by then."""
    changes = {"mapped_file_size_commit_log": 4 << 20, **({"hot_bytes": 0} if cold else {})}
    bodies = [b"%d:" % number + b"y" * 1000 for number in range(900)]
    with opened(tmp_path, **changes) as store:
        put(store, "T", 0, *bodies)
        unit = store.reader.queue("T", 0).unit(500)
    if in_log:
        overwrite(log_file(tmp_path), unit.log_offset + 200, b"!")
    else:
        overwrite(tmp_path / "consumequeue/T/0" / f"{0:020d}", unit_place(500), struct.pack(">qi", unit.log_offset, 99))
    with opened(tmp_path, **changes) as store:
        offset, found, broken = 0, [], 0
        while offset < 900:
            pulled = answer(store.reader.pull("T", 0, offset, 900, 8 << 20, in_pieces=True))
            assert pulled.next_offset > offset or pulled.status is ReadStatus.OFFSET_FOUND_NULL
            data = pulled.body
            if pulled.long is not None:
                try:
                    data = bytes(pulled.long)
                except StoreError:
                    broken += 1
                    store.reader.repairs.step()
                    continue
            elif pulled.status is ReadStatus.OFFSET_FOUND_NULL:
                store.reader.repairs.step()
            found += bodies_of(data)
            offset = pulled.next_offset
        assert found == [body for number, body in enumerate(bodies) if not in_log or number != 500]
        assert broken <= 1
        assert bool(store.keeper.trouble) == in_log
