"""What pipelines share in the driver's process: the session they can work in, a stream of slices, its micro-batches one at a
time, and Spark work that ends when the run is asked to.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from metaq.clock import SYSTEM
from metaq.durable import disk_fault
from metaq.errors import ClientClosed, ConfigError
from metaq.pipelines.checkpoints import Checkpoint
from metaq.pipelines.options import StreamOptions
from metaq.pipelines.run import LOOK_SECONDS, Run
from metaq.spark import interpreter
from metaq.spark.source.settings import SourceOptions


class RunStopped(Exception):
    """The run was asked to end, and the Spark work under way has ended."""


def check_session(spark: Any, name: str) -> None:
    """Refuse a session that the pipeline `name` cannot work in.

    Raises ConfigError: the session is a client of Spark Connect, whose driver is another process, or its workers run another
    Python.
    """
    if interpreter.is_remote(spark):
        raise ConfigError(
            f"the pipeline {name} runs in the process of its driver, and this session is a client of Spark Connect: use a "
            f"session of metaq.spark.session() in a process without one, or `metaq pipeline run {name}`"
        )
    interpreter.check(interpreter.running_context())


@dataclass(frozen=True, slots=True)
class SliceStream:
    """The stream of a pipeline: rows that name slices of queues, whose messages the tasks fetch themselves."""

    pairs: Mapping[str, str]
    """Options of `format("metaq")`."""
    source: SourceOptions
    """The same, parsed."""
    trigger: Mapping[str, object]

    @classmethod
    def of(cls, options: StreamOptions, chosen: Mapping[str, str]) -> Self:
        """Args: chosen: options beside the pipeline's own, at least the topics. Raises ConfigError."""
        pairs = {**options.source(), "rows": "slices", **chosen}
        source = SourceOptions.of(pairs)
        source.check_stream()
        return cls(pairs, source, options.trigger())

    def start(self, spark: Any, job: QueryJob) -> Any:
        """Start the query whose micro-batches `job` processes. Returns the StreamingQuery."""
        reader = spark.readStream.format("metaq").options(**self.pairs).load()
        writer = reader.writeStream.queryName(job.NAME).option("checkpointLocation", job.checkpoint.uri)
        return writer.foreachBatch(job.process).trigger(**self.trigger).start()


class QueryJob(ABC):
    """Driver side of a streaming pipeline."""

    NAME: ClassVar[str]
    """Of the pipeline, and of its query."""
    DONE: ClassVar[str]
    """What becomes of a batch, as a participle."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._busy = threading.Lock()
        """Held while a batch is processed, and while state is changed outside of one."""
        self._closed = False

    @abstractmethod
    def process(self, frame: Any, batch: int) -> None:
        """Spark's foreachBatch: process the slices in `frame` as batch number `batch`.

        Raises: ClientClosed: the job was closed. ConfigError: the checkpoint is damaged. StoreFull, StoreFailed: a fault of
        the disk or the folder. What the pipeline raises.
        """

    def close(self) -> None:
        """Process nothing any more. Returns when the batch under way has ended."""
        with self._busy:
            self._closed = True

    def _check_open(self, batch: int) -> None:
        # A plain return would have Spark commit the batch as done.
        if self._closed:
            raise ClientClosed(
                f"the query of the pipeline {self.NAME} was stopped before batch {batch} was {self.DONE}"
            )

    def _query_id(self) -> str:
        """The id of the query, which ties state and output to its checkpoint."""
        query = self.checkpoint.query_id()
        if query is None:
            raise ConfigError(f"the checkpoint {self.checkpoint} has lost its metadata while the query runs")
        return query

    @staticmethod
    @contextlib.contextmanager
    def _disk_faults(what: str) -> Iterator[None]:
        """Raises StoreFull, StoreFailed: for an OSError inside. Args: what: a sentence, without its end."""
        try:
            yield
        except OSError as fault:
            raise disk_fault(fault, what) from fault


class BatchJob(QueryJob):
    """A job whose batches are processed whole under its lock."""

    def process(self, frame: Any, batch: int) -> None:
        with self._busy:
            self._check_open(batch)
            with self._disk_faults(f"batch {batch} could not be {self.DONE}, {self._after_fault()}"):
                self._process(frame, batch, self._query_id())

    @abstractmethod
    def _process(self, frame: Any, batch: int, query: str) -> None:
        """Process a batch of the query with this id."""

    @abstractmethod
    def _after_fault(self) -> str:
        """What a user finds after a batch that failed: a clause for the error."""


@contextlib.contextmanager
def stoppable(spark: Any, run: Run, *, interrupt: bool) -> Iterator[None]:
    """Cancel the Spark work inside when the run is asked to end.

    Args: interrupt: also interrupt the threads of tasks that run. Raises RunStopped: something inside failed, and the run was
        asked to end.
    """
    # Not the session's own tags: Spark 4.2 does not give them to what Python collects.
    context = spark.sparkContext
    done, tag = threading.Event(), f"metaq-{run.status.pipeline}-{SYSTEM.token()[:8]}"

    def watch() -> None:
        while not done.wait(LOOK_SECONDS):
            if run.stopping:
                context.cancelJobsWithTag(tag)

    watcher = threading.Thread(target=watch, name=tag, daemon=True)
    watcher.start()
    context.addJobTag(tag)
    context.setInterruptOnCancel(interrupt)
    try:
        yield
    except Exception as fault:
        if run.stopping:
            raise RunStopped from fault
        raise
    finally:
        context.removeJobTag(tag)
        context.setInterruptOnCancel(False)
        done.set()
        watcher.join()
