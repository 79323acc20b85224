"""docs/failure-procedures.md: its commands are run as they stand, behind the failures that they are for.

A start of a broker there, by the name of its file, is a start of a process of the cluster; folders have other names.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

import metaq
from metaq.cli.commands import all_commands
from metaq.errors import ConfigError, MetaqError
from metaq.model import SendStatus
from metaq.testing import Cluster
from metaq.testing.zookeeper import java, zookeeper_jars
from tests.support import PATIENCE, ROOT, eventually, run_metaq

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("failure procedures")]

PAGE = (ROOT / "docs" / "failure-procedures.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
BROKERS = {"broker-a.conf": 0, "broker-a-s.conf": 1}
TOPIC = "orders"
SOON: Mapping[str, object] = {"registerNameServerPeriod": 1000, "slaveTimeout": 500, "flushDiskType": "SYNC_FLUSH"}
FAILOVER: Mapping[str, object] = {"failover": "zookeeper", "failoverSessionTimeout": 1000, "inSyncTimeout": 2000}
ALL, FIRST_LINE, OTHER_LINES = slice(None), slice(1), slice(1, None)
SHORT_WAIT = 5.0
"""Of sends that are to fail, s. Longer than a leader has them wait for ZooKeeper."""


def blocks(heading: str) -> list[list[str]]:
    """The commands of a section, block by block."""
    found = re.findall(r"```bash\n(.*?)```", SECTIONS[heading], re.DOTALL)
    return [[line.partition(" #")[0] for line in block.splitlines() if line] for block in found]


def follow(cluster: Cluster, heading: str, block: int, lines: slice = ALL, **words: object) -> str:
    """Run a block, or some of its lines, with these words in place of those of the page. Returns what it has printed."""
    printed = ""
    for line in blocks(heading)[block][lines]:
        command = shlex.split(line)[1:]
        if command[:2] == ["broker", "-c"]:
            _start(cluster, command[2], command[3:])
        elif command == ["namesrv"]:
            cluster.name_servers[0].start()
        else:
            command = [_replaced(word, words) for word in command]
            done = run_metaq(*command, *([] if command[0] == "store" else ["-n", cluster.namesrv]))
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            printed += done.stdout
    return printed


def _replaced(word: str, words: Mapping[str, object]) -> str:
    for name, value in {"broker-a": "broker-0", **words}.items():
        word = word.replace(name, str(value))
    return word


def _start(cluster: Cluster, file: str, flags: list[str]) -> None:
    """Start a broker, with `-o` options for this once."""
    broker = cluster.brokers[BROKERS[file]]
    options = broker.options
    broker.options = {**options, **dict(word.split("=") for word in flags if word != "-o")}
    try:
        broker.start()
    finally:
        broker.options = options


def send(cluster: Cluster, *bodies: bytes, wanted: SendStatus = SendStatus.SEND_OK, topic: str = TOPIC) -> None:
    """Send each body until the answer is this one: a slave that is just connecting, or busy, does not say that it has a message."""
    with metaq.Producer(cluster.namesrv, timeout=PATIENCE) as producer:
        for body in bodies:

            def is_answered(body: bytes = body) -> bool:
                status = producer.send(topic, body).status
                assert status is wanted
                return True

            eventually(is_answered, what=f"a send is answered {wanted.name}")


def stored(cluster: Cluster) -> list[bytes]:
    with metaq.Reader(cluster.namesrv, TOPIC, start="earliest", stop_at_end=True) as reader:
        return [message.body for message in reader]


def has(cluster: Cluster, *bodies: bytes) -> None:
    """Return when readers get all of these. A moment ago another broker may have led, and a reader have been sent there."""

    def have_all() -> bool:
        missing = set(bodies) - set(stored(cluster))
        assert not missing
        return True

    eventually(have_all, what="all bodies are there")


def cut_power(cluster: Cluster) -> None:
    """Of all brokers in one moment: none of them notices that another one is gone."""
    with ThreadPoolExecutor(len(cluster.brokers)) as pool:
        list(pool.map(lambda broker: broker.cut_power(), cluster.brokers))


def leads(cluster: Cluster, number: int) -> None:
    eventually(lambda: cluster.leader() == number, what=f"broker {number} leads")


def refused(cluster: Cluster, why: str = "", body: bytes = b"refused") -> None:
    """Return when a send is refused, for this reason: a busy machine may not answer before."""

    def is_refused() -> bool:
        with metaq.Producer(cluster.namesrv, timeout=SHORT_WAIT, retries=0) as producer:
            try:
                producer.send(TOPIC, body)
            except MetaqError as error:
                assert why in str(error)
                return True
        return False

    eventually(is_refused, what=f"sends are refused: {why}")


def require(cluster: Cluster, brokers: int) -> None:
    """Set `minInSyncReplicas` of the one that leads."""
    with metaq.admin.Admin(cluster.namesrv) as admin:
        admin.change_broker_options("broker-0", {"minInSyncReplicas": str(brokers)})


class Shared:
    """The cluster of several tests, each of which leaves it whole. One that fails takes it along: the next test gets another one.

    Args:
        make: makes it; it is started here.
        whole: returns when it is as each test finds it.
    """

    def __init__(self, make: Callable[[], Cluster], whole: Callable[[Cluster], None]) -> None:
        self._make, self._whole = make, whole
        self._cluster: Cluster | None = None

    def used_by(self, request: pytest.FixtureRequest) -> Iterator[Cluster]:
        """The fixture of one test."""
        failed = request.session.testsfailed
        try:
            cluster = self._open()
            yield cluster
            if request.session.testsfailed == failed:
                self._whole(cluster)
            else:
                self._drop()
        except BaseException:
            self._drop()
            raise

    def _open(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._make().start()
            with metaq.admin.Admin(self._cluster.namesrv) as admin:
                # Followers on a busy machine may not have it within slaveTimeout.
                eventually(lambda: admin.create_topic(TOPIC, queues=1), what="the topic is made")
            self._whole(self._cluster)
        return self._cluster

    def _drop(self) -> None:
        with contextlib.suppress(MetaqError):  # whoever has ended by itself: the test has failed already
            self.close()

    def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()


@pytest.fixture(scope="module")
def shared_pair() -> Iterator[Shared]:
    def whole(cluster: Cluster) -> None:
        leads(cluster, 0)
        cluster.wait_in_sync(PATIENCE)

    shared = Shared(lambda: Cluster(replicas=2, faulty_disks=True, options=SOON), whole)
    yield shared
    shared.close()


@pytest.fixture
def pair(shared_pair: Shared, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Its first broker leads, and the other has all; before each test and behind it."""
    yield from shared_pair.used_by(request)


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Shared]:
    """Without SYNC_FLUSH: a power cut takes what was acknowledged, and so the members have to wait for each other."""
    try:
        java()
        zookeeper_jars()
    except ConfigError as error:
        pytest.skip(str(error))
    options = {**SOON, **FAILOVER, "flushDiskType": "ASYNC_FLUSH"}

    def whole(cluster: Cluster) -> None:
        all_in_sync(cluster)
        if cluster.leader() != 0:
            moved = run_metaq("cluster", "move-leader", "broker-0", "--timeout", str(PATIENCE), "-n", cluster.namesrv)
            assert moved.returncode == 0, (moved.stdout, moved.stderr)
            leads(cluster, 0)
            all_in_sync(cluster)
        cluster.wait_registered()

    shared = Shared(lambda: Cluster(replicas=2, zookeeper=True, faulty_disks=True, options=options), whole)
    yield shared
    shared.close()


@pytest.fixture
def group(shared_group: Shared, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Both members are in sync, and the first one leads; before each test and behind it."""
    yield from shared_group.used_by(request)


def all_in_sync(group: Cluster) -> None:
    """Return when both members are in the in-sync set: only those can lead."""

    def is_so() -> bool:
        with metaq.admin.Admin(group.namesrv) as admin:
            return [one.in_sync for one in admin.list_groups_of_replicas()] == [(1, 2)]

    eventually(is_so, what="both are in sync")


@pytest.mark.parametrize("line", sorted({line for heading in SECTIONS for block in blocks(heading) for line in block}))
def test_every_line_is_a_command_with_its_flags(line: str) -> None:
    words, command = shlex.split(line)[1:], all_commands()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    for word in words:
        if re.match(r"--?[a-z]", word):
            known = [flag for parameter in command.params for flag in parameter.opts]
            assert word in known or word.startswith(("-F", "-f")), word


def test_look_first(pair: Cluster) -> None:
    told = follow(pair, "Look first", 0)
    assert pair.address(0) in told
    assert pair.address(1) in told


def test_a_master_is_started_again(pair: Cluster) -> None:
    send(pair, b"before")
    pair.brokers[0].kill()
    follow(pair, "One of several masters without slaves is lost", 0)
    leads(pair, 0)
    pair.wait_in_sync(PATIENCE)
    send(pair, b"behind")
    has(pair, b"before", b"behind")


def test_one_of_several_masters_is_lost() -> None:
    """Producers go on at the other one; what the lost one has is read when it is back."""
    heading = "One of several masters without slaves is lost"
    with Cluster(brokers=2, options=SOON) as cluster:
        with metaq.admin.Admin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=1)
        with metaq.Producer(cluster.namesrv, timeout=PATIENCE) as producer:
            sent = {b"before %d" % number: producer.send(TOPIC, b"before %d" % number) for number in range(4)}
            assert {result.queue.broker for result in sent.values()} == {"broker-0", "broker-1"}
            cluster.brokers[0].kill()
            meanwhile = {
                b"meanwhile %d" % number: producer.send(TOPIC, b"meanwhile %d" % number) for number in range(4)
            }
        assert {result.queue.broker for result in meanwhile.values()} == {"broker-1"}
        follow(cluster, heading, 0)
        follow(cluster, heading, 1, STORE=cluster.brokers[0].data)
        has(cluster, *sent, *meanwhile)


def consumed(cluster: Cluster, *bodies: bytes, since: float) -> None:
    """Return when a group that begins at this time has been given these, and nothing else, and has committed them."""
    wanted = set(bodies)
    with metaq.Consumer(cluster.namesrv, group="billing", topics=TOPIC, start=since) as consumer:
        while wanted:
            message = consumer.receive(PATIENCE)
            assert message is not None, wanted
            with message:
                assert message.body in wanted
                wanted.remove(message.body)


def test_the_master_of_a_pair_is_lost(pair: Cluster) -> None:
    """A group goes on at the slave, and what it commits there holds at each that leads behind that."""
    heading, since = "The master of a pair is lost", time.time()
    send(pair, b"acknowledged")
    pair.brokers[0].kill()
    consumed(pair, b"acknowledged", since=since)
    follow(pair, heading, 0)
    leads(pair, 1)
    has(pair, b"acknowledged")
    send(pair, b"alone", wanted=SendStatus.SLAVE_NOT_AVAILABLE)
    consumed(pair, b"alone", since=since)
    follow(pair, heading, 1)
    send(pair, b"both")
    follow(pair, heading, 2)
    leads(pair, 0)
    consumed(pair, b"both", since=since)
    has(pair, b"acknowledged", b"alone", b"both")


def test_an_asynchronous_master_is_lost_with_what_it_alone_has() -> None:
    """Its slave leads without that; the old master cuts it off when it comes back, and keeps it."""
    heading = "The master of a pair is lost"
    with Cluster(replicas=2, options=SOON, broker_options=({"brokerRole": "ASYNC_MASTER"},)) as pair:
        master, slave = pair.brokers
        send(pair, b"copied")
        pair.wait_in_sync(PATIENCE)
        slave.kill()
        send(pair, b"not copied")
        master.kill()
        slave.start()
        follow(pair, heading, 0)
        leads(pair, 1)
        send(pair, b"at the next")
        follow(pair, heading, 1)
        assert set(stored(pair)) == {b"copied", b"at the next"}
        [offset] = (master.data / "cut").iterdir()
        printed = follow(pair, "Two have led", 0, STORE=master.data, OFFSET=offset.name)
        assert TOPIC in printed
        follow(pair, heading, 2)
        leads(pair, 0)
        has(pair, b"copied", b"at the next")


def test_a_slave_is_lost_with_its_disk(pair: Cluster) -> None:
    """With minInSyncReplicas=2 sends are refused, until that is set to 1."""
    require(pair, 2)
    pair.brokers[1].kill()
    shutil.rmtree(pair.brokers[1].data)
    refused(pair, "minInSyncReplicas")
    follow(pair, "A slave is lost", 1)
    send(pair, b"one copy", wanted=SendStatus.SLAVE_NOT_AVAILABLE)
    follow(pair, "A slave is lost", 0)
    send(pair, b"two copies")


def test_both_are_lost(pair: Cluster, tmp_path) -> None:
    heading, backup = "Both are lost", tmp_path / "backup"
    send(pair, b"in the copy")
    follow(pair, heading, 0, STORE=pair.brokers[0].data, BACKUP=backup)
    send(pair, b"behind the copy")
    for broker in pair.brokers:
        broker.kill()
        shutil.rmtree(broker.data)
    shutil.copytree(backup, pair.brokers[0].data)
    follow(pair, heading, 1, BACKUP=backup)
    has(pair, b"in the copy")
    assert b"behind the copy" not in stored(pair)
    send(pair, b"new")


def test_a_disk_is_full(pair: Cluster) -> None:
    """It goes on by itself with room; the other one leads meanwhile."""
    send(pair, b"with room")
    pair.brokers[0].set_disk(room=0)
    refused(pair, body=os.urandom(2 << 20))  # the file that there is already has its room
    has(pair, b"with room")
    pair.brokers[0].set_disk()
    send(pair, b"with room again")
    follow(pair, "A disk is full", 0)
    leads(pair, 1)
    send(pair, b"at the other")
    follow(pair, "The wrong one was promoted", 0)
    leads(pair, 0)


def test_the_disk_of_a_slave_is_full(pair: Cluster) -> None:
    """It follows no more, and the master goes on as if it were lost; with room it follows again, without a restart."""
    slave, topic = pair.brokers[1], "new"  # whose queue needs a file
    with metaq.admin.Admin(pair.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    slave.set_disk(room=0)
    alone = SendStatus.SLAVE_NOT_AVAILABLE
    send(pair, b"one copy", wanted=alone, topic=topic)
    assert "not followed any more: no room on the disk" in slave.log_text()
    before = slave.pid
    slave.set_disk()
    follow(pair, "A disk is full", 0, FIRST_LINE)
    send(pair, b"two copies", topic=topic)
    assert slave.pid == before


def test_a_power_cut(pair: Cluster) -> None:
    bodies = {b"durable %d" % number for number in range(10)}
    send(pair, *bodies)
    cut_power(pair)
    follow(pair, "A power cut", 0)
    has(pair, *bodies)


def test_two_have_led(pair: Cluster) -> None:
    """A slave that was away for a moment leads by force."""
    master, slave = pair.brokers
    cuts = len(pair.states()[0].cuts)
    slave.kill()
    send(pair, b"at one alone", wanted=SendStatus.SLAVE_NOT_AVAILABLE)
    master.kill()
    slave.start()
    follow(pair, "The master of a pair is lost", 0)
    send(pair, b"at the next", wanted=SendStatus.SLAVE_NOT_AVAILABLE)
    master.start()

    def is_kept() -> bool:
        state = pair.states().get(0)
        return state is not None and len(state.cuts) > cuts

    eventually(is_kept, what="what was cut off is kept")
    offsets = sorted((master.data / "cut").iterdir())
    printed = follow(pair, "Two have led", 0, STORE=master.data, OFFSET=offsets[-1].name)
    assert TOPIC in printed
    assert b"at one alone" not in stored(pair)
    follow(pair, "The wrong one was promoted", 0)
    leads(pair, 0)


def test_a_name_server_is_lost(pair: Cluster) -> None:
    with metaq.Producer(pair.namesrv, timeout=PATIENCE) as producer:
        producer.send(TOPIC, b"known")
        pair.name_servers[0].kill()
        producer.send(TOPIC, b"still known")
    pair.name_servers[0].start()
    pair.wait_registered()
    pair.name_servers[0].stop()
    follow(pair, "A name server is lost", 0)
    pair.wait_registered()
    send(pair, b"new clients")


def order(cluster: Cluster, command: str = "show") -> str:
    """What a command about the fixed queues of the topic says."""
    done = run_metaq("topic", "order", command, TOPIC, "-n", cluster.namesrv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_name_server_is_lost_with_its_folder(pair: Cluster) -> None:
    """Its KV configuration is there behind a kill; without its folder it is set again."""
    heading, server = "A name server is lost", pair.name_servers[0]
    follow(pair, heading, 1)
    server.kill()
    follow(pair, heading, 0)
    assert "broker-0:1" in order(pair)
    server.kill()
    shutil.rmtree(server.data)
    follow(pair, heading, 0)
    pair.wait_registered()
    assert "no fixed queues" in order(pair)
    assert "broker-0:1" in follow(pair, heading, 1)
    assert order(pair, "delete")


def test_a_follower_of_a_group_is_lost(group: Cluster) -> None:
    """Sends wait until its session is over. Fewer than minInSyncReplicas take none."""
    leads(group, 0)
    group.brokers[1].kill()
    found: set[SendStatus] = set()

    def is_left_out() -> bool:
        with metaq.Producer(group.namesrv, timeout=PATIENCE) as producer:
            found.add(producer.send(TOPIC, b"one copy").status)
        return SendStatus.SEND_OK in found

    eventually(is_left_out, what="the leader goes on without it")
    assert found <= {SendStatus.SEND_OK, SendStatus.FLUSH_SLAVE_TIMEOUT}
    require(group, 2)
    refused(group, "minInSyncReplicas")
    follow(group, "A slave is lost", 1)
    send(group, b"one copy again")
    follow(group, "A slave is lost", 0)
    all_in_sync(group)
    send(group, b"two copies")


def test_the_leader_of_a_group_is_lost(group: Cluster) -> None:
    send(group, b"acknowledged")
    leads(group, 0)
    group.brokers[0].kill()
    leads(group, 1)
    send(group, b"at the next")
    told = follow(group, "The leader of a group is lost", 0)
    assert group.address(0) in told
    all_in_sync(group)
    has(group, b"acknowledged", b"at the next")


def test_zookeeper_is_away(group: Cluster) -> None:
    group.zookeepers[0].kill()
    refused(group, "ZooKeeper")
    stored(group)

    def is_told() -> bool:
        # While a follower registers anew, the name server may know the leader alone: then it is refused for that.
        promoted = run_metaq("broker", "promote", "broker-0", "--force", "-n", group.namesrv)
        assert promoted.returncode != 0
        assert "ZooKeeper" in promoted.stderr
        return True

    eventually(is_told, what="promotion is refused, and says why")
    group.zookeepers[0].start()
    # With the same leader, unless a busy machine has let its session end before that was back at the new ZooKeeper.
    send(group, b"again")


def waits(group: Cluster, number: int, member: int) -> None:
    """Return when one broker waits for a member, and nobody leads."""
    awaited = f"waiting for member {member}"

    def is_so() -> bool:
        role = group.states()[number].group
        return role is not None and awaited in role.waiting

    eventually(is_so, what=f"broker {number} waits for member {member}")
    assert group.leader() is None
    group.wait_registered()


def test_all_members_of_a_group_lose_their_power(group: Cluster) -> None:
    """One leads when all are back: with the longest log, which the others copy."""
    all_in_sync(group)
    send(group, b"acknowledged")
    cut_power(group)
    follow(group, "A power cut", 0, FIRST_LINE)
    waits(group, 0, member=2)
    assert follow(group, "Look first", 0).count("waiting for member 2") == 2, "both commands say so"
    follow(group, "A power cut", 0, OTHER_LINES)
    all_in_sync(group)
    send(group, b"with both")
    has(group, b"with both")


def test_a_member_of_a_group_is_lost_in_a_power_cut(group: Cluster) -> None:
    """The other one leads by force, and says from where on; with an empty folder the lost one comes back."""
    cut_power(group)
    shutil.rmtree(group.brokers[1].data)
    group.brokers[0].start()
    waits(group, 0, member=2)
    end = group.states()[0].log_end
    assert f"from log offset {end} on" in follow(group, "A power cut", 1, N=1)
    assert f"this broker leads broker-0 by force, from log offset {end} on" in group.brokers[0].log_text()
    send(group, b"with one")
    group.brokers[1].start()
    all_in_sync(group)
    send(group, b"with both")
    has(group, b"with one", b"with both")


def test_the_data_of_zookeeper_is_lost(group: Cluster) -> None:
    heading, server = "The data of ZooKeeper is lost", group.zookeepers[0]
    all_in_sync(group)
    send(group, b"before")
    server.kill()
    shutil.rmtree(server.folder / "data" / "version-2")
    server.start()
    refused(group)
    follow(group, heading, 0)
    for broker in group.brokers:
        broker.stop()
    follow(group, heading, 1)
    leads(group, 0)
    send(group, b"behind")
    has(group, b"before", b"behind")
