"""A client of a Spark Connect server, in a process of its own: a process that has become one has no other sessions.

    python -m tests.spark.connect.client sc://HOST:PORT NAMESRV FOLDER

Prints what came out, as one JSON line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import metaq.spark
from metaq.errors import ConfigError
from metaq.spark import decode, without_repeats


def outcome(url: str, namesrv: str, folder: Path) -> dict[str, Any]:
    """Everything of ours that a session takes, asked of a remote one."""
    spark = SparkSession.builder.remote(url).getOrCreate()
    assert metaq.spark.session() is not None
    where = {"nameServers": namesrv, "subscribe": "orders"}
    stored = spark.read.format("metaq").options(**where).load()
    spark.sql(f"CREATE TEMPORARY VIEW orders USING metaq OPTIONS (nameServers '{namesrv}', subscribe 'orders')")
    decoded = decode.expand(stored, decode.json("n int"))
    found = {
        "session": type(metaq.spark.session()).__module__,
        "read": stored.count(),
        "sql": spark.sql("SELECT count(*) AS n FROM orders").collect()[0].n,
        "decoded": decoded.selectExpr("sum(n) AS n").collect()[0].n,
        "not hessian": decode.expand(stored, decode.hessian()).where("_corrupt IS NOT NULL").count(),
        "once": without_repeats(stored).count(),
        "path": spark.read.format("metaq").load(str(folder / "cluster" / "store")).where("topic = 'orders'").count(),
    }
    target = {"nameServers": namesrv, "topic": "copies"}
    stored.select("body", "tag").write.format("metaq").options(**target).mode("append").save()
    listener = metaq.spark.ProgressListener(namesrv, "spark-{name}")
    spark.streams.addListener(listener)
    source = spark.readStream.format("metaq").options(**where, startingOffsets="earliest").load()
    writer = without_repeats(source).select("body", "tag").writeStream.format("metaq").options(**target)
    writer = writer.queryName("connected").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found["stored"] = listener.close(60)
    spark.streams.removeListener(listener)
    behind, now = metaq.spark.lag(query), metaq.spark.lag(query, name_servers=namesrv)
    assert behind is not None
    assert now is not None
    found["lag"] = [behind.name, behind.behind, now.seconds, sum(behind.positions.values())]
    try:
        metaq.spark.archive(spark, name_servers=namesrv, topics="orders", output=folder / "out")
    except ConfigError as fault:
        found["archive"] = str(fault)
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(outcome(sys.argv[1], sys.argv[2], Path(sys.argv[3]))), flush=True)
