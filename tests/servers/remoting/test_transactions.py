"""Transactions at the remoting server: half messages (10, 310), their ends (37) and the checks (39), as RocketMQ's clients see them."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from metaq.model import Heartbeat
from metaq.model import properties as props
from metaq.model.topics.system import HALF_TOPIC
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import SerializeType, encode
from metaq.wire.record import decode_record
from tests.servers.support import Client, open_server, send_header, tick

UNIQUE_ID = "7F00000100002A9F0000000000000001"
HALF = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: "PG"}


@pytest.fixture
def clock():
    return FakeClock()


def end_header(answer, outcome=8, **more):
    facts = {
        "producer_group": "PG", "half_queue_offset": int(answer.ext["queueOffset"]),
        "log_offset": int(answer.ext["msgId"][-16:], 16), "outcome": outcome, "message_id": UNIQUE_ID, **more,
    }  # fmt: skip
    return headers.EndTransactionHeader(**facts)


def end(client, answer, outcome=8, **more):
    return client.ask(RequestCode.END_TRANSACTION, end_header(answer, outcome, **more))


def half(client, body=b"hello", **more):
    return client.send("orders", body, 2, sys_flag=4, properties={**HALF, **more.pop("properties", {})}, **more)


def pulled(client, topic="orders", queue_id=2):
    (answer,) = client.pull(topic, queue_id)
    return decode_record(answer.body) if answer.code == 0 else None


def produce(client, group="PG", client_id="c@1"):
    body = bodies.heartbeat(Heartbeat(client_id, (), (group,)))
    assert client.ask(RequestCode.HEART_BEAT, None, body).code == 0


def pass_time(server, clock, seconds):
    clock.advance(seconds)
    tick(server)
    while server.broker.deliver() == 0:
        pass


@pytest.mark.parametrize("serialize", SerializeType)
def test_half_message_is_answered_as_a_send_and_its_end_with_success(tmp_path, clock, serialize):
    """queueId as asked, queueOffset of the half queue, msgId of the half record; then 37 makes it seen."""
    with open_server(tmp_path, clock) as (broker, server):
        client = Client(server, serialize)
        client.send("orders", b"before", 2)
        answer = half(client)
        assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", "0")
        assert {"MSG_REGION", "TRACE_ON"} <= answer.ext.keys()
        assert broker.store.reader.queue("orders", 2).max_offset == 1
        done = end(client, answer)
        assert (done.code, done.remark) == (0, None)
        assert broker.store.reader.queue("orders", 2).max_offset == 2
        again = end(client, answer)
        assert (again.code, "ended before" in again.remark) == (0, True)
        assert broker.store.reader.queue("orders", 2).max_offset == 2


def test_go_s_long_names_make_a_half_message_too(tmp_path, clock):
    """Code 10, as Go sends it."""
    with open_server(tmp_path, clock) as (broker, server):
        client = Client(server)
        header = send_header("orders", 2, sys_flag=4, properties=HALF).to_long_ext()
        answer = client.ask(RequestCode.SEND_MESSAGE, header, b"hello")
        assert answer.code == 0
        assert broker.store.reader.queue(HALF_TOPIC, 0).max_offset == 1


def test_one_way_end_counts_and_nothing_is_answered(tmp_path, clock):
    """As Java and Go send it; one that is refused is told in the log."""
    with open_server(tmp_path, clock) as (broker, server):
        client = Client(server)
        answer = half(client)
        client.feed(client.frame(RequestCode.END_TRANSACTION, end_header(answer), oneway=True))
        assert client.received() == []
        assert broker.store.reader.queue("orders", 2).max_offset == 1


@pytest.mark.parametrize(
    ("more", "remark"),
    [
        ({"producer_group": "thieves"}, "The producer group wrong"),
        ({"half_queue_offset": 5}, "The transaction state table offset wrong"),
        ({"log_offset": 3}, "Find prepared transaction message failed"),
        ({"log_offset": -3}, "Find prepared transaction message failed"),
    ],
)
@pytest.mark.parametrize("outcome", [8, 12])
def test_end_with_foreign_or_forged_values_is_refused(tmp_path, clock, caplog, more, remark, outcome):
    """Code 1 with RocketMQ's words; in the log too, since most clients do not wait for the answer. Nothing has changed."""
    with open_server(tmp_path, clock) as (broker, server):
        client = Client(server)
        answer = half(client)
        before = broker.store.log.end
        refused = end(client, answer, outcome, **more)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark.startswith(remark)
        assert remark in caplog.text
        assert broker.store.log.end == before
        assert end(client, answer).code == 0


def test_unknown_outcome_leaves_the_transaction_open(tmp_path, clock):
    """0 is answered so, whoever waits; another number that means nothing is refused."""
    with open_server(tmp_path, clock) as (_, server):
        client = Client(server)
        answer = half(client)
        unknown = end(client, answer, 0)
        assert (unknown.code, "stays open" in unknown.remark) == (0, True)
        wrong = end(client, answer, 4)
        assert (wrong.code, "commitOrRollback=4" in wrong.remark) == (ResponseCode.SYSTEM_ERROR, True)
        assert end(client, answer).remark is None


def test_check_is_the_half_message_under_its_own_topic(tmp_path, clock):
    """39, one-way, with a number of ours: header and record as RocketMQ's; 37 that answers it ends the transaction."""
    with open_server(tmp_path, clock) as (broker, server):
        client = Client(server)
        produce(client)
        half(client, properties={props.TAGS: "paid", props.WAIT: "true"}, flag=3)
        pass_time(server, clock, 61)
        (check,) = client.received()
        assert (check.code, check.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
        header = headers.CheckTransactionHeader.from_ext(check.ext)
        assert (header.half_queue_offset, header.message_id, header.transaction_id) == (1, UNIQUE_ID, UNIQUE_ID)
        assert int(header.offset_message_id[-16:], 16) == header.log_offset
        record = decode_record(check.body)
        assert (record.topic, record.queue_id, record.body, record.flag) == ("orders", 2, b"hello", 3)
        assert (record.queue_offset, record.log_offset) == (header.half_queue_offset, header.log_offset)
        assert (record.properties[props.TAGS], record.properties[props.WAIT]) == ("paid", "false")
        answer = headers.EndTransactionHeader(
            producer_group="PG", half_queue_offset=header.half_queue_offset, log_offset=header.log_offset, outcome=8,
            from_check=True, message_id=UNIQUE_ID,
        )  # fmt: skip
        assert client.ask(RequestCode.END_TRANSACTION, answer).code == 0
        assert pulled(client).prepared_offset == header.log_offset
        assert broker.store.reader.queue("orders", 2).max_offset == 1


def test_check_as_bytes(tmp_path, clock):
    """A JSON header whose ext fields have RocketMQ's names."""
    with open_server(tmp_path, clock) as (_, server):
        client = Client(server)
        produce(client)
        half(client)
        pass_time(server, clock, 61)
        (check,) = client.received()
        assert set(check.ext) == {"tranStateTableOffset", "commitLogOffset", "msgId", "transactionId", "offsetMsgId"}
        assert check.ext["tranStateTableOffset"] == "1"
        assert encode(check)[8:9] == b"{"


def test_rejected_half_message_says_which_option_forbids_it(tmp_path, clock):
    """Code 16, as RocketMQ."""
    with open_server(tmp_path, clock, reject_transaction_message=True) as (_, server):
        answer = half(Client(server))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "rejectTransactionMessage" in answer.remark


def test_member_of_the_group_that_joined_later_is_asked(tmp_path, clock):
    """The sender has gone; its group's new member answers, and the message is there once."""
    with open_server(tmp_path, clock) as (broker, server):
        sender = Client(server)
        produce(sender)
        half(sender)
        sender.leave()
        heir = Client(server)
        produce(heir, client_id="c@2")
        pass_time(server, clock, 61)
        (check,) = heir.received()
        header = headers.CheckTransactionHeader.from_ext(check.ext)
        answer = headers.EndTransactionHeader(
            producer_group="PG", half_queue_offset=header.half_queue_offset, log_offset=header.log_offset, outcome=8
        )
        heir.feed(heir.frame(RequestCode.END_TRANSACTION, answer, oneway=True))
        assert broker.store.reader.queue("orders", 2).max_offset == 1


def test_administrator_has_what_was_given_up_asked_about_again(tmp_path, clock):
    """323 with the offset id that a tool shows; one that is none, or another message's, is refused."""
    with open_server(tmp_path, clock, transaction_check_max=1) as (broker, server):
        client = Client(server)
        half(client)
        pass_time(server, clock, 61)
        pass_time(server, clock, 61)
        (unit,) = broker.store.reader.queue("TRANS_CHECK_MAX_TIME_TOPIC", 0).units(0, 1)
        kept = decode_record(broker.store.reader.record_at(unit.log_offset))
        answer = client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, headers.ResumeCheckHeader(message_id=kept.offset_id))
        assert (answer.code, HALF_TOPIC in answer.remark) == (0, True)
        for wrong in ("nonsense", "", kept.offset_id[:-1] + "0"):
            answer = client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, headers.ResumeCheckHeader(message_id=wrong))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark
