"""A Spark driver as a program, that does one job after the other: a process has one Spark context only.

Arguments: the master's URL and a JSON of settings. A line of standard input is a job, `[name, {arguments}]`; its answer is a line of
standard output, `done JSON` or `failed JSON of a text`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import functions

from metaq.spark import session
from metaq.spark.engine.slow_start import run_through

COLUMNS = "queue_id", "queue_offset", "body"


class Jobs:
    """What tests ask for."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def read(self, form: str, **options: str) -> list[Any]:
        """A batch read: `[queue, offset, body]` of each row, as they come."""
        frame = self.spark.read.format(form).options(**options).load().select(*COLUMNS)
        return [[row.queue_id, row.queue_offset, bytes(row.body).decode()] for row in frame.collect()]

    def write(self, form: str, rows: int, tasks: int, **options: str) -> None:
        """A batch write of the numbers below `rows`, in `tasks` tasks; those of a task have one ordering key."""
        numbers = self.spark.range(rows, numPartitions=tasks)
        frame = numbers.select(
            functions.format_string("%06d", "id").cast("binary").alias("body"),
            functions.spark_partition_id().cast("string").alias("ordering_key"),
        )
        frame.write.format(form).options(**options).mode("append").save()

    def copy(self, source: dict[str, str], sink: dict[str, str], form: str, checkpoint: str) -> int:
        """A stream from topic to topic, of what is there. Returns the number of the last batch.

        A copy's body is `queue:offset:body` of what was copied, and its ordering key the queue.
        """

        def start() -> Any:
            rows = self.spark.readStream.format(form).options(**source).load()
            copies = rows.selectExpr(
                "encode(concat_ws(':', queue_id, queue_offset, decode(body, 'UTF-8')), 'UTF-8') as body",
                "cast(queue_id as string) as ordering_key",
            )
            writer = copies.writeStream.format(form).options(**sink).option("checkpointLocation", checkpoint)
            return writer.trigger(availableNow=True).start()

        def watch(query: Any) -> Any:
            query.awaitTermination()
            return query

        return int(run_through(start, watch).lastProgress["batchId"])


def main(master: str, settings: str) -> None:
    from tests.spark.standalone.held import HeldDataSource

    spark = session("on a cluster", master=master, conf=json.loads(settings))
    spark.dataSource.register(HeldDataSource)
    jobs = Jobs(spark)
    print("ready", flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            print("done", json.dumps(getattr(jobs, name)(**arguments)), flush=True)
        except Exception as fault:
            print("failed", json.dumps(str(fault)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
