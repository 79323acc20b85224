"""`format("metaq-faulty")`: the real source, which stops for ever at a chosen point, so that a test can kill it there.

The option `halt` names the point, `mark` the file that is made when it is reached.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from metaq.model import offsets
from metaq.spark.data_source import MetaqDataSource, MetaqStreamReader
from metaq.spark.source import slicing
from metaq.spark.source.settings import SourceOptions

BATCH_0 = "batch 0"
BEFORE_OFFSETS = "before offsets are written"
AFTER_OFFSETS = "after offsets are written"
IN_READ = "during the read"
BEFORE_COMMIT = "before the commit is written"
POINTS = (BATCH_0, BEFORE_OFFSETS, AFTER_OFFSETS, IN_READ, BEFORE_COMMIT)


@dataclass(frozen=True)
class Halt:
    """Where one query stops. No point: nowhere."""

    point: str
    mark: str

    def at(self, point: str) -> None:
        """If `point` is the chosen one, tell that it was reached, and never come back."""
        if point == self.point:
            Path(self.mark).touch()
            threading.Event().wait(600)
            os._exit(1)


class FaultyReader(MetaqStreamReader):
    def __init__(self, options, struct, halt):
        super().__init__(options, struct)
        self.halt = halt

    def latestOffset(self, start, limit):  # noqa: N802  Spark's name
        end = super().latestOffset(start, limit)
        if slicing.slices_between(offsets.from_json(start), offsets.from_json(end)):
            self.halt.at(BEFORE_OFFSETS)
        return end

    def partitions(self, start, end):
        planned = super().partitions(start, end)
        if planned:
            self.halt.at(AFTER_OFFSETS)
        return planned

    def read(self, partition):
        for batch in super().read(partition):
            yield batch.slice(0, 1)
            if partition.wanted.queue.queue_id == 0:  # The other tasks of the batch end well.
                self.halt.at(IN_READ)
            yield batch.slice(1)


class FaultySource(MetaqDataSource):
    @classmethod
    def name(cls):
        return "metaq-faulty"

    def _options(self):
        return SourceOptions.of({name: text for name, text in self.options.items() if name not in {"halt", "mark"}})

    def streamReader(self, schema):  # noqa: N802  Spark's name
        return FaultyReader(self._options(), schema, Halt(self.options["halt"], self.options["mark"]))
