"""Messages as JSON, NDJSON and raw bytes: vectors, round trips, and the bounds of every field."""

from __future__ import annotations

import base64
import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.in_pieces import finish
from metaq.wire.http import message as wire

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp"), exclude_characters="|"), min_size=1, max_size=20)  # fmt: skip
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)


def of_json(body):
    return finish(wire.of_json("orders", body))


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b'{"body": "a lamp"}', b"a lamp"),
        (b'{"body": "\\u00e9\\n"}', "é\n".encode()),
        (b'{"body": {"id": 42,  "n": 1.50}}', b'{"id": 42,  "n": 1.50}'),  # other JSON is kept as it came
        (b'{"body": [1, 2]}', b"[1, 2]"),
        (b'{"body": 123456789012345678901234567890}', b"123456789012345678901234567890"),
        (b'{"body": null}', b"null"),
        (b'{"body": false}', b"false"),
        (b'{"bodyBase64": "/wA="}', b"\xff\x00"),
    ],
)
def test_bodies(body, stored):
    batch = of_json(body)
    assert [one.message.body for one in batch.messages] == [stored]
    assert (batch.several, batch.atomic) == (False, False)


def test_all_fields_of_a_message():
    text = {
        "body": "x", "tag": "paid", "keys": ["a", "b"], "properties": {"shop": "8"}, "queue": 3, "delayLevel": 2, "flag": -7,
        "wait": False,
    }  # fmt: skip
    [one] = of_json(json.dumps(text).encode()).messages
    message = one.message
    assert (message.topic, message.body, message.tag, message.keys, one.queue) == (
        "orders",
        b"x",
        "paid",
        ("a", "b"),
        3,
    )
    assert (message.properties, message.delay_level, message.flag, message.wait_store_ok) == (
        {"shop": "8"},
        2,
        -7,
        False,
    )
    assert of_json(b'{"body": "x", "keys": "a b"}').messages[0].message.keys == ("a", "b")


@pytest.mark.parametrize("first", ["messages", "atomic"])
def test_several_messages(first):
    fields = {"messages": [{"body": "a"}, {"body": "b"}], "atomic": True}
    order = [first, *(name for name in fields if name != first)]
    batch = of_json(json.dumps({name: fields[name] for name in order}).encode())
    assert [one.message.body for one in batch.messages] == [b"a", b"b"]
    assert (batch.several, batch.atomic) == (True, True)
    assert of_json(b'{"messages": [{"body": "a"}]}')[1:] == (True, False)


@given(
    body=st.one_of(st.text(min_size=1), st.binary(min_size=1)), tag=st.one_of(st.just(""), WORDS), keys=st.lists(WORDS, max_size=4),
    properties=st.dictionaries(NAMES, WORDS, max_size=4), queue=st.integers(0, 2**31 - 1), level=st.integers(0, 18),
)  # fmt: skip
def test_what_is_written_is_what_is_read(body, tag, keys, properties, queue, level):
    given_body = {"body": body} if isinstance(body, str) else {"bodyBase64": base64.b64encode(body).decode()}
    text = {**given_body, "tag": tag, "keys": keys, "properties": properties, "queue": queue, "delayLevel": level}
    for read in (
        of_json(json.dumps(text).encode()).messages,
        finish(wire.of_ndjson("orders", json.dumps(text).encode())),
    ):
        [one] = read
        message = one.message
        assert message.body == (body.encode() if isinstance(body, str) else body)
        assert (message.tag or "", list(message.keys), message.properties, one.queue) == (tag, keys, properties, queue)
        assert message.delay_level == level


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_any_json_is_a_body(value):
    [one] = of_json(json.dumps({"body": value}).encode()).messages if value != "" else [None]
    if isinstance(value, str) and value:
        assert one.message.body == value.encode()
    elif one is not None:
        assert json.loads(one.message.body) == value


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data):
    for read in (
        lambda: of_json(data),
        lambda: finish(wire.of_ndjson("orders", data)),
        lambda: wire.of_raw("orders", data, {}),
    ):
        with contextlib.suppress(BadRequest):
            read()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no message as JSON"),
        (b"\xff", "no message as JSON"),
        (b'{"body": "\xff"}', "no message as JSON"),
        (b'{"body": ""}', "empty"),
        (b'{"bodyBase64": ""}', "empty"),
        (b'{"bodyBase64": "a"}', "Base64"),
        (b"{}", "either"),
        (b"[]", "no message"),
        (b'{"body": "a", "queue": -1}', "queue"),
        (b'{"body": "a", "queue": 2147483648}', "queue"),
        (b'{"body": "a", "queue": 1.5}', "queue"),
        (b'{"body": "a", "queue": "1"}', "queue"),
        (b'{"body": "a", "queue": 1' + b"0" * 5000 + b"}", "queue"),
        (b'{"body": "a", "queue": 1e400}', "no message"),
        (b'{"body": "a", "delayLevel": 19}', "19"),
        (b'{"body": "a", "delayLevel": -1}', "delayLevel"),
        (b'{"body": "a", "flag": 2147483648}', "flag"),
        (b'{"body": "a", "keys": [1]}', "keys"),
        (b'{"body": "a", "keys": ["a b"]}', "key"),
        (b'{"body": "a", "properties": {"a": 1}}', "properties"),
        (b'{"body": "a", "properties": {"a\\u0001": "1"}}', "propert"),
        (b'{"body": "a", "properties": {"UNIQ_KEY": "1"}}', "reserved"),
        (b'{"body": "a", "tag": null}', "tag"),
        (b'{"messages": [{"body": "a"}, {"body": 1, "x": 2}]}', "messages[1]"),
        (b'{"messages": [{"body": "a"}], "topic": "b"}', "topic"),
        (b'{"messages": {}}', "messages"),
        (b'{"messages": [{"body": "a"}], "atomic": 1}', "atomic"),
        (b'{"messages": [' + b"{}," * 10_000 + b"{}]}", "10000"),
        (b'{"messages": [' + b"0," * 300_000 + b"0]}", "commas"),
        (b'{"body": ' + b"[" * 100_000, "no message as JSON"),
        (b'{"body": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "no message as JSON"),
        (b'{"a": {' * 100_000, "no message as JSON"),
    ],
)
def test_what_is_no_message_is_told(body, says):
    with pytest.raises(BadRequest) as raised:
        of_json(body)
    assert says in str(raised.value), raised.value
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\n \n", "no message"),
        (b'{"body": "a"}\n{"body"', "line 2"),
        (b'\n\n{"body": "a", "messages": []}', "line 3"),
        (b'{"body": "a"}\n' * 10_001, "10000"),
        (b"\n" * 100_002, "lines"),
    ],
)
def test_what_are_no_lines_is_told(body, says):
    with pytest.raises(BadRequest) as raised:
        finish(wire.of_ndjson("orders", body))
    assert says in str(raised.value)


def test_lines_with_carriage_returns_and_without_a_last_line_break():
    found = finish(wire.of_ndjson("orders", b'{"body": "a"}\r\n\r\n{"body": "b"}'))
    assert [one.message.body for one in found] == [b"a", b"b"]


def test_a_long_list_is_decoded_in_pieces():
    pieces = wire.of_json("orders", b'{"messages": [' + b",".join([b'{"body": 1}'] * 500) + b"]}")
    assert sum(1 for _ in pieces) == 500


def test_fields_of_a_raw_body():
    fields = {
        "metaq-tag": "t", "metaq-keys": "a  b", "metaq-queue": "7", "metaq-delay-level": "3", "metaq-flag": "9", "metaq-wait": "False",
        "metaq-property-shop": "8", "content-type": "x/y",
    }  # fmt: skip
    one = wire.of_raw("orders", b"\x00", fields)
    message = one.message
    assert (message.body, message.tag, message.keys, one.queue) == (b"\x00", "t", ("a", "b"), 7)
    assert (message.delay_level, message.flag, message.wait_store_ok, message.properties) == (
        3,
        9,
        False,
        {"shop": "8"},
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"metaq-tags": "a"}, {"metaq-queue": "-1"}, {"metaq-queue": "+1"}, {"metaq-queue": "1_0"}, {"metaq-queue": "9" * 5000},
        {"metaq-queue": "２"}, {"metaq-queue": str(2**31)}, {"metaq-delay-level": "19"}, {"metaq-flag": "x"}, {"metaq-tag": "a|b"},
        {"metaq-property-KEYS": "a"}, {"metaq-property-a": "\x01"},
    ],
)  # fmt: skip
def test_fields_that_say_nothing_a_message_has(fields):
    with pytest.raises(BadRequest):
        wire.of_raw("orders", b"a", fields)


def test_places_as_json():
    stored = wire.Stored("orders", "broker-a", 1, 7, "7F00")
    told = b'{"topic":"orders","broker":"broker-a","queue":1,"offset":7,"messageId":"7F00","warning":""}'
    assert msgspec.json.encode(stored) == told
    assert msgspec.json.encode(wire.StoredMessages([stored])) == b'{"messages":[' + told + b"]}"
