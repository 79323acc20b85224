"""`metaq` whose broker's power can be cut and whose disk can be filled: the broker processes of a pair.

Two signals steer it, each about a file beside the store's folder:

- SIGUSR1 cuts the power: the process makes `<folder>.cut`, what a machine without power has left, and ends by SIGKILL;
- SIGUSR2 has it read `<folder>.room`: bytes that may still be reserved, and whether new files can be made; empty: as many as wanted.
"""

from __future__ import annotations

import errno
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import metaq.app.broker
from metaq.broker.log.acks import AckPolicy
from metaq.store.message_store import MessageStore
from metaq.testing import PowerLossDisk

PROGRAM = "tests.crash.pair_ledger.broker"
SEED = "METAQ_PAIR_LEDGER_SEED"
"""Environment variable: decides what a power cut leaves. Another one after each cut, which is another boot of the machine."""
EARLY = "METAQ_PAIR_LEDGER_EARLY"
"""Environment variable of the test that the ledger can fail: sends are acknowledged before slave and disk have them."""
CUT, ROOM = ".cut", ".room"
"""Suffixes of the files beside the folder."""


class SteeredStore(MessageStore):
    """A store on the one disk of this process, which outlives it: a broker that steps down opens another one."""

    disk_of_all: PowerLossDisk | None = None
    folder: Path

    def __init__(self, options: Any, *arguments: Any, **named: Any) -> None:
        cls = SteeredStore
        if cls.disk_of_all is None:
            cls.folder = Path(options.store_path_root_dir)
            cls.disk_of_all = PowerLossDisk(cls.folder, os.environ[SEED])
        else:
            cls.disk_of_all.restart()
        super().__init__(options, *arguments, **{**named, "disk": cls.disk_of_all})


def steer() -> None:
    """Listen to the signals. In the main thread: the store is opened in another one."""

    def cut(_number: int, _frame: object) -> None:
        # In the thread of the event loop: nothing more is acknowledged behind what the cut leaves.
        disk, folder = _opened()
        disk.cut(folder.with_name(folder.name + CUT))
        os.kill(os.getpid(), signal.SIGKILL)

    def change_room(_number: int, _frame: object) -> None:
        disk, folder = _opened()
        room, _, makes = folder.with_name(folder.name + ROOM).read_text().partition(" ")
        disk.room = int(room) if room else None
        disk.make_error = errno.ENOSPC if makes == "no-files" else 0

    signal.signal(signal.SIGUSR1, cut)
    signal.signal(signal.SIGUSR2, change_room)


def _opened() -> tuple[PowerLossDisk, Path]:
    assert SteeredStore.disk_of_all is not None, "signals come to a broker that is ready"
    return SteeredStore.disk_of_all, SteeredStore.folder


if __name__ == "__main__":
    metaq.app.broker.MessageStore = SteeredStore  # type: ignore[misc]
    if os.environ.get(EARLY):
        AckPolicy.due = lambda _: None  # type: ignore[method-assign]
    steer()
    sys.argv[0] = "metaq"
    runpy.run_module("metaq", run_name="__main__", alter_sys=True)
