"""What a broker tells of itself and its groups, as values."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import ClientConnection, ConsumerView, ConsumeStats, Heartbeat, MessageQueue, QueueStats, TopicConfig
from metaq.model.filters.subscription import subscribe
from tests.broker.support import JAVA, FakeChannel, open_broker


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def broker(tmp_path, clock):
    with open_broker(tmp_path, clock) as broker:
        broker.topics.update(TopicConfig("orders", 2, 1)).settle()
        yield broker


def join(broker, name, expression, group="mailer"):
    """A member of the group with one subscription; returns what it says of the group."""
    view = ConsumerView(group, {"orders": subscribe("orders", expression, 1)})
    broker.members.beat(FakeChannel(f"{name}:1"), "JAVA", JAVA, Heartbeat(name, (view,), ("sender",)))
    return view


def test_a_quiet_broker_has_facts_of_nothing(broker, clock):
    """No message, no rate, no trouble."""
    clock.advance(5)
    facts = broker.reports.facts()
    assert (facts.now_ms - facts.started_ms, facts.put_messages, facts.got_messages) == (5000, 0, 0)
    assert (facts.puts, facts.get_misses) == ((0, 0, 0), (0, 0, 0))
    assert (facts.log_end, facts.delay_levels, facts.unsaved, facts.trouble) == (0, {}, {}, "")


def test_settings_say_where_the_broker_is(broker, tmp_path):
    """Its options as they are, its name, address and folder."""
    settings = broker.reports.settings()
    assert settings.options.broker_name == settings.name == "broker-a"
    assert (settings.host, settings.port, settings.folder) == ("127.0.0.1", 10911, str(tmp_path))


def test_queues_and_positions_of_empty_queues(broker):
    """Each queue that can be read or written is told, with the group's position where it has one."""
    first, second = (MessageQueue("orders", "broker-a", queue_id) for queue_id in range(2))
    assert dict(broker.reports.topic_stats("orders")) == {first: QueueStats(0, 0, 0), second: QueueStats(0, 0, 0)}
    broker.offsets.put("mailer", "orders", 1, 5)
    assert dict(broker.reports.consume_stats("mailer", None)) == {
        first: ConsumeStats(0, 0, 0),
        second: ConsumeStats(0, 5, 0),
    }
    assert dict(broker.reports.consume_stats("mailer", "gone")) == {}
    with pytest.raises(Refused) as caught:
        broker.reports.topic_stats("gone")
    assert caught.value.reason is Reason.NO_TOPIC


def test_members_say_what_they_want_only_where_they_differ(broker):
    """The group is what the newest of them said."""
    view = join(broker, "a", "paid")
    assert broker.reports.consumer("mailer") == (view, [ClientConnection("a", "a:1", "JAVA", JAVA)])
    join(broker, "b", "*")
    _, members = broker.reports.consumer("mailer")
    assert [member.wants for member in members] == [{"orders": "paid"}, {"orders": "*"}]
    assert broker.reports.groups_of("orders") == ["mailer"]
    assert [member.client_id for member in broker.reports.producers("sender")] == ["a", "b"]


def test_who_is_not_there_is_refused(broker):
    """An offline consumer group has a reason of its own."""
    with pytest.raises(Refused, match="not online") as caught:
        broker.reports.consumer("nobody")
    assert caught.value.reason is Reason.OFFLINE
    with pytest.raises(Refused, match="not exist"):
        broker.reports.producers("nobody")
