"""Lag of groups of MetaQ 1.x, whose offsets are byte positions."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from metaq.errors import Refused
from metaq.in_pieces import finish
from metaq.model import MessageQueue
from metaq.saved import Saving
from tests.broker.metaq1.support import settings
from tests.broker.metaq1.test_retention import settled
from tests.broker.support import open_broker
from tests.store.support import message

FRAME = 20 + 5


@pytest.fixture
def broker(tmp_path):
    with open_broker(tmp_path, FakeClock(), metaq1=settings(test=2, other=1)) as opened:
        for queue_id in (0, 0, 0, 1):
            opened.appender.put([message("test", queue_id, b"hello")])
        for queue_id in (0, 1):
            settled(opened, lambda queue_id=queue_id: opened.metaq1.bases.touch("test", queue_id).max)
        yield opened


def lags(broker, group="g", topic=None):
    found = dict(broker.reports.consume_stats(group, topic))
    return {
        (queue.topic, queue.queue_id): stats.broker_offset - stats.consumer_offset for queue, stats in found.items()
    }


class Zookeeper:
    """What a test says that consumers keep."""

    def __init__(self, **positions):
        self.positions, self.asked, self.telling = positions, [], []

    def ask(self, group, topic, tell):
        self.asked.append((group, topic))
        self.telling.append(lambda: tell(self.positions.get(group)))


def told(zookeeper):
    for tell in zookeeper.telling:
        tell()
    zookeeper.telling.clear()


def test_positions_become_messages_behind(broker):
    """In the middle of a frame that one is still to be read; beyond the end none is; in front of the begin all are."""
    zookeeper = Zookeeper(g={("test", 0): FRAME, ("test", 1): FRAME - 1}, far={("test", 0): 10**6, ("test", 1): -5})
    broker.metaq1.progress.ask_by(zookeeper.ask)
    with pytest.raises(Saving):
        lags(broker)
    with pytest.raises(Saving):
        lags(broker)
    assert zookeeper.asked == [("g", None)]
    told(zookeeper)
    assert lags(broker) == {("test", 0): 2, ("test", 1): 1}
    stats = dict(broker.reports.consume_stats("g", None))[MessageQueue("test", "broker-a", 0)]
    assert (stats.broker_offset, stats.consumer_offset) == (3, 1)
    with pytest.raises(Saving):
        lags(broker, "far")
    told(zookeeper)
    assert lags(broker, "far") == {("test", 0): 0, ("test", 1): 1}


def test_look_is_kept_for_two_seconds(broker):
    """One command asks several times; the next one wants to know anew."""
    zookeeper = Zookeeper(g={("test", 0): 0})
    broker.metaq1.progress.ask_by(zookeeper.ask)
    with pytest.raises(Saving):
        lags(broker)
    told(zookeeper)
    assert lags(broker) == {("test", 0): 3}
    zookeeper.positions["g"] = {("test", 0): 3 * FRAME}
    broker.clock.advance(1)
    assert lags(broker) == {("test", 0): 3}
    broker.clock.advance(2)
    with pytest.raises(Saving):
        lags(broker)
    told(zookeeper)
    assert lags(broker) == {("test", 0): 0}


def test_groups_that_zookeeper_cannot_tell_of_or_that_are_none_have_no_lag(broker):
    """Unreachable, unknown topics and partitions, untouched queues, and names that would be other nodes."""
    zookeeper = Zookeeper(g={("gone", 0): 5, ("test", 7): 5, ("other", 0): 5})
    broker.metaq1.progress.ask_by(zookeeper.ask)
    for group in ("g", "unknown"):
        with pytest.raises(Saving):
            lags(broker, group)
        told(zookeeper)
        assert lags(broker, group) == {}
    assert lags(broker, "../ids") == {}
    assert zookeeper.asked == [("g", None), ("unknown", None)]


def test_broker_without_zookeeper_asks_nobody(broker):
    """And answers at once."""
    assert lags(broker) == {}


def test_questions_that_nobody_answers_are_limited(broker):
    """Names of groups are free, and each would be a request to ZooKeeper."""
    zookeeper = Zookeeper()
    broker.metaq1.progress.ask_by(zookeeper.ask)
    for number in range(100):
        with pytest.raises(Saving):
            lags(broker, f"g{number}")
    with pytest.raises(Refused, match="try again"):
        lags(broker, "one-more")
    with pytest.raises(Saving):
        lags(broker, "g99")
    told(zookeeper)
    assert lags(broker, "g99") == {}
    with pytest.raises(Saving):
        lags(broker, "one-more")


def test_names_of_groups_are_read_and_kept_for_two_seconds(broker):
    """One question at a time; names that are none are left out, and a ZooKeeper that is away knows nobody."""
    asked = []
    assert broker.reports.metaq1_groups() == []
    broker.metaq1.progress.ask_by(Zookeeper().ask, asked.append)
    for _ in range(2):
        with pytest.raises(Saving):
            broker.reports.metaq1_groups()
    [tell] = asked
    tell(["readers", "../x", "others", "a" * 10_000])
    assert broker.reports.metaq1_groups() == ["others", "readers"]
    broker.clock.advance(2)
    with pytest.raises(Saving):
        broker.reports.metaq1_groups()
    asked[1](None)
    assert broker.reports.metaq1_groups() == []
    assert len(asked) == 2


def test_of_two_sources_the_furthest_position_counts(broker):
    """Offsets in ZooKeeper and in a database: what a group has left behind in one of them is behind. Each may be away."""
    first = Zookeeper(g={("test", 0): FRAME, ("test", 1): FRAME})
    second = Zookeeper(g={("test", 0): 2 * FRAME}, only={("test", 0): 0})
    names = []
    broker.metaq1.progress.ask_by(first.ask, names.append)
    broker.metaq1.progress.ask_by(second.ask, names.append)
    for group, expected in (("g", {("test", 0): 1, ("test", 1): 0}), ("only", {("test", 0): 3})):
        with pytest.raises(Saving):
            lags(broker, group)
        told(second)
        with pytest.raises(Saving):  # One of the two has not told yet.
            lags(broker, group)
        told(first)
        assert lags(broker, group) == expected
    with pytest.raises(Saving):
        broker.reports.metaq1_groups()
    names[0](["b", "a"])
    names[1](None)
    assert broker.reports.metaq1_groups() == ["a", "b"]


def test_a_trim_tells_the_groups_that_have_not_read_what_goes(broker):
    """Asked for all of them at once: a request may wait only so often."""
    zookeeper = Zookeeper(
        slow={("test", 0): FRAME, ("test", 1): FRAME}, done={("test", 0): 3 * FRAME}, elsewhere={("other", 0): 0}
    )
    broker.metaq1.progress.ask_by(zookeeper.ask, lambda tell: tell(["slow", "done", "elsewhere"]))
    with pytest.raises(Saving) as waits:
        broker.trimming.read_by_metaq1("test")
    assert len(waits.value.pending) == 3
    told(zookeeper)
    read = broker.trimming.read_by_metaq1("test")
    assert sorted(read) == ["done", "slow"]
    plan, _ = finish(broker.trimming.plan_offsets("test", 3, 0, read))
    assert [(one.group, one.queue_id, one.messages) for one in plan.unread] == [("slow", 0, 2)]
    assert finish(broker.trimming.plan_offsets("test", 1, 0, read))[0].unread == ()


def test_more_groups_than_can_be_asked_about_are_said(broker):
    broker.metaq1.progress.ask_by(Zookeeper().ask, lambda tell: tell([f"g{number}" for number in range(65)]))
    with pytest.raises(Refused, match="65 groups"):
        broker.trimming.read_by_metaq1("test")
