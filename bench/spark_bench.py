"""Rows per second from a broker on this machine into Spark's `noop` sink: 100-byte bodies, lean rows, local[2].

    python bench/spark_bench.py                                  # starts a broker of its own, 2 million messages
    python bench/spark_bench.py --namesrv 127.0.0.1:9876 --rows 500000 --body 1000

Prints one JSON object; `rows_per_s` has one figure a run, the first (which warms Spark up) left out. Broker, JVM and
Python workers share the same cores. `--archive` measures the archive pipeline over the same messages as well. What the connector
promises is measured by `spark_figures.py`; this is for trying options.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "spark-bench"


def fill(namesrv: str, topic: str, rows: int, body: int) -> float:
    """Send `rows` messages; returns messages per second."""
    import metaq

    noise = os.urandom(1 << 19).hex().encode()  # No two bodies alike: Parquet would store them once.
    started = time.perf_counter()
    with metaq.Producer(namesrv) as producer:
        last = None
        for number in range(rows):
            begin = number * 61 % (len(noise) - body)
            last = producer.submit(topic, noise[begin : begin + body], tag="bench")
        producer.flush(60)
        assert last is not None
        last.result(60)
    return rows / (time.perf_counter() - started)


def read_rates(spark: Any, namesrv: str, topic: str, rows: int, runs: int, options: dict[str, str]) -> list[float]:
    rates = []
    for number in range(runs + 1):
        frame = spark.read.format("metaq").options(nameServers=namesrv, subscribe=topic, **options).load()
        counted = frame.count() if number == 0 else rows
        assert counted == rows, f"{counted} rows were read, {rows} were sent"
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        rates.append(rows / (time.perf_counter() - started))
    return rates[1:]


def archive_rate(spark: Any, namesrv: str, topic: str, rows: int, folder: str) -> float:
    from metaq.spark import archive

    reports: list[Any] = []
    query = archive(
        spark, name_servers=namesrv, topics=topic, output=folder, once=True, on_batch=reports.append,
        messages_per_file=max(1, rows // 4),
    )  # fmt: skip
    query.awaitTermination()
    assert sum(report.rows for report in reports) == rows
    return rows / sum(report.seconds for report in reports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", help="an own broker is started when none is named")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--archive", action="store_true")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of format('metaq')")
    arguments = parser.parse_args()
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, str(ROOT / "src"))
    with ExitStack() as stack:
        namesrv = arguments.namesrv
        if namesrv is None:
            import processes

            disk = ROOT / ".cache" / "bench" / "disk"
            disk.mkdir(parents=True, exist_ok=True)
            namesrv = stack.enter_context(processes.metaq_up(disk)).namesrv
        topic = f"{TOPIC}-{os.getpid()}"
        sent = fill(namesrv, topic, arguments.rows, arguments.body)
        from metaq.spark import session

        spark = session("spark_bench", master="local[2]")
        stack.callback(spark.stop)
        options = dict(pair.split("=", 1) for pair in arguments.option)
        rates = read_rates(spark, namesrv, topic, arguments.rows, arguments.runs, options)
        result = {"rows": arguments.rows, "body": arguments.body, "submit_per_s": round(sent)}
        result["rows_per_s"] = [round(rate) for rate in rates]
        if arguments.archive:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            result["archive_per_s"] = round(archive_rate(spark, namesrv, topic, arguments.rows, folder))
        print(json.dumps(result))


if __name__ == "__main__":
    main()
