"""`metaq` whose brokers die where a test says, behind a record of the log: `Cluster(program="tests.crash.mortal_broker")`.

A broker looks for the file `fault-point` beside its store's folder at each append. While there is one it counts the records
that it appends, and kills itself (SIGKILL) at the one that the file names. Between two records of one append too: what was
written behind is taken back before, as if the broker had not come to it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import metaq.app.broker
from metaq.store.log.scan import LogScan
from metaq.store.message_store import MessageStore
from metaq.testing.cluster import ClusterServer
from metaq.wire import hot

PROGRAM = "tests.crash.mortal_broker"
APPENDS = (
    "put", "append_rows", "append_parts", "append_puts", "deliver", "give_back", "append_raw", "expand", "expand_all",
)  # fmt: skip
"""What appends to the log."""


class MortalStore(MessageStore):
    """A store whose process dies at a fault point."""

    def _open(self, tail: hot.LogTail, opened: contextlib.ExitStack) -> None:
        super()._open(tail, opened)
        self._point = self.folder.root.parent / "fault-point"
        self._left: int | None = None
        self._answered = False
        self._end_known = self.log.end
        for name in APPENDS:
            setattr(self.writer, name, functools.partial(self._append, getattr(self.writer, name)))

    def _append(self, append: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._look()
        if self.log.end != self._end_known:
            os.write(2, b"the log has grown by a call that the fault points do not know\n")
            os._exit(99)
        if self._left == 0:  # all that it has appended may be answered by now
            self._die()
        try:
            return append(*arguments, **named)
        finally:
            self._count()

    def _look(self) -> None:
        if not self._point.exists():
            self._left = None
        elif self._left is None:
            records, answered = self._point.read_text().split()
            self._left, self._answered = int(records), answered == "answered"

    def _count(self) -> None:
        begin, self._end_known = self._end_known, self.log.end
        if self._left is None:
            return
        heads = [head for heads in LogScan(self.log.run, begin, self.log.end, check_crc=False) for head in heads]
        if len(heads) > self._left > 0 or (len(heads) == self._left > 0 and not self._answered):
            last = heads[self._left - 1]
            end = last.log_offset + last.size
            self._die(end)
        else:
            self._left -= len(heads)

    def _die(self, end: int | None = None) -> None:
        """Let the log end at `end`, and the process with it."""
        try:
            self._point.unlink()
        except FileNotFoundError:  # spared in the last moment
            self._left = None
            return
        if end is not None and end < self.log.end:
            self._writer.truncate(end)
        os.kill(os.getpid(), signal.SIGKILL)


def die_behind(broker: ClusterServer, records: int, *, answered: bool = False) -> None:
    """Have the broker die behind so many more records.

    answered: only when it is about to append one more, so that whoever asked for the last one may have got the answer; else
    at once, without an answer.
    """
    there = _file(broker)
    new = there.with_suffix(".new")
    new.write_text(f"{records} {'answered' if answered else 'unanswered'}")
    new.rename(there)


def is_armed(broker: ClusterServer) -> bool:
    """Whether it has not died yet."""
    return _file(broker).exists()


def spare(broker: ClusterServer) -> bool:
    """Have it live on. Returns whether it does: else it has died, or is about to."""
    try:
        _file(broker).unlink()
    except FileNotFoundError:
        return False
    return True


def _file(broker: ClusterServer) -> Path:
    return broker.data.parent / "fault-point"


if __name__ == "__main__":
    metaq.app.broker.MessageStore = MortalStore  # type: ignore[misc]
    sys.argv[0] = "metaq"
    runpy.run_module("metaq", run_name="__main__", alter_sys=True)
