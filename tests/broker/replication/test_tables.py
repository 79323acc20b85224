"""What a slave takes over of its master's tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaq.broker.broker import Broker
from metaq.clock import FakeClock
from metaq.model import GroupConfig, TopicConfig
from metaq.model.topics.system import SCHEDULE_TOPIC
from tests.broker.support import open_broker
from tests.store.log.test_raw import raw_log
from tests.store.support import message

KEY = ("orders", "g")


@pytest.fixture
def slave(tmp_path) -> Iterator[Broker]:
    with open_broker(tmp_path / "slave", FakeClock(), leading=False, broker_id=1) as broker:
        yield broker


def offset(broker: Broker) -> int | None:
    return broker.offsets.get("g", "orders", 0)


def test_progress_follows_and_what_was_committed_here_stays_unless_it_is_set_back_there(slave):
    """While the master is away groups go on here; its old table must not take them back, an administrator's reset must."""
    take = slave.followed.take_offsets
    take({KEY: {0: 5}})
    assert offset(slave) == 5
    assert slave.followed.ahead() == []
    slave.offsets.put("g", "orders", 0, 9)
    take({KEY: {0: 5}})
    assert offset(slave) == 9
    assert slave.followed.ahead() == [("g", "orders", 0, 9, 5)]
    take({KEY: {0: 5}, ("other", "g"): {0: 1}})
    assert slave.followed.ahead() == [("g", "orders", 0, 9, 5)]
    take({KEY: {0: 9}})
    assert slave.followed.ahead() == []
    take({KEY: {0: 7}})
    assert offset(slave) == 7
    take({KEY: {0: 2}})
    assert offset(slave) == 2
    take({})
    assert offset(slave) is None


def test_after_a_start_the_further_of_the_two_counts(slave):
    """Nothing is known of what the master had before."""
    slave.offsets.take("g", "orders", 0, 9)  # from its file
    slave.followed.take_offsets({KEY: {0: 5, 1: 3}})
    assert (offset(slave), slave.offsets.get("g", "orders", 1)) == (9, 3)
    assert slave.followed.ahead() == []  # whether it is newer than a reset at the master is not known
    slave.offsets.put("g", "orders", 0, 11)
    assert slave.followed.ahead() == [("g", "orders", 0, 11, 5)]


def test_a_topic_that_the_master_does_not_have_goes_with_its_messages(slave, tmp_path):
    """Those below where the log ended when it was asked. What came since is of a topic that was made anew."""
    with open_broker(tmp_path / "master", FakeClock()) as master:
        for body in (b"a", b"b"):
            master.appender.put([message("orders", 0, body)])
        end = master.store.log.end
    data = raw_log(tmp_path / "master", 0, end)
    slave.followed.take_topics({"orders": TopicConfig("orders", 1, 1)}, 0)
    first = len(data) // 2
    slave.store.writer.append_raw(data[:first], 0, partial=True)
    asked_at = slave.store.log.end
    slave.store.writer.append_raw(data[asked_at:], asked_at)
    slave.followed.take_topics({}, asked_at)
    assert slave.topics.get("orders") is not None
    slave.store.flusher.flush()
    slave.followed.take_topics({}, end)
    assert slave.topics.get("orders") is None
    assert slave.deletions.marks.table == {"orders": end}
    assert not any(topic == "orders" for topic, _ in slave.store.reader.queues())
    assert slave.topics.get("TBW102") is not None


@pytest.mark.parametrize("name", ["../../etc", "a/b", "x" * 200, ""])
def test_a_masters_word_makes_no_path(slave, caplog, name):
    """A name that no topic may have is left out, and told."""
    slave.followed.take_topics({name: TopicConfig(name, 1, 1), "good": TopicConfig("good", 1, 1)}, 0)
    slave.followed.take_groups({name + "\x00": GroupConfig(name), "g": GroupConfig("g")})
    assert (slave.topics.get(name), slave.topics.get("good")) == (None, TopicConfig("good", 1, 1))
    assert slave.groups.get("g") == GroupConfig("g")
    assert slave.groups.get(name + "\x00") is None
    assert "of the master is not taken over" in caplog.text


def test_groups_that_the_master_does_not_have_go(slave):
    """It tells all that it has, RocketMQ's own too."""
    slave.followed.take_groups({"g": GroupConfig("g"), "h": GroupConfig("h")})
    slave.followed.take_groups({"g": GroupConfig("g", retry_max=3)})
    assert slave.groups.table == {"g": GroupConfig("g", retry_max=3)}


def test_progress_of_delayed_messages_is_kept_for_the_time_when_it_leads(slave, tmp_path):
    """In RocketMQ's file, with the place in the log from which deliveries are looked for."""
    with open_broker(tmp_path / "master", FakeClock()) as master:
        for queue_id, count in ((0, 4), (2, 7)):
            for _ in range(count):
                master.appender.put([message(SCHEDULE_TOPIC, queue_id, b"x")])
        end = master.store.log.end
    slave.store.writer.append_raw(raw_log(tmp_path / "master", 0, end), 0, partial=True)
    slave.followed.take_delays({1: 4, 3: 7}, end)
    text = (tmp_path / "slave" / "config" / "delayOffset.json").read_text()
    assert '"offsetTable"' in text and str(end) in text
    slave.lead()
    assert (slave.schedule.positions.next(1), slave.schedule.positions.next(3)) == (4, 7)
