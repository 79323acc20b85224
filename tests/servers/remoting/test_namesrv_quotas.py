"""Quotas and audit of a name server."""

from __future__ import annotations

from metaq.broker.audit import Audit
from metaq.clock import FakeClock
from metaq.model.audit import AuditRecord
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.files import KV_CONFIG
from tests.broker.support import MemoryFile
from tests.servers.remoting.test_quotas import Timer
from tests.servers.support import Client


def opened(clock: FakeClock, audit: Audit | None = None, **options: object) -> NamesrvServer:
    service = NameService(NamesrvOptions(**options), clock, KvTable(TableFile(MemoryFile(), KV_CONFIG), clock))
    return NamesrvServer(service, audit=audit)


def test_who_asks_too_often_waits_and_is_refused_beyond_the_bound() -> None:
    clock = FakeClock()
    server = opened(clock, quota_per_address="requestsPerSecond=2", quota_wait_max=1000)
    timer = Timer(clock)
    server.quotas.later = timer.later
    clients = [Client(server) for _ in range(6)]
    for client in clients:
        client.feed(client.frame(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert [len(client.received()) for client in clients] == [1, 1, 0, 0, 0, 0]
    timer.pass_(1.0)
    codes = [answer.code for client in clients for answer in client.received()]
    assert codes == [0, 0, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]


def test_a_client_that_asks_for_much_at_once_is_served_at_the_rate() -> None:
    clock = FakeClock()
    server = opened(clock, quota_per_client="requestsPerSecond=10")
    timer = Timer(clock)
    server.quotas.later = timer.later
    client = Client(server)
    client.feed(b"".join(client.frame(RequestCode.GET_BROKER_CLUSTER_INFO) for _ in range(30)))
    timer.pass_(2.1)
    assert [answer.code for answer in client.received()] == [0] * 30


def test_listeners_of_one_server_share_its_quotas() -> None:
    """An address that comes in by two ports gets no more than by one."""
    clock = FakeClock()
    server = opened(clock, quota_per_address="requestsPerSecond=2", quota_wait_max=1000)
    outside = NamesrvServer(server.service, listener="outside", quotas=server.quotas)
    server.quotas.later = Timer(clock).later
    clients = [Client(one) for one in (server, outside, server, outside)]
    for client in clients:
        client.feed(client.frame(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert [len(client.received()) for client in clients] == [1, 1, 0, 0]


def test_what_administrators_do_is_noted_and_what_is_refused() -> None:
    clock, found = FakeClock(), list[tuple[bool, AuditRecord]]()

    def put(record: AuditRecord, *, refused: bool) -> bool:
        found.append((refused, record))
        return True

    client = Client(opened(clock, Audit(clock, "namesrv", put)))
    client.ask(
        RequestCode.PUT_KV_CONFIG, headers.PutKvHeader(namespace="ORDER_TOPIC_CONFIG", key="orders", value="a:4")
    )
    client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    client.ask(318, {"secretKey": "s3cr3t"})
    assert [(refused, record.request, record.code) for refused, record in found] == [
        (False, "PUT_KV_CONFIG", 100),
        (True, "UPDATE_NAMESRV_CONFIG", 318),
    ]
    assert found[0][1].values == {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"}
    assert "s3cr3t" not in str(found)
