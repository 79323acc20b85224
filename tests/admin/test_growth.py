"""Brokers are drained, added and removed, and topics moved, while producers send and consumers read all the time."""

from __future__ import annotations

import contextlib
import threading

import pytest

import metaq
from metaq.admin import Admin, Refusal, TopicNotFound, Unfinished
from metaq.admin.brokers import BrokerNotFound
from metaq.admin.growth import drain
from metaq.client.conversation.name_servers import parse_addresses
from metaq.errors import ConfigError, MetaqError
from metaq.model import Perm
from metaq.testing import Cluster
from tests.admin.growing import BEFORE, POLL, Traffic
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

QUIET = 1.0
A, B, C = "broker-0", "broker-1", "broker-2"


@pytest.fixture(scope="module")
def cluster():
    """A and B have the users' topics; C is like new."""
    with Cluster(brokers=3, name_servers=2, options={"autoCreateTopicEnable": False}) as running:
        yield running


@pytest.fixture
def admin(cluster):
    with Admin(cluster.namesrv) as opened:
        yield opened
        for topic in opened.list_topics():
            opened.delete_topic(topic)
        for name in (A, B, C):
            opened.undo_drain(name)


def made(admin, topic, *brokers, queues=2):
    for broker in brokers or (A, B):
        admin.create_topic(topic, queues=queues, broker=broker)


def perms(cluster, topic):
    """Name server → broker → permission in the topic's route there; nothing of one that does not know it."""
    found = {}
    for address in parse_addresses(cluster.namesrv):
        with Admin(address) as one, contextlib.suppress(MetaqError):
            found[address] = {}
            found[address] = {data.broker: data.perm for data in one.describe_topic(topic).route.queues}
    return found


def everywhere(cluster, topic, broker):
    """The permission that all name servers tell; None if they differ."""
    first, *others = {told.get(broker) for told in perms(cluster, topic).values()}
    return None if others else first


def test_a_drain_has_no_send_fail_and_leaves_nothing_unread(cluster, admin):
    """Sends go elsewhere, what comes late is taken, consumers get all; then it is undone."""
    made(admin, "drain-traffic")
    phases = []
    with Traffic(cluster.namesrv, "drain-traffic", "drain-group") as traffic:
        assert traffic.since() == {A, B}
        done = admin.drain_broker(A, quiet_seconds=QUIET, timeout=PATIENCE, progress=phases.append)
        assert not done.work.waits
        assert traffic.since() == {B}
        assert everywhere(cluster, "drain-traffic", A) == Perm.READ
        # Somebody who has not looked at the route yet.
        late = metaq.MessageQueue("drain-traffic", A, 0)
        with metaq.Producer(cluster.namesrv, instance_name="late") as producer:
            producer.send("drain-traffic", b"late", queue=late)
        assert admin.undo_drain(A).broker == A
        eventually(lambda: traffic.since() == {A, B})
        traffic.sent["late"] += 1
    traffic.whole()
    assert phases[0].phase == "moving"
    assert phases[-1].phase == "done"
    assert phases[-1].quiet >= QUIET
    assert {now.broker for now in phases} == {A}


def test_a_drained_broker_stays_drained(cluster, admin):
    """Over its own restart, that of every name server, and new topics."""
    made(admin, "drain-stays")
    admin.drain_broker(A, quiet_seconds=0, timeout=PATIENCE)
    for server in (cluster.brokers[0], *cluster.name_servers):
        server.restart()
        eventually(lambda: everywhere(cluster, "drain-stays", A) == Perm.READ)
    made(admin, "drain-new")
    assert everywhere(cluster, "drain-new", A) == Perm.READ
    assert everywhere(cluster, "drain-new", B) == Perm.READ | Perm.WRITE
    admin.update_topic("drain-stays", perm=4, broker=B, force=True)
    admin.undo_drain(A)
    assert everywhere(cluster, "drain-new", A) == Perm.READ | Perm.WRITE
    assert everywhere(cluster, "drain-stays", B) == Perm.READ, "the permissions of others are theirs"


def test_a_drain_that_would_have_sends_fail_is_refused(cluster, admin):
    """The last broker of a topic, a fixed layout, nobody: nothing is changed."""
    with pytest.raises(BrokerNotFound, match="registered: broker-0, broker-1"):
        admin.drain_broker("nobody", quiet_seconds=0)
    made(admin, "drain-alone", A)
    made(admin, "drain-fixed")
    with pytest.raises(Refusal, match="topic drain-alone"):
        admin.drain_broker(A, quiet_seconds=0)
    assert everywhere(cluster, "drain-alone", A) == Perm.READ | Perm.WRITE
    made(admin, "drain-alone", B)
    layout = admin.set_topic_order("drain-fixed")
    assert layout == f"{A}:2;{B}:2"
    with pytest.raises(Refusal, match=f"drain-fixed is {layout}"):
        admin.drain_broker(A, quiet_seconds=0)
    done = admin.drain_broker(A, quiet_seconds=0, mend_order=True, timeout=PATIENCE)
    assert done.layouts == {"drain-fixed": layout}
    assert admin.topic_order("drain-fixed").layout == f"{B}:2"
    with pytest.raises(Refusal, match="drain-alone"):
        admin.drain_broker(B, quiet_seconds=0, mend_order=True)
    admin.drain_broker(B, quiet_seconds=0, force=True, timeout=PATIENCE)
    admin.delete_topic_order("drain-fixed")


def test_a_broker_that_dies_while_it_is_drained(cluster, admin, monkeypatch):
    """The drain ends and says so; the broker is drained when it is back."""
    monkeypatch.setattr(drain, "SILENT_SECONDS", 1.0)
    made(admin, "drain-dies")
    dead = threading.Event()

    def told(now):
        if not dead.is_set():
            dead.set()
            cluster.brokers[0].kill()

    with pytest.raises(Unfinished, match="has not answered"):
        admin.drain_broker(A, quiet_seconds=PATIENCE, progress=told)
    cluster.brokers[0].start()
    eventually(lambda: everywhere(cluster, "drain-dies", A) == Perm.READ)


def test_a_drain_that_somebody_undoes_ends(cluster, admin):
    made(admin, "drain-undone")
    undone = threading.Event()

    def told(_now):
        if not undone.is_set():
            undone.set()
            other.start()

    def undo():
        with Admin(cluster.namesrv) as second:
            second.undo_drain(A)

    other = threading.Thread(target=undo)
    with pytest.raises(Unfinished, match="somebody has undone it"):
        admin.drain_broker(A, quiet_seconds=PATIENCE, progress=told)
    other.join()
    assert everywhere(cluster, "drain-undone", A) == Perm.READ | Perm.WRITE


def test_a_new_broker_gets_topics_and_groups_and_clients_spread_onto_it(cluster, admin):
    """Within one look at routes; a group that is offline misses nothing there; it may be repeated."""
    made(admin, "grow-traffic")
    made(admin, "grow-wide", B, queues=5)
    admin.set_group("grow-stopped", retries=5, broker=A)
    with metaq.Producer(cluster.namesrv) as producer:
        for queue in producer.queues("grow-traffic"):
            producer.send("grow-traffic", BEFORE, queue=queue)
    with metaq.Consumer(cluster.namesrv, group="grow-offline", topics="grow-traffic", start="earliest") as consumer:
        for _ in range(4):
            consumer.receive(PATIENCE).ack()
    planned = admin.add_broker(C, dry_run=True)
    assert set(planned.like) == {A, B}
    assert {"grow-traffic", "grow-wide"} <= set(planned.topics)
    assert {"grow-stopped", "grow-offline"} <= set(planned.groups)
    assert "TBW102" not in planned.topics
    with Traffic(cluster.namesrv, "grow-traffic", "grow-group") as traffic:
        assert traffic.since() == {A, B}
        done = admin.add_broker(C)
        assert set(done.topics) >= set(planned.topics)
        eventually(lambda: traffic.since() == {A, B, C}, 20 * POLL + PATIENCE)
        eventually(lambda: traffic.from_brokers[C] > 0)
    traffic.whole()
    wide = {data.broker: data.write_queues for data in admin.describe_topic("grow-wide").route.queues}
    assert wide == {B: 5, C: 5}
    assert admin.set_group("grow-stopped")[C].retry_max == 5
    offline = {one.queue.broker for one in admin.group_progress("grow-offline").queues if one.lag}
    assert offline == {A, B, C}
    again = admin.add_broker(C)
    assert again.topics == ()
    with pytest.raises(ConfigError, match="like itself"):
        admin.add_broker(C, like=C)
    with pytest.raises(BrokerNotFound):
        admin.add_broker("nobody")
    admin.update_topic("grow-wide", read_queues=6, write_queues=6, broker=B)
    assert admin.add_broker(C, dry_run=True).different == ("grow-wide",)
    with pytest.raises(Unfinished, match="group grow-offline has"):
        admin.drain_broker(C, quiet_seconds=0, timeout=0)
    with pytest.raises(Refusal, match="--undo"):
        admin.add_broker(C)


def test_a_broker_is_emptied_and_removed_without_loss(cluster, admin):
    """Refused while messages are there that no group has read; it stops, and no name server has it."""
    made(admin, "shrink-traffic", A, B, C)
    made(admin, "shrink-unread", B, C)
    with metaq.Producer(cluster.namesrv) as producer:
        producer.send("shrink-unread", b"kept", queue=metaq.MessageQueue("shrink-unread", C, 0))
    admin.set_topic_order("shrink-traffic")
    with pytest.raises(Refusal, match="1 message of topic shrink-unread"):
        admin.remove_broker(C, quiet_seconds=QUIET)
    assert everywhere(cluster, "shrink-traffic", C) == Perm.READ | Perm.WRITE
    with metaq.Consumer(cluster.namesrv, group="shrink-reads", topics="shrink-unread", start="earliest") as consumer:
        consumer.receive(PATIENCE).ack()
    with Traffic(cluster.namesrv, "shrink-traffic", "shrink-group") as traffic:
        eventually(lambda: traffic.since() == {A, B, C})
        done = admin.remove_broker(C, quiet_seconds=QUIET, timeout=PATIENCE)
        assert cluster.brokers[2].wait_ended(PATIENCE) == 0
        assert done.stopped
        assert not done.left.waits
        assert done.left.unread == {}
        assert traffic.since() == {A, B}
    traffic.whole()
    assert C in traffic.from_brokers
    assert C not in {one.broker for one in admin.list_brokers()}
    assert admin.topic_order("shrink-traffic").layout == f"{A}:2;{B}:2"
    with pytest.raises(BrokerNotFound):
        admin.remove_broker(C)
    admin.delete_topic_order("shrink-traffic")
    cluster.brokers[2].start()
    eventually(lambda: C in {one.broker for one in admin.list_brokers()})


def test_a_broker_is_removed_by_force_with_what_is_unread(cluster, admin):
    """It says what it leaves behind, which is in its folder."""
    made(admin, "force-unread", B, C)
    with metaq.Producer(cluster.namesrv) as producer:
        producer.send("force-unread", b"left", queue=metaq.MessageQueue("force-unread", C, 0))
    done = admin.remove_broker(C, quiet_seconds=0, force=True, timeout=PATIENCE)
    assert done.left.unread["force-unread"] == 1
    assert cluster.brokers[2].wait_ended(PATIENCE) == 0
    cluster.brokers[2].start()
    eventually(lambda: C in {one.broker for one in admin.list_brokers()})
    admin.undo_drain(C)
    with metaq.Consumer(cluster.namesrv, group="force-later", topics="force-unread", start="earliest") as consumer:
        assert consumer.receive(PATIENCE).body == b"left"


def test_a_topic_moves_while_it_is_used(cluster, admin):
    """Its producers find the new broker, its consumers read the rest at the old one; other topics stay."""
    made(admin, "move-traffic", A, queues=3)
    made(admin, "move-stays", A)
    with pytest.raises(TopicNotFound):
        admin.move_topic("move-nothing", A, B)
    with pytest.raises(ConfigError, match="itself"):
        admin.move_topic("move-traffic", A, A)
    planned = admin.move_topic("move-traffic", A, B, dry_run=True)
    assert planned.steps[0] == "topic move-traffic is made at broker-1 with 3 queues"
    assert {data.broker for data in admin.describe_topic("move-traffic").route.queues} == {A}
    phases = []
    with Traffic(cluster.namesrv, "move-traffic", "move-group") as traffic:
        with pytest.raises(Unfinished, match="move it again to go on"):
            admin.move_topic("move-traffic", A, B, quiet_seconds=PATIENCE, timeout=0)
        assert perms(cluster, "move-traffic").popitem()[1] == {A: Perm.READ, B: Perm.READ | Perm.WRITE}
        done = admin.move_topic("move-traffic", A, B, quiet_seconds=QUIET, timeout=PATIENCE, progress=phases.append)
        assert not done.left
        assert traffic.since() == {B}
    traffic.whole()
    assert set(traffic.from_brokers) == {A, B}
    for told in perms(cluster, "move-traffic").values():
        assert told == {B: Perm.READ | Perm.WRITE}
    assert [data.write_queues for data in admin.describe_topic("move-traffic").route.queues] == [3]
    assert everywhere(cluster, "move-stays", A) == Perm.READ | Perm.WRITE
    assert {now.phase for now in phases} == {"moving", "reading", "leaving", "done"} - (
        {"reading"} if all(now.phase != "reading" for now in phases) else set()
    )
    assert admin.move_topic("move-traffic", A, B).steps == ()


def test_a_topic_does_not_leave_before_its_groups_have_read_it(cluster, admin):
    """Nor before a delayed message has come; a stopped group goes on where it was, at both brokers."""
    made(admin, "move-lag", A)
    with metaq.Producer(cluster.namesrv) as producer:
        for body in (b"1", b"2"):
            producer.send("move-lag", body, queue=metaq.MessageQueue("move-lag", A, 0))
    with metaq.Consumer(cluster.namesrv, group="move-slow", topics="move-lag", start="earliest") as consumer:
        consumer.receive(PATIENCE).ack()
    eventually(lambda: admin.group_progress("move-slow").lag == 1)
    with metaq.Producer(cluster.namesrv) as producer:
        producer.send("move-lag", b"later", queue=metaq.MessageQueue("move-lag", A, 0), delay_level=2)
    waited = []
    with pytest.raises(Unfinished, match="group move-slow has"):
        admin.move_topic("move-lag", A, B, quiet_seconds=0.5, timeout=2, progress=waited.append)
    with metaq.Producer(cluster.namesrv, instance_name="move-new") as producer:
        assert producer.send("move-lag", b"new").queue.broker == B
    # The topic leaves when its consumer has heard of the new route, which it asks for every 30 s by default.
    with metaq.Consumer(cluster.namesrv, group="move-slow", topics="move-lag", poll_name_server_interval=1) as consumer:
        got = set()
        while len(got) < 3:
            message = consumer.receive(PATIENCE)
            got.add(message.body)
            message.ack()
        assert got == {b"2", b"later", b"new"}
        admin.move_topic("move-lag", A, B, quiet_seconds=0.5, timeout=PATIENCE)
    assert {data.broker for data in admin.describe_topic("move-lag").route.queues} == {B}


def test_a_topic_that_nobody_has_read_is_moved_by_force_only(cluster, admin):
    """Its messages would be deleted."""
    made(admin, "move-unread", A)
    with metaq.Producer(cluster.namesrv, instance_name="move-unread") as producer:
        producer.send("move-unread", b"1")
    with pytest.raises(Refusal, match="no group has ever read its 1 messages at broker broker-0"):
        admin.move_topic("move-unread", A, B)
    assert everywhere(cluster, "move-unread", A) == Perm.READ | Perm.WRITE
    admin.move_topic("move-unread", A, B, force=True, quiet_seconds=0.2, timeout=PATIENCE)
    assert admin.describe_topic("move-unread").messages == 0


def test_a_topic_of_fixed_order_is_moved_by_force_only(cluster, admin):
    """Its layout then names the new broker in the old one's place."""
    made(admin, "move-fixed", A)
    admin.set_topic_order("move-fixed")
    with pytest.raises(Refusal, match="its order is fixed"):
        admin.move_topic("move-fixed", A, B)
    done = admin.move_topic("move-fixed", A, B, force=True, quiet_seconds=0.2, timeout=PATIENCE)
    assert done.steps[1] == "broker-1 takes the place of broker-0 in its fixed layout"
    assert admin.topic_order("move-fixed").layout == f"{B}:2"
    admin.delete_topic_order("move-fixed")


def test_a_drain_that_does_not_end_says_what_is_open(cluster, admin):
    """A group that lags, a delayed message, a half message; each as it ends is gone from the text."""
    made(admin, "drain-open")
    queue = metaq.MessageQueue("drain-open", A, 0)
    with metaq.TransactionProducer(cluster.namesrv, group="drain-halves", check=lambda _: None) as producer:
        producer.send("drain-open", b"1", queue=queue)
        with metaq.Consumer(cluster.namesrv, group="drain-lags", topics="drain-open", start="earliest") as consumer:
            consumer.receive(PATIENCE).ack()
        eventually(lambda: admin.group_progress("drain-lags").lag == 0)
        for body in (b"2", b"3"):
            producer.send("drain-open", body, queue=queue)
        producer.send("drain-open", b"later", queue=queue, delay_level=18)
        with producer.transaction("drain-open", b"half", queue=queue) as transaction:
            with pytest.raises(Unfinished) as raised:
                admin.drain_broker(A, quiet_seconds=0, timeout=0)
            transaction.rollback()
    text = str(raised.value)
    assert "1 half message has no end yet" in text
    assert "group drain-lags has 2 messages to consume" in text
    assert "1 delayed message waits for its time" in text
    assert "It stays drained" in text
    with metaq.Consumer(cluster.namesrv, group="drain-lags", topics="drain-open") as consumer:
        for _ in range(2):
            consumer.receive(PATIENCE).ack()
        eventually(lambda: admin.group_progress("drain-lags").lag == 0)
    with pytest.raises(Unfinished) as raised:
        admin.drain_broker(A, quiet_seconds=0, timeout=0)
    assert "drain-lags" not in str(raised.value)
    assert "half" not in str(raised.value)
    assert "delayed" in str(raised.value)


def test_a_group_that_has_read_a_topic_elsewhere_only_is_waited_for(cluster, admin):
    """It is stopped, and would read what is there when it is back."""
    made(admin, "drain-elsewhere", B)
    with metaq.Producer(cluster.namesrv, instance_name="drain-elsewhere") as producer:
        producer.send("drain-elsewhere", b"1")
    with metaq.Consumer(cluster.namesrv, group="elsewhere", topics="drain-elsewhere", start="earliest") as consumer:
        consumer.receive(PATIENCE).ack()
    eventually(lambda: admin.group_progress("elsewhere").lag == 0)
    made(admin, "drain-elsewhere", A)
    with metaq.Producer(cluster.namesrv, instance_name="drain-here") as producer:
        producer.send("drain-elsewhere", b"2", queue=metaq.MessageQueue("drain-elsewhere", A, 0))
    with pytest.raises(Unfinished, match="group elsewhere has 1 message to consume"):
        admin.drain_broker(A, quiet_seconds=0, timeout=0)
