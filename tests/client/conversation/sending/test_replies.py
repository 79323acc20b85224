"""Requests, replies and pushed replies as values, without a socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.notices import notice_of
from metaq.client.conversation.sending.replies import answering, asking, reply_topic_of
from metaq.client.conversation.sending.sending import Outgoing, Send
from metaq.errors import BadRequest, ClientError
from metaq.model import MessageQueue, StoredMessage
from metaq.model import properties as props
from metaq.model.message import COMPRESSION_ZLIB, SysFlag
from metaq.model.notices import RequestReplied
from metaq.wire import compression, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import request

REQUEST = {
    props.CORRELATION_ID: "c-1", props.REPLY_TO: "asker@1", props.TTL: "3000", props.CLUSTER: "Green", "colour": "blue",
}  # fmt: skip
TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


def stored(pairs: dict[str, str]) -> StoredMessage:
    return StoredMessage(topic="orders", body=b"ping", properties_raw=props.join(pairs).encode())


def pushed(body: bytes = b"pong", **more: object) -> headers.PushReplyHeader:
    facts = {
        "producer_group": "PG", "topic": "Green_REPLY_TOPIC", "queue_id": 0, "born_ms": 5, "flag": 7,
        "properties": props.join({props.CORRELATION_ID: "c-1", "TAGS": "t"}), "born_host": "10.0.0.1:1234",
        "store_host": "10.0.0.2:10911", "store_ms": 6,
    } | more  # fmt: skip
    return headers.PushReplyHeader(**facts)


def notice(header: headers.PushReplyHeader, body: bytes = b"pong") -> RequestReplied:
    found = notice_of(request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, body), "broker-a", 42)
    assert isinstance(found, RequestReplied)
    return found


def test_a_request_says_who_waits_and_how_long() -> None:
    asked = asking(Outgoing("orders", b"x", properties="KEYS\x01k"), "c-1", "asker@1", 3000)
    assert props.parse(asked.properties) == {
        "KEYS": "k", props.CORRELATION_ID: "c-1", props.REPLY_TO: "asker@1", props.TTL: "3000",
    }  # fmt: skip
    assert not asked.reply


def test_a_reply_goes_to_the_topic_of_the_request_s_cluster_as_325() -> None:
    """With its request's marks, and none of the request's own properties."""
    message = stored(REQUEST)
    assert reply_topic_of(message) == "Green_REPLY_TOPIC"
    reply = answering(message, Outgoing("Green_REPLY_TOPIC", b"pong", properties="TAGS\x01r"))
    assert props.parse(reply.properties) == {
        "TAGS": "r", props.MESSAGE_TYPE: "reply", props.CORRELATION_ID: "c-1", props.REPLY_TO: "asker@1",
        props.TTL: "3000",
    }  # fmt: skip
    command = Send("PG", reply, MessageQueue("Green_REPLY_TOPIC", "broker-a", 0), 5).request()
    assert command.code == RequestCode.SEND_REPLY_MESSAGE_V2


@pytest.mark.parametrize("missing", [props.CORRELATION_ID, props.REPLY_TO, props.CLUSTER])
def test_what_lacks_a_mark_is_no_request(missing: str) -> None:
    with pytest.raises(ClientError, match=missing):
        reply_topic_of(stored({name: value for name, value in REQUEST.items() if name != missing}))


def test_a_pushed_reply_is_a_message() -> None:
    """With the time of its arrival, and hosts as Java writes them."""
    found = notice(pushed())
    reply = found.reply
    assert (found.correlation_id, reply.body, reply.topic, reply.flag) == ("c-1", b"pong", "Green_REPLY_TOPIC", 7)
    assert (reply.born_host, reply.store_host, reply.store_ms) == (("10.0.0.1", 1234), ("10.0.0.2", 10911), 6)
    assert (reply.properties[props.ARRIVE_TIME], reply.tag, reply.broker) == ("42", "t", "broker-a")


@pytest.mark.parametrize(
    "host", ["", "here", "10.0.0.1", "1:2:3:4", "10.0.0.1:99999999999", "[::1]:10911", "::1:10911"]
)
def test_a_host_that_cannot_be_read_matters_to_nobody(host: str) -> None:
    assert notice(pushed(born_host=host)).reply.body == b"pong"


def test_a_compressed_reply_is_expanded() -> None:
    body = b"pong" * 2000
    packed = compression.compress(body, COMPRESSION_ZLIB)
    assert notice(pushed(sys_flag=SysFlag.COMPRESSED | COMPRESSION_ZLIB), packed).reply.body == body


def test_a_plain_reply_that_is_marked_as_compressed_is_taken_as_it_is() -> None:
    """So the Go client sends long ones."""
    found = notice(pushed(sys_flag=1), b"not compressed at all")
    assert (found.reply.body, found.broken) == (b"not compressed at all", "")


@pytest.mark.parametrize("sys_flag", [1, 1 | COMPRESSION_ZLIB, 1 | 0x200, 1 | 0x700])
def test_a_reply_that_cannot_be_expanded_says_why(sys_flag: int) -> None:
    """It still says whose it is."""
    found = notice(pushed(sys_flag=sys_flag), compression.compress(b"pong" * 2000, COMPRESSION_ZLIB)[:-7] + b"garbage")
    assert found.correlation_id == "c-1"
    assert found.broken


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (pushed(properties=""), b"x"),
        (pushed(properties="CORRELATION_ID\x01"), b"x"),
    ],
)
def test_a_broken_push_is_a_bad_request(header: headers.PushReplyHeader, body: bytes) -> None:
    with pytest.raises(BadRequest):
        notice(header, body)


@given(
    st.dictionaries(TEXT, TEXT, max_size=5), st.binary(min_size=1, max_size=200), st.integers(-(1 << 31), (1 << 31) - 1)
)
def test_whatever_is_replied_comes_out_as_it_was(pairs: dict[str, str], body: bytes, flag: int) -> None:
    """Round trip: a request's marks and the reply's own properties through text and push."""
    reply = answering(stored(REQUEST), Outgoing("Green_REPLY_TOPIC", body, flag=flag, properties=props.join(pairs)))
    found = notice(pushed(properties=reply.properties, flag=flag), body)
    assert (found.reply.body, found.reply.flag) == (body, flag)
    marks = {props.MESSAGE_TYPE, props.ARRIVE_TIME, props.CORRELATION_ID, props.REPLY_TO, props.TTL}
    assert {name: value for name, value in found.reply.properties.items() if name not in marks} == {
        name: value for name, value in pairs.items() if name not in marks
    }
