"""The first progress of a group: kept of every queue, also by a RocketMQ that makes its table for the group meanwhile."""

from __future__ import annotations

import metaq
from metaq.admin import Admin
from metaq.model import MessageQueue
from metaq.spark.cluster.client import ClusterClient
from tests.interop.servers import Server
from tests.support import PATIENCE, eventually

QUEUES, GROUPS = 16, 30


def kept(server: Server, group: str, topic: str) -> dict[MessageQueue, int]:
    with Admin(server.namesrv) as admin:
        return {one.queue: one.consumed for one in admin.group_progress(group).queues if one.queue.topic == topic}


def test_what_a_driver_reports(server: Server) -> None:
    """Of all queues at once, for groups that no broker knows yet."""
    topic = "first_reported"
    with Admin(server.namesrv) as admin:
        admin.create_topic(topic, queues=QUEUES)
    client = ClusterClient(server.namesrv, retry_seconds=10.0)
    queues = eventually(lambda: found if len(found := client.queues([topic])) == QUEUES else None)
    for i in range(GROUPS):
        positions = {queue: 7 + queue.queue_id for queue in queues}
        client.report(f"reported-{i}", positions)
        assert kept(server, f"reported-{i}", topic) == positions
    client.close()


def test_what_a_consumer_commits(server: Server) -> None:
    """All queues in one commit, by groups that begin."""
    topic = "first_committed"
    with Admin(server.namesrv) as admin:
        admin.create_topic(topic, queues=QUEUES)
        queues = eventually(lambda: found if len(found := admin.describe_topic(topic).queues) == QUEUES else None)
    with metaq.Producer(server.namesrv) as producer:
        for queue in queues:
            for _ in range(3):
                producer.send(topic, b"x", queue=queue)
    for i in range(GROUPS // 3):
        with metaq.PullConsumer(server.namesrv, group=f"committed-{i}", topics=topic, start="earliest") as consumer:
            consumer.wait_assigned(PATIENCE)
            count = 0
            while count < 3 * QUEUES:
                count += len(consumer.poll(timeout=1.0, count=3 * QUEUES - count))
            consumer.commit()
        assert set(kept(server, f"committed-{i}", topic).values()) == {3}
