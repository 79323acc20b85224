"""The registrar against scripted name servers."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.support import PATIENCE

from metaq.errors import ConnectionFailed
from metaq.model import BrokerData, ClusterInfo, DataVersion, TopicConfig
from metaq.model.topics.registration import BrokerIdentity
from metaq.registry.namesrv import Registrar
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, reply
from metaq.wire.hot import crc31

TIMEOUT = 6.0
"""registerBrokerTimeoutMills of RocketMQ, the default here too, s."""
IDENTITY = BrokerIdentity("C", "a", 0, "10.0.0.1:10911", "10.0.0.1:10912")


class NameServers:
    """Takes calls; those at an address in `down` fail, those at one in `silent` get no answer."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.calls: list[tuple[str, Command]] = []
        self.times: list[float] = []
        """Time that each call gives the answer, s."""
        self.called = asyncio.Event()

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        self.calls.append((address, command))
        self.times.append(timeout)
        self.called.set()
        if address in self.silent:
            await asyncio.Event().wait()
        if address in self.down:
            raise ConnectionFailed(f"{address}: refused")
        return reply(command)

    def codes(self) -> list[tuple[str, int]]:
        return [(address, command.code) for address, command in self.calls]


def registrar(
    servers: NameServers, topics: dict[str, TopicConfig], period: float = 30.0, gather: float = 0.0, at_once: int = 0
) -> Registrar:
    def describe(names):
        told = topics if names is None else {name: topics[name] for name in names if name in topics}
        return DataVersion(1, len(topics)), told

    return Registrar(servers, ["n1", "n2"], IDENTITY, describe, period, gather=gather, at_once=at_once)


def tables(servers: NameServers) -> dict[str, set[str]]:
    """What each name server was told last."""
    told = {}
    for address, command in servers.calls:
        if command.code == RequestCode.REGISTER_BROKER:
            told[address] = set(bodies.registration_of(command.body, compressed=False, bare=False)[1])
    return told


def test_it_registers_everywhere_at_start_and_says_goodbye():
    """The body carries the whole table and a checksum over the bytes as sent."""

    async def run() -> None:
        servers = NameServers()
        one = registrar(servers, {"T": TopicConfig("T")})
        await one.start()
        assert sorted(servers.codes()) == [("n1", RequestCode.REGISTER_BROKER), ("n2", RequestCode.REGISTER_BROKER)]
        command = servers.calls[0][1]
        header = headers.RegisterBrokerHeader.from_ext(command.ext)
        assert header.body_crc32 == crc31(command.body)
        _, topics = bodies.registration_of(command.body, compressed=False, bare=False)
        assert topics == {"T": TopicConfig("T")}
        servers.calls.clear()
        await one.stop()
        assert sorted(servers.codes()) == [("n1", RequestCode.UNREGISTER_BROKER), ("n2", RequestCode.UNREGISTER_BROKER)]
        assert max(servers.times) == TIMEOUT, "a stop waits no longer for a silent one than a registration"

    asyncio.run(run())


def test_a_change_is_told_at_once():
    """A topic made between two periods is registered without waiting for the next."""

    async def run() -> None:
        servers, topics = NameServers(), {"T": TopicConfig("T")}
        one = registrar(servers, topics, period=3600)
        await one.start()
        servers.calls.clear()
        servers.called.clear()
        topics["U"] = TopicConfig("U")
        one.changed()
        one.changed()
        await asyncio.wait_for(servers.called.wait(), PATIENCE)
        _, told = bodies.registration_of(servers.calls[0][1].body, compressed=False, bare=False)
        assert set(told) == {"T", "U"}
        await one.stop()

    asyncio.run(run())


def test_changes_in_a_row_are_told_together_and_at_once_if_somebody_waits():
    """A thousand topics made by use are not a thousand registrations; who asks to be told does not wait for others."""

    async def run() -> None:
        servers, topics = NameServers(), {}
        one = registrar(servers, topics, period=3600, gather=3600, at_once=2)
        await one.start()
        for name in ("few", "more"):
            servers.calls.clear()
            servers.called.clear()
            topics[name] = TopicConfig(name)
            one.changed(name)
            while len(servers.calls) < 2:
                await asyncio.sleep(0)
            assert tables(servers) == {"n1": {name}, "n2": {name}}
        servers.calls.clear()
        for number in range(1000):
            topics[f"t{number}"] = TopicConfig(f"t{number}")
            one.changed(f"t{number}")
            await asyncio.sleep(0)
        assert servers.calls == []
        told = asyncio.Event()
        one.when_registered(told.set, timeout=3600)
        await asyncio.wait_for(told.wait(), PATIENCE)
        assert len(servers.calls) == 2
        made = set(topics) - {"few", "more"}
        assert tables(servers) == {"n1": made, "n2": made}
        await one.stop()

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(6))
def test_it_stops_also_right_after_a_change(turns):
    """Whatever it was about to do: a task that misses its end would hold up the broker's for ever."""

    async def run() -> None:
        servers = NameServers()
        one = registrar(servers, {"T": TopicConfig("T")}, period=3600)
        await one.start()
        await asyncio.sleep(0)
        one.changed()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await one.stop()
        assert servers.codes()[-1][1] == RequestCode.UNREGISTER_BROKER

    asyncio.run(run())


def test_a_name_server_that_is_down_is_tried_again_and_logged_once(caplog):
    """The broker starts without it, the others know the broker, and the log has one line until it is back."""

    async def run() -> None:
        servers = NameServers()
        servers.down = {"n2"}
        one = registrar(servers, {}, period=0.001)
        with caplog.at_level(logging.INFO):
            await one.start()
            assert set(one.failing) == {"n2"}
            for _ in range(5):
                servers.called.clear()
                await asyncio.wait_for(servers.called.wait(), PATIENCE)
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            servers.down.clear()
            while one.failing:
                servers.called.clear()
                await asyncio.wait_for(servers.called.wait(), PATIENCE)
                await asyncio.sleep(0)
        assert "again" in caplog.records[-1].message
        await one.stop()

    asyncio.run(run())


def test_who_changed_a_topic_learns_when_all_name_servers_know():
    """`when_registered` waits for the change, not for the next period, and is at once without one."""

    async def run() -> None:
        servers, topics = NameServers(), {}
        one = registrar(servers, topics, period=3600)
        await one.start()
        told = asyncio.Event()
        one.when_registered(told.set)
        await asyncio.wait_for(told.wait(), PATIENCE)  # nothing has changed
        servers.calls.clear()
        told.clear()
        topics["U"] = TopicConfig("U")
        one.changed()
        one.when_registered(told.set)
        await asyncio.wait_for(told.wait(), PATIENCE)
        assert {address for address, _ in servers.calls} == {"n1", "n2"}
        assert all(b'"U"' in command.body for _, command in servers.calls)
        await one.stop()

    asyncio.run(run())


def test_a_silent_name_server_holds_up_nobody():
    """The others are told every change at once, and who waits is answered after its time."""

    async def run() -> None:
        servers, topics = NameServers(), {}
        one = registrar(servers, topics, period=3600)
        await one.start()
        servers.silent = {"n2"}
        for name in ("U", "V"):
            told = asyncio.Event()
            topics[name] = TopicConfig(name)
            servers.calls.clear()
            one.changed()
            one.when_registered(told.set, timeout=0.05)
            await asyncio.wait_for(told.wait(), PATIENCE)
            assert "n1" in {address for address, _ in servers.calls}
        servers.silent.clear()
        await one.stop()

    asyncio.run(run())


def test_only_the_topics_that_changed_are_told_in_between():
    """With ten thousand topics the table is large; who failed to take it, or lost the connection, gets all of it."""

    async def run() -> None:
        servers, topics = NameServers(), {"T": TopicConfig("T")}
        one = registrar(servers, topics, period=3600)
        await one.start()
        assert tables(servers) == {"n1": {"T"}, "n2": {"T"}}

        async def change(*names: str) -> dict[str, set[str]]:
            servers.calls.clear()
            for name in names:
                topics[name] = TopicConfig(name)
                one.changed(name)
            told = asyncio.Event()
            one.when_registered(told.set)
            await asyncio.wait_for(told.wait(), PATIENCE)
            return tables(servers)

        assert await change("U", "V") == {"n1": {"U", "V"}, "n2": {"U", "V"}}
        servers.down.add("n2")
        assert await change("W") == {"n1": {"W"}, "n2": {"W"}}
        servers.down.clear()
        assert await change("X") == {"n1": {"X"}, "n2": {"T", "U", "V", "W", "X"}}
        one.lost("n1")
        assert (await change("Y"))["n1"] == {"T", "U", "V", "W", "X", "Y"}
        one.changed()
        assert (await change())["n1"] == set(topics)
        await one.stop()

    asyncio.run(run())


def test_a_name_server_that_may_have_forgotten_us_is_told_everything():
    """After two periods without the whole table, though changes were told all the time."""

    async def run() -> None:
        servers, topics = NameServers(), {"T": TopicConfig("T")}
        one = registrar(servers, topics, period=0.05)
        await one.start()
        deadline = asyncio.get_running_loop().time() + 20
        n = whole = 0
        while whole < 3:
            assert asyncio.get_running_loop().time() < deadline
            n += 1
            topics[f"t{n}"] = TopicConfig(f"t{n}")
            one.changed(f"t{n}")
            await asyncio.sleep(0.01)
            whole = sum(
                len(bodies.registration_of(command.body, compressed=False, bare=False)[1]) > n // 2
                for _, command in servers.calls
            )
        await one.stop()

    asyncio.run(run())


def test_broker_is_told_which_topics_are_ordered_at_any_name_server():
    """Each registration's answer carries that; a name server that has never had any says nothing of it."""

    async def run() -> None:
        servers, told = NameServers(), []
        one = Registrar(
            servers, ["n1", "n2"], IDENTITY, lambda _: (DataVersion(1, 1), {}), 3600, ordered=lambda topics: told.append(set(topics))
        )  # fmt: skip
        await one.start()
        assert told == []
        answers = {"n1": {"T": "a:4"}, "n2": {"U": "a:1;b:2"}}
        call = servers.call

        async def with_order(address, command, timeout):
            await call(address, command, timeout)
            return reply(command, body=bodies.kv_table(answers[address]))

        servers.call = with_order
        one.changed()
        async with asyncio.timeout(PATIENCE):
            while not told or told[-1] != {"T", "U"}:
                await asyncio.sleep(0)
            answers["n1"] = {}
            one.changed()
            while told[-1] != {"U"}:
                await asyncio.sleep(0)
        await one.stop()

    asyncio.run(run())


def test_a_leader_in_doubt_does_not_take_the_place_of_its_successor():
    """One that has slept registers first of all when it wakes. Where nobody else is it goes on, for readers."""
    ours, other = IDENTITY.address, "10.0.0.2:10911"
    inside = {"n1": other, "n2": ours}
    certain = [True]

    class Known(NameServers):
        async def call(self, address: str, command: Command, timeout: float) -> Command:
            answer = await super().call(address, command, timeout)
            if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                data = BrokerData("C", "a", {0: inside[address], 1: "10.0.0.3:10911"})
                answer.body = bodies.cluster_info(ClusterInfo({"a": data}, {"C": frozenset({"a"})}))
            return answer

    async def run() -> None:
        servers = Known()

        def describe(_names):
            return DataVersion(1, 1), {"T": TopicConfig("T")}

        one = Registrar(servers, ["n1", "n2"], IDENTITY, describe, gather=0.0, certain=lambda: certain[0])
        await one.start()
        assert tables(servers).keys() == {"n1", "n2"}
        certain[0] = False
        servers.calls.clear()
        waited = asyncio.Event()
        one.changed()
        one.when_registered(waited.set)
        async with asyncio.timeout(PATIENCE):
            await waited.wait()
        assert tables(servers).keys() == {"n2"}
        certain[0] = True
        servers.calls.clear()
        one.changed()
        while tables(servers).keys() != {"n1", "n2"}:
            await asyncio.sleep(0)
        await one.end()

    asyncio.run(run())
