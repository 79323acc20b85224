"""Our orderly consumer beside Java's in one group, and each alone: the same sequences, the same dead letters."""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
from collections.abc import Iterator

import pytest

import metaq
from metaq import Consumer, Producer, Reader, Reject
from metaq.model import StoredMessage
from tests.interop.driver import ForeignClient
from tests.interop.servers import CLUSTER, Server
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

QUEUES = 4
_numbers = itertools.count()


@pytest.fixture
def topic(java: ForeignClient, server: Server) -> str:
    name = f"orderly-{next(_numbers)}"
    java.producer("p", server.namesrv, "orderly-producers")
    java.call("create_topic", producer="p", cluster=CLUSTER, topic=name, queues=QUEUES)
    return name


@contextlib.contextmanager
def member(server: Server, topic: str, group: str, got: list[StoredMessage]) -> Iterator[Consumer]:
    """One of ours, which handles what it gets in two threads."""
    with Consumer(
        server.namesrv, group=group, topics=topic, start="first", orderly=True, instance_name=f"m-{next(_numbers)}"
    ) as consumer:
        thread = threading.Thread(target=consumer.run, args=(got.append, 2))
        thread.start()
        try:
            yield consumer
        finally:
            consumer.stop()
            thread.join(PATIENCE)


def test_java_and_python_hand_queues_to_each_other_in_order(java: ForeignClient, server: Server, topic: str) -> None:
    """A member joins and leaves: no message is lost, none comes twice, and each queue's sequence goes on."""
    ours: list[StoredMessage] = []
    sent = 0
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        queues = sorted(producer.queues(topic))

        def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                for queue in queues:
                    producer.send(topic, b"x", queue=queue)
            sent += count * len(queues)

        def everything() -> bool:
            return len(ours) + len(java.received("j")) >= sent

        java.consumer("j", server.namesrv, topic, {topic: "*"}, orderly=True)
        send(50)
        eventually(everything)
        with member(server, topic, topic, ours) as consumer:
            eventually(lambda: len([queue for queue in consumer.queues if queue.topic == topic]) == QUEUES // 2)
            before = len(ours)
            send(50)
            eventually(everything)
            assert len(ours) - before >= 100, "two queues are ours"
        send(50)
        eventually(everything)
    by_queue: dict[int, list[int]] = collections.defaultdict(list)
    for offsets in (
        ((message.queue_id, message.queue_offset) for message in ours),
        ((event["queue_id"], event["queue_offset"]) for event in java.received("j")),
    ):
        mine: dict[int, list[int]] = collections.defaultdict(list)
        for queue_id, offset in offsets:
            mine[queue_id].append(offset)
        for queue_id, sequence in mine.items():
            assert sequence == sorted(sequence), "in order within a member"
            by_queue[queue_id] += sequence
    assert {queue_id: sorted(sequence) for queue_id, sequence in by_queue.items()} == {
        queue.queue_id: list(range(150)) for queue in queues
    }


def dead_letter(server: Server, group: str) -> StoredMessage:
    def found() -> list[StoredMessage]:
        with contextlib.suppress(metaq.NoRoute), Reader(server.namesrv, f"%DLQ%{group}", stop_at_end=True) as reader:
            return list(reader)
        return []

    [message] = eventually(found)
    return message


def test_a_message_that_fails_too_often_is_the_same_dead_letter_as_javas(
    java: ForeignClient, server: Server, topic: str
) -> None:
    """Body, tag, tries, delay level and origin; and the queue goes on."""
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        queue = producer.queues(topic)[0]
        for tag in ("good", "bad", "good"):
            producer.send(topic, tag.encode(), tag=tag, queue=queue)
    java.consumer("j", server.namesrv, f"{topic}-j", {topic: "*"}, orderly=True, fail_tag="bad", max_reconsume_times=1)
    java.wait("j", 4)
    seen = []
    with Consumer(
        server.namesrv, group=f"{topic}-p", topics=topic, start="first", orderly=True, max_reconsume_times=1
    ) as consumer:

        def handler(message: metaq.ReceivedMessage) -> None:
            seen.append((message.tag, message.reconsume_times))
            if len(seen) == 4:
                consumer.stop()
            if message.tag == "bad":
                raise ValueError("never")

        consumer.run(handler)
    assert seen == [(event["tag"], event["reconsume_times"]) for event in java.received("j")]
    one, other = dead_letter(server, f"{topic}-j"), dead_letter(server, f"{topic}-p")
    assert (other.body, other.tag, other.reconsume_times) == (one.body, one.tag, one.reconsume_times)
    # Java sends on what it was told when it pulled; the real topic, where it is kept, names the group.
    different = {"MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "WAIT", "REAL_TOPIC"}
    theirs = {name: value for name, value in one.properties.items() if name not in different}
    assert {name: value for name, value in other.properties.items() if name not in different} == theirs


def test_a_rejected_message_is_a_dead_letter_at_once(server: Server, topic: str) -> None:
    """On both servers."""
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        queue = producer.queues(topic)[0]
        for body in (b"bad", b"good"):
            producer.send(topic, body, queue=queue)
    seen = []
    with Consumer(server.namesrv, group=topic, topics=topic, start="first", orderly=True) as consumer:

        def handler(message: metaq.ReceivedMessage) -> type[Reject] | None:
            seen.append(message.body)
            if message.body == b"bad":
                return Reject
            consumer.stop()
            return None

        consumer.run(handler)
    assert seen == [b"bad", b"good"]
    assert dead_letter(server, topic).body == b"bad"
