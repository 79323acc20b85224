"""What the tests of the mirror share: two clusters, what is in them, and a run from one into the other."""

from __future__ import annotations

import metaq
from metaq.admin import Admin
from metaq.pipelines.run import status_of
from metaq.spark.pipelines import mirror
from tests.spark.running import finished
from tests.support import PATIENCE, eventually


def stored(broker, topic: str) -> dict[int, list[metaq.ReceivedMessage]]:
    """The messages of each queue, in order."""
    found: dict[int, list[metaq.ReceivedMessage]] = {}
    with metaq.Reader(broker.namesrv, topic, stop_at_end=True) as reader:
        for message in reader:
            found.setdefault(message.queue_id, []).append(message)
    return {queue: sorted(messages, key=lambda one: one.queue_offset) for queue, messages in found.items()}


def bodies(broker, topic: str) -> dict[int, list[bytes]]:
    return {queue: [one.body for one in messages] for queue, messages in stored(broker, topic).items()}


def send(broker, topic: str, count: int, prefix: bytes = b"") -> None:
    with metaq.Producer(broker.namesrv) as producer:
        futures = [
            producer.submit(
                topic, b"%s%d" % (prefix, i), tag="t", keys=[f"k{i}"], properties={"n": str(i)}, ordering_key=str(i)
            )
            for i in range(count)
        ]
        for future in futures:
            future.result(PATIENCE)


def run(spark, source, target, folder, *, tell=lambda figures: None, **options) -> list[dict]:
    """Mirror what is there. Returns the figures of each batch, which `tell` hears of at once."""
    told: list[dict] = []

    def hear(_: object, figures) -> None:
        told.append(dict(figures))
        tell(told[-1])

    config = {
        "nameServers": source.namesrv, "to": target.namesrv, "folder": str(folder), "once": True, "sourceName": "a",
        "targetName": "b", **options,
    }  # fmt: skip
    finished(lambda: mirror(spark, config, hear))
    eventually(lambda: status_of(folder).state == "ended", what="the end of the run")
    return told


def place_of(broker, group: str, topic: str) -> dict[int, int]:
    """How far a group is, by queue id."""
    with Admin(broker.namesrv) as admin:
        return {
            one.queue.queue_id: one.consumed for one in admin.group_progress(group).queues if one.queue.topic == topic
        }


def consume(broker, group: str, topic: str, count: int) -> list[bytes]:
    """So many messages, as a member of the group that then leaves."""
    got: list[bytes] = []
    with metaq.PullConsumer(broker.namesrv, group=group, topics=topic, start="earliest") as consumer:
        consumer.wait_assigned(PATIENCE)
        while len(got) < count:
            got += [message.body for message in consumer.poll(timeout=1.0, count=count - len(got))]
        consumer.commit()
    return got
