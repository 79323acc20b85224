"""A group's nodes in a real ZooKeeper."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from kazoo.exceptions import BadVersionError
from kazoo.security import make_digest_acl
from tests.interop.metaq1 import SESSION_SECONDS_MAX, TICK_MS, Nodes, Zookeeper
from tests.registry.zookeeper.group_support import SESSION_SECONDS, a_member, a_state, group, run, until
from tests.support import PATIENCE, environment, process, read_line

from metaq.errors import ClientClosed, ConfigError, ConnectionFailed, NotOurs, Refused, UnknownOutcome
from metaq.model.failover import Seen
from metaq.registry.group import group_nodes
from metaq.registry.zookeeper.group import GIVE_UP_SHARE, GroupNodes, checked_addresses
from metaq.registry.zookeeper.session import Session
from metaq.testing.network import FlakyNetwork
from metaq.wire.failover import group_state, group_state_of, member

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("zookeeper")]

ROOT = "/metaq-failover/cluster"
STOPPED_SECONDS = 2.0
"""A session's time-out in which calls to a ZooKeeper that stands still must end."""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zookeeper]:
    """It keeps running. Each test has a group of its own."""
    with Zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def nodes(zookeeper: Zookeeper) -> Iterator[Nodes]:
    with zookeeper.nodes() as found:
        yield found


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A group of the test's own."""
    return re.sub(r"\W", "-", request.node.name.removeprefix("test_"))


# ---------------------------------------------------------------------- looking and changing


def test_a_group_is_made_seen_and_changed(zookeeper, nodes, name):
    async def work():
        async with group(zookeeper.address, name) as one, group(zookeeper.address, name) as other:
            assert await one.nodes.look() == Seen(None, -1, {})
            assert await other.nodes.look() == Seen(None, -1, {})
            assert await one.nodes.announce(a_member()) is None
            assert await one.nodes.create(a_state())
            assert not await other.nodes.create(a_state(leader=2))
            await until(lambda: other.changes >= 2)  # the connection, and the nodes
            assert await other.nodes.look() == Seen(a_state(), 0, {1: a_member()})
            assert await one.nodes.swap(a_state(2), 0) == 1
            assert await one.nodes.swap(a_state(3), 0) is None
            assert await other.nodes.look() == Seen(a_state(2), 1, {1: a_member()})
            assert one.nodes.connected
            assert one.nodes.session != other.nodes.session != 0
            assert await other.nodes.announce(a_member(2)) is None
            tree = nodes.tree(f"{ROOT}/{name}")
            assert {path.removeprefix(f"{ROOT}/{name}"): node.ephemeral for path, node in tree.items()} == {
                "": False, "/state": False, "/live": False, "/live/1": True, "/live/2": True,
            }  # fmt: skip
            assert (await one.nodes.look()).live == {1: a_member(), 2: a_member(2)}
            await other.nodes.close()
            assert (await one.nodes.look()).live == {1: a_member()}
            await one.nodes.retire()
            assert (await one.nodes.look()).live == {}
            await one.nodes.retire()
        with pytest.raises(ClientClosed):
            await one.nodes.look()
        assert not one.nodes.connected

    run(work())


def test_each_change_is_reported_to_who_has_looked(zookeeper, name):
    async def work():
        async with group(zookeeper.address, name) as one, group(zookeeper.address, name) as other:

            async def seen() -> Seen:
                """What is there after a change that is reported."""
                await until(lambda: one.changes > before)
                return await one.nodes.look()

            await one.nodes.look()
            await other.nodes.look()
            before = one.changes
            await other.nodes.announce(a_member(2))  # where there was not even a parent
            while not (found := await seen()).live:  # the parent alone
                before = one.changes
            assert found.live == {2: a_member(2)}
            before = one.changes
            await other.nodes.create(a_state(leader=2))
            assert (await seen()).state == a_state(leader=2)
            before = one.changes
            await other.nodes.swap(a_state(2, 2), 0)
            assert (await seen()).version == 1
            before = one.changes
            await other.nodes.announce(a_member(2, whole=False))
            assert (await seen()).live == {2: a_member(2, whole=False)}
            before = one.changes
            await other.nodes.retire()
            assert (await seen()).live == {}

    run(work())


def test_renewals_wake_nobody_and_change_nothing(zookeeper, nodes, name):
    async def work():
        async with group(zookeeper.address, name) as one, group(zookeeper.address, name) as other:
            await one.nodes.announce(a_member())
            await other.nodes.look()
            before = other.changes
            sent = [await one.nodes.renew(a_member()) for _ in range(20)]
            assert sent == sorted(sent)
            path = f"{ROOT}/{name}/live/1"
            data, stat = nodes.client.get(path)
            assert (data, stat.version, stat.aversion) == (member(a_member()), 0, 20)
            # What follows comes behind whatever the renewals would have caused.
            assert (await other.nodes.look()).live == {1: a_member()}
            assert other.changes == before

    run(work())


def test_several_sessions_compete_in_swaps(zookeeper, name):
    """Each version is given to one of them, and the state counts their successes."""

    async def add(one: GroupNodes, count: int) -> list[int]:
        given = []
        while len(given) < count:
            seen = await one.look()
            assert seen.state is not None
            version = await one.swap(a_state(seen.state.epoch + 1), seen.version)
            if version is not None:
                given.append(version)
        return given

    async def work():
        async with (
            group(zookeeper.address, name) as a,
            group(zookeeper.address, name) as b,
            group(zookeeper.address, name) as c,
        ):
            await a.nodes.create(a_state())
            given = await asyncio.gather(*(add(one.nodes, 10) for one in (a, b, c)))
            seen = await a.nodes.look()
            assert seen.state == a_state(31)
            assert sorted(version for one in given for version in one) == list(range(1, 31))

    run(work())


CREATING = """
import asyncio, sys
from metaq.registry.group import group_nodes
from metaq.registry.zookeeper.group import GroupNodes
from tests.registry.zookeeper.group_support import a_state

async def main(address, name, number):
    nodes = GroupNodes(address, "cluster", name, 20.0, lambda: None)
    nodes.open()
    await nodes.look()
    print("there", flush=True)
    sys.stdin.readline()
    print("made", await nodes.create(a_state(leader=int(number))), flush=True)
    await nodes.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_of_several_processes_one_makes_the_group(zookeeper, nodes, name):
    command = (sys.executable, "-c", CREATING, zookeeper.address, name)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment()}
    children = [subprocess.Popen([*command, str(number)], **pipes) for number in (1, 2, 3)]
    try:
        for child in children:
            read_line(child, "there")
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        made = [number for number, child in enumerate(children, 1) if read_line(child, "made").split()[1] == "True"]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    data, _ = nodes.client.get(f"{ROOT}/{name}/state")
    assert made == [group_state_of(data).leader]


# ---------------------------------------------------------------------- the live node


def test_a_live_node_of_another_session_is_taken_over_if_it_is_still_that_one(zookeeper, name):
    async def work():
        async with (
            group(zookeeper.address, name) as old,
            group(zookeeper.address, name) as new,
            group(zookeeper.address, name) as third,
        ):
            assert await old.nodes.announce(a_member()) is None
            holder = await new.nodes.announce(a_member(incarnation="two"))
            assert holder is not None
            assert (holder.member, holder.session) == (a_member(), old.nodes.session)
            assert await old.nodes.announce(a_member(epoch=7)) is None  # that it is written does not matter
            assert await new.nodes.take_over(a_member(incarnation="two"), holder)
            assert (await third.nodes.look()).live == {1: a_member(incarnation="two")}
            with pytest.raises(NotOurs, match="is kept by session"):
                await old.nodes.renew(a_member())
            await new.nodes.renew(a_member(incarnation="two"))
            # Both had read the same node; one was first.
            assert not await third.nodes.take_over(a_member(incarnation="three"), holder)
            # The old session takes away nothing of the new one's.
            await old.nodes.retire()
            assert (await third.nodes.look()).live == {1: a_member(incarnation="two")}
            assert (await old.nodes.announce(a_member())).session == new.nodes.session

    run(work())


def test_a_node_that_comes_while_another_is_taken_over_stays(zookeeper, name, monkeypatch):
    """The second holder's node has the same version as the one that was read."""

    async def work():
        async with (
            group(zookeeper.address, name) as old,
            group(zookeeper.address, name) as second,
            group(zookeeper.address, name) as late,
        ):
            await old.nodes.announce(a_member())
            holder = await late.nodes.announce(a_member(incarnation="late"))
            read, go = threading.Event(), threading.Event()
            transact = Session.transact

            def slowly(session, build):
                if session.number == late.nodes.session:
                    read.set()
                    assert go.wait(PATIENCE)
                return transact(session, build)

            monkeypatch.setattr(Session, "transact", slowly)
            taking = asyncio.create_task(late.nodes.take_over(a_member(incarnation="late"), holder))
            await until(read.is_set)
            await old.nodes.retire()
            assert await second.nodes.announce(a_member(incarnation="second")) is None
            go.set()
            assert not await taking
            assert (await second.nodes.look()).live == {1: a_member(incarnation="second")}

    run(work())


def test_a_renewal_does_not_wait_for_a_look_in_progress(zookeeper, name, monkeypatch):
    async def work():
        async with group(zookeeper.address, name) as one:
            await one.nodes.announce(a_member())
            looking, go = threading.Event(), threading.Event()
            sync = Session.sync

            def slowly(session, path):
                looking.set()
                assert go.wait(PATIENCE)
                sync(session, path)

            monkeypatch.setattr(Session, "sync", slowly)
            look = asyncio.create_task(one.nodes.look())
            await until(looking.is_set)
            swap = asyncio.create_task(one.nodes.swap(a_state(), 0))
            assert await one.nodes.renew(a_member()) <= await one.nodes.renew(a_member())
            assert not look.done()
            assert not swap.done()
            go.set()
            assert (await look).live == {1: a_member()}
            assert await swap is None

    run(work())


def test_the_time_out_is_the_one_that_was_granted(zookeeper, name):
    assert GroupNodes(zookeeper.address, "c", name, 1000.0, lambda: None).session_timeout == 1000.0

    async def work():
        async with (
            group(zookeeper.address, name, seconds=1000.0) as long,
            group(zookeeper.address, name, seconds=0.1) as short,
        ):
            await until(lambda: long.nodes.connected and short.nodes.connected)
            assert long.nodes.session_timeout == SESSION_SECONDS_MAX
            assert short.nodes.session_timeout == 2 * TICK_MS / 1000

    run(work())


# ---------------------------------------------------------------------- when the answer does not come


def test_a_swap_without_an_answer_may_have_been_made(zookeeper, name):
    async def work():
        with FlakyNetwork(zookeeper.address) as network:
            async with group(network.address, name) as one:
                await one.nodes.create(a_state())
                network.stall("to client")
                swap = asyncio.create_task(one.nodes.swap(a_state(2), 0))
                async with group(zookeeper.address, name) as other:
                    while (await other.nodes.look()).version == 0:
                        await asyncio.sleep(0.01)
                network.cut()
                with pytest.raises(UnknownOutcome, match="has not said whether a change was made"):
                    await swap
                await until(lambda: not one.nodes.connected)
                session = one.nodes.session
                network.mend()
                assert await one.nodes.look() == Seen(a_state(2), 1, {})
                assert one.nodes.session == session != 0

    run(work())


def test_a_swap_without_an_answer_that_was_not_made_is_never_made(zookeeper, nodes, name):
    """Not even if its request came very late: the look behind it has moved the version on."""

    async def work():
        with FlakyNetwork(zookeeper.address) as network:
            async with group(network.address, name) as one:
                await one.nodes.create(a_state())
                assert await one.nodes.swap(a_state(2), 0) == 1
                network.stall("to server")
                swap = asyncio.create_task(one.nodes.swap(a_state(3), 1))
                await asyncio.sleep(0)
                await until(lambda: network.open == 1)
                await asyncio.sleep(0.1)  # it has been written
                network.cut()
                with pytest.raises(UnknownOutcome):
                    await swap
                network.mend()
                seen = await one.nodes.look()
                assert seen == Seen(a_state(2), 2, {})
                with pytest.raises(BadVersionError):
                    nodes.client.set(f"{ROOT}/{name}/state", group_state(a_state(3)), 1)  # it comes now
                # Once is enough: the next look writes nothing.
                assert await one.nodes.look() == seen
                assert await one.nodes.swap(a_state(3), 2) == 3

    run(work())


def test_without_a_connection_nothing_was_sent(zookeeper, name):
    async def work():
        with FlakyNetwork(zookeeper.address) as network:
            async with group(network.address, name, seconds=1.0) as one:
                await one.nodes.create(a_state())
                network.cut()
                await until(lambda: not one.nodes.connected)
                for asked in (one.nodes.swap(a_state(2), 0), one.nodes.look(), one.nodes.renew(a_member())):
                    with pytest.raises(ConnectionFailed) as failed:
                        await asked
                    assert not isinstance(failed.value, UnknownOutcome)
                assert one.nodes.why
                network.mend()
                assert (await one.nodes.look()).version == 0

    run(work())


def test_another_server_is_tried_when_a_renewal_has_no_answer(zookeeper, name):
    """The session goes on there, before half of its time-out has passed."""

    async def work():
        with FlakyNetwork(zookeeper.address) as a, FlakyNetwork(zookeeper.address) as b:
            async with group(f"{a.address},{b.address}", name) as one:
                await one.nodes.announce(a_member())
                session = one.nodes.session
                first, second = (a, b) if a.open else (b, a)
                first.stall()
                loop = asyncio.get_running_loop()
                began = loop.time()
                assert await one.nodes.renew(a_member()) > 0
                assert loop.time() - began < SESSION_SECONDS * GIVE_UP_SHARE
                assert one.nodes.session == session
                assert second.open

    run(work())


# ---------------------------------------------------------------------- sessions that end


def test_an_expired_session_is_followed_by_another(zookeeper, name):
    async def work():
        async with group(zookeeper.address, name) as one:
            await one.nodes.announce(a_member())
            session, before = one.nodes.session, one.changes
            await asyncio.to_thread(zookeeper.expire, one.nodes._client.session.credentials)
            await until(lambda: one.nodes.session not in {0, session} and one.nodes.connected)
            assert one.changes > before
            with pytest.raises(NotOurs, match="is gone, since our session has ended"):
                await one.nodes.renew(a_member())
            assert (await one.nodes.look()).live == {}
            assert await one.nodes.announce(a_member()) is None
            await one.nodes.renew(a_member())

    run(work())


LIVING = """
import asyncio, sys
from metaq.errors import MetaqError
from metaq.registry.group import group_nodes
from metaq.registry.zookeeper.group import GroupNodes
from tests.registry.zookeeper.group_support import a_member

async def main(address, name):
    nodes = GroupNodes(address, "cluster", name, 1.0, lambda: None)
    nodes.open()
    print("announced", await nodes.announce(a_member()), nodes.session, flush=True)
    while True:
        try:
            await nodes.renew(a_member())
        except MetaqError as error:
            print("lost", type(error).__name__, nodes.session, flush=True)
            if type(error).__name__ == "NotOurs":
                break
        await asyncio.sleep(0.05)
    while not nodes.connected:
        await asyncio.sleep(0.01)
    print("again", await nodes.announce(a_member()), nodes.session, flush=True)
    await nodes.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_process_that_slept_too_long_learns_that_its_node_is_not_ours(zookeeper, nodes, name):
    """It renews nothing with the session that has ended."""
    command = (sys.executable, "-c", LIVING, zookeeper.address, name)
    with process(*command) as child:
        _, holder, session = read_line(child, "announced").split()
        assert holder == "None"
        path = f"{ROOT}/{name}/live/1"
        gone = threading.Event()
        child.send_signal(signal.SIGSTOP)
        if nodes.client.exists(path, watch=lambda _: gone.set()):
            assert gone.wait(PATIENCE)
        child.send_signal(signal.SIGCONT)
        while True:
            _, why, now = read_line(child, "lost").split()
            if why == "NotOurs":
                break
            assert why == "ConnectionFailed"
        _, holder, now = read_line(child, "again").split()
        assert (holder, now != session) == ("None", True)


def test_a_stopped_zookeeper_ends_each_call_within_the_time_out_and_comes_back(tmp_path, name):
    async def work(zookeeper: Zookeeper):
        async with group(zookeeper.address, name, seconds=STOPPED_SECONDS) as one:
            await one.nodes.announce(a_member())
            await one.nodes.create(a_state())
            loop = asyncio.get_running_loop()
            zookeeper._process.halt()
            try:
                began = loop.time()
                outcomes = await asyncio.gather(
                    one.nodes.renew(a_member()), one.nodes.look(), one.nodes.swap(a_state(2), 0), return_exceptions=True
                )
                assert all(isinstance(one, ConnectionFailed) for one in outcomes), outcomes
                took = loop.time() - began
                await until(lambda: not one.nodes.connected)
            finally:
                zookeeper._process.go_on()
            assert took < STOPPED_SECONDS + PATIENCE / 30, "for a starved machine; on a quiet one it is the first alone"
            while True:
                try:
                    seen = await one.nodes.look()
                    break
                except ConnectionFailed:
                    continue
            assert seen.state in {a_state(), a_state(2)}

    with Zookeeper(tmp_path) as zookeeper:
        run(work(zookeeper))


def test_a_zookeeper_that_is_not_there_yet_is_waited_for(tmp_path, name):
    async def work(zookeeper: Zookeeper):
        async with group(zookeeper.address, name, seconds=1.0) as one:
            with pytest.raises(ConnectionFailed, match=r"has not answered within 1 s|cannot be reached"):
                await one.nodes.look()
            assert (one.nodes.connected, one.nodes.session) == (False, 0)
            await asyncio.to_thread(zookeeper.start)
            await until(lambda: one.nodes.connected)
            assert one.changes
            assert (await one.nodes.look()).state is None

    zookeeper = Zookeeper(tmp_path)
    try:
        run(work(zookeeper))
    finally:
        zookeeper.kill()


def test_a_zookeeper_that_has_lost_its_data_is_seen_as_it_is(tmp_path, name):
    """It does not know the session, and kazoo alone would ask it for that for ever."""

    async def work(zookeeper: Zookeeper):
        async with group(zookeeper.address, name, seconds=1.0) as one:
            await one.nodes.announce(a_member())
            await one.nodes.create(a_state())
            await asyncio.to_thread(zookeeper.kill)
            shutil.rmtree(tmp_path / "zookeeper" / "data")
            await asyncio.to_thread(zookeeper.start)
            while True:
                try:
                    seen = await one.nodes.look()
                    break
                except ConnectionFailed:
                    continue
            assert seen == Seen(None, -1, {})
            with pytest.raises(NotOurs):
                await one.nodes.renew(a_member())

    with Zookeeper(tmp_path) as zookeeper:
        run(work(zookeeper))


# ---------------------------------------------------------------------- what the operator must mend


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"hello \x80 world", "cannot be read"),
        (b"", "cannot be read"),
        (b'{"format":9}', "has format 9"),
        (group_state(a_state()).replace(b'"epoch":1', b'"epoch":0'), "epoch is 0"),
        (b"x" * 70_000, "has 70000 bytes"),
    ],
    ids=["text", "empty", "format", "untrue", "long"],
)
def test_garbage_as_a_state(zookeeper, nodes, name, data, why):
    path = f"{ROOT}/{name}/state"
    nodes.client.create(path, data, makepath=True)

    async def work():
        async with group(zookeeper.address, name) as one:
            with pytest.raises(Refused, match=why) as refused:
                await one.nodes.look()
            text = str(refused.value)
            assert f"the node {path} in ZooKeeper {zookeeper.address}" in text
            assert f"zkCli.sh -server {zookeeper.address} delete {path}" in text
            assert len(text) < 800
            nodes.client.delete(path)
            assert (await one.nodes.look()).state is None

    run(work())


@pytest.mark.parametrize(
    ("child", "data", "ephemeral", "why"),
    [
        ("1", b"hello", True, "cannot be read"),
        ("2", member(a_member(1)), True, "it is the node of member 2, and says member 1"),
        ("1", member(a_member(1)), False, "it is persistent"),
        ("lock", b"", True, "cannot be read"),
    ],
)
def test_garbage_as_a_live_node(zookeeper, nodes, name, child, data, ephemeral, why):
    path = f"{ROOT}/{name}/live/{child}"
    nodes.client.create(path, data, makepath=True, ephemeral=ephemeral)

    async def work():
        async with group(zookeeper.address, name) as one:
            with pytest.raises(Refused, match=why):
                await one.nodes.look()
            if child == "1":
                with pytest.raises(Refused, match=why):
                    await one.nodes.announce(a_member())
            before = one.changes
            nodes.client.delete(path)
            await until(lambda: one.changes > before)
            assert (await one.nodes.look()).live == {}

    run(work())


def test_credentials_protect_the_nodes_and_their_absence_is_told(zookeeper, nodes, name):
    async def work():
        async with (
            group(zookeeper.address, name, auth="digest:metaq:secret") as one,
            group(zookeeper.address, name) as without,
            group(zookeeper.address, name, auth="digest:metaq:wrong") as wrong,
            group(zookeeper.address, name, auth="digest:metaq:secret") as second,
        ):
            assert await one.nodes.announce(a_member()) is None
            assert await one.nodes.create(a_state())
            await one.nodes.renew(a_member())
            assert (await without.nodes.look()).state == a_state()  # everybody may read
            for asked in (without.nodes.swap(a_state(2), 0), without.nodes.announce(a_member(2))):
                with pytest.raises(
                    ConfigError, match=r"without credentials \(failoverZookeeperAuth\): set failoverZookeeperAuth"
                ):
                    await asked
            with pytest.raises(ConfigError, match="as user 'metaq' of failoverZookeeperAuth") as refused:
                await wrong.nodes.swap(a_state(2), 0)
            assert "wrong" not in str(refused.value)
            assert f"{ROOT}/{name}" in str(refused.value)
            assert await second.nodes.announce(a_member(2)) is None
            assert await second.nodes.swap(a_state(2), 0) == 1
            await second.nodes.renew(a_member(2))

    run(work())
    for child in ("state", "live"):
        acls, _ = nodes.client.get_acls(f"{ROOT}/{name}/{child}")
        assert {(acl.id.scheme, acl.perms) for acl in acls} == {("digest", 31), ("world", 1)}
        assert {acl.id.id.partition(":")[0] for acl in acls} == {"metaq", "anyone"}
    for above in (ROOT, "/metaq-failover"):
        acls, _ = nodes.client.get_acls(above)
        assert [(acl.id.id, acl.perms) for acl in acls] == [("anyone", 31)]


def test_a_node_that_must_not_even_be_read(zookeeper, nodes, name):
    acl = [make_digest_acl("somebody", "else", all=True)]
    nodes.client.ensure_path(f"{ROOT}/{name}")
    nodes.client.create(f"{ROOT}/{name}/state", group_state(a_state()), acl=acl)

    async def work():
        async with group(zookeeper.address, name) as one:
            with pytest.raises(ConfigError, match=f"does not let this broker read or change {ROOT}/{name}"):
                await one.nodes.look()

    run(work())


def test_a_chroot_is_used_and_a_missing_one_is_told(zookeeper, nodes, name):
    async def work():
        async with group(f"{zookeeper.address}/apps/{name}", name) as one:
            for asked in (one.nodes.look(), one.nodes.create(a_state()), one.nodes.announce(a_member())):
                with pytest.raises(
                    ConfigError, match=f"create /apps/{name} in ZooKeeper, or correct failoverZookeeper"
                ):
                    await asked
            nodes.client.create(f"/apps/{name}", makepath=True)
            assert await one.nodes.look() == Seen(None, -1, {})
            assert await one.nodes.announce(a_member()) is None
            assert await one.nodes.create(a_state())
            before = one.changes
            assert await one.nodes.look() == Seen(a_state(), 0, {1: a_member()})
            assert await one.nodes.swap(a_state(2), 0) == 1
            await until(lambda: one.changes > before)
            await one.nodes.renew(a_member())
        assert nodes.text(f"/apps/{name}{ROOT}/{name}/state") == group_state(a_state(2)).decode()

    run(work())


@pytest.mark.parametrize(
    ("connect", "why"),
    [
        ("", "is not host:port"),
        ("host", "is not host:port"),
        ("host:2181,", "is not host:port"),
        ("host:0", "is no address of a ZooKeeper"),
        ("ho st:1", "is no address of a ZooKeeper"),
        ("host:1/a//b", "has a part without a name"),
        ("host:1/../b", "'..' is no name there"),
        ("host:1/a\n/b", "cannot be printed"),
    ],
)
def test_addresses_that_cannot_be_right(connect, why):
    with pytest.raises(ConfigError, match="failoverZookeeper=") as refused:
        GroupNodes(connect, "c", "b", 1.0, lambda: None)
    assert why in str(refused.value)


def test_without_kazoo_it_is_said_what_to_install(monkeypatch):
    assert group_nodes("a:1", "c", "b", 1.0, lambda: None).path == "/metaq-failover/c/b"
    monkeypatch.setitem(sys.modules, "metaq.registry.zookeeper.group", None)
    with pytest.raises(ConfigError, match=r"^failover=zookeeper: it needs kazoo .*; install pymetaq\[zookeeper\]"):
        group_nodes("a:1", "c", "b", 1.0, lambda: None)


def test_addresses():
    assert checked_addresses("a:1, b:2") == ("a:1,b:2", "")
    assert checked_addresses("a:1,[::1]:2/x/y/") == ("a:1,[::1]:2", "/x/y")
    assert checked_addresses("a:1/") == ("a:1", "")


@pytest.mark.parametrize("wrong", ["", ".", "..", "a/b", "a\nb", "a\x7f", "a\udc80"])
def test_names_that_no_node_can_have(wrong):
    for cluster, broker, option in (("c", wrong, "brokerName"), (wrong, "b", "brokerClusterName")):
        with pytest.raises(ConfigError, match=f"^{option}="):
            GroupNodes("a:1", cluster, broker, 1.0, lambda: None)


@pytest.mark.parametrize("auth", ["digest", "digest:user", "digest:user:", "digest::password", "sasl:user:password"])
def test_credentials_that_cannot_be_right_are_not_told(auth):
    with pytest.raises(ConfigError, match=r"^failoverZookeeperAuth: need digest:USER:PASSWORD$"):
        GroupNodes("a:1", "c", "b", 1.0, lambda: None, auth)


def test_a_server_without_authentication_by_digest_is_told(zookeeper, name, monkeypatch):
    async def work():
        monkeypatch.setattr(Session, "scheme", "unknown")
        async with group(zookeeper.address, name, auth="digest:metaq:secret") as one:
            await until(lambda: one.nodes._client.session.rejected)
            with pytest.raises(ConfigError, match="does not take the credentials of failoverZookeeperAuth"):
                await one.nodes.look()

    run(work())
