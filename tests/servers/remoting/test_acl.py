"""What accounts may, for each request of a broker with access control, and on each of its paths."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from msgspec import structs

from metaq.broker.acl import AccessControl
from metaq.broker.broker import Broker
from metaq.client.conversation.staged.staging import Decide, Settle
from metaq.model import ConsumerView, Heartbeat, MessageQueue, QueueLocks
from metaq.model import properties as props
from metaq.model.acl.accounts import Account, AclFile, AclRules
from metaq.model.acl.addresses import parse_pattern
from metaq.model.acl.judgement import ACL_EXCEPTION
from metaq.model.acl.rights import Right
from metaq.model.acl.secret import Credentials, Secret
from metaq.model.filters.subscription import subscribe
from metaq.model.topics.system import TRACE_TOPIC
from metaq.model.transactions.staging import DecisionOutcome
from metaq.servers.remoting.acl.signed import Signers, by_signature
from metaq.servers.remoting.server import RemotingServer
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode, request_name
from metaq.wire.command import Command, SerializeType, encode, request
from metaq.wire.headers.codec import Header, items
from metaq.wire.signing import sign
from metaq.wire.staging import DecideBody
from tests import staged
from tests.broker.support import open_broker
from tests.servers.remoting.test_transaction_fast_path import end_header, half_header
from tests.servers.support import Client, pull_header, send_header
from tests.staged import PlannedPart

SECRET = Secret("12345678")
ADDRESS = "127.0.0.1"


def account(
    name: str, topics: dict[str, Right] | None = None, groups: dict[str, Right] | None = None, **more
) -> Account:
    return Account(f"account-{name}", SECRET, topics=topics or {}, groups=groups or {}, **more)


NOBODY = account("nobody")
SENDER = account("sender", {"orders": Right.PUB})
READER = account("reader", {"orders": Right.SUB})
GROUP = account("group", groups={"G": Right.SUB})
CONSUMER = account("consumer", {"orders": Right.SUB}, {"G": Right.SUB})
ADMIN = account("admin", admin=True)
ALL = (NOBODY, SENDER, READER, GROUP, CONSUMER, ADMIN)


def rules_of(*accounts: Account, white: str = "") -> AclRules:
    return AclRules({"plain_acl.yml": AclFile((parse_pattern(white),) if white else (), accounts)})


class Guarded(NamedTuple):
    broker: Broker
    server: RemotingServer
    access: AccessControl


@pytest.fixture
def guarded(tmp_path: pathlib.Path) -> Iterator[Guarded]:
    with guarding(tmp_path, AccessControl(rules_of(*ALL))) as found:
        yield found


@pytest.fixture
def compatible(tmp_path: pathlib.Path) -> Iterator[Guarded]:
    """With aclCompatible."""
    with guarding(tmp_path, AccessControl(rules_of(*ALL), compatible=True)) as found:
        yield found


@contextlib.contextmanager
def guarding(tmp_path: pathlib.Path, access: AccessControl, **options: object) -> Iterator[Guarded]:
    with open_broker(tmp_path, access=access, **options) as broker:
        server = RemotingServer(broker, lambda act: act(), identify=by_signature(access), signers=Signers(access))
        broker.topics.ensure("orders")
        broker.topics.ensure("bills")
        yield Guarded(broker, server, access)
        server.close()


def frame(
    client: Client, who: Account | None, code: int, header: Header | dict | None = None, body: bytes = b""
) -> bytes:
    if isinstance(header, dict):
        command = Command(code, ext=dict(header), body=body, serialize=client.serialize)
    else:
        command = request(code, header, body, serialize=client.serialize)
    command.opaque, command.version, command.language = next(client._opaque), 409, "JAVA"
    if who is not None:
        sign(command, Credentials(who.access_key, who.secret_key))
    return encode(command)


def ask(
    client: Client, who: Account | None, code: int, header: Header | dict | None = None, body: bytes = b""
) -> Command:
    client.feed(frame(client, who, code, header, body))
    (answer,) = [command for command in client.received() if command.is_response]
    return answer


def denied(answer: Command) -> bool:
    found = (answer.remark or "").startswith(ACL_EXCEPTION)
    assert not found or answer.code == ResponseCode.SYSTEM_ERROR
    return found


# ---------------------------------------------------------------- every request, by what its header names

ANY = ALL
PUB = (SENDER, ADMIN)
SUB = (READER, CONSUMER, ADMIN)
SEE = (SENDER, READER, CONSUMER, ADMIN)
OF_GROUP = (GROUP, CONSUMER, ADMIN)
BOTH = (CONSUMER, ADMIN)
SETTINGS = (ADMIN,)
MAY = {
    Code.SEND_MESSAGE: PUB, Code.SEND_MESSAGE_V2: PUB, Code.SEND_BATCH_MESSAGE: PUB,
    Code.SEND_REPLY_MESSAGE: PUB, Code.SEND_REPLY_MESSAGE_V2: PUB,
    Code.PULL_MESSAGE: BOTH, Code.LITE_PULL_MESSAGE: BOTH,
    Code.QUERY_CONSUMER_OFFSET: BOTH, Code.UPDATE_CONSUMER_OFFSET: BOTH,
    Code.QUERY_MESSAGE: SUB,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: SEE, Code.GET_MAX_OFFSET: SEE, Code.GET_MIN_OFFSET: SEE,
    Code.GET_EARLIEST_MSG_STORETIME: SEE, Code.GET_TOPIC_STATS_INFO: SEE, Code.QUERY_TOPIC_CONSUME_BY_WHO: SEE,
    Code.UNREGISTER_CLIENT: OF_GROUP, Code.CONSUMER_SEND_MSG_BACK: OF_GROUP, Code.GET_CONSUMER_LIST_BY_GROUP: OF_GROUP,
    Code.GET_CONSUMER_CONNECTION_LIST: OF_GROUP, Code.GET_CONSUME_STATS: BOTH,
    Code.QUERY_CORRECTION_OFFSET: BOTH, Code.QUERY_CONSUME_TIME_SPAN: BOTH, Code.QUERY_CONSUME_QUEUE: BOTH,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: BOTH, Code.GET_CONSUMER_RUNNING_INFO: OF_GROUP,
    # Judged by what their bodies, or the messages that they name, are about: the tests below.
    Code.HEART_BEAT: ANY, Code.LOCK_BATCH_MQ: ANY, Code.UNLOCK_BATCH_MQ: ANY, Code.VIEW_MESSAGE_BY_ID: ANY,
    Code.END_TRANSACTION: ANY, Code.STAGE: ANY, Code.SEAL: ANY, Code.DECIDE: ANY, Code.APPLY: ANY,
    # Nobody's messages: an account is enough.
    Code.CHECK_CLIENT_CONFIG: ANY, Code.GET_PRODUCER_CONNECTION_LIST: ANY, Code.GET_BROKER_CONFIG: ANY, Code.OPTIONS: ANY,
    Code.GET_BROKER_RUNTIME_INFO: ANY, Code.GET_ALL_TOPIC_CONFIG: ANY, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ANY,
    Code.GET_ALL_CONSUMER_OFFSET: ANY, Code.GET_ALL_DELAY_OFFSET: ANY, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: ANY,
    Code.GET_BROKER_CONSUME_STATS: ANY, Code.VIEW_BROKER_STATS_DATA: ANY, Code.GET_ALL_PRODUCER_INFO: ANY,
    Code.REGISTER_FILTER_SERVER: ANY, Code.REGISTER_MESSAGE_FILTER_CLASS: ANY,
    Code.STAGED_STATE: ANY, Code.LIST_STAGED: SETTINGS, Code.LIST_BRANCHES: SETTINGS, Code.REPLICA_STATE: ANY, Code.FOLLOW_TABLES: ANY,
    Code.JOIN_IN_SYNC: ANY,  # whom a ticket is given to is test_failover's
    Code.UPDATE_AND_CREATE_TOPIC: SETTINGS, Code.DELETE_TOPIC_IN_BROKER: SETTINGS,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SETTINGS, Code.DELETE_SUBSCRIPTIONGROUP: SETTINGS,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: SETTINGS, Code.RESUME_CHECK_HALF_MESSAGE: SETTINGS,
    Code.FORGET_STAGED: SETTINGS, Code.RELOAD: SETTINGS, Code.END_BRANCH: SETTINGS, Code.CLOSE_PARTITIONS: SETTINGS,
    Code.CONSUME_MESSAGE_DIRECTLY: SETTINGS, Code.UPDATE_BROKER_CONFIG: SETTINGS, Code.CLONE_GROUP_OFFSET: SETTINGS, Code.CLEAN_EXPIRED_CONSUMEQUEUE: SETTINGS, Code.CLEAN_UNUSED_TOPIC: SETTINGS,
    Code.DELETE_EXPIRED_COMMITLOG: SETTINGS, Code.TRIM_TOPIC: SETTINGS, Code.PREVIEW_CLEANING: SETTINGS, Code.LOG_LINES: SETTINGS,
    Code.STOP: SETTINGS, Code.RESTART_BROKER: SETTINGS, Code.PROMOTE: SETTINGS, Code.STEP_DOWN: SETTINGS, Code.LOG_CHECKSUMS: SETTINGS, Code.LOG_BYTES: SETTINGS,
    Code.REPAIR_LOG: SETTINGS, Code.QUOTAS: SETTINGS, Code.SET_QUOTA: SETTINGS, Code.EXPLAIN_ACCESS: SETTINGS,
    Code.UPDATE_AND_CREATE_ACL_CONFIG: SETTINGS, Code.DELETE_ACL_CONFIG: SETTINGS, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: SETTINGS,
    Code.GET_BROKER_CLUSTER_ACL_INFO: SETTINGS, Code.GET_BROKER_CLUSTER_ACL_CONFIG: SETTINGS,
}  # fmt: skip
"""Who may send a request about the topic `orders` and the group `G`, as far as its header says what it is about."""
PUBLIC = (Code.IDENTIFY,)
"""Answered without a signature, too."""


def full(header: type[Header]) -> dict[str, str]:
    """Ext fields of a request about `orders` and `G`."""
    texts = {"topic": "orders", "group": "G", "consumer_group": "G"}
    plain = {str: "x", int: "0", bool: "false", float: "0"}
    return {one.wire_name: texts.get(one.attribute, plain[one.kind]) for one in items(header)}


OPEN_IN_ROCKETMQ = (
    Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2, Code.QUERY_CONSUMER_OFFSET,
    Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME,
    Code.GET_TOPIC_STATS_INFO, Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_CONSUME_STATS,
    Code.QUERY_CONSUME_TIME_SPAN, Code.QUERY_CONSUME_QUEUE, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    Code.GET_CONSUMER_RUNNING_INFO, Code.QUERY_CORRECTION_OFFSET,
)  # fmt: skip
"""For any account with aclCompatible."""


@pytest.mark.parametrize("kind", ["guarded", "compatible"])
def test_each_request_is_for_those_who_have_the_right_to_what_it_names(kind, request) -> None:
    """And for nobody unsigned; a new request has to be entered here."""
    guarded = request.getfixturevalue(kind)
    may_then = MAY | dict.fromkeys(OPEN_IN_ROCKETMQ, ANY) if kind == "compatible" else MAY
    handlers = guarded.server.handling.handlers
    assert {request_name(code) for code in handlers} == {request_name(code) for code in (*MAY, *PUBLIC)}
    ran: list[int] = []
    stubs = {
        code: structs.replace(handler, run=lambda call: ran.append(call.command.code))
        for code, handler in handlers.items()
    }
    guarded.server.handling = structs.replace(guarded.server.handling, handlers=stubs)
    guarded.server.workspace.signers = (
        None  # the fast paths call no handler; tests/servers/remoting/test_signed.py compares them
    )
    client = Client(guarded.server)
    for code, may in may_then.items():
        ext = full(handlers[code].header)
        refused = [who.access_key for who in ALL if denied(ask(client, who, code, ext, b"{}"))]
        assert refused == [who.access_key for who in ALL if who not in may], request_name(code)
        assert ran == [code] * len(may)
        ran.clear()
        answer = ask(client, None, code, ext, b"{}")
        assert denied(answer)
        assert "No accessKey is configured" in answer.remark
        assert not ran
    for code in PUBLIC:
        assert not denied(ask(client, None, code, {}, b""))
        assert ran == [code]


# ---------------------------------------------------------------- requests judged by what is behind their headers


def test_a_heartbeat_is_of_groups_and_topics_that_its_signer_may(guarded) -> None:
    """Each group for itself: one that is refused does not join, the others do, and the client hears of it."""

    def beat(who: Account, *groups: str, topic: str = "orders") -> Command:
        views = tuple(
            ConsumerView(group, {one: subscribe(one, "*", 1) for one in (topic, f"%RETRY%{group}")}) for group in groups
        )
        client = Client(guarded.server)
        return ask(client, who, Code.HEART_BEAT, None, bodies.heartbeat(Heartbeat("c@1", views, ("PG",))))

    members = guarded.broker.members
    for who in (NOBODY, SENDER, READER, GROUP):
        assert denied(beat(who, "G"))
    assert denied(beat(CONSUMER, "G", topic="bills"))
    assert not members.client_ids("G")
    assert denied(beat(CONSUMER, "other", "G"))
    assert (members.client_ids("G"), members.client_ids("other")) == (["c@1"], [])
    assert beat(CONSUMER, "G").code == beat(NOBODY).code == 0


def test_queues_are_locked_by_those_who_may_consume_them(guarded) -> None:
    """The group's right is asked for, and for each topic its own."""
    queues = tuple(MessageQueue(topic, "broker-a", 0) for topic in ("orders", "bills"))
    body = bodies.queue_locks(QueueLocks("G", "c@1", queues))
    client = Client(guarded.server)
    for code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ):
        for who in (NOBODY, SENDER, READER):
            assert denied(ask(client, who, code, None, body))
    assert ask(client, CONSUMER, Code.LOCK_BATCH_MQ, None, body).code == 0
    locks = guarded.broker.locks
    assert (locks.holder("G", "orders", 0), locks.holder("G", "bills", 0)) == ("c@1", None)


def test_a_message_by_its_place_is_for_those_who_may_read_its_topic(guarded) -> None:
    """To look at, and to give it back, which copies it into the group's retry topic."""
    client = Client(guarded.server)
    places = {}
    for topic in ("orders", "bills"):
        sent = ask(client, ADMIN, Code.SEND_MESSAGE_V2, send_header(topic), b"x")
        places[topic] = int(sent.ext["msgId"][-16:], 16)
    for topic, may in (("orders", (READER, CONSUMER, ADMIN)), ("bills", (ADMIN,))):
        header = headers.ViewMessageHeader(offset=places[topic])
        for who in ALL:
            assert denied(ask(client, who, Code.VIEW_MESSAGE_BY_ID, header)) is (who not in may)

    def back(topic: str) -> Command:
        header = headers.SendBackHeader(offset=places[topic], group="G", delay_level=1, max_reconsume_times=16)
        return ask(client, CONSUMER, Code.CONSUMER_SEND_MSG_BACK, header)

    assert denied(back("bills"))
    assert back("orders").code == 0


def test_a_delayed_message_by_its_place_is_of_the_topic_that_it_is_for(guarded) -> None:
    """Though it lies in the broker's own until then."""
    client = Client(guarded.server)
    for topic, may in (("orders", True), ("bills", False)):
        header = send_header(topic, properties={props.DELAY: "3"})
        sent = ask(client, ADMIN, Code.SEND_MESSAGE_V2, header, b"x")
        view = headers.ViewMessageHeader(offset=int(sent.ext["msgId"][-16:], 16))
        assert denied(ask(client, CONSUMER, Code.VIEW_MESSAGE_BY_ID, view)) is not may


def test_a_transaction_is_ended_by_those_who_may_send_to_its_topic(guarded) -> None:
    """Its header names a group of producers, and half a message, whose topic is asked about."""
    client = Client(guarded.server)
    sent = ask(client, SENDER, Code.SEND_MESSAGE_V2, half_header(queue_id=0), b"x")
    assert sent.code == 0
    header = end_header(int(sent.ext["queueOffset"]), int(sent.ext["msgId"][-16:], 16))
    for who in (None, NOBODY, CONSUMER):
        assert denied(ask(client, who, Code.END_TRANSACTION, header))
    assert guarded.broker.lookup.max_offset("orders", 0) == 0
    assert ask(client, SENDER, Code.END_TRANSACTION, header).code == 0
    assert guarded.broker.lookup.max_offset("orders", 0) == 1


def test_staged_transactions_may_what_their_topics_allow(guarded) -> None:
    """Stage, decision and application are judged by the topic of each part."""
    client = Client(guarded.server)
    part = PlannedPart("broker-a", "p", "orders", 0, ((b"x",),))
    stage = staged.stage("t1@broker-a", [part]).request()
    commit = Decide("t1@broker-a", DecideBody(DecisionOutcome.COMMIT, (part.manifest,))).request()
    for asked in (stage, commit):
        for who in (None, NOBODY, CONSUMER):
            assert denied(ask(client, who, asked.code, asked.ext, asked.body))
        assert ask(client, SENDER, asked.code, asked.ext, asked.body).code == 0
    assert guarded.broker.lookup.max_offset("orders", 0) == 1


def test_compatible_rules_ask_for_no_right_where_rocketmq_asks_for_none(compatible) -> None:
    """Behind the headers: locks, messages by their place, ends of transactions. An account is needed all the same, and what
    RocketMQ asks for is asked for here."""
    client = Client(compatible.server)
    locks = bodies.queue_locks(QueueLocks("G", "c@1", (MessageQueue("orders", "broker-a", 0),)))
    sent = ask(client, ADMIN, Code.SEND_MESSAGE_V2, send_header("bills"), b"x")
    place = int(sent.ext["msgId"][-16:], 16)
    view = headers.ViewMessageHeader(offset=place)
    back = headers.SendBackHeader(offset=place, group="G", delay_level=1, max_reconsume_times=16)
    half = ask(client, SENDER, Code.SEND_MESSAGE_V2, half_header(queue_id=0), b"x")
    end = end_header(int(half.ext["queueOffset"]), int(half.ext["msgId"][-16:], 16))
    for code, header, body, may in (
        (Code.LOCK_BATCH_MQ, None, locks, ANY),
        (Code.UNLOCK_BATCH_MQ, None, locks, ANY),
        (Code.VIEW_MESSAGE_BY_ID, view, b"", ANY),
        (Code.CONSUMER_SEND_MSG_BACK, back, b"", OF_GROUP),
        (Code.END_TRANSACTION, end, b"", ANY),
        (Code.PULL_MESSAGE, pull_header("orders"), b"", BOTH),
        (Code.SEND_MESSAGE_V2, send_header("orders"), b"x", PUB),
    ):
        assert denied(ask(client, None, code, header, body))
        refused = [who.access_key for who in ALL if denied(ask(client, who, code, header, body))]
        assert refused == [who.access_key for who in ALL if who not in may], request_name(code)
    assert compatible.broker.lookup.max_offset("orders", 0) == 1 + len(PUB)
    assert ask(client, NOBODY, Code.LOCK_BATCH_MQ, None, locks).code == 0
    assert compatible.broker.locks.holder("G", "orders", 0) == "c@1"


def test_a_staged_transaction_is_settled_by_brokers_and_by_who_may_send_to_its_topics(guarded) -> None:
    """Of one of which nothing is known here, by administrators alone, as brokers' accounts are."""
    client = Client(guarded.server)
    part = PlannedPart("broker-a", "p", "orders", 0, ((b"x",),))
    stage = staged.stage("t1@broker-a", [part]).request()
    assert ask(client, SENDER, stage.code, stage.ext, stage.body).code == 0
    for transaction, may in (("t1@broker-a", (SENDER, ADMIN)), ("t2@broker-a", (ADMIN,))):
        settle = Settle(transaction).request()
        for who in (None, *ALL):
            answer = ask(client, who, settle.code, settle.ext)
            assert denied(answer) is (who not in may)
            assert (answer.code == 0) is (who in may)


# ---------------------------------------------------------------- names that mean more than themselves


def test_a_send_to_a_retry_topic_needs_the_right_of_its_group(guarded) -> None:
    """Of the topic's, whatever group the header says: RocketMQ believes the header."""
    client = Client(guarded.server)
    for group, who, may in (("G", GROUP, True), ("G", SENDER, False), ("other", GROUP, False), ("other", ADMIN, True)):
        header = send_header(f"%RETRY%{group}", producer_group="G")
        assert denied(ask(client, who, Code.SEND_MESSAGE_V2, header, b"x")) is not may


def test_traces_are_sent_by_every_account_and_read_by_few(guarded) -> None:
    """As with RocketMQ; not by who has none."""
    client = Client(guarded.server)
    header = send_header(TRACE_TOPIC)
    assert not denied(ask(client, NOBODY, Code.SEND_MESSAGE_V2, header, b"x"))
    assert denied(ask(client, None, Code.SEND_MESSAGE_V2, header, b"x"))
    assert denied(ask(client, CONSUMER, Code.PULL_MESSAGE, pull_header(TRACE_TOPIC)))


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_the_answer_to_a_wrong_signature_is_rocketmqs(guarded, serialize) -> None:
    """A changed body is one, and an account that is not there is told apart; no answer has a secret."""
    client = Client(guarded.server, serialize)
    data = frame(client, SENDER, Code.SEND_MESSAGE_V2, send_header("orders"), b"hello")
    client.feed(data.replace(b"hello", b"Hello"))
    (answer,) = client.received()
    assert denied(answer)
    assert "Check signature failed for accessKey=account-sender" in answer.remark
    assert "asked: SEND_MESSAGE_V2" in answer.remark
    stranger = Account("account-gone", SECRET)
    answer = ask(client, stranger, Code.SEND_MESSAGE_V2, send_header("orders"), b"hello")
    assert "No acl config for account-gone" in answer.remark
    assert SECRET.reveal() not in answer.remark
    assert guarded.broker.lookup.max_offset("orders", 0) == 0


# ---------------------------------------------------------------- paths, and rules that change


def test_no_path_serves_whom_the_rules_refuse(guarded) -> None:
    """Unsigned requests between signed ones, in one read event: sends, batches, pulls, ends and what comes back, again and
    again."""
    client = Client(guarded.server)
    place = int(ask(client, SENDER, Code.SEND_MESSAGE_V2, send_header("orders"), b"1").ext["msgId"][-16:], 16)
    back = headers.SendBackHeader(offset=place, group="G", delay_level=1, max_reconsume_times=16)
    for _ in range(3):
        client.feed(b"".join([
            frame(client, SENDER, Code.SEND_MESSAGE_V2, send_header("orders"), b"2"),
            frame(client, None, Code.SEND_MESSAGE_V2, send_header("orders"), b"3"),
            frame(client, CONSUMER, Code.PULL_MESSAGE, pull_header("orders")),
            frame(client, None, Code.PULL_MESSAGE, pull_header("orders")),
            frame(client, CONSUMER, Code.CONSUMER_SEND_MSG_BACK, back),
            frame(client, None, Code.CONSUMER_SEND_MSG_BACK, back),
        ]))  # fmt: skip
        answers = sorted((one for one in client.received() if one.is_response), key=lambda one: one.opaque)
        assert [denied(answer) for answer in answers] == [False, True] * 3
        # Alone in their read events they go by the paths of the compiled extension.
        for code, header in (
            (Code.SEND_MESSAGE_V2, send_header("orders")),
            (Code.PULL_MESSAGE, pull_header("orders")),
            (Code.CONSUMER_SEND_MSG_BACK, back),
        ):
            for _ in range(10):
                assert denied(ask(client, None, code, header, b""))
    assert guarded.broker.lookup.max_offset("orders", 0) == 1 + 3
    assert not client.session.gates.table  # the consumer's, who was the last


def test_unsigned_requests_from_a_white_listed_address_are_served_on_all_paths(guarded) -> None:
    """Until it is taken from the list; from the next request on."""
    guarded.access.take(rules_of(*ALL, white=ADDRESS))
    client = Client(guarded.server)
    asked = [
        (Code.SEND_MESSAGE_V2, send_header("orders")),
        (Code.PULL_MESSAGE, pull_header("orders")),
        (Code.GET_BROKER_CONFIG, None),
    ]
    for may in (True, False, True):
        guarded.access.take(rules_of(*ALL, white=ADDRESS if may else ""))
        for _ in range(3):
            for code, header in asked:
                assert denied(ask(client, None, code, header, b"x")) is not may


def test_a_white_listed_address_opens_nothing_for_others(guarded) -> None:
    """On no path, though both are this machine's, unsigned, and of no account."""
    guarded.access.take(rules_of(*ALL, white=ADDRESS))
    client, other = Client(guarded.server), Client(guarded.server, address="127.0.0.2")
    place = int(ask(client, None, Code.SEND_MESSAGE_V2, send_header("orders"), b"1").ext["msgId"][-16:], 16)
    back = headers.SendBackHeader(offset=place, group="G", delay_level=1, max_reconsume_times=16)
    asked = [
        (Code.SEND_MESSAGE_V2, send_header("orders")),
        (Code.PULL_MESSAGE, pull_header("orders")),
        (Code.CONSUMER_SEND_MSG_BACK, back),
    ]
    for _ in range(3):
        for code, header in asked:
            assert not denied(ask(client, None, code, header, b"x"))
            assert denied(ask(other, None, code, header, b"x"))
            assert not denied(ask(client, None, code, header, b"x"))


@pytest.mark.parametrize(
    "lost", [CONSUMER, account("consumer", groups={"G": Right.SUB}), account("consumer", {"orders": Right.SUB})]
)
@pytest.mark.parametrize("own_filter", [True, False])
def test_a_held_pull_gets_nothing_that_comes_when_its_signer_may_no_more(guarded, lost, own_filter) -> None:
    """The account is gone, or has lost its right to the topic or to the group."""
    client, sender = Client(guarded.server), Client(guarded.server)
    if not own_filter:
        view = ConsumerView("G", {"orders": subscribe("orders", "*", 1)})
        assert ask(client, CONSUMER, Code.HEART_BEAT, None, bodies.heartbeat(Heartbeat("c@1", (view,)))).code == 0
    more = {} if own_filter else {"subscription": None}
    held = pull_header("orders", suspend_ms=20_000, sys_flag=6 if own_filter else 2, **more)
    client.feed(frame(client, CONSUMER, Code.PULL_MESSAGE, held))
    assert not client.received()
    rest = [one for one in ALL if one is not CONSUMER]
    guarded.access.take(rules_of(*rest) if lost is CONSUMER else rules_of(*rest, lost))
    assert ask(sender, SENDER, Code.SEND_MESSAGE_V2, send_header("orders"), b"x").code == 0
    (answer,) = client.received()
    assert denied(answer)
    assert answer.body == b""


def test_a_signed_request_can_be_sent_again_by_whoever_overheard_it_until_the_secret_changes(guarded) -> None:
    """As with RocketMQ: a signature has neither a time nor a number (docs/formats/acl.md), so a clock that is off refuses nothing."""
    overheard = frame(Client(guarded.server), SENDER, Code.SEND_MESSAGE_V2, send_header("orders"), b"x")
    for _ in range(2):
        thief = Client(guarded.server)
        thief.feed(overheard)
        (answer,) = thief.received()
        assert answer.code == 0
        guarded.broker.clock.advance(86_400)
    assert guarded.broker.lookup.max_offset("orders", 0) == 2
    changed = Account(SENDER.access_key, Secret("another-one"), topics=SENDER.topics)
    guarded.access.take(rules_of(changed))
    thief = Client(guarded.server)
    thief.feed(overheard)
    (answer,) = thief.received()
    assert denied(answer)
