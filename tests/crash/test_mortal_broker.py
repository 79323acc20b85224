"""The broker that dies at a fault point: the tests that rely on it must be able to."""

from __future__ import annotations

import pathlib
from concurrent.futures import ThreadPoolExecutor

import metaq
from metaq.testing import Cluster
from tests.crash.mortal_broker import PROGRAM, die_behind, is_armed, spare
from tests.support import PATIENCE

ROOT = pathlib.Path(__file__).parents[2]


def bodies(cluster: Cluster) -> list[bytes]:
    with metaq.Reader(cluster.namesrv, "orders", stop_at_end=True) as reader:
        return [message.body for message in reader]


def test_it_dies_behind_the_record_that_a_test_names() -> None:
    """Between two records of one append, behind the last one without an answer, or with it when it appends again."""
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with (
        Cluster(brokers=1, program=PROGRAM, environment=environment) as cluster,
        metaq.Producer(cluster.namesrv, timeout=PATIENCE, retries=1000) as producer,
        ThreadPoolExecutor(1) as threads,
    ):
        (broker,) = cluster.brokers
        producer.send("orders", b"first")
        queue = producer.queues("orders")[0]

        die_behind(broker, 2)
        batch = [metaq.Message("orders", b"%d" % number) for number in range(5)]
        sending = threads.submit(producer.send_batch, batch, queue=queue)
        broker.wait_ended()
        assert not is_armed(broker)
        broker.start()
        sending.result(PATIENCE)
        there = [b"first", b"0", b"1", b"0", b"1", b"2", b"3", b"4"]
        assert sorted(bodies(cluster)) == sorted(there)

        die_behind(broker, 1)
        sending = threads.submit(producer.send, "orders", b"twice")
        broker.wait_ended()
        broker.start()
        sending.result(PATIENCE)

        die_behind(broker, 1, answered=True)
        producer.send("orders", b"answered")
        sending = threads.submit(producer.send, "orders", b"later")
        broker.wait_ended()
        broker.start()
        sending.result(PATIENCE)
        assert sorted(bodies(cluster)) == sorted([*there, b"twice", b"twice", b"answered", b"later"])

        die_behind(broker, 1)
        spare(broker)
        producer.send("orders", b"last")
        assert broker.alive
