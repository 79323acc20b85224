"""Bad input at the broker's server: whoever sends it is told or cut off, and nobody else notices."""

from __future__ import annotations

import pytest

from metaq.errors import RemoteProtocolError
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, encode
from tests.servers.support import Client, open_server, pull_header, send_header


@pytest.fixture(autouse=True)
def others_are_untouched(server):
    """Another client's data and connection are as before after every test of this file."""
    other = Client(server)
    for n in range(3):
        other.send("orders", b"%d" % n)
    assert other.pull("orders", offset=3, sys_flag=6, suspend_ms=15_000, group="other") == []
    end = server.broker.store.log.end
    yield
    assert server.broker.store.log.end == end
    assert len(server.broker.held_pulls) == 1
    Client(server).send("orders", b"after")
    assert [answer.remark for answer in other.received()] == ["FOUND"]
    (pulled,) = other.pull("orders", group="other")
    assert pulled.code == 0


GARBAGE = {
    "random bytes": b"\x07\x93garbage" * 20,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a frame above the limit": (17 << 20).to_bytes(4, "big") + b"\x00\x00\x00\x10",
    "a negative length": b"\xff\xff\xff\xff\x00\x00\x00\x00",
    "a length of 3": b"\x00\x00\x00\x03\x00\x00\x00",
    "a header longer than its frame": b"\x00\x00\x00\x08\x00\xff\xff\xff{}{}",
    "an unknown serialize type": b"\x00\x00\x00\x08\x07\x00\x00\x02{}{}",
    "a header that is no JSON": b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{",
    "a header that is no object": b"\x00\x00\x00\x08\x00\x00\x00\x04[10]",
    "a binary header cut off": b"\x00\x00\x00\x08\x01\x00\x00\x04\x00\x0a\x00\x01",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_frame_closes_the_connection(server, data):
    """Framing that cannot be understood ends this connection, with a reason."""
    client = Client(server)
    with pytest.raises(RemoteProtocolError):
        client.feed(data)
    assert client.received() == []


def test_good_requests_before_the_garbage_are_answered(server):
    """What came whole before the broken bytes has its answer."""
    client = Client(server)
    with pytest.raises(RemoteProtocolError):
        client.feed(client.frame(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}) + b"\xff" * 40)
    assert [answer.ext["offset"] for answer in client.received()] == ["3"]


def test_a_truncated_frame_waits_and_is_forgotten_with_its_connection(server):
    """Half a request does nothing but wait; when the peer leaves, it is gone."""
    client = Client(server)
    frame = client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x" * 1000)
    assert client.feed(frame[:-1]) == len(frame) - 1
    assert client.session.frame_needed() == len(frame)
    client.leave()


HOSTILE_SENDS = {
    "a number of a million digits": {"e": "9" * 1_000_000},
    "no number": {"e": "zero"},
    "beyond 32 bits": {"e": str(1 << 31)},
    "an underscore": {"e": "1_0"},
    "beyond 64 bits": {"g": str(1 << 63)},
    "a nameless topic": {"b": ""},
    "a parent folder": {"b": "../../../etc/passwd"},
    "a topic with a NUL": {"b": "a\x00b"},
    "a topic of 10 000 letters": {"b": "t" * 10_000},
    "an absent field": {"e": None},
    "a queue that does not exist": {"e": "2000000000"},
    "a reserved prefix": {"b": "rmq_sys_METAQ_POSITIONS"},
}


@pytest.mark.parametrize("change", HOSTILE_SENDS.values(), ids=HOSTILE_SENDS.keys())
def test_hostile_values_in_a_send_are_answered(server, change):
    """Each is refused in words, with no exception text of Python's, and the connection lives on."""
    client = Client(server)
    ext = send_header("orders").to_ext() | change
    answer = client.ask(
        RequestCode.SEND_MESSAGE_V2, {key: value for key, value in ext.items() if value is not None}, b"x"
    )
    assert answer.code != 0
    assert answer.remark
    assert "Error" not in answer.remark
    assert len(answer.remark) < 5000


HOSTILE_PULLS = {
    "no number": {"queueOffset": "x"},
    "beyond 64 bits": {"queueOffset": "-9223372036854775809"},
    "a negative queue": {"queueId": "-7"},
    "a hostile group": {"consumerGroup": "../../x"},
    "an empty group": {"consumerGroup": ""},
    "an absent group": {"consumerGroup": None},
}


@pytest.mark.parametrize("change", HOSTILE_PULLS.values(), ids=HOSTILE_PULLS.keys())
def test_hostile_values_in_a_pull_are_answered(server, change):
    """The same for pulls."""
    client = Client(server)
    ext = pull_header("orders").to_ext() | change
    answer = client.ask(RequestCode.PULL_MESSAGE, {key: value for key, value in ext.items() if value is not None})
    assert answer.code not in (0, 19)
    assert "Error" not in answer.remark


OTHERS = [
    (RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "99"}, b"", 1),
    (RequestCode.GET_MAX_OFFSET, {"topic": "orders"}, b"", 1),
    (RequestCode.GET_MIN_OFFSET, {"topic": "../x", "queueId": "0"}, b"", 1),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "nope", "queueId": "0", "timestamp": "0"}, b"", 17),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "-1"}, b"", 1),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "5"}, b"", 1),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str((1 << 63) - 1)}, b"", 1),
    (RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "-1", "group": "TOOLS_CONSUMER", "delayLevel": "0"}, b"", 1),
    (RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": "../x", "delayLevel": "0"}, b"", 1),
    (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "orders", "queueId": "0", "commitOffset": "-1"}, b"", 1),
    (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "nope", "queueId": "0", "commitOffset": "1"}, b"", 17),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "a/b", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}, b"", 1),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "t", "readQueueNums": "9999999", "writeQueueNums": "1", "perm": "6"}, b"", 1),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "t", "readQueueNums": "-1", "writeQueueNums": "1", "perm": "6"}, b"", 1),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}, b"", 1),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "SCHEDULE_TOPIC_XXXX"}, b"", 1),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "../orders"}, b"", 1),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"../x"}', 1),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b"not json", 1),
    (RequestCode.QUERY_MESSAGE, {"topic": "orders", "key": "", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}, b"", 1),
    (RequestCode.QUERY_MESSAGE, {"topic": "orders", "key": "no", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}, b"", 22),
]  # fmt: skip


@pytest.mark.parametrize(("code", "ext", "body", "answered"), OTHERS)
def test_hostile_values_elsewhere_are_answered(server, code, ext, body, answered):
    """Every other request is as careful."""
    answer = Client(server).ask(code, ext, body)
    assert answer.code == answered, answer.remark
    assert answer.remark


@pytest.mark.parametrize("code", [RequestCode.GET_ROUTEINFO_BY_TOPIC, 999, 30_099])
def test_what_we_do_not_serve_is_refused_by_name(server, code):
    """Code 3, the number, and the name if it has one."""
    answer = Client(server).ask(code, {})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert f" request type {int(code)}" in answer.remark
    if isinstance(code, RequestCode):
        assert code.name in answer.remark


def test_an_answer_nobody_asked_for_is_passed_over(server):
    """A response from a client, late or forged, is neither answered nor an error."""
    client = Client(server)
    client.feed(encode(Command(0, 77, 1)))
    assert client.received() == []


def test_automatic_topics_are_limited(server, tmp_path):
    """Above autoCreateTopicsPerMinute an unknown topic is refused with the reason."""
    with open_server(tmp_path / "other", auto_create_topics_per_minute=2) as (broker, limited):
        client = Client(limited)
        assert [client.send(f"t{n}").code for n in range(4)] == [0, 0, 17, 17]
        assert "2 a minute" in client.send("t9").remark
        broker.clock.advance(30)
        assert client.send("t9").code == 0
