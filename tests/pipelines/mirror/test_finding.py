"""Where messages lie in a real queue that others write to as well."""

from __future__ import annotations

import itertools

import pytest

import metaq
from metaq.admin import Admin
from metaq.model import MessageQueue
from metaq.pipelines.mirror import finding
from metaq.pipelines.mirror.finding import Part
from metaq.pipelines.mirror.marks import Origin
from metaq.pipelines.mirror.state import MirrorState
from metaq.pipelines.mirror.table import OffsetRun, Table
from metaq.spark.cluster.client import ClusterClient

SOURCE = MessageQueue("orders", "broker-s", 0)
HOW = finding.settings(10.0)
_names = itertools.count()


@pytest.fixture
def queue(metaq_broker):
    """An empty queue."""
    topic = f"found-{next(_names)}"
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic(topic, queues=1)
        (found,) = admin.describe_topic(topic).queues
    return found


@pytest.fixture
def client(metaq_broker):
    found = ClusterClient(metaq_broker.namesrv, 10.0)
    yield found
    found.close()


def put(broker, queue, *offsets: int | None) -> None:
    """Messages of the mirror, by their source offset; None: one of somebody else."""
    with metaq.Producer(broker.namesrv) as producer:
        for offset in offsets:
            mark = {} if offset is None else {"MIRROR_SOURCE": str(Origin("a", SOURCE, offset))}
            producer.send(queue.topic, b"x", properties=mark, queue=queue)


def state(queue) -> MirrorState:
    found = MirrorState("a", "b")
    found.queues, found.seen, found.tables = {SOURCE: queue}, {queue: 0}, {SOURCE: Table((10, 0))}
    return found


def test_a_part_that_is_expected_is_found_by_its_first_message(metaq_broker, client, queue):
    """Behind what others wrote; those that were left out of the source make a gap; what follows is for the next look."""
    put(metaq_broker, queue, None, 10, 11, 14, None)
    found = state(queue)
    part = Part(SOURCE, 10, 3, (OffsetRun(10, 0, 2), OffsetRun(14, 2, 1)))
    finding.look(client, found, [queue], [(queue, part)], HOW)
    assert found.tables[SOURCE].runs == [OffsetRun(10, 1, 2), OffsetRun(14, 3, 1)]
    assert (found.foreign, found.seen) == ({queue: 0}, {queue: 5})
    put(metaq_broker, queue, 15, 16)
    finding.look(client, found, [queue], [(queue, Part(SOURCE, 15, 2, (OffsetRun(15, 0, 2),)))], HOW)
    assert found.tables[SOURCE].runs[2:] == [OffsetRun(15, 5, 2)]


def test_without_a_hint_every_message_is_looked_at(metaq_broker, client, queue):
    """What a killed run has delivered, copies of another mirror, and what comes twice."""
    put(metaq_broker, queue, 10, 11, None, 12, 11, 12, 13)
    found = state(queue)
    finding.look(client, found, [queue], [], HOW)
    assert found.tables[SOURCE].runs == [OffsetRun(10, 0, 2), OffsetRun(12, 3, 1), OffsetRun(13, 6, 1)]
    assert (found.foreign, found.seen) == ({queue: 2}, {queue: 7})


def test_a_part_that_is_there_by_half_is_not_taken_for_whole(metaq_broker, client, queue):
    """Its broker died while it delivered; the rest is found later."""
    put(metaq_broker, queue, 10, 11)
    found = state(queue)
    finding.look(client, found, [queue], [(queue, Part(SOURCE, 10, 4, (OffsetRun(10, 0, 4),)))], HOW)
    assert found.tables[SOURCE].runs == [OffsetRun(10, 0, 2)]
    put(metaq_broker, queue, 12, 13)
    finding.look(client, found, [queue], [], HOW)
    assert found.tables[SOURCE].runs == [OffsetRun(10, 0, 4)]


def test_an_earlier_mirrors_messages_are_known_by_their_marks(metaq_broker, client, queue):
    """Among the newest of a queue, of this source alone."""
    put(metaq_broker, queue, *range(10, 50), None)
    assert finding.newest_of(client, queue, 41, "a", HOW) == {SOURCE: 49}
    assert finding.newest_of(client, queue, 41, "c", HOW) == {}
    assert finding.newest_of(client, queue, 0, "a", HOW) == {}
