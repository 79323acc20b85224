"""kill -9 of a broker that tells byte positions: whatever it told is so afterwards, with its files of positions or without."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import sys

import pytest

from tests.support import process

pytestmark = pytest.mark.slow

TELLER = """
import sys
sys.path.insert(0, sys.argv[2])
import pathlib, queue
from tests.broker.metaq1.support import settings
from metaq.clock import SystemClock
from metaq.saved import Saving
from metaq.store.log.writer import PutRecord
from tests.broker.support import BORN_HOST, open_broker

turns, told = queue.SimpleQueue(), []

def asked(ask):
    while True:
        try:
            return ask()
        except Saving as saving:
            while not saving.pending[0].done:
                turns.get()()

sizes = dict(mapped_file_size_commit_log=1 << 18, file_reserved_time=1 << 20)
with open_broker(pathlib.Path(sys.argv[1]), SystemClock(), store=sizes, call_soon=turns.put, metaq1=settings()) as broker:
    queues = [asked(lambda: broker.metaq1.bases.touch("orders", number)) for number in range(3)]
    for positions in queues:  # what was told before
        for offset in range(broker.store.reader.queue("orders", positions.queue_id).max_offset + 1):
            print("again", positions.queue_id, offset, asked(lambda: positions.position(offset)))
    print("ready", flush=True)
    for number in range(1 << 30):
        positions = queues[number % 3]
        body = b"x" * (number * 7 % 90)
        asked(lambda: positions.max)
        put = broker.appender.put([PutRecord("orders", positions.queue_id, body, b"", 0, 0, 1, BORN_HOST)])
        if number % 5:
            place = positions.append(put.queue_offset, 20 + len(body))
        else:
            place = asked(lambda: positions.position(put.queue_offset))
        told.append(f"told {positions.queue_id} {put.queue_offset} {place} {len(body)}")
        if number % 50 == 0:
            while not turns.empty():
                turns.get()()
            broker.deliver()
            print("\\n".join(told), flush=True)
            told.clear()
"""


@pytest.mark.parametrize("without", [False, True])
def test_what_was_told_is_so_after_each_of_several_kills(tmp_path: pathlib.Path, *, without: bool) -> None:
    """Each time it dies in full run, log files and bases being written; the next one says the same of every message."""
    root, store = pathlib.Path(__file__).parents[2], tmp_path / "store"
    told: dict[tuple[int, int], int] = {}
    sizes: dict[tuple[int, int], int] = {}

    def take(line: str) -> None:
        words = line.split()
        if words[0] != "ready":
            queue_id, offset, place = map(int, words[1:4])
            assert told.setdefault((queue_id, offset), place) == place, line
        if words[0] == "told":
            sizes[queue_id, offset] = 20 + int(words[4])

    for goal in (2_000, 9_000, 14_000, 15_000):
        with process(sys.executable, "-c", TELLER, str(store), str(root)) as teller:
            before = set(told)
            for line in teller.stdout:
                take(line)
                if line.startswith("ready"):
                    said = {key for key in told if key not in before}
                    assert len(said) <= 200, "of all that is there, most had been told"
                if len(sizes) >= goal:
                    break
            assert len(sizes) >= goal, teller.stderr.read()
            os.kill(teller.pid, signal.SIGKILL)
            for line in teller.stdout:  # what it had said, the last line cut short
                if line.endswith("\n"):
                    take(line)
        if without:
            shutil.rmtree(store / "positions")
    assert len(list((store / "commitlog").glob("[0-9]" * 20))) > 3
    assert [told[queue_id, 0] for queue_id in range(3)] == [0, 0, 0]
    assert all(
        told[one, offset] + size == told.get((one, offset + 1), told[one, offset] + size)
        for (one, offset), size in sizes.items()
    )
    kept = sum((one, offset + 1) in told for one, offset in sizes)
    assert kept > len(sizes) - 100
