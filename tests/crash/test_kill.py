"""kill -9 of a process that stores messages: whatever it said was stored is there afterwards."""

from __future__ import annotations

import os
import pathlib
import signal
import sys

import pytest

from metaq.store.offline.reader import StoreReader
from tests.store.support import open_store, read_all
from tests.support import process

pytestmark = pytest.mark.slow

WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
import pathlib
from tests.store.support import message, open_store
from metaq.clock import SystemClock
changes = dict(mapped_file_size_commit_log=1 << 20, flush_interval_consume_queue=20, flush_interval_commit_log=20,
               flush_disk_type=sys.argv[2])
store = open_store(pathlib.Path(sys.argv[1]), SystemClock(), **changes)
queues = [store.reader.queue("orders", queue_id) for queue_id in range(4)]
print("ready", flush=True)
for round in range(1 << 30):
    for queue in queues:
        number = queue.max_offset
        done = store.writer.put([
            message("orders", queue.queue_id, b"%d:%d:" % (queue.queue_id, i) + b"x" * (i % 80), tag="t", key=f"k{i}")
            for i in range(number, number + 3)
        ])
    if sys.argv[2] == "SYNC_FLUSH" and round % 16 == 0:
        import threading
        event = threading.Event()
        store.flusher.when_flushed(done.log_end, lambda ok: event.set())
        event.wait()
    print(min(queue.max_offset for queue in queues), flush=True)
"""


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_killed_three_times_over_everything_acknowledged_is_there_in_order(tmp_path: pathlib.Path, flush: str) -> None:
    """Each time the writer is killed in full run; the next one goes on in the same folder."""
    root = pathlib.Path(__file__).parent.parent.parent
    acknowledged = 0
    for goal in (300, 1500, 4000):
        with process(sys.executable, "-c", WRITER, str(tmp_path / "store"), flush, str(root)) as writer:
            for line in writer.stdout:
                if line.strip().isdigit():
                    acknowledged = int(line)
                if acknowledged >= goal:
                    break
            assert acknowledged >= goal, writer.stderr.read()
            os.kill(writer.pid, signal.SIGKILL)
            # Not `communicate`: it passes over what the iterator has read ahead.
            acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.strip().isdigit())])
        assert (tmp_path / "store" / "abort").exists()
        with open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
            for queue_id in range(4):
                numbers = [int(body.split(b":")[1]) for body in read_all(store, "orders", queue_id)]
                assert numbers == list(range(len(numbers)))
                assert len(numbers) >= acknowledged
            for number in range(0, acknowledged, max(1, acknowledged // 100)):
                found = store.reader.query("orders", f"k{number}", 32, 0, 1 << 60)
                assert sum(b":%d:" % number in record for record in found) == 4
        (tmp_path / "store" / "abort").touch()  # the look above ended in order, the writer did not
        stored = [message.queue_offset for message in StoreReader(tmp_path / "store").records() if not message.queue_id]
        assert stored == list(range(len(stored)))
