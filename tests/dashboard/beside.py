"""What dashboards of tests show beside the cluster."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator, Mapping

from metaq.pipelines.run import Run


@contextlib.contextmanager
def pipeline(place: pathlib.Path, kind: str = "archive") -> Iterator[Run]:
    """A pipeline that runs in that folder: 500 messages in two batches, 42 more to come."""
    with Run(kind, place) as run:
        run.begin()
        run.tell("batch 0", batch=0, rows=200)
        run.tell("batch 1", batch=1, rows=300, replayed=False)
        run.behind(42)
        run.doing("batch 2: 3 of 12 slices", 12, 3)
        yield run


def checkpoint(place: pathlib.Path, positions: Mapping[str, Mapping[str, Mapping[str, int]]], batch: int = 7) -> None:
    """The checkpoint of a Spark query that has finished a batch: topic → broker → queue → next offset."""
    for name in ("offsets", "commits"):
        (place / name).mkdir(parents=True)
    (place / "metadata").write_text(json.dumps({"id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}))
    offset = json.dumps({"v": 1, "q": positions})
    (place / "offsets" / str(batch)).write_text("v1\n{}\n" + offset)
    (place / "commits" / str(batch)).write_text("v1\n{}")
