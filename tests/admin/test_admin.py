"""Administration through `metaq.admin.Admin`, at a running broker."""

from __future__ import annotations

import datetime as dt

import pytest

import metaq
from metaq.admin import Admin, TopicNotFound
from metaq.admin.brokers import BrokerNotFound
from metaq.admin.groups import GroupNotFound
from metaq.errors import ConfigError
from metaq.model import Perm
from tests.support import PATIENCE, eventually


@pytest.fixture
def admin(metaq_broker):
    with Admin(metaq_broker.namesrv) as opened:
        yield opened


def test_topic_is_created_changed_and_deleted(admin):
    """Creating again changes it; the route follows at once."""
    [broker] = admin.create_topic("admin-life", queues=2)
    assert [data.write_queues for data in admin.describe_topic("admin-life").route.queues] == [2]
    admin.create_topic("admin-life", queues=5, perm=int(Perm.READ), broker=broker)
    eventually(lambda: admin.describe_topic("admin-life").route.queues[0].perm == Perm.READ, what="the route changed")
    assert admin.describe_topic("admin-life").route.queues[0].write_queues == 5
    admin.delete_topic("admin-life")
    with pytest.raises(TopicNotFound, match="admin-life"):
        admin.describe_topic("admin-life")


@pytest.mark.parametrize("wrong", [{"level": "LOUD"}, {"count": 0}, {"count": 501}])
def test_a_wrong_level_or_count_of_log_lines_is_refused_before_a_broker_is_asked(admin, wrong):
    """The error names what is allowed; no such broker is looked for. Any case of a level will do."""
    allowed = "DEBUG, INFO, WARNING, ERROR or CRITICAL" if "level" in wrong else "1 to 500"
    with pytest.raises(ConfigError, match=allowed):
        admin.broker_log("no-such-broker", **wrong)
    with pytest.raises(BrokerNotFound):
        admin.broker_log("no-such-broker", level="warning")


def test_offsets_of_a_topic_are_counted(admin, metaq_broker):
    """min and max of each queue, and all messages together."""
    admin.create_topic("admin-count", queues=3)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(10):
            producer.send("admin-count", b"%d" % number)
    details = admin.describe_topic("admin-count")
    assert (len(details.queues), details.messages) == (3, 10)


def test_group_shows_members_and_lag(admin, metaq_broker):
    """A member that is there is listed; a message that nobody has handled is the lag, with its age."""
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send("admin-group", b"x")
    with metaq.Consumer(metaq_broker.namesrv, group="admin-g", topics="admin-group", start="first") as consumer:
        message = next(iter(consumer))
        progress = eventually(lambda: admin.group_progress("admin-g"), what="the group is known")
        assert len(progress.members) == 1
        with message:
            pass
    done = admin.group_progress("admin-g")
    assert (done.lag, done.lag_seconds) == (0, 0.0)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send("admin-group", b"y")
    behind = admin.group_progress("admin-g")
    assert behind.lag == 1
    assert 0 <= behind.lag_seconds < 60


def test_group_is_shown_though_its_messages_may_not_be_read(admin, metaq_broker):
    """The topic was closed to readers: how old the waiting messages are cannot be told, all else can."""
    topic = "admin-unreadable"
    admin.create_topic(topic, queues=1)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for _ in range(3):
            producer.send(topic, b"x")
    with metaq.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        consumer.receive(PATIENCE).ack()
        consumer.commit()
    admin.create_topic(topic, queues=1, perm=2)
    progress = admin.group_progress(topic)
    assert (progress.lag, progress.lag_seconds) == (2, None)


def test_instances_of_a_producer_group_are_listed(admin, metaq_broker):
    """A transactional producer from its start; one that sends from its first send; none once all are closed."""
    with pytest.raises(GroupNotFound, match="is connected to a producer of group admin-pg"):
        admin.group_producers("admin-pg")
    address = metaq_broker.namesrv
    with metaq.TransactionProducer(address, group="admin-pg", check=lambda _: None, instance_name="one"):
        [one] = eventually(lambda: known(admin, 1), what="it is known")
        assert one.client_id.endswith("@one")
        assert (one.language, set(one.addresses)) == ("PYTHON", {admin.list_brokers()[0].broker})
        with metaq.Producer(address, group="admin-pg", instance_name="two") as second:
            second.send("admin-producers", b"x")
            both = eventually(lambda: known(admin, 2), what="both are known")
            assert [instance.client_id[-4:] for instance in both] == ["@one", "@two"]
    with pytest.raises(GroupNotFound):
        admin.group_producers("admin-pg")


def known(admin, count):
    try:
        found = admin.group_producers("admin-pg")
    except GroupNotFound:
        return None
    return found if len(found) == count else None


def test_unknown_group_is_an_error_of_its_own(admin):
    """Nobody is in it and no broker has an offset of it."""
    with pytest.raises(GroupNotFound, match="admin-nobody"):
        admin.group_progress("admin-nobody")


def test_brokers_tell_how_they_are(admin, metaq_broker):
    """Address, version, disk; nothing of it guessed."""
    [status] = admin.list_brokers()
    assert (status.address, status.broker_id, status.error) == (metaq_broker.broker, 0, "")
    assert status.version.startswith("V4_9")
    assert 0 < status.disk_used < 1
    assert status.started_ms > 0


def test_unknown_broker_and_cluster_are_named_with_those_there_are(admin):
    """The error lists what is registered."""
    [status] = admin.list_brokers()
    with pytest.raises(BrokerNotFound, match=rf"no broker nobody .* registered: {status.broker}"):
        admin.create_topic("admin-x", broker="nobody")
    with pytest.raises(BrokerNotFound, match=rf"no cluster nowhere .* registered: {status.cluster}$"):
        admin.create_topic("admin-x", cluster="nowhere")


def test_a_name_that_no_topic_can_have_is_the_callers_error(admin):
    """As with producers and consumers; nobody is asked."""
    with pytest.raises(metaq.ConfigError, match="no such"):
        admin.create_topic("no such")


def test_closed_admin_says_so(metaq_broker):
    """Closing twice is fine, using it is not."""
    admin = Admin(metaq_broker.namesrv)
    admin.close()
    admin.close()
    with pytest.raises(metaq.ClientClosed):
        admin.list_topics()


def consumed_of(admin, group):
    return sum(one.consumed for one in admin.group_progress(group).queues)


@pytest.mark.parametrize("online", [False, True], ids=["offline", "online"])
def test_a_group_is_reset_and_another_is_not_touched(admin, metaq_broker, online):
    """To the beginning, the end and a time; with members, who go on there by themselves, and without."""
    topic = f"admin-reset-{online}"
    admin.create_topic(topic, queues=2)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    count = 10
    groups = [f"{topic}-one", f"{topic}-other"]
    for group in groups:
        with metaq.Consumer(metaq_broker.namesrv, group=group, topics=topic, start="earliest") as consumer:
            for _ in range(count):
                consumer.receive(PATIENCE).ack()
    with pytest.raises(GroupNotFound, match="no progress"):
        admin.reset_group("admin-nobody", topic, "earliest")
    if not online:
        for to, expected in [
            ("earliest", 0), ("latest", count), (dt.datetime.fromtimestamp(0.001, dt.UTC), 0), (4e9, count),
        ]:  # fmt: skip
            assert not any(one.online for one in admin.reset_group(groups[0], topic, to))
            assert consumed_of(admin, groups[0]) == expected
    else:
        with metaq.Consumer(metaq_broker.namesrv, group=groups[0], topics=topic) as consumer:
            with metaq.Producer(metaq_broker.namesrv) as producer:  # so that it is seen to have begun with both queues
                for queue in producer.queues(topic):
                    producer.send(topic, b"new", queue=queue)
            for _ in range(2):
                consumer.receive(PATIENCE).ack()
            count += 2
            consumer.commit()
            moved = admin.reset_group(groups[0], topic, "earliest")
            assert all(one.online for one in moved)
            assert sum(one.repeated for one in moved) == count
            for _ in range(count):
                consumer.receive(PATIENCE).ack()
    assert consumed_of(admin, groups[1]) == 10
