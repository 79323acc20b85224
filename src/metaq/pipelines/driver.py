"""Start a pipeline, supervise it while it runs, and record how it ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from metaq.errors import MetaqError
from metaq.pipelines.catalogue import Pipeline
from metaq.pipelines.configuration import ConfigLike, configure
from metaq.pipelines.options import StreamOptions
from metaq.pipelines.pushing import push_from
from metaq.pipelines.run import LOOK_SECONDS, OnBatch, Outcome, Run


def begin(name: str | Pipeline, spark: Any, given: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Start a pipeline in this process.

    Args:
        name: a name of the catalogue, or a pipeline of the caller's own.
        spark: the session to work in.
        given: its configuration: a mapping of options, the path of a TOML file, or the pipeline's option table. Its Spark settings
            are ignored, because the session exists already.
        on_batch: called with a line for people and the figures of each batch, name → value, in the thread that has processed it.

    Returns: the StreamingQuery; of a pipeline that is not a stream, its `Outcome` when it is done.
    Raises: ConfigError: an option is wrong, or the folder is another's. StoreLocked: another run has it. And what the pipeline raises.
    """
    chosen = configure(name, given)
    run = Run(chosen.pipeline.name, chosen.options.place, on_batch=on_batch)
    if isinstance(chosen.options, StreamOptions) and chosen.options.metrics_url:
        push_from(run, chosen.options.metrics_url, chosen.pipeline.name)
    return supervised(run, lambda: chosen.pipeline.start(spark, chosen.options, run))


def supervised(run: Run, start: Callable[[], Any]) -> Any:
    """Begin a run, start its work, and end the run when the work ends; a query is watched by a thread.

    Returns what `start` returned. Raises what `start` raised.
    """
    run.begin()
    try:
        work = start()
    except BaseException as fault:
        run.end(fault_text(fault))
        raise
    if isinstance(work, Outcome):
        run.end()
    else:
        threading.Thread(target=_supervise, args=(work, run), name=f"metaq-{run.status.pipeline}", daemon=True).start()
    return work


def watch(query: Any, run: Run) -> None:
    """Wait for the query's end; stop it when the run is asked to stop. Finished batches stay.

    Raises MetaqError: the query failed.
    """
    threading.Thread(target=_wake_at_end, args=(query, run), name="metaq-end", daemon=True).start()
    try:
        while query.isActive and not run.wait(LOOK_SECONDS):
            run.behind(messages_behind(query.lastProgress))
            run.doing(*_under_way(query, run))
    finally:
        query.stop()
    # A run that was asked to stop refuses its next batch with an error (`_check_open`): no failure of the query.
    fault = None if run.stopping else query.exception()
    if fault is not None:
        raise MetaqError(f"the query failed: {root_text(str(fault))}")
    run.behind(messages_behind(query.lastProgress))


def _under_way(query: Any, run: Run) -> tuple[str, int, int]:
    """Return what the query does now, the slices of its batch, and how many of them are done; 0: not known."""
    done = slices = 0
    # Only for people to look at: whatever Spark raises while it ends must not end the watch.
    with contextlib.suppress(Exception):
        done, slices = _slices_of(str(query.runId))
        if slices:
            last = run.status.last.get("batch")
            which = "the first batch of this run" if last is None else f"batch {last + 1}"
            return f"{which}: {done:,} of {slices:,} slices", slices, done
        waits = not query.status["isTriggerActive"]
        return "waiting for messages" if waits or not query.status["isDataAvailable"] else "", 0, 0
    return "", 0, 0


def _slices_of(run_id: str) -> tuple[int, int]:
    """Return the finished and all tasks of a query's jobs that run now: a task fetches a slice of a queue."""
    from pyspark import SparkContext  # Lazily: as in `messages_behind`.

    context = SparkContext._active_spark_context  # noqa: SLF001  `getOrCreate` would start one after the end
    if context is None:
        return 0, 0
    tracker = context.statusTracker()
    done = slices = 0
    # Spark's streaming queries run their jobs in a group that is named by the run.
    for job in set(tracker.getActiveJobsIds()).intersection(tracker.getJobIdsForGroup(run_id)):
        about = tracker.getJobInfo(job)
        for stage in about.stageIds if about is not None else ():
            tasks = tracker.getStageInfo(stage)
            if tasks is not None:
                done, slices = done + tasks.numCompletedTasks, slices + tasks.numTasks
    return done, slices


def _wake_at_end(query: Any, run: Run) -> None:
    """Wake the watcher at the query's end: it would only notice LOOK_SECONDS later, and have the lease until then."""
    # The watcher reads the query's failure itself; an error here means that Spark is gone.
    with contextlib.suppress(Exception):
        query.awaitTermination()
    run.wake()


def _supervise(query: Any, run: Run) -> None:
    try:
        watch(query, run)
    except BaseException as fault:
        run.end(fault_text(fault))
        # The query's failure reaches whoever awaits the query, and Spark may be gone: only a bug of ours is raised here.
        if not isinstance(fault, MetaqError) and type(fault).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise
    else:
        run.end()


def fault_text(fault: BaseException) -> str:
    """Return a fault's text, in one line."""
    return root_text(str(fault)) if str(fault) else type(fault).__name__


def root_text(text: str) -> str:
    """Return the line of a Spark failure that says what went wrong: our own error, without the stack traces around it."""
    # An error of a task comes as text, with the stack traces of the worker, of the JVM and of Py4J around it.
    lines = [line.strip() for line in text.splitlines()]
    ours = [line for line in lines if line.startswith("metaq.errors.")]
    return ours[-1].partition(": ")[2] if ours else next((line for line in lines if line), "no reason was given")


def messages_behind(progress: Any) -> int | None:
    """Return the backlog in messages, from a query's last progress; None: not known."""
    if not progress or not progress["sources"]:
        return None
    # Lazily: a start that is refused does not need it.
    from metaq.spark.source.progress import of_progress

    found = of_progress(progress)
    return found.behind if found is not None else None
