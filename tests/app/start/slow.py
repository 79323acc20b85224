"""A store whose log is replayed as a whole, on a disk that takes its time; as a program, a broker of it.

python -m tests.app.start.slow FOLDER PORT SECONDS
"""

from __future__ import annotations

import pathlib
import shutil
import sys
import threading

from metaq.app.broker import start_broker
from metaq.app.runtime import run, set_up_logging
from metaq.app.supervision.service_manager import ServiceManager
from metaq.clock import SYSTEM
from metaq.options import BrokerOptions, StoreOptions
from metaq.store.disk import Disk
from metaq.store.message_store import MessageStore
from tests.store.support import HOST, put

COUNT = 3000
OPENED = 9 * COUNT // 300
"""Times that a replay opens a consume-queue file: each of them three times."""


class SlowDisk(Disk):
    """Each opening of a consume-queue file waits, `seconds` at most, or until `go_on` is set."""

    def __init__(self, seconds, after=0):
        self.seconds, self.after, self.opened = seconds, after, 0
        self.go_on, self.reached = threading.Event(), threading.Event()

    def open(self, path, flags):
        if "consumequeue" in path.parts:
            self.opened += 1
            if self.opened > self.after:
                self.reached.set()
                self.go_on.wait(self.seconds)
        return super().open(path, flags)


def store_options(root) -> StoreOptions:
    return StoreOptions(
        store_path_root_dir=str(root), mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=100 * 20,
        max_hash_slot_num=1000, max_index_num=4000, disk_max_used_space_ratio=95,
    )  # fmt: skip


def make(root: pathlib.Path) -> None:
    """Make a folder of which only the log is left."""
    with MessageStore(store_options(root), SYSTEM, HOST, "DefaultCluster") as store:
        for number in range(COUNT):
            put(store, "T", number % 3, b"%d" % number + b"x" * 200)
    shutil.rmtree(root / "consumequeue")
    for path in (root / "checkpoint", *(root / "config").glob("metaqTails*")):
        path.unlink()


def main() -> int:
    root, port, seconds = sys.argv[1:]
    set_up_logging("INFO")
    options = BrokerOptions(listen_port=0, ha_listen_port=0, http_port=int(port), broker_name="slow")
    manager = ServiceManager.of()
    told = manager.starting if manager is not None else print
    disk = SlowDisk(float(seconds))
    return run(lambda: start_broker(options, store_options(root), disk=disk, told=told), manager=manager)


if __name__ == "__main__":
    sys.exit(main())
