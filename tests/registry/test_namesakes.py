"""Brokers of one name find each other at their name servers."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.support import PATIENCE

from metaq.errors import ConnectionFailed
from metaq.model import BrokerData, ClusterInfo
from metaq.model.topics.registration import BrokerIdentity
from metaq.registry.namesakes import Namesakes
from metaq.wire import bodies
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, reply

HERE, THERE = "10.0.0.1:10911", "10.0.0.2:10911"
IDENTITY = BrokerIdentity("C", "a", 0, HERE, "10.0.0.1:10912")


class Cluster:
    """Name servers that list the broker at `listed`, and a broker that runs at `running`, under `name`."""

    def __init__(self, listed: str = THERE, running: str = "", name: str = "a") -> None:
        self.listed, self.running, self.name = listed, running, name
        self.failing: set[str] = set()
        self.met: list[str] = []
        self.timeouts: set[float] = set()
        self.settles = False
        self.namesakes = Namesakes(self, ["n1", "n2"], IDENTITY, lambda: self.failing, 30, self._meet, timeout=PATIENCE)

    async def _meet(self, address: str) -> bool:
        self.met.append(address)
        return self.settles

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        self.timeouts.add(timeout)
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO and address != "n2":
            info = ClusterInfo({"a": BrokerData("C", "a", {0: self.listed})}, {"C": frozenset({"a"})})
            return reply(command, body=bodies.cluster_info(info))
        if command.code == RequestCode.GET_BROKER_CONFIG and address == self.running:
            return reply(command, body=f"brokerName={self.name}\nbrokerIP1=10.0.0.2\nlistenPort=10911\n".encode())
        raise ConnectionFailed(f"{address}: refused")

    def looked(self, caplog, *, registered: bool) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            asyncio.run(self.namesakes.look(registered=registered))
        return [record.levelname for record in caplog.records]


@pytest.mark.parametrize("running", [THERE, ""])
def test_a_broker_that_registers_after_this_one_is_told_once(caplog, running):
    """Whether it can be reached from here or not: it has registered since. Of a name server that is away nothing is known."""
    cluster = Cluster(running=running)
    assert cluster.looked(caplog, registered=True) == ["ERROR"]
    assert f"another broker named a runs at {THERE}, which name server n1 lists in turns" in caplog.text
    assert "give one of the two another brokerName" in caplog.text
    assert cluster.timeouts == {PATIENCE}, "no longer than a registration: the next name server waits"
    assert cluster.looked(caplog, registered=True) == []
    cluster.listed = "10.0.0.3:10911"
    assert cluster.looked(caplog, registered=True) == ["ERROR"]


def test_one_that_runs_already_is_told_at_the_start(caplog):
    assert Cluster(running=THERE).looked(caplog, registered=False) == ["ERROR"]


@pytest.mark.parametrize(
    "cluster",
    [Cluster(HERE), Cluster(), Cluster(running=THERE, name="b"), Cluster("127.0.0.1:10911", running="127.0.0.1:10911")],
    ids=["itself", "gone", "another broker's address now", "its own earlier address"],
)
def test_an_address_of_its_own_past_is_none(caplog, cluster):
    assert cluster.looked(caplog, registered=False) == []


def test_nothing_is_concluded_where_this_broker_is_not_registered(caplog):
    cluster = Cluster()
    cluster.failing.add("n1")
    assert cluster.looked(caplog, registered=True) == []


def test_two_that_do_not_settle_it_meet_again_soon(monkeypatch):
    """The other one may just be starting, or ending: a period is long for clients that find no leader."""
    monkeypatch.setattr("metaq.registry.namesakes.RETRY_SECONDS", 0.001)
    outcomes, settled = [False, False, True], asyncio.Event()

    async def met(_address: str) -> bool:
        outcome = outcomes.pop(0)
        if not outcomes:
            settled.set()
        return outcome

    async def body() -> None:
        namesakes = Namesakes(Cluster(running=THERE), ["n1"], IDENTITY, set, 3600, met, timeout=PATIENCE)
        looking = asyncio.create_task(namesakes.keep_looking())
        async with asyncio.timeout(PATIENCE):
            await settled.wait()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    asyncio.run(body())
    assert outcomes == []


def test_one_with_which_nothing_is_settled_is_met_again_though_its_address_is_not_listed_any_more(caplog):
    """It was asleep, say. Brokers that register in turns may each find its own address whenever it looks."""
    cluster = Cluster(running=THERE)
    cluster.looked(caplog, registered=False)
    cluster.listed = HERE
    cluster.looked(caplog, registered=True)
    assert cluster.met == [THERE, THERE]
    cluster.settles = True
    cluster.looked(caplog, registered=True)
    cluster.looked(caplog, registered=True)
    assert cluster.met == [THERE] * 3
