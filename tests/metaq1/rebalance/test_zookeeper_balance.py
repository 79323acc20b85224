"""Rebalance over a real ZooKeeper: members and brokers come and go, sessions end, processes are killed, ids are shared."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from metaq.errors import ConfigError, ConnectionFailed
from metaq.metaq1 import ConsumerConfig
from metaq.metaq1.rebalance import zookeeper as rebalance
from metaq.metaq1.rebalance.strategies import consecutive
from metaq.metaq1.rebalance.zookeeper import ZookeeperBalance
from metaq.testing import eventually
from tests.interop.metaq1 import Zookeeper
from tests.metaq1.rebalance.members import Group, Member, Recorder, group, place
from tests.support import PATIENCE, environment, process, read_line

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.xdist_group("zookeeper")]

_roots = (f"/rebalance-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zookeeper]:
    with Zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def members(zookeeper: Zookeeper) -> Iterator[Group]:
    with group(zookeeper, next(_roots)) as made:
        yield made


def names(*numbers: int, topic: str = "t", broker: int = 0) -> list[str]:
    return sorted(f"{topic} {broker}-{number}" for number in numbers)


def test_a_consumer_alone_has_everything_when_begin_returns(members):
    """Its nodes are as Java's client makes them; the steps are those of the reference."""
    members.broker(0, t=12)
    member = members.joined("one")
    assert member.partitions == names(*range(12))
    assert set(member.fetching.servers.values()) == {"10.0.0.0:8122"}
    assert members.owners() == {f"0-{number}": "g_one" for number in range(12)}
    tree = members.nodes.tree(f"{members.root}/consumers")
    assert tree[f"{members.root}/consumers/g/ids/g_one"] == ("t", True)
    assert tree[f"{members.root}/consumers/g/owners/t/0-11"] == ("g_one", True)
    assert tree[f"{members.root}/consumers/g/owners/t"].ephemeral is False
    assert member.fetching.steps == ["load", "stop", "commit", "start"]
    member.end()
    assert member.fetching.steps[4:] == ["stop", "commit", "forget"]
    assert members.owners() == {}
    assert members.nodes.client.get_children(f"{members.root}/consumers/g/ids") == []


def test_several_topics_and_members_of_some_of_them(members):
    """The node of a consumer says which topics it has; shares are by those who have the topic."""
    members.broker(0, t=4, u=2)
    both = members.joined("b", topics=("u", "t"))
    assert members.nodes.text(f"{members.root}/consumers/g/ids/g_b") == "t,u"
    only = members.joined("a", topics=("t",))
    eventually(lambda: only.partitions == names(0, 1), PATIENCE)
    eventually(lambda: both.partitions == names(2, 3) + names(0, 1, topic="u"), PATIENCE)
    # What stays is not loaded again.
    assert set(both.fetching.loads.values()) == {1}


def test_members_join_and_leave(members):
    members.broker(0, t=20)
    first = members.joined()
    second, third = members.member(), members.member()
    joins = [threading.Thread(target=member.begin) for member in (second, third)]
    for join in joins:
        join.start()
    for join in joins:
        join.join()
    members.shared(20, first, second, third)
    assert [len(member.partitions) for member in (first, second, third)] == [7, 7, 6]
    first.end()
    members.shared(20, second, third)
    second.end()
    members.shared(20, third)


@pytest.mark.parametrize("strategy", ["DEFAULT", "CONSIST"])
def test_many_members_at_once(members, strategy):
    members.broker(0, t=40)
    everybody = [members.member(load_balance_strategy_type=strategy) for _ in range(8)]
    joins = [threading.Thread(target=member.begin) for member in everybody]
    for join in joins:
        join.start()
    for join in joins:
        join.join()
    members.shared(40, *everybody)
    for member in everybody[::2]:
        member.end()
    members.shared(40, *everybody[1::2])


def test_a_strategy_of_the_users(members):
    """It is given names and texts, outside of the loop; its faults are raised by `begin`."""
    members.broker(0, t=3)
    asked = []

    def mine(topic, me, consumers, partitions):
        asked.append((topic, me, consumers, partitions, threading.current_thread().name))
        return consecutive(topic, me, consumers, partitions)

    member = members.joined("a", load_balance_strategy_type=mine)
    assert member.partitions == names(0, 1, 2)
    assert asked == [("t", "g_a", ("g_a",), ("0-0", "0-1", "0-2"), "zookeeper")]
    with pytest.raises(ConfigError, match="load balance strategy fails for topic t: ZeroDivisionError"):
        members.joined("b", load_balance_strategy_type=lambda *_: 1 // 0)
    members.shared(3, member)


def test_a_slow_listener_holds_up_the_handover(members, monkeypatch, caplog):
    """Nobody has a partition while the one before is not done with it; it is said who waits."""
    monkeypatch.setattr(rebalance, "SLOW_STOP_SECONDS", 0.1)
    members.broker(0, t=2)
    slow = members.joined("a")
    slow.fetching.stopping = threading.Event()
    other = members.joined("b")
    eventually(lambda: "waits for a listener that does not return" in caplog.text, PATIENCE)
    assert members.owners() == {"0-0": "g_a", "0-1": "g_a"}
    assert other.partitions == []
    slow.fetching.stopping.set()
    members.shared(2, slow, other)
    assert "of g_a" in caplog.text


def test_a_partition_that_somebody_keeps_is_taken_when_it_is_free(members, caplog):
    """What else is in the share is fetched all the while; after seven tries the log is loud, and the tries go on."""
    members.broker(0, t=3)
    owner = f"{members.layout.owners('g', 't')}/0-1"
    members.nodes.client.create(owner, b"g_foreign", ephemeral=True, makepath=True)
    member = members.joined(zk_sync_time=0.05)
    assert member.partitions == names(0, 2)
    eventually(lambda: f"{rebalance.TRIES} tries have failed, it goes on every 0.3 s" in caplog.text, PATIENCE)
    assert "1 partitions are still somebody else's: t 0-1 of g_foreign" in caplog.text
    assert member.fetching.steps.count("stop") == 1
    members.nodes.client.delete(owner)
    members.shared(3, member)


def test_zookeeper_tells_when_a_partition_is_free(members, caplog):
    """It is not only looked for again and again."""
    members.broker(0, t=3)
    owner = f"{members.layout.owners('g', 't')}/0-1"
    members.nodes.client.create(owner, b"g_foreign", ephemeral=True, makepath=True)
    member = members.member(zk_sync_time=10 * PATIENCE)
    begun = threading.Thread(target=member.begin)
    begun.start()
    eventually(lambda: "try 1 of 7 has failed" in caplog.text, PATIENCE)
    members.nodes.client.delete(owner)
    begun.join()
    members.shared(3, member)


def test_nodes_of_an_earlier_session_of_its_own_are_replaced(members, caplog):
    """A client that is made anew knows nothing of the session before, which ZooKeeper may keep for a while."""
    members.broker(0, t=2)
    client = members.nodes.client
    client.create(f"{members.root}/consumers/g/ids/g_a", b"t", ephemeral=True, makepath=True)
    client.create(f"{members.layout.owners('g', 't')}/0-0", b"g_a", ephemeral=True, makepath=True)
    member = members.member("a")
    member.balance._formers.add(client.client_id[0])
    member.begin()
    assert member.partitions == names(0, 1)
    paths = [f"{members.root}/consumers/g/ids/g_a", f"{members.layout.owners('g', 't')}/0-0"]
    assert {client.exists(path).ephemeralOwner for path in paths} == {member.credentials[0]}
    assert "BOTH CONSUME" not in caplog.text


def test_brokers_come_and_go(members):
    """A broker's partitions are given back while it is away, and loaded anew afterwards; those of others go on."""
    members.broker(0, t=2)
    member = members.joined()
    members.broker(7, t=1)
    eventually(lambda: member.partitions == names(0, 1) + names(0, broker=7), PATIENCE)
    assert member.fetching.servers[place(0, broker=7)] == "10.0.0.7:8122"
    members.gone(0)
    eventually(lambda: member.partitions == names(0, broker=7), PATIENCE)
    eventually(lambda: list(members.owners()) == ["7-0"], PATIENCE)
    members.broker(0, address="10.1.1.1:9", t=3)
    eventually(lambda: member.partitions == names(0, 1, 2) + names(0, broker=7), PATIENCE)
    assert member.fetching.servers[place(2)] == "10.1.1.1:9"
    assert member.fetching.loads[place(0)] == 2
    assert member.fetching.loads[place(0, broker=7)] == 1


def test_a_master_goes_and_its_slave_stays(members):
    """Partitions are still there, at another server; nothing is given back or loaded again."""
    members.broker(0, t=2)
    members.broker(0, slave=1, t=2)
    member = members.joined()
    assert set(member.fetching.servers.values()) == {"10.0.0.0:8122"}
    members.gone(0)
    eventually(lambda: set(member.fetching.servers.values()) == {"10.0.0.0:8124"}, PATIENCE)
    members.broker(0, address="10.0.0.9:1", t=2)
    eventually(lambda: set(member.fetching.servers.values()) == {"10.0.0.9:1"}, PATIENCE)
    assert set(member.fetching.loads.values()) == {1}
    client = members.nodes.client
    client.set(f"{members.root}/brokers/ids/0/master", b"meta://10.0.0.9:2")
    eventually(lambda: set(member.fetching.servers.values()) == {"10.0.0.9:2"}, PATIENCE)


def test_a_topic_without_partitions_is_waited_for(members):
    member = members.joined()
    assert member.partitions == []
    members.broker(0, t=1)
    members.shared(1, member)


def test_a_partition_whose_server_is_not_there_yet(members, caplog):
    """It belongs to somebody, is fetched by nobody, and is not forgotten."""
    members.broker(0, t=1)
    master = f"{members.root}/brokers/ids/0/master"
    members.nodes.client.delete(master)
    member = members.joined()
    assert member.partitions == []
    assert "1 partitions without a server (t 0-0 ...)" in caplog.text
    members.nodes.client.create(master, b"meta://10.0.0.3:4", ephemeral=True)
    eventually(lambda: member.fetching.servers == {place(0): "10.0.0.3:4"}, PATIENCE)


def test_offsets_that_do_not_load_are_asked_for_again(members, caplog):
    """What was loaded before is fetched meanwhile."""
    members.broker(0, t=2)
    member = members.member()
    member.fetching.refusals = 1
    member.begin()
    eventually(lambda: member.partitions == names(0, 1), PATIENCE)
    assert "try 1 of 7 has failed: the storage is away" in caplog.text
    member.fetching.refusals = 10**6
    members.broker(0, t=3)
    eventually(lambda: f"{rebalance.TRIES} tries have failed" in caplog.text, PATIENCE)
    assert member.partitions == names(0, 1)
    member.fetching.refusals = 0
    members.shared(3, member)
    steps = member.fetching.steps
    assert steps.count("stop") == steps.count("start") == 2


def test_a_session_that_expires(members):
    """State is cleared, nothing committed: others may have gone further. Then it registers again, under the same name."""
    members.broker(0, t=4)
    first, second = members.joined("a"), members.joined("b")
    members.shared(4, first, second)
    done = len(first.fetching.steps)
    before = first.credentials
    members.zookeeper.expire(before)
    eventually(lambda: first.credentials[0] not in {0, before[0]}, PATIENCE)
    eventually(lambda: "load" in first.fetching.steps[done:], PATIENCE)
    assert first.fetching.steps[done : done + 3] == ["stop", "forget", "load"]
    members.shared(4, first, second)
    assert first.fetching.loads[place(0)] == 2


@pytest.mark.parametrize("step", ["load", "stop", "commit"])
def test_a_session_that_expires_in_the_middle_of_a_rebalance(members, step):
    """Whatever was under way; at the end each partition has one owner."""
    members.broker(0, t=6)
    first, second = members.joined("a"), members.member("b")
    fetching = second.fetching if step == "load" else first.fetching
    victim = second if step == "load" else first
    original = getattr(fetching, step)
    expired = []

    async def expiring(*args):
        if not expired:
            expired.append(victim.credentials)
            await victim.balance._loop.run_in_executor(None, members.zookeeper.expire, expired[0])
        await original(*args)

    setattr(fetching, step, expiring)
    second.begin()
    eventually(lambda: expired, PATIENCE)
    eventually(lambda: victim.credentials[0] not in {0, expired[0][0]}, PATIENCE)
    members.shared(6, first, second)


@pytest.mark.parametrize("call", ["create", "owners", "delete", "children"])
def test_a_session_that_expires_during_any_request(members, call):
    """The request fails in the middle of a plan."""
    members.broker(0, t=6)
    first = members.joined("a")
    session = first.balance._client.session
    original = getattr(session, call)
    expired = []

    def expiring(*args, **options):
        if not expired:
            expired.append(first.credentials)
            members.zookeeper.expire(expired[0])
        return original(*args, **options)

    setattr(session, call, expiring)
    second = members.joined("b")
    second.end()
    eventually(lambda: expired, PATIENCE)
    eventually(lambda: first.credentials[0] not in {0, expired[0][0]}, PATIENCE)
    members.shared(6, first)


CHILD = """
import sys, time
from tests.interop.metaq1 import Zookeeper
from tests.metaq1.rebalance.members import Member
from metaq.metaq1 import ConsumerConfig

class Address:
    address = sys.argv[1]

member = Member(Address, sys.argv[2], ConsumerConfig("g", sys.argv[3]), zk_session_timeout=float(sys.argv[4]))
member.begin()
while True:
    print(len(member.partitions), flush=True)
    time.sleep(0.05)
"""


def child(members: Group, consumer_id: str, session_seconds: float):
    """Another process with one member."""
    command = (sys.executable, "-c", CHILD, members.zookeeper.address, members.root, consumer_id, str(session_seconds))
    return process(*command, stderr=subprocess.DEVNULL, env=environment())


def test_a_process_that_is_killed_loses_its_partitions_when_its_session_ends(members):
    """Until then the others go on with theirs, also when somebody else joins."""
    members.broker(0, t=6)
    first = members.joined("a")
    with child(members, "b", 5.0) as other:
        read_line(other, "3")
        eventually(lambda: first.partitions == names(0, 1, 2), PATIENCE)
        other.send_signal(signal.SIGKILL)
        other.wait(PATIENCE)
        third = members.joined("c")
        eventually(lambda: first.partitions == names(0, 1) or len(first.partitions) == 3, PATIENCE)
        assert set(first.partitions) >= set(names(0, 1))
        members.shared(6, first, third)
    assert first.fetching.loads[place(0)] == 1


def test_a_process_that_was_killed_and_comes_back_with_its_id(members, caplog):
    """The old session ends soon, which is waited for: nothing is consumed twice."""
    members.broker(0, t=2)
    with child(members, "same", 3.0) as other:
        read_line(other, "2")
        other.send_signal(signal.SIGKILL)
        other.wait(PATIENCE)
    member = members.joined("same", refuse_shared_consumer_id=True)
    assert member.partitions == names(0, 1)
    assert "waiting up to 45 s for its end" in caplog.text
    assert "belongs to this process alone now" in caplog.text
    assert "BOTH CONSUME" not in caplog.text


def test_two_processes_with_one_id(members, caplog):
    """The second is warned of at once, waits for the end of the first, and then both consume everything, as with Java's client; when
    the first goes, the second has all for itself."""
    members.broker(0, t=3)
    first = members.joined("same")
    second = members.member("same", zk_session_timeout=2.0)
    second.begin()
    assert second.partitions == []
    assert "consumer id same of group g belongs to ZooKeeper session" in caplog.text
    eventually(lambda: second.partitions == names(0, 1, 2), PATIENCE)
    assert "BOTH CONSUME EVERYTHING" in caplog.text
    assert first.partitions == second.partitions
    first.end()
    members.shared(3, second)
    eventually(lambda: "belongs to this process alone now" in caplog.text, PATIENCE)
    session = second.credentials[0]
    eventually(lambda: _keepers(members) == {session}, PATIENCE)
    assert second.partitions == names(0, 1, 2)


def _keepers(members: Group) -> set[int]:
    client = members.nodes.client
    paths = [f"{members.root}/consumers/g/ids/g_same"]
    paths += [f"{members.layout.owners('g', 't')}/0-{number}" for number in range(3)]
    return {stat.ephemeralOwner for path in paths if (stat := client.exists(path)) is not None}


def test_a_second_process_with_one_id_that_refuses_it(members):
    members.broker(0, t=3)
    first = members.joined("same")
    second = members.member("same", zk_session_timeout=2.0, refuse_shared_consumer_id=True)
    with pytest.raises(ConfigError, match=r"consumer id same of group g belongs to ZooKeeper session 0x.* of its own"):
        second.begin()
    assert second.partitions == []
    members.shared(3, first)


def test_an_own_node_that_somebody_deletes_is_made_again(members):
    members.broker(0, t=1)
    member = members.joined("a")
    path = f"{members.root}/consumers/g/ids/g_a"
    members.nodes.client.delete(path)
    eventually(lambda: members.nodes.text(path) == "t", PATIENCE)
    assert member.partitions == names(0)


def test_two_consumers_of_one_factory_with_one_id(members, caplog):
    """In ZooKeeper they look like one: when one of them goes, the other makes its nodes again."""
    members.broker(0, t=2)
    first = members.joined("same")
    second, third = Recorder(), Recorder()

    async def joined(fetching: Recorder, **options: bool) -> ZookeeperBalance:
        balance = ZookeeperBalance(first.core, ConsumerConfig("g", "same", **options), fetching)
        await balance.begin(["t"])
        return balance

    with pytest.raises(ConfigError, match="another consumer of this session factory has consumer id same of group g"):
        first.core.run(lambda: joined(third, refuse_shared_consumer_id=True))
    balance = first.core.run(lambda: joined(second))
    assert "BOTH CONSUME EVERYTHING" in caplog.text
    assert second.partitions == first.partitions == names(0, 1)
    first.core.run(balance.end)
    members.shared(2, first)
    assert first.fetching.loads[place(0)] == 1


def test_an_end_goes_on_whatever_fails(members, caplog):
    members.broker(0, t=2)
    first, second = members.joined("a"), members.joined("b")
    members.shared(2, first, second)

    async def fault() -> None:
        first.fetching.servers = {}
        raise OSError("no room")

    first.fetching.stop = first.fetching.commit = fault
    first.end()
    assert caplog.text.count("OSError: no room") == 2
    members.shared(2, second)


def test_a_fault_in_a_rebalance_is_told_and_tried_again(members, caplog):
    """A mistake in the consumer, too, must not leave it silently dead."""
    members.broker(0, t=2)
    member = members.member()
    original, faults = member.fetching.commit, [1, 2]

    async def faulty() -> None:
        if faults:
            raise ZeroDivisionError(faults.pop())
        await original()

    member.fetching.commit = faulty
    member.begin()
    members.shared(2, member)
    assert "Traceback" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_ids_of_their_own(members):
    """Host, process, milliseconds, number, as Java's; two of one process differ."""
    members.broker(0, t=2)
    made = []
    for _ in range(2):
        member = Member(members.zookeeper, members.root, ConsumerConfig("g"))
        members.members.append(member)
        member.begin()
        made.append(member)
    first, second = (member.balance.consumer_id.split("-") for member in made)
    assert len(first) == len(second) == 4
    assert first[:2] == second[:2]
    assert int(second[3]) == int(first[3]) + 1
    members.shared(2, *made)


def test_a_zookeeper_that_is_away_at_the_beginning(tmp_path):
    own = Zookeeper(tmp_path)
    with own, group(own, "/away") as members:
        member = members.member(zk_connection_timeout=0.5)
        eventually(lambda: member.credentials[0], PATIENCE)
        own.stop()
        eventually(lambda: not member.balance._client.session.connected, PATIENCE)
        with pytest.raises(ConnectionFailed, match=f"ZooKeeper {own.address}"):
            member.begin()
        own.start()


def test_fetches_go_on_when_zookeeper_goes_in_the_middle_of_a_rebalance(tmp_path):
    """With what is surely its own; the rest follows when it is back."""
    own = Zookeeper(tmp_path)
    with own, group(own, "/away") as members:
        members.broker(0, t=4)
        first, second = members.joined("a", zk_connection_timeout=0.5), members.member("b", zk_connection_timeout=60.0)
        commit = first.fetching.commit

        async def leaving() -> None:
            await commit()
            if not first.balance._client.session.connected:
                return
            await first.balance._loop.run_in_executor(None, own.stop)
            while first.balance._client.session.connected:
                await asyncio.sleep(0.01)

        def begin() -> None:
            with contextlib.suppress(ConnectionFailed):  # which it may well meet: then the first has all
                second.begin()

        first.fetching.commit = leaving
        join = threading.Thread(target=begin)
        join.start()
        eventually(lambda: first.partitions == names(0, 1), PATIENCE)
        assert not first.balance._client.session.connected
        assert first.fetching.loaded == {place(0), place(1)}
        first.fetching.commit = commit
        own.start()
        join.join()
        members.shared(4, first, second)


def test_fetches_go_on_while_zookeeper_is_away(tmp_path):
    """And an end is not held up by it."""
    own = Zookeeper(tmp_path)
    with own, group(own, "/away") as members:
        members.broker(0, t=2)
        member = members.joined(zk_connection_timeout=0.5)
        other = members.joined(zk_connection_timeout=0.5)
        members.shared(2, member, other)
        own.stop()
        eventually(lambda: not member.balance._client.session.connected, PATIENCE)
        assert (member.partitions, other.partitions) == (names(0), names(1))
        other.end()
        assert other.fetching.steps[-3:] == ["stop", "commit", "forget"]
        own.start()
        members.shared(2, member)
