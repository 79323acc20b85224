"""Queries over a master and its slave, which lags and is promoted while they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import metaq
from metaq.testing import FlakyNetwork, free_port
from tests.interop import pairs
from tests.interop.pairs import OURS, Pair
from tests.support import PATIENCE, WHOLE_PATIENCE, eventually, run_metaq

pytestmark = [pytest.mark.all, pytest.mark.spark_all, pytest.mark.spark]
TOPIC = "spark_pair"


@pytest.fixture
def link() -> Iterator[FlakyNetwork]:
    """The slave's way to its master's log."""
    with FlakyNetwork(f"127.0.0.1:{free_port()}") as network:
        yield network


@pytest.fixture
def pair(link, tmp_path) -> Iterator[Pair]:
    """To its master all messages are old but the last one."""
    port = link.target.rpartition(":")[2]
    with pairs.pair(
        tmp_path / "pair",
        OURS,
        OURS,
        options=["accessMessageInMemoryMaxRatio=0"],
        master_options=[f"haListenPort={port}"],
        slave_options=[f"haMasterAddress={link.address}"],
    ) as both:
        both.master.start()
        both.slave.start()
        yield both


def send(pair: Pair, prefix: str, count: int) -> list[str]:
    """Each message until it is taken, whoever leads."""
    bodies = [f"{prefix} {i}" for i in range(count)]
    with metaq.Producer(pair.namesrv, timeout=PATIENCE, retries=100) as producer:
        for body in bodies:
            producer.send(TOPIC, body.encode())
    return bodies


def stored(pair: Pair) -> Counter[str]:
    with metaq.Reader(pair.namesrv, TOPIC, stop_at_end=True) as reader:
        return Counter(message.body.decode() for message in reader)


def test_a_slave_that_lags_and_is_promoted_under_a_stream(spark, pair, link, tmp_path):
    """With readFrom=slave and auto: what it lacks comes from the master, and behind the change of leaders each stored message
    comes once, as before: positions are offsets in the same log.
    """
    sent = send(pair, "early", 600)
    queries = {}
    for read_from in ("slave", "auto"):
        chosen = {
            "nameServers": pair.namesrv, "subscribe": TOPIC, "startingOffsets": "earliest", "readFrom": read_from,
            "maxOffsetsPerTrigger": "300", "retrySeconds": "3",
        }  # fmt: skip
        frame = spark.readStream.format("metaq").options(**chosen).load().select("body")
        writer = frame.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / f"{read_from} checkpoint")
        )
        queries[read_from] = writer.option("path", str(tmp_path / read_from)).start()

    def have_read(count: int) -> bool:
        """Whether each query has so many rows; or has failed."""
        return all(
            sum(progress["numInputRows"] for progress in query.recentProgress) >= count or query.exception()
            for query in queries.values()
        )

    try:
        eventually(lambda: have_read(600), WHOLE_PATIENCE, what="the first rows")
        assert pair.served()[1] > 0
        link.stall()
        sent += send(pair, "not copied", 300)
        eventually(lambda: have_read(900), WHOLE_PATIENCE, what="what the slave lacks")
        link.mend()
        pair.wait_until_whole()
        with ThreadPoolExecutor(1) as pool:
            more = pool.submit(send, pair, "meanwhile", 600)
            promoted = run_metaq("broker", "promote", "broker-a", "-n", pair.namesrv)
            assert promoted.returncode == 0, promoted.stderr
            sent += more.result(WHOLE_PATIENCE)
        sent += send(pair, "late", 100)
        there = stored(pair)
        eventually(lambda: have_read(sum(there.values())), WHOLE_PATIENCE, what="all rows")
        assert [query.exception() for query in queries.values()] == [None, None]
    finally:
        for query in queries.values():
            query.stop()
    assert set(there) == set(sent)
    for read_from in queries:
        rows = spark.read.parquet(str(tmp_path / read_from)).collect()
        assert Counter(bytes(row.body).decode() for row in rows) == there
