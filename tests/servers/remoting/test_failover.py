"""A follower's request to be counted in its leader's in-sync set (30027): who gets a ticket, and for what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaq.broker.acl import AccessControl
from metaq.broker.broker import Broker
from metaq.broker.failover.lapse import HOLD_SECONDS
from metaq.clock import FakeClock
from metaq.model.failover import GroupState, Place
from metaq.servers.remoting.server import RemotingServer
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command
from metaq.wire.extensions import NOT_LEADING, NOT_LEADING_MARK, RELAYED_FIELD
from metaq.wire.following import table_changes_of
from tests.servers.remoting.test_acl import ADMIN, CONSUMER, SENDER, ask, denied, guarding, rules_of
from tests.servers.support import Client, open_server, send_header, tick

ONE, TWO = Place(1, "one"), Place(2, "two")
GROUP = {"failover": "zookeeper", "broker_id": 1}


def lead(broker: Broker) -> None:
    broker.in_sync.begin(1, GroupState("history", 5, 1, "me", (ONE, TWO)), 0)
    broker.in_sync.renewed(broker.clock.elapsed(), 60.0)


@pytest.fixture
def server(tmp_path) -> Iterator[RemotingServer]:
    with open_server(tmp_path, FakeClock(), **GROUP) as (broker, made):
        lead(broker)
        yield made


def join(client: Client, member: int = 2, store: str = "two", epoch: int = 5) -> Command:
    return client.ask(RequestCode.JOIN_IN_SYNC, headers.JoinInSyncHeader(member=member, store=store, epoch=epoch))


def test_a_member_gets_a_ticket_and_where_the_log_ends(server):
    answer = join(Client(server))
    ticket = int(answer.ext["ticket"])
    assert (answer.code, answer.ext["logEnd"]) == (0, str(server.broker.store.log.end))
    assert server.broker.in_sync.identify(server.broker.replicas.connect("10.0.0.2:1"), ticket)


@pytest.mark.parametrize(
    ("member", "store", "epoch", "why"),
    [
        (2, "two", 4, "reports of member 2 do not count here: it knows epoch 4, and this is epoch 5"),
        (1, "another", 5, "member 1 is this broker: give each broker of the group a brokerId of its own"),
        (0, "two", 5, "reports of member 0 do not count here: members have numbers from 1 to 64"),
        (-1, "two", 5, "reports of member -1 do not count here: members have numbers from 1 to 64"),
        (65, "two", 5, "reports of member 65 do not count here: members have numbers from 1 to 64"),
        (2, "x" * 1000, 5, "its store has no token of 1 to 64 characters"),
    ],
)
def test_who_cannot_be_counted_is_told_why(server, member, store, epoch, why):
    answer = join(Client(server), member, store, epoch)
    assert answer.code != 0
    assert why in answer.remark


def test_a_follower_refuses(server):
    server.broker.in_sync.end()
    answer = join(Client(server))
    assert answer.code != 0 and "this broker does not lead" in answer.remark


def test_a_broker_without_failover_refuses(tmp_path):
    with open_server(tmp_path) as (_, server):
        answer = join(Client(server))
    assert answer.code != 0 and "broker-a has no failover (option failover)" in answer.remark


def test_only_addresses_that_may_copy_the_log_get_one(tmp_path):
    with open_server(tmp_path, ha_allowed_addresses="10.0.0.*", **GROUP) as (broker, server):
        lead(broker)
        answer = join(Client(server, address="10.0.1.1"))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "10.0.1.1 is not in haAllowedAddresses")
        assert join(Client(server, address="10.0.0.2")).code == 0


def test_with_access_control_an_administrator_s_account_gets_one(tmp_path):
    """A follower signs with the account of aclCredentials. Its address may copy the log for a while then."""
    access = AccessControl(rules_of(ADMIN, SENDER, CONSUMER))
    header = headers.JoinInSyncHeader(member=2, store="two", epoch=5)
    with guarding(tmp_path, access, **GROUP) as guarded:
        lead(guarded.broker)
        client = Client(guarded.server, address="10.0.0.2")
        assert denied(ask(client, None, RequestCode.JOIN_IN_SYNC, header))
        for who in (SENDER, CONSUMER):
            answer = ask(client, who, RequestCode.JOIN_IN_SYNC, header)
            assert answer.code != 0 and "ticket" not in answer.ext
            assert "nobody at 10.0.0.2 has proven to be a broker" in answer.remark
        assert ask(client, ADMIN, RequestCode.JOIN_IN_SYNC, header).code == 0
        assert guarded.broker.slave_admission.why_not("10.0.0.2") == ""


# ---------------------------------------------------------------------- changes of tables


class Member2:
    """A follower's connection, which takes what has changed in the leader's tables."""

    def __init__(self, server: RemotingServer) -> None:
        self.client, self.feed, self.position = Client(server), 0, 0

    def ask(self) -> None:
        """Take what there is, which says that what came with the answer before was taken."""
        header = headers.FollowTablesHeader(feed=self.feed, position=self.position, member=2, store="two")
        answer = self.client.ask(RequestCode.FOLLOW_TABLES, header)
        changes = table_changes_of(answer.body)
        self.feed, self.position = changes.feed, changes.position


CHANGES = {
    "a topic": (
        RequestCode.UPDATE_AND_CREATE_TOPIC, headers.CreateTopicHeader(topic="orders", read_queues=4, write_queues=4, perm=6), b"",
    ),
    "the end of a topic": (RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic="old"), b""),
    "a group": (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"G","consumeEnable":true,"retryQueueNums":1}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_answered_when_the_in_sync_set_has_it(server, what):
    server.broker.lead()
    server.broker.topics.ensure("old")
    member, admin = Member2(server), Client(server)
    for _ in range(2):
        member.ask()
    code, header, body = CHANGES[what]
    assert admin.tell(code, header, body) == []
    tick(server)
    assert admin.received() == []
    member.ask()  # gets it
    tick(server)
    assert admin.received() == []
    member.ask()
    tick(server)
    (answer,) = admin.received()
    assert answer.code == 0


def test_a_change_that_a_member_does_not_take_is_answered_with_what_that_means(server):
    server.broker.lead()
    member, admin = Member2(server), Client(server)
    member.ask()
    code, header, body = CHANGES["a topic"]
    assert admin.tell(code, header, body) == []
    server.broker.clock.advance(server.broker.options.slave_timeout / 1000 + 0.1)
    tick(server)
    (answer,) = admin.received()
    assert answer.code != 0
    assert "is not known to be at the other brokers of the in-sync set" in answer.remark
    assert server.broker.topics.get("orders") is not None


def test_what_is_relayed_to_a_new_leader_is_held_there_until_its_followers_have_come(tmp_path):
    """An unchanged client of the former leader would fail otherwise: it tries again at once, and gives up."""
    with open_server(tmp_path, FakeClock(), min_in_sync_replicas=2, **GROUP) as (broker, server):
        lead(broker)
        broker.lead()
        client = Client(server)
        relayed = {**send_header("orders").to_ext(), RELAYED_FIELD: "127.0.0.1:5"}
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, relayed, b"x")
        assert (answer.code, answer.ext.get(RELAYED_FIELD)) == (ResponseCode.SERVICE_NOT_AVAILABLE, NOT_LEADING)
        assert client.tell(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x") == []  # it waits a moment
        broker.clock.advance(HOLD_SECONDS)
        broker.in_sync.tick()
        (answer,) = client.received()
        assert answer.remark.startswith(NOT_LEADING_MARK) and "minInSyncReplicas is 2" in answer.remark
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x")  # not any more
        assert answer.remark.startswith(NOT_LEADING_MARK)
        broker.clock.advance(broker.options.in_sync_timeout / 1000 + 0.1)
        broker.in_sync.renewed(broker.clock.elapsed(), 60.0)
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x")
        assert "minInSyncReplicas is 2" in answer.remark and not answer.remark.startswith(NOT_LEADING_MARK)
