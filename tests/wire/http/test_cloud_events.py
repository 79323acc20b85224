"""CloudEvents 1.0: what the SDK for Python writes is understood, and messages are as the SDK for Java has them."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import BadRequest
from metaq.in_pieces import finish
from metaq.wire.http import cloud_events as wire

PLAIN = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "paid"}
JAVA = {
    "specversion": "CE_specversion", "id": "CE_id", "source": "CE_source", "type": "CE_type", "subject": "CE_subject",
    "time": "CE_time", "dataschema": "CE_dataschema", "datacontenttype": "CE_contenttype", "tenant": "tenant",
}  # fmt: skip
"""Attribute → property, of io.cloudevents.rocketmq (RocketmqConstants): an extension has no prefix."""
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)


def received(message):
    """The message that an HTTP request of the SDK becomes."""
    fields = {name.lower(): value for name, value in message.headers.items()}
    if fields["content-type"].startswith(wire.STRUCTURED) if "content-type" in fields else False:
        return wire.of_structured("events", message.body)
    assert wire.has_fields(fields)
    return wire.of_fields("events", message.body, fields)


def structured(**more):
    return wire.of_structured("events", json.dumps(PLAIN | more).encode())


@pytest.mark.parametrize("write", [to_binary_event, to_structured_event])
def test_properties_are_named_as_by_the_sdk_for_java(write):
    time = dt.datetime(2026, 1, 31, 12, 0, 0, 5000, tzinfo=dt.UTC)
    more = {
        "subject": "o/1", "time": time, "dataschema": "https://a/b", "datacontenttype": "application/json", "tenant": "ä %",
    }  # fmt: skip
    one = received(write(CloudEvent(PLAIN | more, {"n": 1})))
    assert set(one.message.properties) == set(JAVA.values())
    assert json.loads(one.message.body) == {"n": 1}
    wanted = {**PLAIN, **more, "time": "2026-01-31T12:00:00.005000Z"}
    assert {name: one.message.properties[JAVA[name]] for name in JAVA} == wanted
    assert wire.is_event(one.message.properties) and not wire.is_event({"id": "7"})


@pytest.mark.parametrize("write", [to_binary_event, to_structured_event])
@given(
    identity=TEXTS, tenant=TEXTS,
    data=st.one_of(st.none(), st.binary(min_size=1).filter(lambda data: data != wire.NO_DATA), st.dictionaries(st.text(), st.integers() | st.text() | st.none())),
)  # fmt: skip
def test_events_of_the_sdk_come_back_as_they_were(write, identity, tenant, data):
    kind = "application/octet-stream" if isinstance(data, bytes) else "application/json"
    event = CloudEvent(PLAIN | {"id": identity, "tenant": tenant, "datacontenttype": kind}, data)
    one = received(write(event))
    told = wire.to_object(one.message.body, one.message.properties, ["tenant"])
    back = from_http_event(HTTPMessage({"content-type": wire.STRUCTURED}, json.dumps(told).encode()))
    found = back.get_data()
    # Bytes that are text are text in JSON of another type: what they say is the same.
    if isinstance(data, bytes) and isinstance(found, str):
        found = found.encode()
    assert (back.get_attributes()["id"], back.get_attributes()["tenant"]) == (identity, tenant)
    assert found == (data if data is not None else None)


def test_one_zero_byte_stands_for_no_data():
    """As the SDK for Java has it."""
    event = received(to_binary_event(CloudEvent(PLAIN | {"datacontenttype": "application/octet-stream"}, wire.NO_DATA)))
    assert event.message.body == received(to_binary_event(CloudEvent(PLAIN | {}, None))).message.body == wire.NO_DATA
    assert not {"data", "data_base64"} & set(wire.to_object(wire.NO_DATA, event.message.properties, []))


def test_data_is_kept_as_it_came():
    raw = b'{"specversion":"1.0","id":"7","source":"/s","type":"t","data":{"n": 1.10,  "m": 12345678901234567890123}}'
    assert wire.of_structured("events", raw).message.body == b'{"n": 1.10,  "m": 12345678901234567890123}'
    assert structured(data="a", datacontenttype="text/plain").message.body == b"a"
    assert structured(data="a").message.body == b'"a"'
    assert structured(data=5, datacontenttype="text/plain").message.body == b"5"
    assert structured(data_base64=base64.b64encode(b"\xff").decode()).message.body == b"\xff"
    assert structured().message.body == structured(data=None).message.body == wire.NO_DATA
    assert structured(count=5, good=True, gone=None).message.properties.items() >= {("count", "5"), ("good", "true")}
    assert "gone" not in structured(gone=None).message.properties


def test_a_batch():
    found = finish(wire.of_batch("events", json.dumps([PLAIN, PLAIN | {"id": "8"}]).encode()))
    assert [one.message.properties["CE_id"] for one in found] == ["7", "8"]
    with pytest.raises(BadRequest, match=r"event 2 of the batch: .*`id`"):
        finish(wire.of_batch("events", json.dumps([PLAIN, PLAIN | {"id": ""}]).encode()))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"specversion": "0.3"}, "specversion"), ({"specversion": 1}, "specversion"), ({"id": ""}, "`id`"), ({"id": None}, "`id`"),
        ({"source": 5}, "`source`"), ({"Tenant": "a"}, "lower-case"), ({"a_b": "c"}, "lower-case"), ({"é": "c"}, "lower-case"),
        ({"a" * 100: "c"}, "lower-case"), ({"tenant": 1.5}, "CloudEvent"), ({"tenant": {}}, "CloudEvent"), ({"tenant": ""}, "empty"),
        ({"data": 1, "data_base64": "YQ=="}, "either"), ({"data_base64": "!"}, "Base64"), ({"data_base64": 5}, "CloudEvent"),
        ({"tenant": "\x01"}, "propert"), ({"tenant": 10**400}, "CloudEvent"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_told(changes, says):
    with pytest.raises(BadRequest) as raised:
        structured(**changes)
    assert says in str(raised.value), raised.value


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"\xff", b"{" * 100_000, b'{"data": ' + b"[" * 100_000])
def test_what_is_no_json_is_told(body):
    with pytest.raises(BadRequest):
        wire.of_structured("events", body)
    with pytest.raises(BadRequest):
        finish(wire.of_batch("events", body))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data):
    for read in (lambda: wire.of_structured("e", data), lambda: finish(wire.of_batch("e", data))):
        with contextlib.suppress(BadRequest):
            read()


@pytest.mark.parametrize(
    "fields", [{"ce-id": "1"}, {"ce-specversion": "1.0"}, {"ce-type": "t"}, {"ce-specversion": "1.0", "ce-id": "%FF"}]
)
def test_header_fields_that_are_no_event(fields):
    with pytest.raises(BadRequest):
        wire.of_fields("events", b"a", fields)
