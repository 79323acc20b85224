"""What administrators ask running consumers through the broker: positions (223), state (307), consumption (309)."""

from __future__ import annotations

import pytest

from metaq.broker.consumer_questions import ANSWER_SECONDS, POSITIONS_SECONDS, UNDER_WAY_MAX
from metaq.model import MessageQueue
from metaq.wire import bodies
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode
from metaq.wire.command import Command, encode
from metaq.wire.command import reply as reply_to
from metaq.wire.record import decode_record
from tests.servers.support import Client, tick

QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(2)]
POSITIONS = (
    b'{"consumerTable":{"192.0.2.2@c":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:3,{"brokerName":"broker-a",'
    b'"queueId":0,"topic":"T"}:3}},"messageQueueTable":{}}'
)
"""Of a RocketMQ 4.9.7."""


def member(server, client_id="c@1", group="G"):
    client = Client(server)
    client.beat(group, {"orders": "*"}, client_id)
    client.received()
    return client


def asked(client: Client) -> Command:
    (command,) = [one for one in client.received() if one.code != Code.NOTIFY_CONSUMER_IDS_CHANGED]
    return command


def answer(client: Client, question: Command, code: int = 0, body: bytes = b"", remark: str | None = None) -> None:
    answered = reply_to(question, code, remark=remark)
    answered.body = body
    client.feed(encode(answered))


def the_answer(client: Client) -> Command:
    (found,) = client.received()
    return found


def test_the_forms_on_the_wire():
    """As RocketMQ writes and reads them."""
    queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in (1, 0)]
    positions = {"192.0.2.2@c": dict.fromkeys(queues, 3)}
    assert bodies.consumer_positions_of(POSITIONS) == positions
    assert bodies.consumer_positions(positions) == POSITIONS
    assert bodies.member_positions_of(bodies.member_positions({QUEUES[0]: 5})) == {QUEUES[0]: 5}


def test_positions_of_all_members(server, client):
    """223 asks each (221), and is answered when all have answered; one whose answer is an error, or nonsense, is left out."""
    members = [member(server, f"c@{number}") for number in range(4)]
    client.feed(client.frame(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "G"}))
    questions = [asked(one) for one in members]
    assert {one.code for one in questions} == {Code.GET_CONSUMER_STATUS_FROM_CLIENT}
    assert questions[0].ext == {"topic": "orders", "group": "G"}
    for number in range(2):
        answer(members[number], questions[number], body=bodies.member_positions({QUEUES[number]: number}))
    answer(members[2], questions[2], code=3, remark="request type 221 not supported")
    assert client.received() == []
    answer(members[3], questions[3], body=b"{{{{")
    found = bodies.consumer_positions_of(the_answer(client).body)
    assert found == {"c@0": {QUEUES[0]: 0}, "c@1": {QUEUES[1]: 1}}


def test_positions_of_one_member_and_of_those_that_answer_in_time(server, client, clock):
    """A client id that is not there is none; silent and lost members are left out."""
    silent, gone = member(server, "c@1"), member(server, "c@2")
    ask = {"topic": "orders", "group": "G"}
    nobody = client.ask(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ask | {"clientAddr": "c@9"})
    assert (nobody.code, bodies.consumer_positions_of(nobody.body)) == (0, {})
    client.feed(client.frame(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ask | {"clientAddr": "c@1"}))
    answer(silent, asked(silent))
    assert bodies.consumer_positions_of(the_answer(client).body) == {"c@1": {}}
    client.feed(client.frame(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ask))
    gone.leave()
    clock.advance(POSITIONS_SECONDS + 1)
    tick(server)
    assert bodies.consumer_positions_of(the_answer(client).body) == {}


def test_the_state_of_a_member_is_passed_on(server, client, clock):
    """307 with code and body as they came; 207 if nothing comes."""
    consumer = member(server)
    ask = {"consumerGroup": "G", "clientId": "c@1", "jstackEnable": "true"}
    for code, body in ((0, b'{"properties":{"a":"b"}}'), (3, b"")):
        client.feed(client.frame(Code.GET_CONSUMER_RUNNING_INFO, ask))
        question = asked(consumer)
        assert question.ext == ask
        answer(consumer, question, code, body, remark="from the client")
        found = the_answer(client)
        assert (found.code, bytes(found.body), found.remark) == (code, body, "from the client")
    client.feed(client.frame(Code.GET_CONSUMER_RUNNING_INFO, ask))
    clock.advance(ANSWER_SECONDS + 1)
    tick(server)
    assert the_answer(client).code == ResponseCode.CONSUME_MSG_TIMEOUT
    client.feed(client.frame(Code.GET_CONSUMER_RUNNING_INFO, ask))
    consumer.leave()
    lost = the_answer(client)
    assert lost.code == ResponseCode.SYSTEM_ERROR
    assert "connection has ended" in lost.remark


def test_a_message_is_consumed_by_a_member_at_once(server, client):
    """309 hands it on as it is stored, and passes on how that went."""
    consumer = member(server)
    sent = client.send("orders", b"hello")
    ask = {"consumerGroup": "G", "clientId": "c@1", "msgId": sent.ext["msgId"]}
    client.feed(client.frame(Code.CONSUME_MESSAGE_DIRECTLY, ask))
    question = asked(consumer)
    assert question.ext == ask | {"brokerName": "broker-a"}
    assert decode_record(question.body).body == b"hello"
    answer(consumer, question, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert the_answer(client).body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    ("code", "ext", "text"),
    [
        (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {}, "lacks the field topic"),
        (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "nobody"}, "No Any Consumer online"),
        (Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "G"}, "lacks the field clientId"),
        (Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "G", "clientId": "x" * 5000}, "not online"),
        (Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "nobody", "clientId": "c@1"}, "not online"),
        (Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "G", "clientId": "c@1"}, "no offset id"),
        (Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "G", "clientId": "c@1", "msgId": "zz"}, "no offset id"),
        (Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "G", "msgId": "7F00000100002A9FFFFFFFFFFFFFFFFF"}, "can not find"),
        (Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "G", "msgId": "7F00000100002A9F0000000000000000"}, "not online"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(server, client, code, ext, text):
    """And nobody is asked."""
    consumer = member(server)
    client.send("orders", b"hello")
    answered = client.ask(code, ext)
    assert answered.code in {ResponseCode.SYSTEM_ERROR, ResponseCode.CONSUMER_NOT_ONLINE}
    assert text in answered.remark
    assert len(answered.remark) < 600
    assert consumer.received() == []


def test_old_clients_and_too_many_questions_are_refused(server, client, clock):
    """Clients before 3.1.8 cannot answer; so many questions wait at most, and others may come when they have ended."""
    old = Client(server)
    view = bodies.heartbeat(bodies.heartbeat_of(b'{"clientID":"old","consumerDataSet":[{"groupName":"O"}]}'))
    old.ask(Code.HEART_BEAT, None, view, version=61)
    refused = client.ask(Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "O", "clientId": "old"})
    assert "too old" in refused.remark
    member(server)
    ask = {"consumerGroup": "G", "clientId": "c@1"}
    for _ in range(UNDER_WAY_MAX):
        client.feed(client.frame(Code.GET_CONSUMER_RUNNING_INFO, ask))
    assert client.ask(Code.GET_CONSUMER_RUNNING_INFO, ask).code == ResponseCode.SYSTEM_BUSY
    clock.advance(ANSWER_SECONDS + 1)
    tick(server)
    assert len(client.received()) == UNDER_WAY_MAX
    client.feed(client.frame(Code.GET_CONSUMER_RUNNING_INFO, ask))
    assert client.received() == []
