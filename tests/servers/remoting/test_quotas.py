"""Quotas at the broker's remoting server: who is above one waits, is told, and is refused, on every path."""

from __future__ import annotations

import heapq
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from metaq.broker.broker import Broker
from metaq.clock import FakeClock
from metaq.errors import ConfigError
from metaq.model.quota import QuotaKind, QuotaLimits
from metaq.servers.remoting.server import RemotingServer
from metaq.wire import extensions, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import SerializeType, decode, encode
from metaq.wire.extensions import WAIT_FIELD
from tests.servers.support import Client, open_server, pull_header, send_header

HERE = QuotaKind.ADDRESS, "127.0.0.1"


class Timer:
    """Calls what a clock that the test sets has made due."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock, self._due = clock, list[tuple[float, int, Callable[[], None]]]()
        self._number = itertools.count()

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self._clock.monotonic() + seconds, next(self._number), act))

    def pass_(self, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while self._due and self._due[0][0] <= end + 1e-9:
            at, _, act = heapq.heappop(self._due)
            self._clock.advance(max(0.0, at - self._clock.monotonic()))
            act()
        self._clock.advance(end - self._clock.monotonic())


class Limited(NamedTuple):
    broker: Broker
    server: RemotingServer
    timer: Timer

    def set(self, subject: tuple[QuotaKind, str] = HERE, **limits: int) -> None:
        self.broker.quotas.set(subject, QuotaLimits(**limits)).settle()


@pytest.fixture
def limited(tmp_path: pathlib.Path) -> Iterator[Limited]:
    clock = FakeClock()
    with open_server(tmp_path, clock) as (broker, server):
        broker.topics.ensure("orders")
        timer = Timer(clock)
        broker.quotas.later = timer.later
        yield Limited(broker, server, timer)


@pytest.fixture(params=[SerializeType.JSON, SerializeType.BINARY])
def client(limited: Limited, request: pytest.FixtureRequest) -> Client:
    return Client(limited.server, request.param)


def sends(client: Client, count: int, body: bytes = b"x") -> bytes:
    return b"".join(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), body) for _ in range(count))


def ours(frame: bytes) -> bytes:
    command = decode(frame[4:])
    command.language = "PYTHON"
    return encode(command)


def test_answers_are_held_back_and_nothing_is_read_until_the_quota_has_paid(limited: Limited, client: Client) -> None:
    limited.set(requests_per_second=10)
    client.feed(sends(client, 10))
    assert len(client.received()) == 10, "a second's worth may be taken at once"
    client.feed(sends(client, 1))
    assert client.received() == []
    assert client.peer.paused
    assert client.peer.kept > 0, "what is held back is counted"
    limited.timer.pass_(0.099)
    assert client.received() == []
    limited.timer.pass_(0.001)
    assert [answer.code for answer in client.received()] == [0]
    assert not client.peer.paused
    assert client.peer.kept == 0


def test_requests_that_were_written_at_once_are_served_at_the_rate_and_none_is_refused(
    limited: Limited, client: Client
) -> None:
    limited.set(requests_per_second=100)
    client.feed(sends(client, 400))
    for _ in range(31):
        limited.timer.pass_(0.1)
    answers = client.received()
    assert [answer.code for answer in answers] == [0] * 400
    assert limited.broker.lookup.max_offset("orders", 0) == 400
    assert limited.broker.quotas.show()[0].requests == 400


def test_a_request_that_is_larger_than_the_rate_is_taken_and_later_ones_are_refused_with_the_reason(
    limited: Limited, client: Client
) -> None:
    limited.set(bytes_in_per_second=1000)
    client.feed(sends(client, 1, b"x" * 10_000))
    limited.timer.pass_(2.0)
    assert [answer.code for answer in client.received()] == [0]
    client.feed(sends(client, 1))
    limited.timer.pass_(2.0)
    (refused,) = client.received()
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "the address 127.0.0.1 is above its quota (bytesInPerSecond=1000)" in refused.remark
    assert limited.broker.lookup.max_offset("orders", 0) == 1
    limited.timer.pass_(10.0)
    client.feed(sends(client, 1))
    limited.timer.pass_(2.0)
    assert [answer.code for answer in client.received()] == [0]


def test_a_heartbeat_is_never_refused(limited: Limited, client: Client) -> None:
    limited.set(bytes_in_per_second=1000)
    client.feed(sends(client, 1, b"x" * 10_000))
    limited.timer.pass_(2.0)
    client.received()
    from metaq.model import Heartbeat
    from metaq.wire import bodies

    client.feed(client.frame(RequestCode.HEART_BEAT, None, bodies.heartbeat(Heartbeat("c@1", (), ("P",)))))
    limited.timer.pass_(2.0)
    assert [answer.code for answer in client.received()] == [0]


def test_clients_of_ours_get_their_answers_at_once_with_the_wait_in_the_last(limited: Limited, client: Client) -> None:
    limited.set(requests_per_second=10)
    frames = [ours(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x")) for _ in range(11)]
    client.feed(b"".join(frames))
    answers = client.received()
    assert [answer.code for answer in answers] == [0] * 11
    assert [answer.ext.get(WAIT_FIELD) for answer in answers] == [None] * 10 + ["100"]
    assert client.peer.paused, "whether it waits by itself is not relied on"
    client.feed(ours(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x")))
    assert client.received() == []
    limited.timer.pass_(0.1)
    assert len(client.received()) == 1


def test_bytes_of_pulled_messages_count(limited: Limited, client: Client) -> None:
    client.beat()
    client.feed(sends(client, 1, b"x" * 5000))
    client.received()
    limited.set(bytes_out_per_second=1000)
    client.feed(client.frame(RequestCode.PULL_MESSAGE, pull_header("orders")))
    (found,) = client.received()
    assert len(found.body) > 5000
    client.feed(client.frame(RequestCode.PULL_MESSAGE, pull_header("orders")))
    limited.timer.pass_(2.0)
    (refused,) = client.received()
    assert refused.code == ResponseCode.SYSTEM_BUSY


def test_held_pulls_beyond_the_quota_are_answered_at_once(limited: Limited, client: Client) -> None:
    limited.set(held_pulls=2)
    client.beat()
    pulls = [client.pull("orders", offset=0, sys_flag=6, suspend_ms=10_000) for _ in range(3)]
    assert [len(answers) for answers in pulls] == [0, 0, 1]
    assert pulls[2][0].code == ResponseCode.PULL_NOT_FOUND
    (use,) = limited.broker.quotas.show()
    assert use.held_pulls == 2
    client.feed(sends(client, 1))
    assert len(client.received()) == 3
    assert limited.broker.quotas.show()[0].held_pulls == 0


@pytest.mark.parametrize("what", ["topics", "groups"])
def test_topics_and_groups_that_an_address_makes(limited: Limited, client: Client, what: str) -> None:
    limited.set(**{what: 2})
    if what == "topics":
        answers = [client.send(f"made-{number}", default_topic="TBW102") for number in range(3)]
    else:
        answers = [client.beat(f"made-{number}") for number in range(3)]
    assert [answer.code == 0 for answer in answers] == [True, True, False]
    assert f"the address 127.0.0.1 has made 2 {what}, its quota is 2" in answers[2].remark


def test_connections_of_a_client_id(limited: Limited) -> None:
    limited.set((QuotaKind.CLIENT, "c@1"), connections=1)
    first, second = Client(limited.server), Client(limited.server)
    assert first.beat().code == 0
    refused = second.beat()
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "the client c@1 has 1 connections open, its quota is 1" in refused.remark
    second.feed(sends(second, 1))
    limited.timer.pass_(2.0)
    assert [answer.code for answer in second.received()] == [ResponseCode.SYSTEM_BUSY]
    first.leave()
    second.feed(sends(second, 1))
    assert [answer.code for answer in second.received()] == [0], "there is room now"


def test_connections_of_an_address_and_how_fast_it_opens_them(limited: Limited) -> None:
    quotas = limited.broker.quotas
    assert quotas.may_arrive("127.0.0.1") == quotas.may_connect("127.0.0.1") == ""
    limited.set(connections=2, connections_per_second=5)
    clients = []
    for _ in range(2):
        assert quotas.may_connect("127.0.0.1") == ""
        clients.append(Client(limited.server))
    assert "has 2 connections open, its quota is 2" in quotas.may_connect("127.0.0.1")
    assert quotas.may_connect("127.0.0.2") == "", "of another"
    clients[0].leave()
    assert quotas.may_connect("127.0.0.1") == ""
    assert [quotas.may_arrive("127.0.0.1") == "" for _ in range(7)] == [True] * 5 + [False] * 2
    assert "opens more than 5 connections a second" in quotas.may_arrive("127.0.0.1")
    assert quotas.may_arrive("127.0.0.2") == ""
    limited.timer.pass_(0.2)
    assert quotas.may_arrive("127.0.0.1") == ""


def test_a_default_holds_for_each_of_a_kind_and_a_quota_of_its_own_over_it(limited: Limited) -> None:
    limited.set((QuotaKind.CLIENT, "*"), requests_per_second=1)
    one, other = Client(limited.server), Client(limited.server)
    for client in (one, other):
        client.feed(sends(client, 1))
        assert len(client.received()) == 1
        client.feed(sends(client, 1))
        assert client.received() == [], "each connection without an id is a client of its own"
    limited.set((QuotaKind.CLIENT, "c@1"), requests_per_second=0)
    limited.timer.pass_(2.0)
    one.received()
    one.beat()
    one.feed(sends(one, 50))
    assert len(one.received()) == 50


def test_a_quota_is_saved_first_shown_and_removed_and_holds_after_a_restart(tmp_path: pathlib.Path) -> None:
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        header = headers.SetQuotaHeader(kind="address", name="*", limits="requestsPerSecond=7,bytesInPerSecond=2K")
        assert client.ask(RequestCode.SET_QUOTA, header).code == 0
        saved = json.loads((tmp_path / "config" / "metaqQuotas.json").read_text())
        assert {name: saved[name] for name in saved if name not in {"v", "crc"}} == {
            "quotas": {"address": {"*": {"requestsPerSecond": 7, "bytesInPerSecond": 2048}}}
        }
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        (default, own) = extensions.quotas_of(client.ask(RequestCode.QUOTAS).body)
        assert (default.kind, default.name, default.own) == ("address", "*", True)
        assert str(default.limits) == "requestsPerSecond=7,bytesInPerSecond=2048"
        assert (own.name, own.connections, own.requests, own.own) == ("127.0.0.1", 1, 1, False)
        removal = headers.SetQuotaHeader(kind="address", name="*")
        assert client.ask(RequestCode.SET_QUOTA, removal).code == 0
        assert not broker.quotas.active
        assert client.ask(RequestCode.SET_QUOTA, removal).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"kind": "topic", "name": "x", "limits": ""}, "there are no quotas of a 'topic'"),
        ({"kind": "client", "name": "a\nb", "limits": ""}, "is no name of a client"),
        ({"kind": "client", "name": "x", "limits": "speed=1"}, "'speed' is no limit of a client"),
        ({"kind": "client", "name": "x", "limits": "topics=1"}, "'topics' is no limit of a client"),
        ({"kind": "client", "name": "x", "limits": "requestsPerSecond=-1"}, "need a whole number"),
        ({"kind": "client", "name": "x", "limits": "requestsPerSecond=9999999999999999G"}, "is above"),
    ],
)
def test_what_is_no_quota_is_refused_with_the_reason(
    limited: Limited, client: Client, header: dict[str, str], said: str
) -> None:
    answer = client.ask(RequestCode.SET_QUOTA, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert said in answer.remark


def test_an_option_that_cannot_be_read_stops_the_start_and_is_named(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(ConfigError, match="quotaPerClient: 'requests' is no limit of a client"),
        open_server(tmp_path, quota_per_client="requests=5"),
    ):
        pass


def test_quotas_by_option_are_shown_and_can_be_lifted_while_the_broker_runs(tmp_path: pathlib.Path) -> None:
    clock = FakeClock()
    with open_server(tmp_path, clock, quota_per_address="requestsPerSecond=1") as (broker, server):
        timer = Timer(clock)
        broker.quotas.later = timer.later
        broker.topics.ensure("orders")
        client = Client(server)
        client.feed(sends(client, 2))
        timer.pass_(1.0)
        assert len(client.received()) == 2
        assert broker.quotas.show()[0] == broker.quotas.show()[0].__class__(
            "address", "*", QuotaLimits(requests_per_second=1)
        )
        broker.quotas.set((QuotaKind.ADDRESS, "*"), QuotaLimits(requests_per_second=0)).settle()
        client.feed(sends(client, 100))
        assert len(client.received()) == 100


def test_a_client_that_shuts_its_sending_side_gets_what_was_held_back(limited: Limited, client: Client) -> None:
    limited.set(requests_per_second=1)
    client.feed(sends(client, 2))
    assert client.session.owes
    limited.timer.pass_(1.0)
    assert len(client.received()) == 2
    assert not client.session.owes


def test_a_connection_that_ends_while_it_waits_leaves_nothing(limited: Limited, client: Client) -> None:
    limited.set(requests_per_second=1)
    client.feed(sends(client, 2))
    client.leave()
    limited.timer.pass_(5.0)
    assert limited.broker.quotas.show()[0].connections == 0
    assert not limited.broker.quotas.connections
