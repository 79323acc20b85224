"""Options of servers that are RocketMQs, scripted: what they pass over in silence is found; and servers that differ are compared."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from metaq.admin.configuring.changing import change_broker, change_name_servers
from metaq.admin.configuring.reading import ServerOptions, all_brokers, compare, find, read
from metaq.admin.several import HalfDone
from metaq.client.conversation.administration import ChangeOptions, GetOptions, GetSettings
from metaq.client.conversation.routes import GetCluster, GetNameServerSettings
from metaq.errors import BrokerError, ConfigError, ConnectionFailed
from metaq.model import BrokerData, ClusterInfo
from metaq.model.servers.option_state import OptionState


class Cluster:
    """Name servers n1 and n2, and brokers by address → options; `deaf`: keys that a RocketMQ does not take."""

    def __init__(self, *, deaf: tuple[str, ...] = ()) -> None:
        self.deaf, self.changed = deaf, list[tuple[str, dict[str, str]]]()
        self.settings = {
            "m:1": {"fileReservedTime": "72", "traceOn": "true", "brokerName": "a", "regionId": "r"},
            "s:1": {"fileReservedTime": "48", "traceOn": "true", "brokerName": "a", "regionId": ""},
            "n1:9876": {"orderMessageEnable": "false"},
            "n2:9876": {"orderMessageEnable": "false"},
        }
        self.ours: dict[str, list[OptionState]] = {}
        self.refuses: dict[str, str] = {}
        self.away: set[str] = set()
        self.name_servers = SimpleNamespace(addresses=("n1:9876", "n2:9876"), cluster=GetCluster)

    async def consult(self, _conversation):
        brokers = {"a": BrokerData("C", "a", {0: "m:1", 1: "s:1"}), "b": BrokerData("D", "b", {3: "s:1"})}
        return ClusterInfo(brokers, {"C": frozenset("a"), "D": frozenset("b")})

    async def ask(self, address, call, seconds=None):
        if address in self.away:
            raise ConnectionFailed(f"{address}: refused")
        match call:
            case GetOptions():
                return self.ours.get(address)
            case GetSettings() | GetNameServerSettings():
                return dict(self.settings[address])
            case ChangeOptions():
                if address in self.refuses:
                    raise BrokerError(1, self.refuses[address], address)
                assert call.escaped is (address not in self.ours)
                self.changed.append((address, call.pairs))
                self.settings[address] |= {key: value for key, value in call.pairs.items() if key not in self.deaf}
                return None
        raise AssertionError(call)


def run(work):
    return asyncio.run(work)


def test_a_rocketmq_tells_values_alone_and_takes_changes():
    cluster = Cluster()
    found = run(read(cluster, "a", "m:1"))
    assert not found.is_ours
    assert found.by_key()["traceOn"] == OptionState("traceOn", "", "true", None, "", "")
    (change,) = run(change_broker(cluster, "a", {"file_reserved_time": "24"}))
    assert (change.server, change.key, change.before, change.after, change.at_once) == (
        "a", "fileReservedTime", "72", "24", False,
    )  # fmt: skip
    assert cluster.changed == [("m:1", {"fileReservedTime": "24"})]


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ({"fileReservedTim": "1"}, "a has no option 'fileReservedTim'; the nearest is fileReservedTime"),
        ({"fileReservedTime": "soon"}, "need a whole number"),
        ({"traceOn": "yes"}, "need true or false"),
        ({"fileReservedTime": "1\n2"}, "control character"),
        ({"fileReservedTime": "1\0"}, "control character"),
        ({"fileReservedTime": "24", "file_reserved_time": "24"}, "given twice"),
        ({}, "no option is named"),
    ],
)
def test_what_a_rocketmq_would_pass_over_in_silence_is_refused_before(pairs, says):
    """With all that was asked for beside it: nothing is sent."""
    cluster = Cluster()
    with pytest.raises(ConfigError, match=says):
        run(change_broker(cluster, "a", {"traceOn": "false", **pairs} if pairs else pairs))
    assert cluster.changed == []


def test_what_a_rocketmq_has_not_taken_is_told():
    with pytest.raises(ConfigError, match="not taken everything: regionId is r"):
        run(change_broker(Cluster(deaf=("regionId",)), "a", {"regionId": "x", "traceOn": "false"}))


def test_name_servers_are_changed_all_or_the_rest_is_told():
    cluster = Cluster()
    assert len(run(change_name_servers(cluster, None, {"orderMessageEnable": "true"}))) == 2
    cluster = Cluster()
    cluster.away = {"n2:9876"}
    with pytest.raises(ConnectionFailed):
        run(change_name_servers(cluster, None, {"orderMessageEnable": "true"}))
    assert cluster.changed == [], "found before anything is changed"
    assert len(run(change_name_servers(cluster, "n1:9876", {"orderMessageEnable": "true"}))) == 1
    cluster = Cluster()
    cluster.refuses = {"n2:9876": "cannot"}
    with pytest.raises(HalfDone, match="name server n1:9876, but not at name server n2:9876"):
        run(change_name_servers(cluster, None, {"orderMessageEnable": "true"}))


def test_a_name_means_the_master_and_else_the_first_slave():
    cluster = Cluster()
    assert run(find(cluster, "a")) == ("a", "m:1")
    assert run(find(cluster, "b")) == ("b/3", "s:1")
    assert run(find(cluster, "x:5")) == ("x:5", "x:5")
    assert run(all_brokers(cluster, "C")) == {"a": "m:1", "a/1": "s:1"}
    assert run(all_brokers(cluster, None)) == {"a": "m:1", "a/1": "s:1", "b/3": "s:1"}


def test_a_broker_of_ours_and_a_rocketmq_are_compared_in_what_both_have():
    """An empty text is no value; what one does not know is no difference; who does not answer is told."""
    cluster = Cluster()
    cluster.ours = {
        "m:1": [
            OptionState("fileReservedTime", "store", "72", "72", "default", "at once"),
            OptionState("regionId", "broker", None, None, "default", "restart"),
            OptionState("brokerName", "broker", "b", None, "file", "restart", "x"),
            OptionState("onlyOurs", "broker", "1", "1", "default", "at once"),
            OptionState("fileReservedTime", "metaq1", "5", "5", "default", "reload"),
        ]
    }
    cluster.away = {"z:1"}
    found = run(compare(cluster, {"a": "m:1", "a/1": "s:1", "z": "z:1"}))
    assert found.servers == ["a", "a/1"]
    assert found.different == {"fileReservedTime": {"a": "72", "a/1": "48"}}
    assert found.own == {"brokerName": {"a": "b", "a/1": "a"}}
    assert list(found.failed) == ["z"]


def test_options_of_1x_have_their_section_in_front_and_are_not_set_over_the_wire():
    cluster = Cluster()
    cluster.ours = {"m:1": [OptionState("deleteWhen", "metaq1", "x", "x", "file", "reload", "server.ini")]}
    with pytest.raises(ConfigError, match="send SIGHUP"):
        run(change_broker(cluster, "a", {"metaq1.deleteWhen": "04"}))
    assert isinstance(run(read(cluster, "a", "m:1")), ServerOptions)
