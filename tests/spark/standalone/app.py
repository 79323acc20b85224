"""An application for `spark-submit`: reads a topic, copies it to another, and prints what its workers have.

Arguments: name server, topic, target, how it gets to MetaQ, and by which program. `found`: Spark finds it itself. Where it is brought in
other ways, there are no streams.
"""

import json
import pathlib
import sys

import pyarrow as pa
from pyspark.sql import SparkSession, functions


def workers(batches):
    """In a worker: where its MetaQ comes from, and whether it is the native one."""
    import metaq.wire.hot

    here = pa.schema([("native", pa.bool_()), ("file", pa.string())])
    for _ in batches:
        yield pa.record_batch([[metaq.wire.hot.NATIVE], [metaq.__file__]], schema=here)


namesrv, topic, target, way, program = (*sys.argv[1:], "")[:5]
if way == "session":
    import metaq.spark

    spark = metaq.spark.session()
else:
    spark = SparkSession.builder.getOrCreate()
if way == "add":
    exec(pathlib.Path(program).read_text(), globals())
messages = spark.read.format("metaq").options(nameServers=namesrv, subscribe=topic).load()
seen = messages.mapInArrow(workers, "native boolean, file string").groupBy("native", "file").count().collect()
copies = messages.select("body", functions.col("queue_id").cast("string").alias("ordering_key"))
copies.write.format("metaq").options(nameServers=namesrv, topic=target).mode("append").save()
if way == "found":
    stream = spark.readStream.format("metaq").options(nameServers=namesrv, subscribe=topic, startingOffsets="earliest")
    more = stream.load().select("body").writeStream.format("metaq").options(nameServers=namesrv, topic=target)
    more.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination()
print("seen", json.dumps([row.asDict() for row in seen]))
spark.stop()
