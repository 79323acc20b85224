"""Which name server is asked, without any: the test answers."""

from __future__ import annotations

import pytest

from metaq.client.conversation.call import At
from metaq.client.conversation.driver import converse
from metaq.client.conversation.name_servers import NameServers
from metaq.errors import BrokerError, ClientClosed, ConnectionFailed, NoRoute, RequestTimeout
from metaq.model import BrokerData, ClusterInfo, QueueData, Route
from metaq.wire import bodies
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, reply

ROUTE = Route("orders", (QueueData("a", 2, 2, 6),), (BrokerData("c", "a", {0: "h:1"}),))


class Peers:
    """`n1`, `n2` ...: those in `errors` fail so, a broker knows no code of a name server, the others know one topic."""

    def __init__(self, errors: dict[str, Exception] | None = None, brokers: tuple[str, ...] = ("a",)) -> None:
        self.errors, self.brokers = errors or {}, brokers
        self.asked: list[tuple[str, int]] = []
        self.more_topics: list[str] = []

    def __call__(self, step: At) -> object:
        def exchange(command: Command) -> Command:
            self.asked.append((step.address, command.code))
            if step.address in self.errors:
                raise self.errors[step.address]
            if step.address.startswith("broker"):
                return reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="what?")
            if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                return reply(
                    command, body=bodies.cluster_info(ClusterInfo(dict.fromkeys(self.brokers, ROUTE.brokers[0])))
                )
            if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return reply(command, body=bodies.topic_list(["orders", "%RETRY%g", "a", "c", *self.more_topics]))
            if command.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER:
                return reply(command, body=bodies.topic_list(["our-traces", "SELF_TEST_TOPIC"]))
            if command.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS:
                return reply(command, body=bodies.topic_list(["a", "c"]))
            if command.ext["topic"] != "orders":
                return reply(command, ResponseCode.TOPIC_NOT_EXIST, remark="none")
            return reply(command, body=bodies.route(ROUTE))

        return step.call.outcome(exchange(step.call.request()), step.address)


def down(address: str) -> ConnectionFailed:
    return ConnectionFailed(f"cannot connect to {address}")


def test_the_next_is_asked_when_one_is_down_and_kept_from_then_on():
    peers, servers = Peers({"n1": down("n1")}), NameServers(["n1", "n2"])
    assert converse(servers.route("orders"), peers) == ROUTE
    assert converse(servers.route("orders"), peers) == ROUTE
    assert [address for address, _ in peers.asked] == ["n1", "n2", "n2"]


def test_an_answer_that_says_no_is_an_answer():
    """The topic is unknown: the one that said so is kept, and no other is asked."""
    peers, servers = Peers({"n1": down("n1")}), NameServers(["n1", "n2", "n3"])
    for _ in range(2):
        with pytest.raises(NoRoute, match="metaq topic create other"):
            converse(servers.route("other"), peers)
    assert [address for address, _ in peers.asked] == ["n1", "n2", "n2"]


@pytest.mark.parametrize(
    ("topic", "says"),
    [("%DLQ%mailer", "the first dead letter of group mailer"), ("%RETRY%mailer", "the first retry of group mailer")],
)
def test_a_topic_of_failed_messages_is_not_to_be_created_by_hand(topic, says):
    """It is missing because all went well."""
    with pytest.raises(NoRoute, match=f"{says} creates it, and there is none yet$"):
        converse(NameServers(["n1"]).route(topic), Peers({}))


def test_when_none_can_be_reached_the_first_reason_is_told():
    """What was to be sent to a broker was not sent."""
    servers = NameServers(["n1", "n2"])
    with pytest.raises(ConnectionFailed, match=r"no name server of n1;n2 .* cannot connect to n1") as raised:
        converse(servers.route("orders"), Peers({"n1": down("n1"), "n2": RequestTimeout("n2 is silent")}))
    assert not raised.value.sent


def test_each_is_asked_though_another_conversation_chooses_in_the_meantime():
    """One asks n1, which hangs; another finds n2 down and keeps n3. The first asks n2 and n3 all the same."""
    servers = NameServers(["n1", "n2", "n3"])
    one, asked = servers.route("orders"), []
    step = next(one)
    asked.append(step.address)
    converse(servers.route("orders"), Peers({"n1": down("n1"), "n2": down("n2")}))
    step = one.throw(RequestTimeout("n1 is silent"))
    asked.append(step.address)
    step = one.throw(down("n2"))
    asked.append(step.address)
    assert asked == ["n1", "n2", "n3"]
    with pytest.raises(StopIteration) as end:
        one.send(ROUTE)
    assert end.value.value == ROUTE


def test_a_broker_in_place_of_a_name_server_is_told_apart():
    with pytest.raises(BrokerError, match="broker1 is no name server"):
        converse(NameServers(["broker1"]).route("orders"), Peers())
    assert converse(NameServers(["broker1", "n2"]).route("orders"), Peers()) == ROUTE


def test_a_client_that_closes_asks_nobody_else():
    peers = Peers({"n1": ClientClosed("closed")})
    with pytest.raises(ClientClosed):
        converse(NameServers(["n1", "n2"]).route("orders"), peers)
    assert [address for address, _ in peers.asked] == ["n1"]


def test_why_there_is_no_route_depends_on_whether_there_is_a_broker():
    servers = NameServers(["n1"])
    assert "is the broker running" in str(converse(servers.no_route("other"), Peers(brokers=())))
    assert "metaq topic create other" in str(converse(servers.no_route("other"), Peers()))
    assert "metaq topic create other" in str(converse(servers.no_route("other"), Peers({"n1": down("n1")})))


def test_topics_of_users_leave_out_those_of_brokers_and_groups():
    assert converse(NameServers(["n1"]).topics(), Peers()) == ["orders"]
    assert converse(NameServers(["n1"]).topics(system=True), Peers()) == ["%RETRY%g", "a", "c", "orders"]


def test_topics_that_brokers_call_their_own_are_no_users():
    """`msgTraceTopicName` may be any name. They are asked when there are topics that they have not judged yet, and again if one
    did not answer."""
    peers, servers = Peers(), NameServers(["n1"])
    peers.more_topics = ["our-traces"]
    assert converse(servers.topics(), peers) == ["orders"]
    assert converse(servers.topics(), peers) == ["orders"]
    assert [address for address, _ in peers.asked].count("h:1") == 1
    assert converse(servers.topics(system=True), peers) == ["%RETRY%g", "a", "c", "orders", "our-traces"]
    peers.more_topics = ["our-traces", "new"]
    peers.errors = {"h:1": down("h:1")}
    for _ in range(2):
        assert converse(servers.topics(), peers) == ["new", "orders"]
    assert [address for address, _ in peers.asked].count("h:1") == 3
