"""Byte positions of MetaQ 1.x: how long it takes to compute all of them anew from the log, in s.

    python bench/positions_bench.py                     # 10 million messages of 100 B in one queue, 2.4 GB on the disk
    python bench/positions_bench.py --messages 1000000 --queues 100

Measured are the first measuring of a queue that a 1.x client has never touched, and the start after `positions/` was deleted:
until each queue's end is known, which a put needs, and until all is.
"""

import argparse
import json
import queue
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import SystemClock
from metaq.model.message import host_bytes
from metaq.options import BrokerOptions, Metaq1Options, StoreOptions
from metaq.saved import Saving
from metaq.store.config_file import ConfigFile
from metaq.store.log.writer import PutRecord
from metaq.store.message_store import MessageStore

HOST = host_bytes("127.0.0.1", 10911)
T = TypeVar("T")


class Running:
    """A broker without servers, whose loop is whoever asks."""

    def __init__(self, folder: Path) -> None:
        options, clock = StoreOptions(store_path_root_dir=str(folder), message_index_enable=False), SystemClock()
        names = BrokerOptions(broker_name="bench")
        self.store = MessageStore(options, clock, HOST, names.broker_cluster_name)
        self._turns: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        environment = Environment(names, options, clock, self.store, "bench", HOST)
        files = broker_files(lambda name: ConfigFile(folder / "config" / name))
        self.broker = Broker(environment, files, self._turns.put, metaq1=Metaq1Settings(Metaq1Options()))
        self.broker.lead()

    def ask(self, question: Callable[[], T]) -> T:
        """Its answer, which may take the thread a while."""
        while True:
            try:
                return question()
            except Saving as saving:
                while not saving.pending[0].done:
                    self._turns.get()()

    def close(self) -> None:
        self.broker.close()
        self.store.close()


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(folder: Path, messages: int, queues: int, body: int) -> dict[str, float]:
    """Seconds of each part."""
    running = Running(folder)
    records = [PutRecord("bench", 0, b"x" * body, b"TAGS\x01tag", 0, 0, 1, HOST) for _ in range(100)]
    for number in range(messages // 100):
        for record in records:
            record.queue_id = number % queues
        running.store.writer.put(records)

    def ends() -> None:
        for queue_id in range(queues):
            running.ask(lambda queue_id=queue_id: running.broker.metaq1.bases.touch("bench", queue_id).max)  # type: ignore[misc]

    def begins() -> None:
        for queue_id in range(queues):
            assert running.ask(lambda queue_id=queue_id: running.broker.metaq1.bases.touch("bench", queue_id).min) == 0  # type: ignore[misc]

    found = {"first": seconds(ends)}
    running.close()
    shutil.rmtree(folder / "positions")
    running = Running(folder)
    found["ends"] = seconds(ends)
    found["all"] = found["ends"] + seconds(begins)
    running.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="metaq-positions-", dir=chosen.folder))
    try:
        found = measure(folder, chosen.messages, chosen.queues, chosen.body)
        print(
            f"{chosen.messages} messages of {chosen.body} B in {chosen.queues} queues: first touch {found['first']:.2f} s; "
            f"without positions/: ends after {found['ends']:.2f} s, all after {found['all']:.2f} s"
        )
        print(json.dumps(found))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
