"""A record that is broken in front of whole ones: what was promised is stepped over and told, the rest is kept aside."""

from __future__ import annotations

import logging
import shutil

import pytest

from metaq.errors import StoreCorrupt
from metaq.clock import FakeClock
from metaq.store.message_store import MessageStore
from metaq.store.offline.reader import StoreReader
from metaq.store.reads.pull import ReadStatus
from metaq.testing import PowerLossDisk
from tests.store.support import (
    HOST,
    START_MS,
    answer,
    bodies_of,
    checkpoint,
    crash,
    log_file,
    open_store,
    overwrite,
    put,
    read_all,
    small_options,
)  # fmt: skip

COUNT = 60
BODIES = [b"%d:" % number + b"x" * (40 + number % 50) for number in range(COUNT)]
LOST = 20


def filled(root, *, checkpointed=0, **changes):
    """A store that was killed: COUNT messages in T:0, others between them, so many of them before a checkpoint."""
    store = open_store(root / "running", flush_disk_type="SYNC_FLUSH", **changes)
    places = []
    for number, body in enumerate(BODIES):
        places.append(put(store, "T", 0, body, tag="a", key=f"k{number}"))
        put(store, "U", number % 3, b"other %d" % number)
        if number + 1 == checkpointed:
            checkpoint(store)
    store.flusher.flush()
    return crash(store, root / "killed"), places


def flip(root, place, file_bytes=64 * 1024):
    """Flip one bit of the byte at a log offset."""
    path = log_file(root, place - place % file_bytes)
    data = path.read_bytes()[place % file_bytes]
    overwrite(path, place % file_bytes, bytes([data ^ 0x10]))


def quiet(root, **changes):
    """The store, without its threads: `drained` takes their steps."""
    return MessageStore(small_options(root, **changes), FakeClock(START_MS), HOST, "DefaultCluster", threads=False)


def drained(store, topic, queue_id):
    """Every body of a queue, as a consumer gets them that goes on behind a hole."""
    found, offset = [], store.reader.existing_queue(topic, queue_id).min_offset
    for _ in range(1000):
        pulled = answer(store.reader.pull(topic, queue_id, offset, 32))
        found += bodies_of(pulled.body)
        if pulled.status is ReadStatus.OFFSET_FOUND_NULL:
            store.reader.repairs.step()
        elif pulled.next_offset <= offset:
            return found
        offset = pulled.next_offset
    raise AssertionError("it goes on for ever")


FIELDS = {
    "size": 2, "magic": 5, "checksum": 9, "queue id": 14, "queue offset": 27, "log offset": 33, "store time": 59,
    "body length": 86, "body": 95, "topic": -1,
}  # fmt: skip


@pytest.mark.parametrize("checkpointed", [0, LOST - 5, LOST + 5])
@pytest.mark.parametrize("field", FIELDS)
def test_one_flipped_bit_costs_one_message(tmp_path, field, checkpointed, caplog):
    """Killed after 60 messages were synced, and a bit of the 21st is another one: the 20 before it and the 39 behind it are
    there, each with its queue offset, and an error names the place."""
    root, places = filled(tmp_path, checkpointed=checkpointed)
    lost = places[LOST]
    at = (
        FIELDS[field]
        if field != "topic"
        else lost.log_end - lost.log_offset - len(b"\0\x0bTAGS\1a\2KEYS\1k20\2CLUSTER\1DefaultCluster")
    )
    flip(root, lost.log_offset + at)
    before = log_file(root).read_bytes()
    with caplog.at_level(logging.INFO), quiet(root) as store:
        queue = store.reader.existing_queue("T", 0)
        assert queue.max_offset == COUNT
        found = drained(store, "T", 0)
        assert found in ([body for number, body in enumerate(BODIES) if number != LOST], BODIES)
        for queue_id in range(3):
            assert drained(store, "U", queue_id) == [b"other %d" % n for n in range(COUNT) if n % 3 == queue_id]
        assert put(store, "T", 0, b"next").queue_offset == COUNT
        if checkpointed <= LOST and found != BODIES:
            told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            assert any(str(log_file(root)) in text and f"log offset {lost.log_offset}" in text for text in told), told
            assert any("queue 0 of topic T" in text for text in told), told
    after = log_file(root).read_bytes()
    assert after[: places[-1].log_end] == before[: places[-1].log_end], "nothing of the log was zeroed"
    with open_store(root) as store:
        assert store.reader.existing_queue("T", 0).max_offset == COUNT + 1
        assert read_all(store, "U", 0)
