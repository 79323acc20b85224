"""Quotas of accounts: charged over all connections that prove them, from the first request on; and what the audit log has of them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from metaq.broker.acl import AccessControl
from metaq.broker.audit import Audit
from metaq.clock import FakeClock
from metaq.model.audit import AuditRecord
from metaq.model.quota import QuotaKind, QuotaLimits
from metaq.servers.remoting.acl.signed import by_signature
from metaq.servers.remoting.server import RemotingServer
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from tests.broker.support import open_broker
from tests.servers.remoting.test_acl import ADMIN, ALL, SENDER, frame, rules_of
from tests.servers.remoting.test_quotas import Limited, Timer
from tests.servers.support import Client, send_header

ACCOUNT = QuotaKind.ACCOUNT, SENDER.access_key
FOUND: list[tuple[bool, AuditRecord]] = []


def note(record: AuditRecord, *, refused: bool) -> bool:
    FOUND.append((refused, record))
    return True


@pytest.fixture
def limited(tmp_path: pathlib.Path) -> Iterator[Limited]:
    clock, access = FakeClock(), AccessControl(rules_of(*ALL))
    FOUND.clear()
    with open_broker(tmp_path, clock, access=access) as broker:
        audit = Audit(clock, "broker-a", note)
        server = RemotingServer(broker, lambda act: act(), identify=by_signature(access), audit=audit)
        broker.topics.ensure("orders")
        timer = Timer(clock)
        broker.quotas.later = timer.later
        yield Limited(broker, server, timer)
        server.close()


def send(client: Client) -> list[int]:
    client.feed(frame(client, SENDER, RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x"))
    return [answer.code for answer in client.received()]


def test_a_connection_for_each_request_is_not_free(limited: Limited) -> None:
    limited.set(ACCOUNT, requests_per_second=2)
    codes = []
    for _ in range(10):
        client = Client(limited.server)
        codes += send(client)
        client.leave()
    assert codes[:2] == [0, 0]
    assert set(codes[6:]) == {ResponseCode.SYSTEM_BUSY}, "2 at once, and 2 s of waiting"
    limited.timer.pass_(3.0)
    assert send(Client(limited.server)) == [0]


def test_all_connections_of_an_account_share_its_rate_and_another_account_has_its_own(limited: Limited) -> None:
    limited.set(ACCOUNT, requests_per_second=2)
    clients = [Client(limited.server) for _ in range(2)]
    assert [send(client) for client in clients] == [[0], [0]]
    assert send(clients[0]) == []
    other = Client(limited.server)
    other.feed(frame(other, ADMIN, RequestCode.GET_BROKER_CONFIG))
    assert [answer.code for answer in other.received()] == [0]
    limited.timer.pass_(0.5)
    assert [answer.code for answer in clients[0].received()] == [0]


def test_connections_of_an_account(limited: Limited) -> None:
    limited.set(ACCOUNT, connections=1)
    first, second = Client(limited.server), Client(limited.server)
    assert send(first) == [0]
    assert send(second) == [ResponseCode.SYSTEM_BUSY]
    first.leave()
    assert send(second) == [0]


def test_only_accounts_that_administer_set_quotas_and_the_log_says_who_tried(limited: Limited) -> None:
    client = Client(limited.server)
    header = headers.SetQuotaHeader(kind="account", name=SENDER.access_key, limits="requestsPerSecond=1000000")
    for who in (SENDER, ADMIN):
        client.feed(frame(client, who, RequestCode.SET_QUOTA, header))
    assert [answer.code for answer in client.received()] == [ResponseCode.SYSTEM_ERROR, 0]
    (refused, tried), (done, did) = FOUND
    assert (refused, tried.request, tried.account, tried.reason) == (True, "SET_QUOTA", SENDER.access_key, "DENIED")
    assert (done, did.request, did.account, did.outcome) == (False, "SET_QUOTA", ADMIN.access_key, "done")
    assert did.values == {"kind": "account", "name": SENDER.access_key, "limits": "requestsPerSecond=1000000"}
    assert limited.broker.quotas.limits_of(ACCOUNT) == QuotaLimits(requests_per_second=1_000_000)
