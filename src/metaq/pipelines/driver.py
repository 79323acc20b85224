"""Starts a pipeline, looks after it while it runs, and says how it ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from metaq.errors import MetaqError
from metaq.pipelines.catalogue import Pipeline
from metaq.pipelines.configuration import ConfigLike, configure
from metaq.pipelines.run import LOOK_SECONDS, OnBatch, Outcome, Run


def begin(name: str | Pipeline, spark: Any, given: ConfigLike, on_batch: OnBatch | None = None) -> Any:
    """Start a pipeline in this process.

    Args:
        name: one of the catalogue, or a pipeline of the caller's own.
        given: its configuration. What it says of Spark is ignored: the session is there already.
        on_batch: called with a line and the figures of each batch.

    Returns: the StreamingQuery; or the `Outcome` of a pipeline that is no stream, when it is done.
    Raises: ConfigError, StoreLocked, and what the pipeline raises.
    """
    chosen = configure(name, given)
    run = Run(chosen.pipeline.name, chosen.options.place, on_batch=on_batch)
    return looked_after(run, lambda: chosen.pipeline.start(spark, chosen.options, run))


def looked_after(run: Run, start: Callable[[], Any]) -> Any:
    """Begin a run, start its work, and end the run with the work: a query is watched in a thread. Returns what `start` did."""
    run.begin()
    try:
        work = start()
    except BaseException as fault:
        run.end(told(fault))
        raise
    if isinstance(work, Outcome):
        run.end()
    else:
        threading.Thread(target=_look_after, args=(work, run), name=f"metaq-{run.status.pipeline}", daemon=True).start()
    return work


def watch(query: Any, run: Run) -> None:
    """Wait for the query's end, and stop it when the run is asked to stop: finished batches stay.

    Raises MetaqError: the query failed.
    """
    threading.Thread(target=_wake_at_end, args=(query, run), name="metaq-end", daemon=True).start()
    try:
        while query.isActive and not run.wait(LOOK_SECONDS):
            run.behind(messages_behind(query.lastProgress))
    finally:
        query.stop()
    fault = None if run.stopping else query.exception()
    if fault is not None:
        raise MetaqError(f"the query failed: {root_text(str(fault))}")
    run.behind(messages_behind(query.lastProgress))


def _wake_at_end(query: Any, run: Run) -> None:
    """Wake the watcher at the query's end: it would only notice at its next look, and keep the folder until then."""
    # The watcher asks for the query's failure itself; an error here means that Spark is gone.
    with contextlib.suppress(Exception):
        query.awaitTermination()
    run.wake()


def _look_after(query: Any, run: Run) -> None:
    try:
        watch(query, run)
    except BaseException as fault:
        run.end(told(fault))
        if not isinstance(fault, MetaqError) and type(fault).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise  # The query's failure is its owner's to see, and Spark may be gone; anything else is a fault of ours.
    else:
        run.end()


def told(fault: BaseException) -> str:
    """Text of a fault, in one line."""
    return root_text(str(fault)) if str(fault) else type(fault).__name__


def root_text(text: str) -> str:
    """Line of a Spark failure that says what went wrong: our own error, without the stack traces around it."""
    lines = [line.strip() for line in text.splitlines()]
    ours = [line for line in lines if line.startswith("metaq.errors.")]
    return ours[-1].partition(": ")[2] if ours else next((line for line in lines if line), "no reason was given")


def messages_behind(progress: Any) -> int | None:
    """Backlog in messages, from a query's last progress."""
    if not progress or not progress["sources"]:
        return None
    from metaq.spark.source.progress import of_progress  # here and not above: a start that is refused goes without

    found = of_progress(progress)
    return found.behind if found is not None else None
