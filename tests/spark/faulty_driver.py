"""A Spark driver for test_kill: several queries over one topic, each with a folder of its own and a point to stop at.

Arguments: name server, topic, and a JSON of query folder → point. `run` does the same in a test's own process, where queries without
a point read what is there and end.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from metaq.spark import session
from metaq.spark.engine.slow_start import run_through
from tests.spark.running import spark_conf
from tests.spark.source.faulty_source import BATCH_0, BEFORE_COMMIT, FaultySource, Halt


def start(spark, namesrv: str, topic: str, folder: str, point: str):
    halt = Halt(point, str(Path(folder) / f"mark-{point}"))

    def write(frame, batch: int) -> None:
        if batch == 0:
            halt.at(BATCH_0)
        frame.select("queue_id", "queue_offset").write.mode("overwrite").parquet(f"{folder}/out/batch={batch}")
        if batch > 0:
            halt.at(BEFORE_COMMIT)

    options = {"nameServers": namesrv, "subscribe": topic, "halt": point, "mark": halt.mark}
    stream = spark.readStream.format("metaq-faulty").options(**options).load()
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    return (writer if point else writer.trigger(availableNow=True)).start()


def reach(query, folder: str, point: str) -> None:
    """Wait until the query has come to its point, or to its end; raises what it failed with."""
    while query.isActive and not (Path(folder) / f"mark-{point}").exists():
        threading.Event().wait(0.05)
    if not query.isActive:
        query.awaitTermination()


def run(spark, namesrv: str, topic: str, plan: Mapping[str, str]) -> None:
    """Start the queries of a plan, query folder → point; return when each is at its point, or at its end if it has none."""
    spark.dataSource.register(FaultySource)
    for folder, point in plan.items():
        # One after the other: Spark gives a Python 10 s to start, which five of them may not keep on a busy machine.
        run_through(lambda: start(spark, namesrv, topic, folder, point), lambda query: reach(query, folder, point))  # noqa: B023


def main(namesrv: str, topic: str, plan: str) -> None:
    # A task that is stopped keeps its place: the other queries need one, too.
    spark = session("faulty driver", master="local[3]", conf=spark_conf())
    run(spark, namesrv, topic, json.loads(plan))
    threading.Event().wait(600)  # To be killed.


if __name__ == "__main__":
    main(*sys.argv[1:])
