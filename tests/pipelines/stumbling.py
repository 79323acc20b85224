"""A task that fails when it has written everything, the first time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from metaq.pipelines.archive.hadoop.rows import SliceRows


class Stumbling:
    """As `SliceRows`; it travels to the workers, which find it by its name."""

    def __init__(self, **wanted: Any) -> None:
        self._rows = SliceRows(**wanted)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from self._rows(batches)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("this task stumbles over its last row")
