"""`format("metaq-held")`: the real source and sink, where tasks tell who they are, and one of them stops at a chosen point.

A task tells in a file of the folder `held` what it runs in: its own process and the Java of its executor. The option `hold` is the
point, and `hold_of` how many stop there. Who stops goes on when the test makes the file `go`, if nobody has killed it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from pyspark import TaskContext

from metaq.spark.data_source import MetaqDataSource, MetaqReader, MetaqStreamReader
from metaq.spark.sink.settings import SinkOptions
from metaq.spark.sink.sink import MetaqStreamWriter, MetaqWriter
from metaq.spark.source.settings import SourceOptions
from metaq.testing import eventually

IN_READ = "when a part of the slice is read"
IN_WRITE = "when a part of the rows is staged"
AFTER_WRITE = "when all rows are staged"
GO = "go"
_OURS = {"held", "hold", "hold_of"}
_SECONDS = 900.0


@dataclass(frozen=True)
class Hold:
    """Where tasks tell who they are, and where some stop. No point: nowhere."""

    folder: str
    point: str
    of: int

    def told(self, point: str) -> None:
        """Say that this task has come to `point`; stop there, if it is the chosen one and few enough have stopped."""
        context = TaskContext.get()
        me = {
            "pid": os.getpid(), "java": _parent(_parent(os.getpid())), "attempt": context.attemptNumber(),
            "partition": context.partitionId(), "native": _native(),
        }  # fmt: skip
        folder = Path(self.folder)
        _write(folder / f"task-{context.taskAttemptId()}-{point}", me)
        if point != self.point or context.attemptNumber() > 0:
            return
        for number in range(self.of):
            try:
                _write(folder / f"held-{number}", me)
            except FileExistsError:
                continue
            eventually((folder / GO).exists, _SECONDS)
            return


def _write(path: Path, what: dict) -> None:
    """Whole or not at all. Raises FileExistsError."""
    new = path.with_name(f".{path.name}-{os.getpid()}")
    new.write_text(json.dumps(what))
    os.link(new, path)
    new.unlink()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _native() -> bool:
    from metaq.wire import hot

    return hot.NATIVE


class _HeldReading:
    hold: Hold

    def read(self, partition):
        for batch in super().read(partition):
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            self.hold.told(IN_READ)
            yield batch.slice(half)


class HeldReader(_HeldReading, MetaqReader):
    def __init__(self, options, struct, hold):
        super().__init__(options, struct)
        self.hold = hold


class HeldStreamReader(_HeldReading, MetaqStreamReader):
    def __init__(self, options, struct, hold):
        super().__init__(options, struct)
        self.hold = hold


class _HeldWriting:
    hold: Hold

    def _halves(self, batches):
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if half:
                self.hold.told(IN_WRITE)
            yield batch.slice(half)

    def stage(self, batches, transaction, row, sequence):
        written = super().stage(self._halves(batches), transaction, row, sequence)
        if written.rows:
            self.hold.told(AFTER_WRITE)
        return written

    def send(self, batches):
        return super().send(self._halves(batches))


class HeldWriter(_HeldWriting, MetaqWriter):
    def __init__(self, options, struct, hold):
        super().__init__(options, struct)
        self.hold = hold


class HeldStreamWriter(_HeldWriting, MetaqStreamWriter):
    def __init__(self, options, struct, hold):
        super().__init__(options, struct)
        self.hold = hold


class HeldDataSource(MetaqDataSource):
    @classmethod
    def name(cls):
        return "metaq-held"

    def _hold(self):
        return Hold(self.options["held"], self.options.get("hold", ""), int(self.options.get("hold_of", "1")))

    def _pairs(self):
        return {name: text for name, text in self.options.items() if name.lower() not in _OURS}

    def _options(self):
        return SourceOptions.of(self._pairs())

    def reader(self, schema):
        return HeldReader(self._options(), schema, self._hold())

    def streamReader(self, schema):  # noqa: N802  Spark's name
        return HeldStreamReader(self._options(), schema, self._hold())

    def writer(self, schema, overwrite):
        return HeldWriter(SinkOptions.of(self._pairs()), schema, self._hold())

    def streamWriter(self, schema, overwrite):  # noqa: N802  Spark's name
        return HeldStreamWriter(SinkOptions.of(self._pairs()), schema, self._hold())
