"""The Spark driver that is killed: a topic into an archive, and copied to another topic, by two queries of one session.

Arguments: one JSON, see `main`. It ends when its file `finish` is there, or with a fault when one of its queries has failed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import metaq.spark
from tests.spark.running import spark_conf

FINISH = "finish"
COPIED_FROM = "from"
"""The property of a copy that says queue and offset of what it is a copy of."""


def main(asked: str) -> None:
    told = json.loads(asked)
    folder, namesrv = Path(told["folder"]), told["namesrv"]
    spark = metaq.spark.session("proof", master="local[2,4]", conf=spark_conf())
    archive = metaq.spark.archive(
        spark, name_servers=namesrv, topics=told["source"], output=folder / "archive", trigger_seconds=0.2,
        messages_per_batch=told["archive_batch"], messages_per_file=told["archive_file"],
        compact_files=told["compact_files"], grace_seconds=0.0, source={"startingOffsets": "earliest"},
    )  # fmt: skip
    stream = (
        spark.readStream.format("metaq")
        .options(
            nameServers=namesrv,
            subscribe=told["source"],
            startingOffsets="earliest",
            maxOffsetsPerTrigger=told["copy_batch"],
            minPartitions=told["copy_tasks"],
        )
        .load()
        .selectExpr(
            "body",
            "keys",
            "tag",
            "queue_id",
            f"map('{COPIED_FROM}', concat(queue_id, ':', queue_offset, ':', message_id)) AS properties",
        )
    )
    copy = (
        stream.writeStream.format("metaq")
        .options(nameServers=namesrv, topic=told["target"], delivery=told["delivery"])
        .option("checkpointLocation", f"file:{folder / 'copy-checkpoint'}")
        .queryName("copy")
        .start()
    )
    print("started", flush=True)
    queries, pause, parent = (archive, copy), threading.Event(), os.getppid()
    while all(query.isActive for query in queries) and not (folder / FINISH).exists() and os.getppid() == parent:
        pause.wait(0.05)
    for query in queries:
        if not query.isActive:
            query.awaitTermination()  # Raises what it failed with.
    for query in queries:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
