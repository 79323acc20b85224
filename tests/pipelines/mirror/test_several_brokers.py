"""The mirror where both clusters have two brokers, of which some go away while it runs."""

from __future__ import annotations

import threading

import pytest

import metaq
from metaq.admin import Admin
from metaq.testing import Cluster
from tests.pipelines.mirror.support import consume, run, send
from tests.support import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.all, pytest.mark.spark_all]
TOPIC, GROUP, COUNT = "two_sides", "two-sided", 2000
SAVING = {"flushConsumerOffsetInterval": 10}
"""Milliseconds: a group's progress of the last five seconds would be lost by a kill, as RocketMQ's is."""


def by_queue(cluster: Cluster) -> list[list[bytes]]:
    """The bodies of each queue, in the order in which producers see the queues: by broker and id."""
    with Admin(cluster.namesrv) as admin:
        queues = sorted(admin.describe_topic(TOPIC).queues)
    names = {cluster.address(number): broker.name for number, broker in enumerate(cluster.brokers)}
    found: dict[tuple[str, int], list[tuple[int, bytes]]] = {(one.broker, one.queue_id): [] for one in queues}
    with metaq.Reader(cluster.namesrv, TOPIC, stop_at_end=True) as reader:
        for message in reader:
            found[names["{}:{}".format(*message.store_host)], message.queue_id].append(
                (message.queue_offset, message.body)
            )
    return [[body for _, body in sorted(found[one.broker, one.queue_id])] for one in queues]


def consumed(cluster: Cluster) -> list[int]:
    """How far the group is in each queue, in the same order."""
    with Admin(cluster.namesrv) as admin:
        queues = sorted(admin.group_progress(GROUP).queues, key=lambda one: one.queue)
        return [one.consumed for one in queues if one.queue.topic == TOPIC]


def test_each_queue_has_its_own_though_a_broker_of_each_side_dies(spark, tmp_path):
    """One broker of each side is killed and started again while small batches are mirrored; the group goes along."""
    with Cluster(brokers=2, options=SAVING) as source, Cluster(brokers=2, options=SAVING) as target:
        with Admin(source.namesrv) as admin:
            admin.create_topic(TOPIC, queues=2)
        send(source, TOPIC, COUNT)
        consume(source, GROUP, TOPIC, COUNT)
        assert all(by_queue(source))
        killed: list[threading.Thread] = []

        def kill(_: dict) -> None:
            if len(killed) < 2:  # in the middle of the next batches
                broker = (source, target)[len(killed)].brokers[len(killed)]
                killed.append(threading.Thread(target=lambda: (broker.kill(), broker.start())))
                killed[-1].start()

        run(spark, source, target, tmp_path / "mirror", tell=kill, topics=TOPIC, groups=GROUP, maxOffsetsPerTrigger=200)
        assert len(killed) == 2
        for thread in killed:
            thread.join(PATIENCE)
        source.wait_registered()
        target.wait_registered()
        assert by_queue(target) == by_queue(source)
        assert consumed(target) == consumed(source)
        assert sum(consumed(target)) == COUNT
