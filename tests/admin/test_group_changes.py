"""Groups are made, stopped, copied, renamed and deleted, at a cluster of two brokers."""

from __future__ import annotations

import itertools

import pytest

import metaq
from metaq.admin import Admin, GroupInUse, GroupOnline, TopicNotFound
from metaq.admin.groups import GroupNotFound
from metaq.errors import ConfigError
from metaq.testing import Cluster
from tests.support import PATIENCE, eventually


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2) as running:
        yield running


@pytest.fixture
def admin(cluster):
    with Admin(cluster.namesrv) as opened:
        yield opened


def filled(cluster, topic, number=6):
    """A topic with as many messages over two queues at each of two brokers, as evenly over the brokers as can be.

    So that whoever takes more than half of them has taken some at each broker: a broker shows a group's lag in the topics
    in which the group has progress there.
    """
    with Admin(cluster.namesrv) as admin, metaq.Producer(cluster.namesrv) as producer:
        admin.create_topic(topic, queues=2)
        alternately = sorted(producer.queues(topic), key=lambda queue: (queue.queue_id, queue.broker))
        for queue in itertools.islice(itertools.cycle(alternately), number):
            producer.send(topic, b"body", queue=queue)


def consume(cluster, topic, group, number):
    with metaq.Consumer(cluster.namesrv, group=group, topics=topic, start="earliest") as consumer:
        for _ in range(number):
            consumer.receive(PATIENCE).ack()


def places(admin, group):
    return {
        one.queue: one.consumed for one in admin.group_progress(group).queues if not one.queue.topic.startswith("%")
    }


def test_a_group_is_made_changed_and_deleted(admin, cluster):
    """It is there before its first member; what is not given stays."""
    made = admin.set_group("changes-life", retries=5)
    assert len(made) == 2
    assert {one.retry_max for one in made.values()} == {5}
    group = admin.group_progress("changes-life")
    assert (group.members, group.queues, group.lag, group.stopped_at) == ((), (), 0, ())
    changed = admin.set_group("changes-life", consume=False)
    assert {(one.retry_max, one.consume_enable) for one in changed.values()} == {(5, False)}
    first, second = sorted(changed)
    assert admin.group_progress("changes-life").stopped_at == (first, second)
    admin.set_group("changes-life", consume=True, broker=first)
    assert admin.group_progress("changes-life").stopped_at == (second,)
    assert {one.group: one.stopped_at for one in admin.list_groups()}["changes-life"] == (second,)
    assert admin.delete_group("changes-life") == []
    with pytest.raises(GroupNotFound):
        admin.group_progress("changes-life")
    with pytest.raises(GroupNotFound):
        admin.delete_group("changes-life")
    with pytest.raises(ConfigError):
        admin.set_group("no such")


def test_a_group_is_deleted_with_what_it_has(admin, cluster):
    """With members it is refused; then progress and retry topic go, and dead letters if that is wanted."""
    filled(cluster, "changes-delete")
    group = "changes-deleted"
    with metaq.Consumer(
        cluster.namesrv, group=group, topics="changes-delete", start="earliest", max_reconsume_times=0
    ) as consumer:
        consumer.receive(PATIENCE).reject()
        for _ in range(5):
            consumer.receive(PATIENCE).ack()
        with pytest.raises(GroupOnline, match="stop them first"):
            admin.delete_group(group)
    eventually(lambda: f"%DLQ%{group}" in admin.list_topics(system=True))
    assert admin.delete_group(group, keep_progress=True) == []
    assert sum(places(admin, group).values()) == 6
    assert admin.delete_group(group) == [f"%RETRY%{group}"]
    with pytest.raises(GroupNotFound):
        admin.group_progress(group)
    assert f"%DLQ%{group}" in admin.list_topics(system=True)
    admin.set_group(group)
    assert admin.delete_group(group, dead_letters=True) == [f"%DLQ%{group}"]


def test_a_group_gets_the_progress_of_another(admin, cluster):
    """In all queues at all brokers, also over what it had; a look beforehand copies nothing."""
    filled(cluster, "changes-clone")
    consume(cluster, "changes-clone", "clone-source", 6)
    with pytest.raises(GroupNotFound, match="nothing to copy"):
        admin.clone_group("clone-nobody", "clone-target")
    with pytest.raises(ConfigError, match="cannot be copied to itself"):
        admin.clone_group("clone-source", "clone-source")
    seen = admin.clone_group("clone-source", "clone-target", dry_run=True)
    with pytest.raises(GroupNotFound):
        admin.group_progress("clone-target")
    copied = admin.clone_group("clone-source", "clone-target")
    assert copied == seen
    assert places(admin, "clone-target") == places(admin, "clone-source") == {one.queue: one.offset for one in copied}
    assert len(copied) == 4
    admin.reset_group("clone-target", "changes-clone", "earliest")
    assert admin.group_progress("clone-target").lag == 6
    admin.clone_group("clone-source", "clone-target", "changes-clone")
    assert admin.group_progress("clone-target").lag == 0
    with (
        metaq.Consumer(cluster.namesrv, group="clone-target", topics="changes-clone") as consumer,
        pytest.raises(GroupOnline, match="clone-target has members"),
    ):
        consumer.wait_assigned(PATIENCE)
        admin.clone_group("clone-source", "clone-target")


def test_a_group_goes_on_under_another_name(admin, cluster):
    """Nothing is consumed twice or left out; the old name gets nothing any more, until it is started again."""
    filled(cluster, "changes-move")
    consume(cluster, "changes-move", "move-old", 4)
    admin.set_group("move-old", retries=3)
    before = places(admin, "move-old")
    with pytest.raises(ConfigError, match="group move-old cannot be moved to itself"):
        admin.move_group("move-old", "move-old")
    assert {one.consume_enable for one in admin.set_group("move-old").values()} == {True}
    admin.move_group("move-old", "move-new")
    assert places(admin, "move-new") == before
    assert admin.group_progress("move-new").lag == 2
    assert {(one.retry_max, one.consume_enable) for one in admin.set_group("move-new").values()} == {(3, True)}
    assert {one.consume_enable for one in admin.set_group("move-old").values()} == {False}
    admin.move_group("move-old", "move-new")  # as after a failure half way
    consume(cluster, "changes-move", "move-new", 2)
    assert admin.group_progress("move-new").lag == 0
    with pytest.raises(GroupInUse, match="progress of its own"):
        admin.move_group("move-old", "move-new")


def test_what_waits_to_be_retried_is_not_left_unseen(admin, cluster):
    filled(cluster, "changes-retries")
    with metaq.Consumer(cluster.namesrv, group="retries-old", topics="changes-retries", start="earliest") as consumer:
        for _ in range(6):
            message = consumer.receive(PATIENCE)
            if message.topic == "changes-retries":
                message.retry(delay_level=1)
        consumer.commit()
        with pytest.raises(GroupOnline, match="retries-old has members"):
            admin.move_group("retries-old", "retries-new")
    eventually(
        lambda: any(one.lag for one in admin.group_progress("retries-old").queues if "%RETRY%" in one.queue.topic)
    )
    with pytest.raises(GroupInUse, match="retry topic"):
        admin.move_group("retries-old", "retries-new")
    assert admin.move_group("retries-old", "retries-new", leave_retries=True)


def test_a_topic_is_changed_where_it_is(admin, cluster):
    """What is not given stays; it gets smaller only as far as nothing is missed."""
    filled(cluster, "changes-topic")
    consume(cluster, "changes-topic", "topic-reader", 1)
    first, second = sorted(one.broker for one in admin.list_brokers())
    [one] = admin.update_topic("changes-topic", write_queues=1, broker=first)
    assert (one.broker, one.read_queues, one.write_queues, one.perm) == (first, 2, 1, 6)
    with pytest.raises(ConfigError, match="to write and 1 to read"):
        admin.update_topic("changes-topic", read_queues=1, broker=second)
    admin.update_topic("changes-topic", write_queues=1)
    with pytest.raises(ConfigError, match="wait for group topic-reader in queue 1"):
        admin.update_topic("changes-topic", read_queues=1)
    consume(cluster, "changes-topic", "topic-reader", 5)
    assert {(one.read_queues, one.write_queues) for one in admin.update_topic("changes-topic", read_queues=1)} == {
        (1, 1)
    }
    assert {one.perm for one in admin.update_topic("changes-topic", perm=4)} == {4}
    with pytest.raises(TopicNotFound):
        admin.update_topic("changes-no-such-topic", perm=4)
