"""`metaq pipeline init`: the files of a new pipeline project, which runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path

from metaq.errors import ConfigError

_PIPELINE = '''\
"""@SUMMARY@

    metaq pipeline run @MODULE@.py -c @MODULE@.toml
    metaq pipeline status --folder run/@NAME@
"""

from dataclasses import dataclass

from pyspark.sql import functions as sql

from metaq.spark import decode
from metaq.spark.pipelines import FolderOptions, Pipeline, StreamOptions, option


@dataclass(frozen=True, kw_only=True)
class Options(FolderOptions, StreamOptions):
    """What it can be told: keys of the TOML file in camelCase, and flags."""

    topic: str = option("orders", "Topic to read: JSON bodies with `id`, `customer` and `amount`.")
    to: str = option("large-orders", "Topic to write to.")
    least: float = option(100.0, "Orders of at least this amount are passed on.", low=0)

    @property
    def topics_read(self):
        return [self.topic]


def large(orders, least):
    """The rule, a DataFrame in and a DataFrame out: test it without a broker."""
    return orders.where(sql.col("amount") >= least)


def start(spark, options, run):
    """Start the query. The run has its folder to itself; killed at any moment, it goes on where it stopped."""
    messages = spark.readStream.format("metaq").options(**options.source()).option("subscribe", options.topic).load()
    orders = decode.expand(messages, decode.json("id string, customer string, amount double"))
    passed = large(orders, options.least).select(
        sql.to_json(sql.struct("id", "customer", "amount")).alias("body"),
        sql.col("customer").alias("ordering_key"),
        sql.array("id").alias("keys"),
    )
    return (
        passed.writeStream.format("metaq")
        .option("nameServers", options.servers)
        .option("topic", options.to)
        .option("checkpointLocation", str(run.place / "checkpoint"))
        .trigger(**options.trigger())
        .start()
    )


PIPELINE = Pipeline("@NAME@", "Large orders to a topic of their own, each exactly once.", Options, start)
'''

_TEST = '''\
"""pytest test_@MODULE@.py: a real broker in a process of its own (the fixture of MetaQ's pytest plugin), a real Spark."""

import json

import pytest
from @MODULE@ import PIPELINE, large

import metaq
from metaq.spark import session
from metaq.spark.pipelines import begin


@pytest.fixture(scope="module")
def spark():
    running = session("@NAME@", master="local[2]")
    yield running
    running.stop()


def test_the_rule(spark):
    orders = spark.createDataFrame([("1", 99.0), ("2", 100.0)], "id string, amount double")
    assert [row.id for row in large(orders, 100.0).collect()] == ["2"]


def test_large_orders_are_passed_on_once(spark, metaq_broker, tmp_path):
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number, amount in enumerate([20, 200, 2000]):
            producer.send("orders", json.dumps({"id": str(number), "customer": "c", "amount": amount}).encode())
        producer.send("orders", b"no JSON")
    config = {"nameServers": metaq_broker.namesrv, "folder": str(tmp_path), "once": True}
    for _ in range(2):  # the second run finds nothing new
        begin(PIPELINE, spark, config).awaitTermination()
    with metaq.Reader(metaq_broker.namesrv, "large-orders", start="earliest", stop_at_end=True) as reader:
        assert sorted(json.loads(message.body)["id"] for message in reader) == ["1", "2"]
'''

_TOML = """\
nameServers = "127.0.0.1:9876"
folder = "run/@NAME@"
topic = "orders"
to = "large-orders"
least = 100
triggerSeconds = 5

[spark]
master = "local[*]"
"""

_README = """\
# @NAME@

    metaq pipeline run @MODULE@.py -c @MODULE@.toml     # Ctrl-C stops it; started again it goes on
    metaq pipeline run @MODULE@.py --help               # its options as flags
    metaq pipeline status --folder run/@NAME@
    python -m pytest                                    # pip install pytest; needs no broker: it starts one
"""


def write_project(name: str, folder: Path) -> list[Path]:
    """Write the files. Returns their paths. Raises ConfigError: an illegal name, or a file that exists already."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ConfigError(f"{name!r} cannot be a pipeline's name: use lower-case letters, digits and - between them")
    module = name.replace("-", "_")
    files = {
        f"{module}.py": _PIPELINE,
        f"test_{module}.py": _TEST,
        f"{module}.toml": _TOML,
        "README.md": _README,
    }
    for file in files:
        if (folder / file).exists():
            raise ConfigError(f"{folder / file} is there already: give another name, or another folder (--folder)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            summary = "Large orders to a topic of their own: a pipeline to start from."
            filled = text.replace("@NAME@", name).replace("@MODULE@", module).replace("@SUMMARY@", summary)
            (folder / file).write_text(filled, encoding="utf-8")
    except OSError as fault:
        raise ConfigError(f"{folder} cannot be written to: {fault.strerror}") from None
    return [folder / file for file in files]
