"""Parts that pipelines share in the driver's process: the check of the session, the stream of slices, a job that processes
one micro-batch at a time, and Spark work that a request to stop cancels.
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
from metaq.spark.source.plan import Planner
from metaq.spark.source.settings import SourceOptions


class RunStopped(Exception):
    """The run was asked to stop, and its Spark work has ended."""


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
    """The source of a pipeline: rows that name slices of queues (`rows=slices`), whose messages the tasks fetch themselves.

    Messages as rows would pass through the JVM, which costs most of the throughput.
    """

    pairs: Mapping[str, str]
    """Options of `format("metaq")`."""
    source: SourceOptions
    """The same, parsed."""
    trigger: Mapping[str, object]
    """Arguments of `DataStreamWriter.trigger`."""

    @classmethod
    def of(cls, options: StreamOptions, chosen: Mapping[str, str]) -> Self:
        """Make it from a pipeline's options. Args: chosen: more source options, at least the topics. Raises ConfigError."""
        given = options.source()
        if not {"startingGroup", "startingTimestamp"}.isdisjoint(chosen):
            del given["startingOffsets"]  # One of them says where a new pipeline begins.
        pairs = {**given, "rows": "slices", **chosen}
        source = SourceOptions.of(pairs)
        source.check_stream()
        return cls(pairs, source, options.trigger())

    def start(self, spark: Any, job: QueryJob) -> Any:
        """Start the query whose micro-batches `job` processes. Returns the StreamingQuery. Raises as `claim_progress_group`."""
        self.claim_progress_group(job.checkpoint)
        reader = spark.readStream.format("metaq").options(**self.pairs).load()
        writer = reader.writeStream.queryName(job.NAME).option("checkpointLocation", job.checkpoint.uri)
        # Its function runs in this process, which holds the lease and publishes; a sink's commit would run in another.
        return writer.foreachBatch(job.process).trigger(**self.trigger).start()

    def claim_progress_group(self, checkpoint: Checkpoint) -> None:
        """Refuse a `progressGroup` that others use; record one that nobody uses as the query's of this checkpoint.

        Raises: ConfigError: consumers or another query use it. StoreError: the checkpoint cannot be read or written.
        """
        group = self.source.progress_group
        if not group:
            return
        # A record without a query is of a start that failed: what the group has consumed since is not the query's.
        own = checkpoint.query_id() is not None and group in checkpoint.progress_groups()
        Planner(self.source).check_progress_group(own=own)
        try:
            checkpoint.add_progress_group(group)
        except OSError as fault:
            raise disk_fault(fault, f"the checkpoint {checkpoint} cannot be written to") from fault


class QueryJob(ABC):
    """Driver side of a streaming pipeline."""

    NAME: ClassVar[str]
    """Name of the pipeline, and of its query."""
    DONE: ClassVar[str]
    """What happens to a batch, as a participle for error texts: `published`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._busy = threading.Lock()
        """Lock held while a batch is processed, and while state is changed between batches: Spark calls in its own thread."""
        self._closed = False

    @abstractmethod
    def process(self, frame: Any, batch: int) -> None:
        """Process the slices in `frame` as batch number `batch`. Called by Spark's foreachBatch.

        After a failure or a crash Spark calls it again with the same batch and the same slices, also if it had returned and
        only Spark's commit log was not written: it must be idempotent.

        Raises: ClientClosed: the job was closed. ConfigError: the checkpoint is damaged. StoreFull, StoreFailed: a fault of
        the disk or the folder. What the pipeline raises.
        """

    def close(self) -> None:
        """Refuse further batches. Returns when the current batch has ended."""
        with self._busy:
            self._closed = True

    def _check_open(self, batch: int) -> None:
        # A plain return would have Spark commit the batch as done.
        if self._closed:
            raise ClientClosed(
                f"the query of the pipeline {self.NAME} was stopped before batch {batch} was {self.DONE}"
            )

    def _query_id(self) -> str:
        """Return the id of the query, which ties state and output to its checkpoint. Raises ConfigError: it is lost."""
        query = self.checkpoint.query_id()
        if query is None:
            raise ConfigError(f"the checkpoint {self.checkpoint} has lost its metadata while the query runs")
        return query

    @staticmethod
    @contextlib.contextmanager
    def _disk_faults(what: str) -> Iterator[None]:
        """Raise StoreFull or StoreFailed for an OSError inside. Args: what: a sentence without its full stop."""
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
        """Return a clause for the error of a failed batch: the state in which the user finds the output."""


@contextlib.contextmanager
def stoppable(spark: Any, run: Run, *, interrupt: bool) -> Iterator[None]:
    """Cancel Spark work in this context when the run is asked to stop.

    Args: interrupt: whether to interrupt the threads of running tasks, too. Raises RunStopped: the work failed after the run
        was asked to stop.
    """
    # Tags of the context, not of the session: Spark 4.2 does not set the session's on what Python collects.
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
    # Cancelled work fails in several ways, so the exception does not tell: the request to stop does.
    except Exception as fault:
        if run.stopping:
            raise RunStopped from fault
        raise
    finally:
        context.removeJobTag(tag)
        context.setInterruptOnCancel(False)
        done.set()
        watcher.join()
