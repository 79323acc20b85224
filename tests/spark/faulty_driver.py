"""A Spark driver for test_kill: name server, topic, folder of Parquet files, checkpoint. Reads from `latest` on."""

from __future__ import annotations

import os
import sys

from metaq.spark import session
from tests.spark.conftest import TEST_CONF
from tests.spark.faulty_source import BATCH_0, BEFORE_COMMIT, FaultySource, halt


def main(namesrv: str, topic: str, output: str, checkpoint: str) -> None:
    spark = session("faulty driver", master="local[2]", conf=TEST_CONF)
    spark.dataSource.register(FaultySource)

    def write(frame, batch: int) -> None:
        if batch == 0:
            halt(BATCH_0)
        frame.select("queue_id", "queue_offset").write.mode("overwrite").parquet(f"{output}/batch={batch}")
        if batch > 0:
            halt(BEFORE_COMMIT)

    stream = spark.readStream.format("metaq-faulty").options(nameServers=namesrv, subscribe=topic).load()
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    if not os.environ.get("METAQ_TEST_HALT"):
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
