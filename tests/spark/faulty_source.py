"""`format("metaq-faulty")`: the real source, which stops for ever at a chosen point, so that a test can kill it there.

METAQ_TEST_HALT names the point, METAQ_TEST_MARK the file that is made when it is reached.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from metaq.spark import offsets
from metaq.spark.source import MetaqDataSource, MetaqStreamReader

BATCH_0 = "batch 0"
BEFORE_OFFSETS = "before offsets are written"
AFTER_OFFSETS = "after offsets are written"
IN_READ = "during the read"
BEFORE_COMMIT = "before the commit is written"
POINTS = (BATCH_0, BEFORE_OFFSETS, AFTER_OFFSETS, IN_READ, BEFORE_COMMIT)


def halt(point: str) -> None:
    """Tell that `point` was reached, and never come back."""
    if os.environ.get("METAQ_TEST_HALT") == point:
        Path(os.environ["METAQ_TEST_MARK"]).touch()
        threading.Event().wait(120)
        os._exit(1)


class FaultyReader(MetaqStreamReader):
    def latestOffset(self, start, limit):  # noqa: N802  Spark's name
        end = super().latestOffset(start, limit)
        if offsets.slices_between(offsets.from_json(start), offsets.from_json(end)):
            halt(BEFORE_OFFSETS)
        return end

    def partitions(self, start, end):
        planned = super().partitions(start, end)
        if planned:
            halt(AFTER_OFFSETS)
        return planned

    def read(self, partition):
        for number, batch in enumerate(super().read(partition)):
            yield batch.slice(0, 1)
            if number == 0:
                halt(IN_READ)
            yield batch.slice(1)


class FaultySource(MetaqDataSource):
    @classmethod
    def name(cls):
        return "metaq-faulty"

    def streamReader(self, schema):  # noqa: N802  Spark's name
        return FaultyReader(self._options(), schema)
