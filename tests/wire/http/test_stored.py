"""Stored messages as JSON."""

from __future__ import annotations

import base64
import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from metaq.model.message import StoredMessage
from metaq.wire import hot
from metaq.wire.http.stored import StoredAsJson, as_json
from metaq.wire.record import encode_record

HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))


def stored(body, properties=b""):
    """A message as the log has it, decoded as a pull's answer is."""
    data = encode_record(
        topic=b"orders", queue_id=2, queue_offset=7, log_offset=4711, flag=5, sys_flag=0, born_ms=1000, born_host=HOST,
        store_ms=2000, store_host=HOST, reconsume_times=1, prepared_offset=0, body=body, properties=properties,
    )  # fmt: skip
    [message] = hot.decode_records(data, 0, len(data), StoredMessage, "broker-a", 0, 8)
    return message


def told(body, properties=b"", **options):
    return json.loads(msgspec.json.encode(as_json(stored(body, properties), body, **options)))


def test_a_message_as_it_is_told():
    properties = "\x02".join("\x01".join(pair) for pair in (
        ("KEYS", "a b"), ("TAGS", "paid"), ("UNIQ_KEY", "7F00"), ("WAIT", "true"), ("CLUSTER", "c"), ("shop", "8"),
    ))  # fmt: skip
    assert told(b"a lamp", properties.encode()) == {
        "topic": "orders", "broker": "broker-a", "queue": 2, "offset": 7, "messageId": "7F00",
        "offsetId": "7F00000100002A9F0000000000001267", "bornTime": 1000, "storeTime": 2000, "tag": "paid", "keys": ["a", "b"],
        "properties": {"shop": "8"}, "reconsumeTimes": 1, "flag": 5, "body": "a lamp",
    }  # fmt: skip


def test_bytes_and_what_is_wanted_as_bytes():
    assert told(b"\xff\x00")["bodyBase64"] == "/wA="
    assert told(b"text", raw=True)["bodyBase64"] == "dGV4dA=="
    assert told(b"")["body"] == ""
    assert "body" not in told(b"\xff") and "bodyBase64" not in told(b"text")


@given(st.binary(max_size=100), st.booleans())
def test_any_body_is_told_whole(body, raw):
    read = msgspec.json.decode(msgspec.json.encode(as_json(stored(body), body, raw=raw)), type=StoredAsJson)
    text = read.body if isinstance(read.body, str) else None
    assert (text.encode() if text is not None else base64.b64decode(read.body_base64)) == body


@given(st.binary(max_size=60).filter(lambda name: b"\x01" not in name and b"\x02" not in name))
def test_any_bytes_as_a_property_can_be_told(value):
    assert json.loads(msgspec.json.encode(as_json(stored(b"a", b"shop\x01" + value), b"a")))["offset"] == 7
