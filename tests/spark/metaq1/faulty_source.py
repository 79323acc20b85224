"""`format("metaq1-faulty")`: the source of MetaQ 1.x, which stops for ever at a chosen point, so that a test can kill it there.

As a program: a driver with several queries, one for each point. Arguments: the source's options, and query folder → point, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql.datasource import DataSource

from metaq.spark import session
from metaq.spark.engine.slow_start import run_through
from metaq.spark.metaq1.settings import Metaq1Options
from metaq.spark.metaq1.source import Metaq1StreamReader, ddl
from tests.spark.faulty_driver import reach
from tests.spark.running import spark_conf
from tests.spark.source.faulty_source import AFTER_OFFSETS, BEFORE_COMMIT, IN_READ, Halt

POINTS = (AFTER_OFFSETS, IN_READ, BEFORE_COMMIT)


class FaultyReader(Metaq1StreamReader):
    def __init__(self, options, struct, halt):
        super().__init__(options, struct)
        self.halt = halt

    def partitions(self, start, end):
        planned = super().partitions(start, end)
        if planned:
            self.halt.at(AFTER_OFFSETS)
        return planned

    def read(self, partition):
        for batch in super().read(partition):
            yield batch.slice(0, 1)
            if partition.wanted.partition == "0-0":  # The other tasks of the batch end well.
                self.halt.at(IN_READ)
            yield batch.slice(1)


class FaultySource(DataSource):
    @classmethod
    def name(cls):
        return "metaq1-faulty"

    def schema(self):
        return ddl()

    def streamReader(self, schema):  # noqa: N802  Spark's name
        given = {name: text for name, text in self.options.items() if name not in {"halt", "mark"}}
        return FaultyReader(Metaq1Options.of(given), schema, Halt(self.options["halt"], self.options["mark"]))


def start(spark, options: Mapping[str, str], folder: str, point: str):
    """Start a query that stops at the point; without one it reads what is there, and ends."""
    halt = Halt(point, str(Path(folder) / f"mark-{point}"))

    def write(frame, batch: int) -> None:
        frame.select("queue_id", "queue_offset", "body").write.mode("overwrite").parquet(f"{folder}/out/batch={batch}")
        if batch > 0:
            halt.at(BEFORE_COMMIT)

    own = {"halt": point, "mark": halt.mark, "progressGroup": Path(folder).name}
    stream = spark.readStream.format("metaq1-faulty").options(**options, **own).load()
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    return (writer if point else writer.trigger(availableNow=True)).start()


def run(spark, options: Mapping[str, str], plan: Mapping[str, str]) -> None:
    """Start the queries of a plan, query folder → point; return when each is at its point, or at its end if it has none."""
    spark.dataSource.register(FaultySource)
    for folder, point in plan.items():
        run_through(lambda: start(spark, options, folder, point), lambda query: reach(query, folder, point))  # noqa: B023


def main(options: str, plan: str) -> None:
    # A task that is stopped keeps its place: the other queries need one, too.
    spark = session("faulty driver", master="local[3]", conf=spark_conf())
    run(spark, json.loads(options), json.loads(plan))
    threading.Event().wait(600)  # To be killed.


if __name__ == "__main__":
    main(*sys.argv[1:])
