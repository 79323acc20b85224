"""`metaq` whose broker has a disk that a test steers: its power is cut, it fills up, it becomes slow. For `Cluster(faulty_disks=True)`.

Two signals, each about a file beside the store's folder:

- SIGUSR1 cuts the power: the process makes `<folder>.cut`, what a machine without power has left, and ends by SIGKILL;
- SIGUSR2 has it read `<folder>.disk`, a `DiskFaults` in JSON.
"""

from __future__ import annotations

import errno
import os
import runpy
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

import metaq.app.broker
from metaq.store.message_store import MessageStore
from metaq.testing.disk_faults import CUT, DISK, SEED, DiskFaults
from metaq.testing.power import PowerLossDisk


class SteeredStore(MessageStore):
    """A store on the one disk of this process, which outlives it: a broker that steps down opens another one."""

    disk_of_all: PowerLossDisk | None = None
    folder_of_all: Path

    def __init__(self, options: Any, *arguments: Any, **named: Any) -> None:
        cls = SteeredStore
        if cls.disk_of_all is None:
            cls.folder_of_all = Path(options.store_path_root_dir)
            cls.disk_of_all = PowerLossDisk(cls.folder_of_all, os.environ[SEED])
        else:
            cls.disk_of_all.restart()
        super().__init__(options, *arguments, **{**named, "disk": cls.disk_of_all})


def steer() -> None:
    """Listen to the signals. In the main thread: the store is opened in another one."""
    never = threading.Event()

    def cut(_number: int, _frame: object) -> None:
        # In the thread of the event loop: nothing more is acknowledged behind what the cut leaves.
        disk, folder = _opened()
        disk.on_call = None
        disk.cut(folder.with_name(folder.name + CUT))
        os.kill(os.getpid(), signal.SIGKILL)

    def change(_number: int, _frame: object) -> None:
        disk, folder = _opened()
        faults = msgspec.json.decode(folder.with_name(folder.name + DISK).read_bytes(), type=DiskFaults)
        disk.room = faults.room
        disk.make_error = errno.ENOSPC if faults.no_files else 0

        def slow(call: str) -> None:
            if call.startswith("sync"):
                never.wait(faults.sync_seconds)

        disk.on_call = slow if faults.sync_seconds else None

    signal.signal(signal.SIGUSR1, cut)
    signal.signal(signal.SIGUSR2, change)


def _opened() -> tuple[PowerLossDisk, Path]:
    assert SteeredStore.disk_of_all is not None, "signals come to a broker that is ready"
    return SteeredStore.disk_of_all, SteeredStore.folder_of_all


def main() -> None:
    """Run `metaq` with the arguments of this process."""
    metaq.app.broker.MessageStore = SteeredStore  # type: ignore[attr-defined]
    steer()
    sys.argv[0] = "metaq"
    runpy.run_module("metaq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
