"""`metaq up` on a disk of a known pace: `python -m tests.system.slow_disk FOLDER BYTES_PER_SECOND KEY=VALUE ...`."""

from __future__ import annotations

import sys
import time

from metaq.app.runtime import run
from metaq.app.up import start_up
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from metaq.store.disk import Disk, Mapped


class SlowDisk(Disk):
    """A disk on which nothing is durable before its pace allows it."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second

    def sync_range(self, mapped: Mapped, start: int, size: int) -> None:
        time.sleep(size / self._bytes_per_second)
        super().sync_range(mapped, start, size)


def main() -> int:
    folder, bytes_per_second, *pairs = sys.argv[1:]
    options = {"storePathRootDir": folder, **dict(pair.split("=", 1) for pair in pairs)}
    broker, _ = BrokerOptions.read({"listenPort": 0, **options})
    store, _ = StoreOptions.read(options)
    return run(lambda: start_up(broker, store, NamesrvOptions(listen_port=0), disk=SlowDisk(int(bytes_per_second))))


if __name__ == "__main__":
    sys.exit(main())
