"""Archive a topic to Parquet, read the folder with pyarrow, and read topic and archive as one table.

pip install 'pymetaq[spark]'
metaq up &
python examples/spark_archive.py
"""

import os
import tempfile

import pyarrow.dataset as ds

import metaq

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")


def main() -> None:
    folder = tempfile.mkdtemp(prefix="metaq-archive-")
    with metaq.Producer(NAMESRV) as producer:
        futures = [producer.submit("spark-events", b"event %d" % number, keys=[f"k{number}"]) for number in range(100)]
        first = futures[0].result()

        spark = metaq.spark.session("spark_archive")
        query = metaq.spark.archive(spark, name_servers=NAMESRV, topics="spark-events", output=folder, once=True)
        query.awaitTermination()
        producer.send("spark-events", b"one more")

    archived = ds.dataset(folder, partitioning="hive").to_table(columns=["message_id", "keys", "date"])
    print(
        len(archived),
        "messages in Parquet, among them the first:",
        first.message_id in archived["message_id"].to_pylist(),
    )

    whole = metaq.spark.table("spark-events", archive=folder, name_servers=NAMESRV, spark=spark)
    print(whole.count(), "messages in archive and topic together")
    spark.stop()


if __name__ == "__main__":
    main()
