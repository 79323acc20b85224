"""What a query that begins where a group has come (`startingGroup`) is told of the group."""

from __future__ import annotations

from metaq import Producer
from metaq.spark.cluster.client import ClusterClient


def test_a_group_without_progress_has_none_in_a_young_queue(metaq_broker):
    """Its broker answers 0 to RocketMQ's clients, and a misspelled group would look like one that has begun."""
    with Producer(metaq_broker.namesrv) as producer:
        queue = producer.send("group-progress", b"0").queue
    client = ClusterClient(metaq_broker.namesrv, 10.0)
    try:
        assert client.progress("nobody", [queue]) == {queue: None}
        client.report("somebody", {queue: 0})
        assert client.progress("somebody", [queue]) == {queue: 0}
    finally:
        client.close()
