"""A broker's nodes in a real ZooKeeper: what is there, and what becomes of it when something goes wrong."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from tests.interop.metaq1 import Node, Nodes, Zookeeper
from tests.support import PATIENCE, eventually

from metaq.model.metaq1.partition import Published
from metaq.registry.zookeeper import absence, registrar
from metaq.registry.zookeeper.client import ZookeeperClient
from metaq.registry.zookeeper.layout import Layout, Metaq1Broker
from metaq.registry.zookeeper.registrar import Advertisement, ZookeeperRegistrar, ZookeeperSettings
from metaq.testing.network import FlakyNetwork, NetworkThread

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.xdist_group("zookeeper")]

CONFIG = b"[system]\nbrokerId=3\n"
CHECKSUM = "1653446188"
SESSION_SECONDS = 20.0
"""Far beyond what a starved machine needs: a session that ends by itself is the business of tests that want it."""
BROKER = Metaq1Broker(3, "meta://10.0.0.5:8123")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zookeeper]:
    with Zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def nodes(zookeeper: Zookeeper) -> Iterator[Nodes]:
    with zookeeper.nodes() as found:
        yield found


@pytest.fixture
def loop() -> Iterator[NetworkThread]:
    """Where registrars run."""
    thread = NetworkThread()
    yield thread
    thread.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of what takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


class Registered:
    """A registrar with the topics of a test, that is stopped behind it."""

    def __init__(
        self,
        loop: NetworkThread,
        connect: str,
        root: str,
        broker: Metaq1Broker = BROKER,
        topics: dict | None = None,
        *,
        session_seconds: float = SESSION_SECONDS,
        succeeds: bool = False,
    ) -> None:
        self._loop, self._stopped = loop, False
        self.topics = topics if topics is not None else {"test": Published(3, True, True)}
        self.config, self.silent = CONFIG, False
        settings = ZookeeperSettings(connect, root, session_seconds, session_seconds, sync_time=0.0)

        async def begin() -> ZookeeperRegistrar:
            def describe() -> Advertisement | None:
                return None if self.silent else Advertisement(self.config, self.topics)

            registrar = ZookeeperRegistrar(settings, broker, describe, succeeds=succeeds)
            await registrar.start()
            return registrar

        self.registrar = loop.call(begin())

    def changed(self) -> None:
        async def tell() -> None:
            self.registrar.changed()

        self._loop.call(tell())

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._loop.call(self.registrar.stop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def below(nodes: Nodes, root: str) -> dict[str, Node]:
    return {path.removeprefix(f"{root}/brokers/"): node for path, node in nodes.tree(root).items()}


def mine(nodes: Nodes, root: str) -> dict[str, str | None]:
    """The ephemeral nodes."""
    return {path: node.text for path, node in below(nodes, root).items() if node.ephemeral}


WHOLE = {
    "ids/3/master": "meta://10.0.0.5:8123",
    "ids/3/master_config_checksum": CHECKSUM,
    "topics/test/3-m": "3",
    "topics-pub/test/3-m": '{"numParts":3,"broker":"3-m"}',
    "topics-sub/test/3-m": '{"numParts":3,"broker":"3-m"}',
}


def test_a_broker_has_the_nodes_of_the_original_and_takes_them_away(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread
) -> None:
    """All of them when `start` returns, parents without data, the text for very old clients persistent; a stop leaves parents."""
    with Registered(loop, zookeeper.address, "/whole") as broker:
        assert broker.registrar.registered
        assert mine(nodes, "/whole") == WHOLE
        persistent = {path: node.text for path, node in below(nodes, "/whole").items() if not node.ephemeral}
        assert persistent.pop("ids/3") == "meta://10.0.0.5:8123"
        assert set(persistent.values()) == {None}
    left = below(nodes, "/whole")
    assert mine(nodes, "/whole") == {}
    assert "ids/3" not in left
    assert {"topics/test", "topics-pub/test", "topics-sub/test"} <= left.keys()


def test_a_slave_and_flags_of_topics(zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread) -> None:
    """A slave has nodes of its own beside the master's and none of the master's; what is not accepted is not told."""
    slave = Metaq1Broker(3, "meta://10.0.0.6:8123", slave=1)
    topics = {"in": Published(2, True, False), "out": Published(2, False, True), "shut": Published(2, False, False)}
    with Registered(loop, zookeeper.address, "slave"), Registered(loop, zookeeper.address, "/slave/", slave, topics):
        assert mine(nodes, "/slave") == WHOLE | {
            "ids/3/slave1": "meta://10.0.0.6:8123",
            "topics/in/3-s1": "2",
            "topics/out/3-s1": "2",
            "topics/shut/3-s1": "2",
            "topics-pub/in/3-s1": '{"numParts":2,"broker":"3-s1"}',
            "topics-sub/out/3-s1": '{"numParts":2,"broker":"3-s1"}',
        }


def test_topics_that_come_grow_and_go(zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread) -> None:
    """A node whose text changes is a new node, for clients watch who is there and not what they say; the checksum follows."""
    with Registered(loop, zookeeper.address, "/grow") as broker:
        before = nodes.client.exists("/grow/brokers/topics-sub/test/3-m")
        heard = []
        nodes.client.get_children("/grow/brokers/topics-sub/test", watch=heard.append)
        broker.topics = {"test": Published(4, True, True), "more": Published(1, True, True)}
        broker.config = b""
        broker.changed()
        wanted = {
            "ids/3/master": "meta://10.0.0.5:8123",
            "ids/3/master_config_checksum": "0",
            **{f"topics{kind}/test/3-m": '{"numParts":4,"broker":"3-m"}' for kind in ("-pub", "-sub")},
            **{f"topics{kind}/more/3-m": '{"numParts":1,"broker":"3-m"}' for kind in ("-pub", "-sub")},
            "topics/test/3-m": "4",
            "topics/more/3-m": "1",
        }
        eventually(lambda: mine(nodes, "/grow") == wanted or None)
        assert eventually(lambda: heard)[0].path == "/grow/brokers/topics-sub/test"
        assert nodes.client.exists("/grow/brokers/topics-sub/test/3-m").czxid > before.czxid
        broker.topics = {}
        broker.changed()
        eventually(lambda: mine(nodes, "/grow").keys() == {"ids/3/master", "ids/3/master_config_checksum"} or None)


def test_an_expired_session_is_followed_by_a_new_one(zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread) -> None:
    """Also if topics changed in between."""
    with Registered(loop, zookeeper.address, "/expired") as broker:
        first = broker.registrar.session.credentials
        broker.topics = {**broker.topics, "new": Published(1, False, False)}
        zookeeper.expire(first)
        eventually(lambda: broker.registrar.session.id not in {0, first[0]} or None)
        eventually(lambda: mine(nodes, "/expired") == {**WHOLE, "topics/new/3-m": "1"} or None)


def left_behind(nodes: Nodes, root: str, uri: str) -> None:
    """Nodes in a session that goes on, as those of a broker that was killed, or of another one."""
    for path, text in {"ids/3/master": uri, "topics/test/3-m": "3", "topics-pub/test/3-m": "old"}.items():
        nodes.client.create(f"{root}/brokers/{path}", text.encode(), ephemeral=True, makepath=True)


def test_a_broker_that_was_killed_need_not_wait_for_its_old_session(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread
) -> None:
    """Nodes that a session of the same address left are replaced, whatever they say, and survive that session's end."""
    with zookeeper.nodes() as old:
        left_behind(old, "/killed", BROKER.uri)
        with Registered(loop, zookeeper.address, "/killed") as broker:
            assert broker.registrar.registered
            assert mine(nodes, "/killed") == WHOLE
            zookeeper.expire(old.client.client_id)
            assert mine(nodes, "/killed") == WHOLE


def test_two_brokers_with_one_id_are_told_apart_and_one_waits(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread, caplog: pytest.LogCaptureFixture
) -> None:
    """The second says who the other is, tells nothing, and takes the place when it is free, also one without a clean end."""
    other = Metaq1Broker(3, "meta://10.0.0.9:8123")
    with Registered(loop, zookeeper.address, "/clash", other, {"theirs": Published(1, True, True)}) as first:
        before = mine(nodes, "/clash")
        with Registered(loop, zookeeper.address, "/clash") as second:
            assert not second.registrar.registered
            assert "meta://10.0.0.9:8123" in second.registrar.failing
            assert [line for line in caplog.messages if "brokerId 3 ('meta://10.0.0.9:8123')" in line]
            assert mine(nodes, "/clash") == before
            first.stop()
            eventually(lambda: second.registrar.registered or None)
            assert mine(nodes, "/clash") == WHOLE


def test_a_successor_takes_the_place_of_a_master_that_it_has_replaced(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, while the other has its session still; that one takes none of the nodes away when it goes, and does not fight."""
    new = Metaq1Broker(3, "meta://10.0.0.9:8123")
    with Registered(loop, zookeeper.address, "/succeeds") as before:
        before.silent = True  # it has stepped down
        with Registered(loop, zookeeper.address, "/succeeds", new, succeeds=True) as after:
            assert after.registrar.registered
            whole = {**WHOLE, "ids/3/master": new.uri}
            assert mine(nodes, "/succeeds") == whole
            before.changed()
            before.stop()
            assert mine(nodes, "/succeeds") == whole
            assert not [line for line in caplog.messages if "give one of the two another" in line]
            # Once only: who comes later with a number that is taken waits, as everybody.
            with Registered(loop, zookeeper.address, "/succeeds", Metaq1Broker(3, "meta://10.0.0.10:8123")) as third:
                assert not third.registrar.registered
            assert mine(nodes, "/succeeds") == whole


def test_another_broker_that_tells_no_address_has_its_place_all_the_same(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands in its node may be empty, or lines and lines: neither takes the place from it, nor spoils the log."""
    with zookeeper.nodes() as other:
        for text in ("", "meta://x\n" * 1000):
            other.client.create("/nameless/brokers/ids/3/master", text.encode(), ephemeral=True, makepath=True)
            with Registered(loop, zookeeper.address, "/nameless") as second:
                assert not second.registrar.registered
                assert len(second.registrar.failing) < 1000
                assert "\n" not in second.registrar.failing
            other.client.delete("/nameless/brokers/ids/3/master")


def test_a_second_process_at_our_address_is_not_fought(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Who held the place and lost it waits and says so; when the other goes, everything is there again."""
    with Registered(loop, zookeeper.address, "/fight") as first:
        with zookeeper.nodes() as other:
            both = other.client.transaction()
            for path, text in WHOLE.items():
                both.delete(f"/fight/brokers/{path}")
                both.create(f"/fight/brokers/{path}", text.encode(), ephemeral=True)
            both.commit()
            eventually(lambda: first.registrar.failing or None)
            assert not first.registrar.registered
            assert nodes.client.exists("/fight/brokers/ids/3/master").ephemeralOwner == other.client.client_id[0]
        eventually(lambda: mine(nodes, "/fight") == WHOLE or None)


def test_a_zookeeper_that_is_down_at_the_start_gets_all_when_it_comes(
    tmp_path: Path, loop: NetworkThread, caplog: pytest.LogCaptureFixture
) -> None:
    """The start goes on, the log says where to and why not, and nobody needs to do anything."""
    late = Zookeeper(tmp_path)
    with Registered(loop, late.address, "/late") as broker:
        assert not broker.registrar.registered
        (line,) = [line for line in caplog.messages if late.address in line]
        assert "cannot be reached" in line
        assert "refused" in line
        with late, late.nodes() as nodes:
            eventually(lambda: mine(nodes, "/late") == WHOLE or None)


def test_a_start_says_what_it_waits_for_before_it_goes_on_and_again(
    silent: str, loop: NetworkThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a ZooKeeper that takes connections and never answers: soon, then in growing intervals, though nothing has changed."""
    monkeypatch.setattr(absence, "AGAIN_SECONDS", 0.1)
    for wait in ("UNREACHABLE_SECONDS", "FIRST_WORD_SECONDS"):
        monkeypatch.setattr(registrar, wait, 1000.0)

    def told() -> list[str]:
        return [line for line in caplog.messages if f"ZooKeeper {silent} cannot be reached (no answer)" in line]

    async def begin() -> ZookeeperRegistrar:
        settings = ZookeeperSettings(silent, connection_timeout=1000.0)
        made = ZookeeperRegistrar(settings, BROKER, lambda: Advertisement(b"", {}))
        starting = asyncio.create_task(made.start())
        while not told():
            await asyncio.sleep(0.01)
        assert not starting.done(), "it waits a while more"
        starting.cancel()
        return made

    made = loop.call(begin())
    assert "Clients of MetaQ 1.x do not find this broker until it is registered" in told()[0]
    eventually(lambda: len(told()) >= 3 or None)
    loop.call(made.stop())


def test_a_client_says_what_it_cannot_do_before_its_first_connection(
    silent: str, tmp_path: Path, loop: NetworkThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its calls fail, wherever it is used; and once a connection is there, that."""
    monkeypatch.setattr(absence, "AGAIN_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    late = Zookeeper(tmp_path)

    async def begin(connect: str) -> ZookeeperClient:
        return ZookeeperClient(connect, SESSION_SECONDS, 1000.0, undone="nothing is copied")

    async def close(client: ZookeeperClient) -> None:
        await client.close()

    clients = [loop.call(begin(connect)) for connect in (silent, late.address)]
    text = "cannot be reached (%s): nothing is copied before it is; trying on"
    refused = "Connection dropped: socket connection error: Connection refused"
    for line in (f"ZooKeeper {silent} {text % 'no answer'}", f"ZooKeeper {late.address} {text % refused}"):
        eventually(lambda line=line: caplog.messages.count(line) >= 2 or None)
    assert not [one for one in caplog.records if one.name.startswith("kazoo")]
    with late:
        eventually(lambda: f"ZooKeeper {late.address} is connected" in caplog.messages or None)
    for client in clients:
        loop.call(close(client))


def test_an_absence_is_told_in_growing_intervals() -> None:
    away = absence.Absence(100.0, 1.0)
    told = [now - 100 for now in range(100, 400) if away.due(now)]
    assert told == [1, 11, 31, 71, 131, 191, 251]
    assert away.next == 411


def test_a_zookeeper_that_is_down_is_named_though_topics_change_all_the_time(
    tmp_path: Path, loop: NetworkThread
) -> None:
    """What is to be told wakes the registrar, and must not keep it from saying that it cannot."""
    nowhere = Zookeeper(tmp_path)

    async def said() -> str:
        registrar = ZookeeperRegistrar(ZookeeperSettings(nowhere.address), BROKER, lambda: Advertisement(b"", {}))

        async def restless() -> None:
            while True:
                registrar.changed()
                await asyncio.sleep(0.01)

        changes = asyncio.create_task(restless())
        await registrar.start()
        changes.cancel()
        await registrar.stop()
        return registrar.failing

    assert "cannot be reached" in loop.call(said())


def test_a_zookeeper_that_goes_down_and_comes_back_empty_gets_all_again(tmp_path: Path, loop: NetworkThread) -> None:
    """With its data it finds the nodes; without, a client that insists on the old session would never be let in."""
    with Zookeeper(tmp_path) as fragile, Registered(loop, fragile.address, "/back", session_seconds=1.0) as broker:
        with fragile.nodes() as nodes:
            for number in range(50):  # so that an empty one is far behind
                nodes.client.create(f"/filler{number}")
        fragile.kill()
        eventually(lambda: not broker.registrar.registered or None)
        fragile.start()
        with fragile.nodes() as nodes:
            eventually(lambda: mine(nodes, "/back") == WHOLE or None)
        fragile.kill()
        shutil.rmtree(tmp_path / "zookeeper" / "data")
        fragile.start()
        with fragile.nodes() as nodes:
            eventually(lambda: mine(nodes, "/back") == WHOLE or None)


def test_a_broker_that_zookeeper_does_not_hear_registers_again(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread
) -> None:
    """The session ends behind a network that drops everything; topics that changed meanwhile are told when it heals."""
    with (
        FlakyNetwork(zookeeper.address) as network,
        Registered(loop, network.address, "/silent", session_seconds=1.0) as broker,
    ):
        network.stall()
        eventually(lambda: mine(nodes, "/silent") == {} or None)
        broker.topics = {"other": Published(3, True, True)}
        broker.changed()
        network.mend()
        wanted = {path.replace("test", "other"): text for path, text in WHOLE.items()}
        eventually(lambda: mine(nodes, "/silent") == wanted or None)


def test_a_stop_does_not_wait_for_a_zookeeper_that_is_away(zookeeper: Zookeeper, loop: NetworkThread) -> None:
    with FlakyNetwork(zookeeper.address) as network:
        broker = Registered(loop, network.address, "/away")
        network.cut()
        broker.stop()  # within the minute that a call may take


def test_a_stop_does_not_wait_for_a_zookeeper_that_takes_connections_and_is_silent(loop: NetworkThread) -> None:
    """Its client would wait for a session's time-out, here far beyond the minute that a call may take."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        Registered(loop, f"127.0.0.1:{silent.getsockname()[1]}", "/dumb", session_seconds=600.0).stop()


def test_what_is_no_zookeeper_may_answer_anything_until_one_is_there(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread
) -> None:
    """Four bytes are no answer that its client could read: the client's thread ends with them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = listening.getsockname()

        def babble() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"\0\0\0\4what")
                connection.recv(1024)

        babbler = threading.Thread(target=babble, daemon=True)
        babbler.start()
        with Registered(loop, f"127.0.0.1:{place[1]}", "/babble", session_seconds=1.0):
            babbler.join(PATIENCE)
            listening.close()
            with FlakyNetwork(zookeeper.address, listen=f"127.0.0.1:{place[1]}"):
                eventually(lambda: mine(nodes, "/babble") == WHOLE or None)


def test_a_thousand_topics_are_registered_within_ten_seconds(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread
) -> None:
    """The figure is for a quiet machine: here it is only that all are there when `start` returns or soon after."""
    topics = {f"t{number}": Published(4, True, True) for number in range(1000)}
    with Registered(loop, zookeeper.address, "/thousand", topics=topics) as broker:
        eventually(lambda: broker.registrar.registered or None)
        assert len(nodes.client.get_children("/thousand/brokers/topics-sub")) == 1000
        assert nodes.text("/thousand/brokers/topics-pub/t999/3-m") == '{"numParts":4,"broker":"3-m"}'


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_the_nodes_are_right_in_the_end(
    zookeeper: Zookeeper, nodes: Nodes, loop: NetworkThread, seed: int
) -> None:
    """Topics that come, grow and go while the network breaks and stalls, and sessions end."""
    chance, root = random.Random(seed), f"/chance-{seed}"
    with (
        FlakyNetwork(zookeeper.address) as network,
        Registered(loop, network.address, root, topics={}, session_seconds=1.0) as broker,
    ):

        def topics() -> None:
            names = chance.sample("abcdefgh", chance.randrange(8))
            flags = [True, False]
            broker.topics = {
                name: Published(chance.randrange(1, 4), chance.choice(flags), chance.choice(flags)) for name in names
            }
            broker.changed()

        def expire() -> None:
            session = broker.registrar.session
            if session is not None and session.id:
                zookeeper.expire(session.credentials)

        def slow() -> None:
            network.delay(0.05)

        for _ in range(25):
            chance.choice([topics, topics, topics, expire, network.cut, network.stall, network.mend, slow])()
            loop.call(asyncio.sleep(chance.choice([0, 0.01, 0.1])))
        network.mend()
        topics()
        layout = Layout(root)
        wanted = layout.wanted(BROKER, CONFIG, broker.topics) | {layout.who(BROKER): BROKER.uri}
        eventually(lambda: {path: n.text for path, n in nodes.tree(root).items() if n.ephemeral} == wanted or None)
