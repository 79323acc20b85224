"""`format("metaq-faulty-sink")`: the real sink, with a fault at a chosen point, once or always.

The option `fault` names the point. `mark` is a folder: where a file of that name lies already the fault is over, and one is made
when it happens. `meeting`: a folder for `Fault.meet`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from metaq.spark.data_source import MetaqDataSource
from metaq.spark.sink.settings import SinkOptions
from metaq.spark.sink.sink import MetaqStreamWriter, MetaqWriter
from tests.support import PATIENCE, eventually

AFTER_STAGING = "each task fails once, when it has staged its rows"
BEFORE_COMMIT = "the driver fails before it commits"
LOST_BEFORE_COMMIT = "the driver is gone before it commits, and nothing is rolled back"
AFTER_COMMIT = "the driver fails when it has committed"
ABORTED_AFTER_COMMIT = "the driver fails when it has committed, and Spark has it roll back"


class Fault:
    """Whether the chosen fault is to happen now."""

    def __init__(self, fault: str, mark: str, meeting: str) -> None:
        self.fault, self.mark, self.meeting = fault, mark, meeting

    def strikes(self, point: str, who: object = "") -> bool:
        if point != self.fault:
            return False
        try:
            Path(self.mark, f"{point} {who}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def meet(self) -> None:
        """Once, before the commit: say that it is time, and wait until the test has done what it wanted."""
        if self.meeting and self.strikes(self.fault, "meeting"):
            Path(self.meeting, "begin").touch()
            eventually(Path(self.meeting, "end").exists, PATIENCE)


class Struck(Exception):
    """The fault that a test asked for."""


class FaultyStage:
    """Mixed into both writers: a task whose first attempt fails, and gets its rows in another order the next time."""

    fault: Fault

    def stage(self, batches, transaction, row, sequence):
        attempt = TaskContext.get().attemptNumber()

        def shuffled():
            for batch in batches:
                order = list(range(batch.num_rows))
                random.Random(attempt).shuffle(order)
                yield batch.take(pa.array(order, pa.int32()))

        written = super().stage(shuffled(), transaction, row, sequence)
        if attempt == 0 and self.fault.fault == AFTER_STAGING and written.rows:
            raise Struck(AFTER_STAGING)
        return written


class FaultyStreamWriter(FaultyStage, MetaqStreamWriter):
    def __init__(self, options, struct, fault):
        super().__init__(options, struct)
        self.fault = fault

    def commit(self, messages, batchId):  # noqa: N803  Spark's name
        if batchId > 0:
            self.fault.meet()
        if batchId > 0 and self.fault.strikes(BEFORE_COMMIT):
            raise Struck(BEFORE_COMMIT)
        if batchId > 0 and self.fault.strikes(LOST_BEFORE_COMMIT):
            raise Struck(LOST_BEFORE_COMMIT)
        super().commit(messages, batchId)
        for point in (AFTER_COMMIT, ABORTED_AFTER_COMMIT):
            if batchId > 0 and self.fault.strikes(point):
                raise Struck(point)

    def abort(self, messages, batchId):  # noqa: N803  Spark's name
        if self.fault.fault not in {LOST_BEFORE_COMMIT, AFTER_COMMIT}:  # Those stand for a driver that is gone.
            super().abort(messages, batchId)


class FaultyWriter(FaultyStage, MetaqWriter):
    def __init__(self, options, struct, fault):
        self.fault = fault
        super().__init__(options, struct)

    def commit(self, messages):
        super().commit(messages)
        if self.fault.strikes(AFTER_COMMIT):
            raise Struck(AFTER_COMMIT)

    def abort(self, messages):
        if self.fault.fault != AFTER_COMMIT:
            super().abort(messages)


class FaultySink(MetaqDataSource):
    @classmethod
    def name(cls):
        return "metaq-faulty-sink"

    def _sink(self):
        fault = Fault(self.options["fault"], self.options["mark"], self.options.get("meeting", ""))
        pairs = {name: text for name, text in self.options.items() if name.lower() not in {"fault", "mark", "meeting"}}
        return SinkOptions.of(pairs), fault

    def writer(self, schema, overwrite):
        options, fault = self._sink()
        return FaultyWriter(options, schema, fault)

    def streamWriter(self, schema, overwrite):  # noqa: N802  Spark's name
        options, fault = self._sink()
        return FaultyStreamWriter(options, schema, fault)
