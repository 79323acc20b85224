"""The pipeline `changes` in Spark, against a real broker. The oracle is pyarrow."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

import metaq
from metaq.pipelines.changes.snapshot import KEY_COLUMN, SEQUENCE_COLUMN, read_snapshot
from metaq.spark import snapshot
from metaq.spark.pipelines import changes
from tests.pipelines.changes.batches import body
from tests.spark.running import finished

pytestmark = [pytest.mark.slow, pytest.mark.spark]
TOPIC = "row-changes"


def send(broker, bodies) -> None:
    with metaq.Producer(broker.namesrv) as producer:
        for one in bodies:
            producer.send(TOPIC, one, ordering_key=str(json.loads(one)["key"]["id"]), strict=False)


def run(spark, broker, folder, **options) -> list[dict]:
    figures: list[dict] = []
    config = {
        "nameServers": broker.namesrv,
        "topics": TOPIC,
        "folder": str(folder),
        "once": True,
        "buckets": 2,
        **options,
    }
    finished(lambda: changes(spark, config, lambda _line, told: figures.append(dict(told))))
    return figures


def test_a_topic_becomes_a_table(spark, metaq_broker, tmp_path):
    """Changes in all queues of a topic; what comes again is left out, what cannot be read stops it, or is reported."""
    folder = tmp_path / "t"
    send(metaq_broker, [body("insert", n, 1, {"a": n, "b": None}) for n in range(20)])
    send(metaq_broker, [body("update", n, 2, {"b": "x"}) for n in range(10)] + [body("delete", 19, 2)])
    send(metaq_broker, [body("update", 3, 2, {"b": "again"}), b'{"key": {"id": 3}}'])
    with pytest.raises(
        Exception,
        match=r"row-changes, queue \d of .*, offset \d+: .*Nothing of batch 1 was applied.*set onCorrupt = report",
    ):
        run(spark, metaq_broker, folder)
    assert not list(folder.rglob("*.parquet"))
    (told,) = run(spark, metaq_broker, folder, onCorrupt="report")
    assert (told["changes"], told["puts"], told["deletes"], told["repeats"], told["corrupt"]) == (31, 19, 1, 1, 1)
    table = pq.ParquetDataset(snapshot(folder).files("shop.t"), schema=snapshot(folder).schema("shop.t")).read()
    found = {row["id"]: (row["a"], row["b"]) for row in table.drop([KEY_COLUMN, SEQUENCE_COLUMN]).to_pylist()}
    assert found == {n: (n, "x" if n < 10 else None) for n in range(19)}
    (problem,) = [
        json.loads(line) for path in (folder / "_problems").iterdir() for line in path.read_text().splitlines()
    ]
    assert (problem["what"], problem["topic"]) == ("corrupt", TOPIC)
    frame = read_snapshot(folder, spark=spark)
    assert frame.columns == ["id", "a", "b"]
    assert {tuple(row) for row in frame.collect()} == {(n, *rest) for n, rest in found.items()}
