"""A group of three brokers, their leader, and a real ZooKeeper: kills, stops, and what clients see of them.

All tests share one group with minInSyncReplicas=2, and leave it whole.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

import metaq
from metaq.address import split_address
from metaq.admin import Admin
from metaq.errors import MetaqError
from metaq.model import Message, SendStatus
from metaq.model.leadership import ReplicaState
from metaq.testing import Cluster
from metaq.wire.bodies import cluster_info_of
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from metaq.wire.extensions import IN_DOUBT_MARK
from tests.servers.support import send_header
from tests.support import PATIENCE, eventually, exchange

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("failover")]

TOPIC = "orders"
NAME = "broker-0"
SESSION_MS = 2000
OPTIONS = {
    "failover": "zookeeper", "failoverSessionTimeout": SESSION_MS, "minInSyncReplicas": 2, "inSyncTimeout": 1500,
    "slaveTimeout": 1000, "transactionTimeOut": 1000, "transactionCheckInterval": 500, "registerNameServerPeriod": 1000,
}  # fmt: skip
QUICK = {"poll_name_server_interval": 0.5, "heartbeat_broker_interval": 1.0}


class Group:
    """The cluster, and an administrator's connection to it."""

    syncs = False
    """Whether its brokers have flushDiskType=SYNC_FLUSH."""

    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self.cluster, self.admin = cluster, admin

    def states(self) -> dict[int, ReplicaState]:
        return self.cluster.states(0, self.admin)

    def leader(self) -> int:
        """Number in `brokers` of who leads. Waits for it."""

        def leads() -> tuple[int] | None:
            leading = [number for number, state in self.states().items() if state.leads]
            return (leading[0],) if len(leading) == 1 else None

        return eventually(leads, what="one broker leads")[0]

    def whole(self) -> int:
        """Return who leads, when all three are in its in-sync set and registered."""

        def is_so() -> tuple[int] | None:
            for number, state in self.states().items():
                if state.leads and not state.group.doubt and set(state.group.in_sync) == {1, 2, 3}:
                    return (number,)
            return None

        leader = eventually(is_so, what="three brokers are in sync")[0]
        self.cluster.wait_registered()
        return leader

    def followers(self, leader: int) -> list[int]:
        return [number for number in range(3) if number != leader]

    def in_sync(self) -> set[int]:
        return set(self.states()[self.leader()].group.in_sync)

    def epoch(self) -> int:
        return max(state.epoch for state in self.states().values())

    def read(self, topic: str = TOPIC) -> Counter[bytes]:
        """All bodies of a topic, and how often each is there."""
        with metaq.Reader(self.cluster.namesrv, topic, stop_at_end=True) as reader:
            return Counter(message.body for message in reader)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("failover")
    with (
        Cluster(replicas=3, zookeeper=True, folder=folder, options=OPTIONS) as cluster,
        Admin(cluster.namesrv) as admin,
    ):
        found = Group(cluster, admin)
        found.whole()
        made(lambda: admin.create_topic(TOPIC, queues=2))
        yield found


@pytest.fixture
def group(running: Group) -> Iterator[Group]:
    running.whole()
    yield running
    for server in (*running.cluster.zookeepers, *running.cluster.brokers):
        if server.alive and server.paused:
            server.resume()
        elif not server.alive:
            server.start()


def made(work: Callable[[], object]) -> None:
    """Make a change of tables again, until it is acknowledged: followers on a busy machine may not have it within slaveTimeout."""

    def is_made() -> bool:
        work()
        return True

    eventually(is_made, what="the followers have the change")


class Load:
    """A producer that sends numbered bodies all the time."""

    def __init__(self, group: Group, name: str) -> None:
        self._group, self._name, self._over = group, name.encode(), threading.Event()
        self.acked: list[bytes] = []
        self.errors: list[str] = []
        self.longest = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with metaq.Producer(self._group.cluster.namesrv, timeout=PATIENCE, instance_name="load", **QUICK) as producer:
            number = 0
            while not self._over.wait(0.003):
                body, began = b"%s-%d" % (self._name, number), time.monotonic()
                try:
                    receipt = producer.send(TOPIC, body)
                except MetaqError as error:
                    self.errors.append(str(error))
                else:
                    if receipt.status is SendStatus.SEND_OK:
                        self.acked.append(body)
                    self.longest = max(self.longest, time.monotonic() - began)
                number += 1

    def more(self, count: int = 20) -> None:
        """Return when so many more were acknowledged."""
        before = len(self.acked)
        eventually(lambda: len(self.acked) >= before + count or self.errors, what="sends go on")

    def __enter__(self) -> Self:
        self._thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def check(self) -> None:
        """No send has failed, and whatever was acknowledged is there."""
        assert not self.errors

        def have_all() -> bool:
            # A reader may still be led to the leader before, which lets it read what that one has acknowledged.
            missing = set(self.acked) - self._group.read().keys()
            assert not missing, f"{len(missing)} of {len(self.acked)} are lost"
            return True

        eventually(have_all, what="all that was acknowledged is there")


class Taker:
    """A member of a group of consumers."""

    def __init__(self, group: Group, name: str, *, orderly: bool = False, topic: str = TOPIC) -> None:
        self.seen: list[tuple[int, int, bytes]] = []
        self._consumer = metaq.Consumer(
            group.cluster.namesrv,
            group=name,
            topics=topic,
            start="earliest",
            orderly=orderly,
            instance_name=name,
            **QUICK,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for message in self._consumer:
            with message:
                self.seen.append((message.queue_id, message.queue_offset, message.body))

    def bodies(self) -> set[bytes]:
        return {body for _, _, body in self.seen}

    def close(self) -> None:
        self._consumer.close()
        self._thread.join(PATIENCE)


# ---------------------------------------------------------------------- kill -9


def test_when_the_leader_is_killed_nothing_that_was_acknowledged_is_lost(group: Group) -> None:
    """Messages, and what else a leader keeps: topics, groups, offsets, half messages, delays, atomic sends. All of it is acknowledged
    right before the kill."""
    group.whole()
    cluster, admin = group.cluster, group.admin
    made(lambda: admin.create_topic("ends", queues=1))
    checked: list[bytes] = []

    def check(message: object) -> bool:
        checked.append(message.body)
        return True

    with contextlib.ExitStack() as stack:
        push, orderly = Taker(group, "push"), Taker(group, "orderly", orderly=True)
        stack.callback(push.close)
        stack.callback(orderly.close)
        ends = Taker(group, "ends", topic="ends")
        stack.callback(ends.close)
        keeper = stack.enter_context(
            metaq.TransactionProducer(
                cluster.namesrv, group="ends", check=check, timeout=PATIENCE, instance_name="keeper", **QUICK
            )
        )
        load = stack.enter_context(Load(group, "kill"))
        eventually(lambda: len(push.seen) > 10 and len(orderly.seen) > 10, what="consumers are at it")
        for at in range(3):
            keeper.send_in_transaction(Message("ends", b"half-%d" % at), lambda _: None)
            keeper.send("ends", b"late-%d" % at, delay_level=2)  # 5 s
            with keeper.atomic(timeout=PATIENCE) as tx:
                tx.send("ends", b"atomic-%d" % at)
                tx.send("ends", b"atomic-too-%d" % at)
        made(lambda: admin.reset_group("push", TOPIC, "earliest"))
        made(lambda: admin.create_topic("right-before", queues=3))
        # Not before: a session that ends on a busy machine is a change of leaders as well.
        leader, epoch = group.leader(), group.epoch()
        cluster.brokers[leader].kill()
        killed = time.monotonic()
        load.more()
        print(
            f"\nfirst acknowledgement of the next leader: {time.monotonic() - killed:.1f} s; longest send {load.longest:.1f} s"
        )
        after = group.leader()
        assert after != leader
        assert group.epoch() > epoch
        eventually(lambda: "right-before" in admin.list_topics(), what="the next leader is registered with its topics")
        cluster.brokers[leader].start()
        load.more()
        wanted = {b"%s-%d" % (what, at) for at in range(3) for what in (b"half", b"late", b"atomic", b"atomic-too")}
        eventually(lambda: wanted <= ends.bodies(), what="what was begun at the old leader is ended")
    load.check()
    assert set(checked) == {b"half-%d" % at for at in range(3)}
    assert {count for body, count in group.read("ends").items() if body in wanted} == {1}
    again = Taker(group, "push"), Taker(group, "orderly", orderly=True)
    try:
        eventually(
            lambda: (
                set(load.acked) <= push.bodies() | again[0].bodies()
                and set(load.acked) <= orderly.bodies() | again[1].bodies()
            ),
            what="consumers have all",
        )
    finally:
        for one in again:
            one.close()
    first: dict[tuple[int, bytes], int] = {}
    for queue, offset, body in orderly.seen:
        first.setdefault((queue, body), offset)
    for queue in (0, 1):
        offsets = [offset for (of, _), offset in first.items() if of == queue]
        assert offsets == sorted(offsets)
    group.whole()


def test_what_only_the_old_leader_had_is_cut_off_kept_and_told(group: Group) -> None:
    """It was never acknowledged: its followers stood still."""
    leader, cluster = group.whole(), group.cluster
    old = cluster.brokers[leader]
    for number in group.followers(leader):
        cluster.brokers[number].pause()
    start = group.states()[leader].log_end
    answers = asked(old.listens, [b"alone-%d" % at for at in range(5)])
    eventually(lambda: group.states()[leader].log_end >= start + 5 * 100, what="the leader has them")
    for number in (leader, *group.followers(leader)):  # what lies in the followers' sockets goes with them
        cluster.brokers[number].kill()
    assert all(answer.code != 0 for answer in answers())
    for number in group.followers(leader):
        cluster.brokers[number].start()
    assert group.leader() != leader
    with metaq.Producer(cluster.namesrv, timeout=PATIENCE, **QUICK) as producer:
        producer.send(TOPIC, b"after")
    old.start()
    assert group.whole() != leader
    cut = group.states()[leader].cuts[-1]
    assert cut.records >= 5
    kept = Path(cut.folder)
    assert any((kept if kept.is_absolute() else old.data / kept).iterdir())
    assert "cut off" in old.log_text()
    found = group.read()
    assert found[b"after"] == 1
    assert not [body for body in found if body.startswith(b"alone-")]


@contextlib.contextmanager
def watching(group: Group, listed: list[str]) -> Iterator[None]:
    """Note each change of the leader's address at the name server."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            (answer,) = exchange(group.cluster.namesrv, [request(RequestCode.GET_BROKER_CLUSTER_INFO)])
            address = cluster_info_of(answer.body).brokers[NAME].addresses.get(0)
            if address not in (None, listed[-1]):
                listed.append(address)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE)


def asked(address: str, bodies: list[bytes]) -> Callable[[], list[Command]]:
    """Send to one broker by its address, whoever leads. Returns what returns the answers that came before the connection ended."""
    connection = socket.create_connection(split_address(address), PATIENCE)
    for number, body in enumerate(bodies):
        command = request(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC, number % 2), body)
        command.opaque = number
        connection.sendall(encode(command))

    def answers() -> list[Command]:
        inbox, found = Connection(), []
        connection.settimeout(PATIENCE)
        with connection:
            while len(found) < len(bodies):
                try:
                    data = connection.recv(1 << 16)
                except ConnectionResetError:
                    data = b""
                if not data:
                    break
                inbox.receive_data(data)
                found += [one for one in iter(inbox.next_command, None) if one.is_response]
        return found

    return answers


# ---------------------------------------------------------------------- SIGSTOP


def test_a_leader_that_sleeps_longer_than_its_session_acknowledges_nothing_that_is_lost(group: Group) -> None:
    """What comes to it by its address meanwhile is refused when it wakes, or relayed to who leads."""
    leader, epoch, cluster = group.whole(), group.epoch(), group.cluster
    listed = [cluster.brokers[leader].listens]
    with Load(group, "sleep") as load, watching(group, listed):
        cluster.brokers[leader].pause()
        answers = asked(cluster.brokers[leader].listens, [b"direct-%d" % at for at in range(50)])
        load.more()
        assert group.leader() != leader
        eventually(lambda: len(listed) > 1, what="the new leader is registered")
        cluster.brokers[leader].resume()
        told = answers()
        load.more()
        group.whole()
    assert len(listed) == 2, "the one that has slept was listed as leader again"
    load.check()
    found = group.read()
    acked = [b"direct-%d" % one.opaque for one in told if one.code == 0]
    assert set(acked) <= found.keys()
    print(
        f"\nof 50 sends to a leader that slept {len(acked)} were acknowledged; the others: { {one.remark for one in told if one.code} }"
    )
    assert group.whole() != leader
    assert group.epoch() == epoch + 1


def test_a_follower_that_sleeps_leaves_the_set_and_comes_back(group: Group) -> None:
    leader, cluster = group.whole(), group.cluster
    sleeper = group.followers(leader)[0]
    with Load(group, "lag") as load:
        cluster.brokers[sleeper].pause()
        load.more()
        eventually(lambda: group.in_sync() == {1, 2, 3} - {sleeper + 1}, what="it has left the set")
        load.more()
        cluster.brokers[sleeper].resume()
        assert group.whole() == leader
    load.check()


# ---------------------------------------------------------------------- fewer than the minimum


def test_below_the_minimum_sends_are_refused_with_the_reason_and_reading_goes_on(group: Group) -> None:
    leader, cluster = group.whole(), group.cluster
    one, other = group.followers(leader)
    with metaq.Producer(cluster.namesrv, timeout=PATIENCE, **QUICK) as producer:
        producer.send(TOPIC, b"three are here")
        cluster.brokers[one].kill()
        producer.send(TOPIC, b"two are here")
        assert eventually(lambda: group.in_sync() == {leader + 1, other + 1}, what="one has left the set")
        cluster.brokers[other].kill()
        sizes = set()

        def refusal() -> str:
            sizes.add(len(group.in_sync()))
            (answer,) = asked(cluster.brokers[leader].listens, [b"one is here"])()
            return answer.remark if answer.code != 0 else ""

        text = eventually(lambda: (found := refusal()) and "minInSyncReplicas" in found and found, what="it refuses")
        assert "1 broker of the in-sync set is here, this one included, and minInSyncReplicas is 2" in text
        deadline = time.monotonic() + 1.25 * SESSION_MS / 1000
        while time.monotonic() < deadline:
            assert refusal()
        assert sizes == {2}
        assert group.read()[b"two are here"] == 1
        for number in (one, other):
            cluster.brokers[number].start()
        producer.send(TOPIC, b"three are here again")
    assert group.whole() == leader
    assert group.read()[b"three are here again"] == 1


# ---------------------------------------------------------------------- ZooKeeper away


def test_without_zookeeper_the_leader_goes_on_for_its_lease_and_then_refuses(group: Group) -> None:
    """When it is back, so are sends. If nobody has taken over, it is the same leader in the same epoch."""
    leader, epoch, cluster = group.whole(), group.epoch(), group.cluster
    (zookeeper,) = cluster.zookeepers
    address = cluster.brokers[leader].listens
    (answer,) = asked(address, [b"before"])()
    assert answer.code == 0
    zookeeper.kill()
    acked = []

    def refusal() -> str:
        body = b"without-%d" % len(acked)
        (answer,) = asked(address, [body])()
        if answer.code == 0:
            acked.append(body)
        # One that is under way when the lease ends is not refused: nobody knows whether it is kept.
        return answer.remark if answer.code != 0 and not answer.remark.startswith(IN_DOUBT_MARK) else ""

    text = eventually(refusal, what="it refuses")
    assert acked
    assert (
        "ZooKeeper does not answer (failoverZookeeper), and another broker may lead by now: nothing is acknowledged"
        in text
    )
    state = group.states()[leader]
    assert state.leads and "ZooKeeper does not answer" in state.group.doubt
    assert group.read().keys() >= {b"before", *acked}
    zookeeper.start()
    with metaq.Producer(cluster.namesrv, timeout=PATIENCE, **QUICK) as producer:
        producer.send(TOPIC, b"behind it")
    after = group.whole()
    assert group.read().keys() >= {b"before", *acked, b"behind it"}
    assert (after, group.epoch()) == (leader, epoch) or group.epoch() > epoch
