"""Commands that touch several servers, against scripted ones: asked beforehand, and told what is half done."""

from __future__ import annotations

import asyncio
import types

import pytest

from metaq.admin import HalfDone, NothingDone, TopicNotFound, order, topics
from metaq.client.conversation.administration import CreateTopic, DeleteTopic, GetRuntime
from metaq.client.conversation.groups import GetGroups, GetMetaq1Groups
from metaq.client.conversation.name_servers import NameServers
from metaq.client.conversation.routes import (
    DeleteTopicRoute,
    GetCluster,
    GetNameServerSettings,
    GetRoute,
    GetValue,
    ListTopics,
    PutValue,
)
from metaq.errors import BrokerError, ConnectionFailed, MetaqError
from metaq.model import BrokerData, ClusterInfo, Perm, QueueData, Route
from metaq.wire.codes import ResponseCode

BROKERS = {"a": "a:10911", "b": "b:10911"}


def refused(address: str) -> BrokerError:
    return BrokerError(ResponseCode.NO_PERMISSION, "taken from loopback addresses only", address)


def away(address: str) -> ConnectionFailed:
    return ConnectionFailed(f"{address}: refused")


class Core:
    """Two brokers and two name servers. `faults`: (address, class of call) → maker of the error."""

    def __init__(self, faults=(), routed=("n1:9876", "n2:9876")) -> None:
        self.name_servers = NameServers(["n1:9876", "n2:9876"])
        self.clock = types.SimpleNamespace(now_ms=lambda: 0)
        self.faults = {(address, kind): error for address, kind, error in faults}
        self.routed = routed
        self.changed: list[tuple[str, str]] = []

    async def ask(self, address, call, seconds=None):
        if error := self.faults.get((address, type(call))) or self.faults.get((address, None)):
            raise error(address)
        match call:
            case ListTopics():
                return ["orders"] if address in self.routed else []
            case GetCluster():
                brokers = {name: BrokerData("C", name, {0: where}) for name, where in BROKERS.items()}
                return ClusterInfo(brokers, {"C": frozenset(BROKERS)})
            case GetRoute():
                perm = int(Perm.READ | Perm.WRITE)
                queues = [QueueData(name, 4, 4, perm, 0) for name in BROKERS]
                brokers = [BrokerData("C", name, {0: where}) for name, where in BROKERS.items()]
                return Route("orders", tuple(queues), tuple(brokers))
            case GetRuntime() | GetNameServerSettings():
                return {}
            case GetValue():
                return None
            case GetGroups() | GetMetaq1Groups():
                return []
        self.changed.append((address, type(call).__name__))
        return None

    async def consult(self, conversation):
        value, failure = None, None
        try:
            while True:
                step = conversation.throw(failure) if failure else conversation.send(value)
                value = failure = None
                try:
                    value = await self.ask(step.address, step.call)
                except MetaqError as error:
                    failure = error
        except StopIteration as end:
            return end.value


def create(core):
    return topics.create(core, "orders", queues=4, perm=6, order=False, cluster=None, broker=None)


def delete(core):
    return topics.delete(core, "orders", force=False)


def put(core):
    return order.put(core, "orders", None)


def remove(core):
    return order.delete(core, "orders")


@pytest.mark.parametrize("command", [delete, put, remove])
def test_a_name_server_that_would_refuse_is_found_before_anything_is_changed(command):
    """The broker's messages were gone already when the name server refused, as it does from another machine."""
    core = Core([("n2:9876", GetNameServerSettings, refused)])
    with pytest.raises(NothingDone, match=r"nothing was changed: name server n2:9876 refuses: code 16 .*loopback"):
        asyncio.run(command(core))
    assert core.changed == []


@pytest.mark.parametrize("command", [delete, create])
def test_a_broker_that_does_not_answer_is_found_before_anything_is_changed(command):
    core = Core([("b:10911", None, away)])
    with pytest.raises(NothingDone, match=r"topic orders is not .*, nothing was changed: broker b does not answer"):
        asyncio.run(command(core))
    assert core.changed == []


@pytest.mark.parametrize("command", [put, remove])
def test_a_value_is_changed_at_all_name_servers_or_none(command):
    """Each keeps it on its own disk, so that one that is away would have the old one for ever."""
    core = Core([("n2:9876", None, away)])
    with pytest.raises(NothingDone, match="name server n2:9876 does not answer"):
        asyncio.run(command(core))
    assert core.changed == []


@pytest.mark.parametrize(
    ("command", "at", "call", "says"),
    [
        (create, "b:10911", CreateTopic, "topic orders is created at a, but not at b: code 16"),
        (delete, "a:10911", DeleteTopic, "topic orders is deleted at b, but not at a: code 16"),
        (
            delete,
            "n1:9876",
            DeleteTopicRoute,
            "topic orders is deleted at a, b, name server n2:9876, but not at name server n1",
        ),
        (
            put,
            "n2:9876",
            PutValue,
            "the order of topic orders is set at name server n1:9876, but not at name server n2",
        ),
    ],
)
def test_what_fails_all_the_same_is_told_with_what_is_done(command, at, call, says):
    core = Core([(at, call, refused)])
    with pytest.raises(HalfDone) as caught:
        asyncio.run(command(core))
    assert str(caught.value).startswith(says)
    assert str(caught.value).endswith("Repeat it to do the rest")
    assert list(caught.value.failed)


def test_a_name_server_that_is_away_does_not_hold_up_a_deletion_but_is_told():
    """It has its routes from the brokers alone, and will not get this one again."""
    core = Core([("n2:9876", None, away)])
    with pytest.raises(
        HalfDone, match="deleted at a, b, name server n1:9876, but not at name server n2:9876: n2:9876: refused"
    ):
        asyncio.run(delete(core))


def test_half_a_deletion_can_be_repeated():
    """Also if the name server in use has the topic no more."""
    core = Core(routed=("n2:9876",))
    asyncio.run(delete(core))
    assert ("n2:9876", "DeleteTopicRoute") in core.changed
    with pytest.raises(TopicNotFound):
        asyncio.run(delete(Core(routed=())))


def test_one_server_that_refuses_is_no_half():
    """All have refused: the error is theirs."""
    core = Core([("a:10911", CreateTopic, refused), ("b:10911", CreateTopic, refused)])
    with pytest.raises(BrokerError, match="code 16 from a:10911"):
        asyncio.run(create(core))
