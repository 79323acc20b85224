"""The fast path: rows of a frame table go to log, queue and index in one call, over every border of the files."""

from __future__ import annotations

import pytest

from metaq.errors import StoreFailed, StoreFull
from metaq.testing.faults import FaultyDisk
from metaq.wire import hot
from metaq.wire.command import encode, request
from metaq.wire.headers import SendHeader
from metaq.wire.record import encode_batch
from tests.store.support import BORN, open_store, read_all


def send(topic, queue_id, body, properties="", *, batch=False):
    header = SendHeader(
        producer_group="p",
        topic=topic,
        queue_id=queue_id,
        sys_flag=0,
        born_ms=1,
        flag=0,
        properties=properties,
        batch=batch,
    )
    return encode(request(320 if batch else 310, header, body))


class Lane:
    """A frame table over `frames`, gates for the topics T and U with three queues each, and what came of it."""

    def __init__(self, store, frames):
        self.store, self.data = store, b"".join(frames)
        self.table = hot.FrameTable(1 << 24)
        assert self.table.scan(self.data, 0, len(self.data)) == len(self.data)
        self.gates = {
            topic.encode(): hot.TopicGate(
                topic.encode(), [store.reader.queue(topic, i).tail for i in range(3)], 4 << 20, (b"DELAY",)
            )
            for topic in ("T", "U")
        }
        self.replies = hot.Replies(b"DefaultRegion", True)
        self.outcome = hot.AppendOutcome()

    def run(self, row=0):
        self.store.writer.append_rows(self.table, row, len(self.table), self.gates, BORN, self.replies, self.outcome)
        return self.outcome.stop, self.outcome.row


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path) as store:
        yield store


def test_rows_are_stored_over_every_border_of_the_files(store):
    """700 sends in one read event: several log files, queue files and index files."""
    bodies = [b"%d" % i * 100 for i in range(700)]
    rows = [send("T", i % 3, body, f"UNIQ_KEY\x01{i:032d}\x02TAGS\x01a") for i, body in enumerate(bodies)]
    fast_path = Lane(store, rows)
    assert fast_path.run() == (hot.STOP_END, 700)
    assert fast_path.outcome.messages == 700
    for queue_id in range(3):
        assert read_all(store, "T", queue_id) == bodies[queue_id::3]
    assert len(store.log.run.files) > 2
    assert len(store.index.files) == 3
    assert [b"%d" % 555 * 100 in record for record in store.reader.query("T", f"{555:032d}", 5, 0, 1 << 60)] == [True]


def test_rows_stop_at_one_that_is_not_plain(store):
    """The server answers that one by the slow path and goes on behind it."""
    fast_path = Lane(
        store, [send("T", 0, b"a"), send("T", 0, b"b", "DELAY\x013"), send("T", 0, b"c"), send("V", 0, b"d")]
    )
    assert fast_path.run() == (hot.STOP_SLOW, 1)
    assert fast_path.run(2) == (hot.STOP_SLOW, 3)
    assert read_all(store, "T", 0) == [b"a", b"c"]


def test_touched_names_each_watched_queue_once_for_the_whole_run(store):
    """Though the run was cut by a full log file in between."""
    store.reader.queue("T", 1).tail.watched = True
    fast_path = Lane(store, [send("T", i % 2, b"x" * 30_000) for i in range(8)])
    fast_path.run()
    assert fast_path.outcome.touched == [store.reader.queue("T", 1).tail]
    assert fast_path.outcome.messages == 8


def test_a_batch_that_does_not_fit_into_its_queue_file_is_for_the_slow_path(store):
    """Its units must lie in one mapping there; `put` stores them over the border."""
    rows = [send("T", 0, encode_batch([(0, b"%d" % i, b"")]) * 60, batch=True) for i in range(2)]
    fast_path = Lane(store, rows)
    assert fast_path.run() == (hot.STOP_SLOW, 1)
    assert store.reader.queue("T", 0).max_offset == 60


def test_a_row_larger_than_a_log_file_is_for_the_slow_path(store):
    """Which refuses it with a reason."""
    assert Lane(store, [send("T", 0, b"x" * 70_000)]).run() == (hot.STOP_SLOW, 0)


def test_a_full_disk_ends_the_run_at_its_row(tmp_path):
    """Rows before it are stored and answered; the same row goes through when there is room."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk) as store:
        store._populator.stop()
        fast_path = Lane(store, [send("T", 0, b"x" * 30_000) for _ in range(4)])
        store.reader.queue("T", 0).grow()
        disk.room = 64 * 1024 + 2000 + 5000
        with pytest.raises(StoreFull):
            fast_path.run()
        assert fast_path.outcome.row == 2
        assert fast_path.outcome.messages == 2
        assert fast_path.replies.take().count(b"queueOffset") == 2
        disk.room = None
        assert fast_path.run(2) == (hot.STOP_END, 4)
        assert len(read_all(store, "T", 0)) == 4


def test_a_failed_store_takes_no_row(store):
    """Nothing is acknowledged any more."""
    store.state.fail("a test says so")
    fast_path = Lane(store, [send("T", 0, b"x")])
    with pytest.raises(StoreFailed, match="a test says so"):
        fast_path.run()
    assert fast_path.outcome.row == 0
