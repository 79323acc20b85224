"""The name server's server: requests as bytes, answers as bytes, and what garbage costs."""

from __future__ import annotations

import json

import pytest

from metaq.clock import FakeClock
from metaq.errors import RemoteProtocolError
from metaq.model import DataVersion, TopicConfig
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, SerializeType, encode, request
from metaq.wire.files import KV_CONFIG
from metaq.wire.hot import crc31
from tests.broker.support import MemoryFile
from tests.servers.support import FakePeer


class Client(FakePeer):
    """A peer and its session: `ask` sends one request and returns the answer."""

    def __init__(self, server: NamesrvServer, host: str = "127.0.0.1") -> None:
        super().__init__(40000)
        self.address, self.local = (host, 40000), ("127.0.0.1", 9876)
        self.session = server.session(self)

    def ask(self, command: Command) -> Command:
        self.present = lambda: self.session.data_received(memoryview(encode(command)))
        self.present()
        while self.jobs:  # its turns
            self.jobs.popleft()()
        (answer,) = self.received()
        assert answer.opaque == command.opaque
        return answer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(clock) -> NamesrvServer:
    return NamesrvServer(NameService(NamesrvOptions(), clock, KvTable(TableFile(MemoryFile(), KV_CONFIG), clock)))


def registration(*, broker_id=0, address="10.0.0.1:10911", topics=("T",), crc=None, version=409) -> Command:
    body = bodies.registration(DataVersion(5, 1), {name: TopicConfig(name, 4, 4) for name in topics})
    header = headers.RegisterBrokerHeader(
        broker_name="a",
        broker_address=address,
        cluster="C",
        ha_address="10.0.0.1:10912",
        broker_id=broker_id,
        body_crc32=crc31(body) if crc is None else crc,
    )
    command = request(RequestCode.REGISTER_BROKER, header, body)
    command.version = version
    return command


def ask_route(link: Client, topic: str) -> Command:
    return link.ask(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic=topic)))


def test_a_second_broker_of_one_name_is_warned_of(server, clock, caplog):
    """Once in ten minutes for as long as both run, though RocketMQ's name servers say nothing; not a broker that moved."""
    one, two = Client(server), Client(server)
    one.ask(registration())
    one.ask(registration())
    two.ask(registration(broker_id=1, address="10.0.0.9:10911"))
    assert caplog.messages == []
    for _ in range(3):
        two.ask(registration(address="10.0.0.2:10911"))
        one.ask(registration())
    (text,) = caplog.messages
    assert text.startswith(
        "the broker a registers from 10.0.0.2:10911 while it is registered and connected from 10.0.0.1:"
    )
    clock.advance(601)
    two.ask(registration(address="10.0.0.2:10911"))
    assert "and 5 more like it" in caplog.messages[1]
    caplog.clear()
    clock.advance(601)
    two.session.on_lost("")
    one.ask(registration())
    one.ask(registration(address="10.0.0.3:10911"))
    assert caplog.messages == []


def test_a_slave_that_is_promoted_is_no_second_broker(server, caplog):
    """Its master, which has stepped down, may be connected for a moment; one that has not is told of when it registers again."""
    one, two = Client(server), Client(server)
    one.ask(registration())
    two.ask(registration(broker_id=1, address="10.0.0.2:10911"))
    two.ask(registration(address="10.0.0.2:10911"))
    one.ask(registration(broker_id=1))
    assert caplog.messages == []
    one.ask(registration())
    two.ask(registration(address="10.0.0.2:10911"))
    assert len(caplog.messages) == 1


def test_a_registered_topic_is_routed_in_both_header_forms(server):
    """JSON and binary requests get the same body, each in its own form."""
    link = Client(server)
    assert link.ask(registration()).code == ResponseCode.SUCCESS
    for form in SerializeType:
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic="T"), serialize=form)
        answer = link.ask(command)
        assert answer.serialize is form
        assert bodies.route_of("T", answer.body).brokers[0].addresses == {0: "10.0.0.1:10911"}


def test_an_unknown_topic_says_so(server):
    """Code 17 with the text that Java clients know."""
    answer = ask_route(Client(server), "nope")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark.startswith("No topic route info in name server for the topic: nope")


def test_a_slave_is_told_its_master(server):
    """The answer to a slave's registration carries the master's two addresses."""
    Client(server).ask(registration())
    answer = Client(server).ask(registration(broker_id=1, address="10.0.0.2:10911"))
    assert answer.ext == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}


def test_a_damaged_registration_registers_nothing(server):
    """A checksum that does not fit is an error, and the topic stays unknown."""
    link = Client(server)
    answer = link.ask(registration(crc=12345))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "crc32 not match" in answer.remark
    assert ask_route(link, "T").code == ResponseCode.TOPIC_NOT_EXIST


def test_the_end_of_a_brokers_connection_ends_its_route(server):
    """A broker killed with -9 is gone at once, not after its lease."""
    broker, client = Client(server), Client(server)
    broker.ask(registration())
    broker.session.connection_lost("reset")
    assert ask_route(client, "T").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_silent_broker_expires(server, clock):
    """Without a registration for the time of the lease, the tick drops it."""
    link = Client(server)
    link.ask(registration())
    clock.advance(120.001)
    assert server.service.tick() == ["10.0.0.1:10911"]
    assert ask_route(link, "T").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_goodbye_and_a_version_query(server):
    """322 tells whether the table moved; 104 ends the route."""
    link = Client(server)
    link.ask(registration())
    who = headers.BrokerHeader(broker_name="a", broker_address="10.0.0.1:10911", cluster="C", broker_id=0)
    for version, changed in ((DataVersion(5, 1), "false"), (DataVersion(5, 2), "true")):
        answer = link.ask(request(RequestCode.QUERY_DATA_VERSION, who, bodies.data_version(version)))
        assert answer.ext == {"changed": changed}
        assert bodies.data_version_of(answer.body) == DataVersion(5, 1)
    assert link.ask(request(RequestCode.UNREGISTER_BROKER, who)).code == 0
    assert ask_route(link, "T").code == ResponseCode.TOPIC_NOT_EXIST


def test_lists_and_permissions(server):
    """What mqadmin asks: cluster, topics, system topics, wiping and restoring the write permission."""
    link = Client(server)
    link.ask(registration(topics=("T", "U")))
    assert bodies.topic_list_of(link.ask(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body) == ["T", "U"]
    by_cluster = request(RequestCode.GET_TOPICS_BY_CLUSTER, headers.ClusterHeader(cluster="C"))
    assert bodies.topic_list_of(link.ask(by_cluster).body) == ["T", "U"]
    system = link.ask(request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))
    assert json.loads(bytes(system.body)) == {"topicList": ["C", "a"], "brokerAddr": "10.0.0.1:10911"}
    assert bodies.cluster_info_of(link.ask(request(RequestCode.GET_BROKER_CLUSTER_INFO)).body).clusters == {"C": ("a",)}
    name = headers.BrokerNameHeader(broker_name="a")
    assert link.ask(request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)).ext == {"wipeTopicCount": "2"}
    assert bodies.route_of("T", ask_route(link, "T").body).writable() == []
    assert link.ask(request(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)).ext == {"addTopicCount": "2"}
    assert len(bodies.route_of("T", ask_route(link, "T").body).writable()) == 4
    of_another = headers.DeleteRouteHeader(topic="U", broker_name="b")
    assert link.ask(request(RequestCode.DELETE_TOPIC_IN_NAMESRV, of_another)).code == 0
    assert ask_route(link, "U").code == 0
    assert link.ask(request(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteRouteHeader(topic="U"))).code == 0
    assert ask_route(link, "U").code == ResponseCode.TOPIC_NOT_EXIST
    assert b"brokerLeaseMs=120000" in bytes(link.ask(request(RequestCode.GET_NAMESRV_CONFIG)).body)


def test_kv_configuration(server):
    """Put, get, list and delete; what is not there is code 22."""
    link = Client(server)
    put = headers.PutKvHeader(namespace="N", key="k", value="v")
    key = headers.KvKeyHeader(namespace="N", key="k")
    assert link.ask(request(RequestCode.GET_KV_CONFIG, key)).code == ResponseCode.QUERY_NOT_FOUND
    assert link.ask(request(RequestCode.PUT_KV_CONFIG, put)).code == 0
    assert link.ask(request(RequestCode.GET_KV_CONFIG, key)).ext == {"value": "v"}
    table = link.ask(request(RequestCode.GET_KVLIST_BY_NAMESPACE, headers.NamespaceHeader(namespace="N")))
    assert bodies.kv_table_of(table.body) == {"k": "v"}
    assert link.ask(request(RequestCode.DELETE_KV_CONFIG, key)).code == 0
    gone = link.ask(request(RequestCode.GET_KVLIST_BY_NAMESPACE, headers.NamespaceHeader(namespace="N")))
    assert gone.code == ResponseCode.QUERY_NOT_FOUND


ADMINISTRATION = [
    request(RequestCode.PUT_KV_CONFIG, headers.PutKvHeader(namespace="N", key="k", value="v")),
    request(RequestCode.DELETE_KV_CONFIG, headers.KvKeyHeader(namespace="N", key="k")),
    request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, headers.BrokerNameHeader(broker_name="a")),
    request(RequestCode.ADD_WRITE_PERM_OF_BROKER, headers.BrokerNameHeader(broker_name="a")),
    request(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteRouteHeader(topic="T")),
    request(RequestCode.GET_NAMESRV_CONFIG),
]


@pytest.mark.parametrize("command", ADMINISTRATION, ids=lambda command: RequestCode(command.code).name)
def test_administration_is_for_this_machine_only(server, command):
    """From another address it is refused by name and changes nothing."""
    local = Client(server)
    local.ask(registration())
    answer = Client(server, "10.0.0.66").ask(command)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert RequestCode(command.code).name in answer.remark
    assert "remoteAdministrationEnable=true" in answer.remark
    assert len(bodies.route_of("T", ask_route(local, "T").body).writable()) == 4


@pytest.mark.parametrize("command", ADMINISTRATION, ids=lambda command: RequestCode(command.code).name)
def test_an_option_lets_other_machines_administer(clock, command):
    """Else a name server on a real address could be administered by nobody: its clients come from that address."""
    options = NamesrvOptions(remote_administration_enable=True)
    server = NamesrvServer(NameService(options, clock, KvTable(TableFile(MemoryFile(), KV_CONFIG), clock)))
    remote = Client(server, "10.0.0.66")
    remote.ask(registration())
    remote.ask(Command(RequestCode.PUT_KV_CONFIG, ext={"namespace": "N", "key": "k", "value": "v"}))
    assert remote.ask(command).code == ResponseCode.SUCCESS


def test_an_unknown_code_is_refused_by_name(server):
    """Code 3 names the request, known or not."""
    link = Client(server)
    assert link.ask(Command(4242)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    answer = link.ask(Command(RequestCode.SEND_MESSAGE_V2))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "SEND_MESSAGE_V2" in answer.remark


def test_hostile_values_are_answered_and_change_nothing(server):
    """A missing field, a number out of range, wrong JSON and a path as topic: an answer each, no route touched."""
    link = Client(server)
    link.ask(registration())
    bad = [
        Command(RequestCode.REGISTER_BROKER, ext={"brokerName": "b"}),
        Command(RequestCode.UNREGISTER_BROKER, ext={**registration().ext, "brokerId": "9" * 30}),
        Command(RequestCode.REGISTER_BROKER, ext={**registration().ext, "bodyCrc32": "0"}, body=b"{{{{"),
        registration(topics=("../../etc/passwd",)),
    ]
    for command in bad:
        assert link.ask(command).code == ResponseCode.SYSTEM_ERROR
    assert len(bodies.route_of("T", ask_route(link, "T").body).writable()) == 4
    assert bodies.topic_list_of(link.ask(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body) == ["T"]


def test_garbage_ends_its_own_connection_alone(server):
    """A frame that cannot be one raises for the listener to close; another connection goes on."""
    good, bad = Client(server), Client(server)
    good.ask(registration())
    with pytest.raises(RemoteProtocolError):
        bad.session.data_received(memoryview(b"GET / HTTP/1.1\r\n\r\n"))
    assert ask_route(good, "T").code == 0


def advertising(text: str, ha: str | None = None, *, broker_id: int = 0) -> Command:
    body = bodies.registration(DataVersion(5, 1), {"T": TopicConfig("T", 4, 4)})
    header = headers.RegisterBrokerHeader(
        broker_name="a", broker_address=f"172.17.0.{2 + broker_id}:10911", cluster="C", ha_address="172.17.0.2:10912",
        broker_id=broker_id, advertised=text, advertised_ha=ha,
    )  # fmt: skip
    return request(RequestCode.REGISTER_BROKER, header, body)


def test_each_client_is_told_the_address_that_fits_where_it_came_in(server):
    """Routes, cluster lists and a broker for the system topics; nothing of one client's answer is kept for the next."""
    outside = NamesrvServer(server.service, listener="outside")
    Client(server).ask(advertising("outside=broker.example.com:30911,10.0.0.0/8=10.1.2.3:10911"))
    told = {
        Client(server, "172.17.0.9").session: "172.17.0.2:10911",
        Client(server, "10.200.0.1").session: "10.1.2.3:10911",
        Client(outside, "172.17.0.1").session: "broker.example.com:30911",
    }
    route = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic="T"))
    for _ in range(2):  # the second time whatever was kept would be told
        for session, address in told.items():
            client = session.peer
            assert bodies.route_of("T", client.ask(route).body).brokers[0].addresses == {0: address}
            clusters = bodies.cluster_info_of(client.ask(request(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
            assert clusters.brokers["a"].addresses == {0: address}
            system = json.loads(client.ask(request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body)
            assert system["brokerAddr"] == address


def test_slave_is_told_the_addresses_of_its_master_that_fit(server):
    """Both, that for clients and that for its log, by the slave's own connection."""
    Client(server).ask(advertising("10.0.0.0/8=10.1.2.3:10911", "10.0.0.0/8=10.1.2.3:10912"))
    far = Client(server, "10.200.0.1").ask(advertising("", broker_id=1))
    near = Client(server, "172.17.0.3").ask(advertising("", broker_id=2))
    assert (far.ext["masterAddr"], far.ext["haServerAddr"]) == ("10.1.2.3:10911", "10.1.2.3:10912")
    assert (near.ext["masterAddr"], near.ext["haServerAddr"]) == ("172.17.0.2:10911", "172.17.0.2:10912")


@pytest.mark.parametrize("text", ["nothing", "a=b", "a=b:1,a=c:1", ",".join(f"l{n}=a:1" for n in range(1000))])
def test_addresses_that_are_none_are_refused(server, text):
    client = Client(server)
    answer = client.ask(advertising(text))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "metaqAdvertised" in (answer.remark or "")
    clusters = bodies.cluster_info_of(client.ask(request(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert not clusters.brokers
