"""Requests of messages, read back by the SDK of CloudEvents and by our own HTTP server's reading."""

from __future__ import annotations

import json
import urllib.parse

import pytest
from cloudevents.core.bindings import http as binding
from cloudevents.core.formats.json import JSONFormat

from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.webhooks.content import EVENT, FORMATS, RAW, STRUCTURED, content_of, message_id
from metaq.wire.http import cloud_events

BORN = 1_700_000_000_123


def stored(body=b'{"id": 42}', **pairs):
    given = {props.UNIQUE_ID: "7F00000100002A9F0000000000000001", props.WAIT: "true", **pairs}
    return StoredMessage(
        topic="orders", body=body, queue_id=3, queue_offset=17, log_offset=4711, broker="broker-a", born_ms=BORN,
        store_ms=BORN + 5, reconsume_times=2, properties_raw=props.join(given).encode(),
    )  # fmt: skip


def test_raw():
    message = stored(
        b"\x00\xff", **{props.TAGS: "paid up", props.KEYS: "4711 k%2é", "Shop": "Nr. 8\r\nx: y", "naïve name": "ü"}
    )
    made = content_of([message], RAW, "billing")
    assert made.body == b"\x00\xff"
    assert made.fields == {
        "content-type": "application/octet-stream",
        "metaq-message-id": "7F00000100002A9F0000000000000001",
        "metaq-topic": "orders",
        "metaq-group": "billing",
        "metaq-broker": "broker-a",
        "metaq-queue": "3",
        "metaq-offset": "17",
        "metaq-born-time": str(BORN),
        "metaq-store-time": str(BORN + 5),
        "metaq-reconsume-times": "2",
        "metaq-tag": "paid%20up",
        "metaq-keys": "4711 k%252%C3%A9",
        "metaq-property-Shop": "Nr.%208%0D%0Ax:%20y",
        "metaq-property-na%C3%AFve%20name": "%C3%BC",
    }
    assert urllib.parse.unquote(made.fields["metaq-property-Shop"]) == "Nr. 8\r\nx: y"


def test_json_is_as_the_http_server_writes_it():
    made = content_of([stored(**{props.TAGS: "paid", "shop": "8"})], "json", "billing")
    assert made.fields == {"content-type": "application/json"}
    assert json.loads(made.body) == {
        "topic": "orders", "broker": "broker-a", "queue": 3, "offset": 17, "bornTime": BORN, "storeTime": BORN + 5,
        "messageId": "7F00000100002A9F0000000000000001", "offsetId": stored().offset_id, "tag": "paid", "properties": {"shop": "8"},
        "reconsumeTimes": 2, "body": '{"id": 42}',
    }  # fmt: skip
    assert "bodyBase64" in json.loads(content_of([stored(b"\xff")], "json", "g").body)


def read(made, several=False):
    http = binding.HTTPMessage(headers=made.fields, body=made.body)
    event = binding.from_http(http, JSONFormat())
    return event.get_attributes(), event.get_data()


@pytest.mark.parametrize("form", [EVENT, STRUCTURED])
def test_a_message_becomes_an_event(form):
    message = stored(
        **{props.TAGS: "paid", props.KEYS: "4711 8", "shop": 'Größe "XL" 100%', "Not-A-Name": "x", "id": "mine"}
    )
    attributes, data = read(content_of([message], form, "billing"))
    assert str(attributes.pop("time")).startswith("2023-11-14 22:13:20.123")
    assert attributes == {
        "specversion": "1.0", "id": "7F00000100002A9F0000000000000001", "source": "/topics/orders", "type": "org.metaq.message",
        "subject": "4711", "metaqqueue": "3", "metaqoffset": "17", "metaqtag": "paid", "shop": 'Größe "XL" 100%',
    }  # fmt: skip
    assert data in ({"id": 42}, b'{"id": 42}', '{"id": 42}')


@pytest.mark.parametrize("form", [EVENT, STRUCTURED])
@pytest.mark.parametrize(
    ("kind", "data", "body"),
    [
        ("application/json", {"a": [1]}, b'{"a":[1]}'),
        ("text/plain", "höllo", "höllo".encode()),
        ("application/pdf", b"\x00\xff%PDF", b"\x00\xff%PDF"),
    ],
)
def test_an_event_that_was_sent_arrives_as_it_was(form, kind, data, body):
    sent = {
        "ce-specversion": "1.0",
        "ce-id": "e%201",
        "ce-source": "urn:x",
        "ce-type": "t",
        "ce-shop": "8",
        "ce-time": "2026-01-02T03:04:05Z",
        "content-type": kind,
    }
    message = cloud_events.of_fields("orders", body, sent).message
    attributes, found = read(content_of([stored(body, **message.properties)], form, "billing"))
    assert str(attributes.pop("time")) == "2026-01-02 03:04:05+00:00"
    assert attributes == {
        "specversion": "1.0", "id": "e 1", "source": "urn:x", "type": "t", "shop": "8", "datacontenttype": kind,
    }  # fmt: skip
    assert found in (data, body)


def test_an_event_without_data():
    sent = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "urn:x", "ce-type": "t"}
    message = cloud_events.of_fields("orders", b"", sent).message
    event = stored(message.body, **message.properties)
    assert content_of([event], EVENT, "g").body == b""
    assert "data" not in json.loads(content_of([event], STRUCTURED, "g").body)


@pytest.mark.parametrize("form", ["json", STRUCTURED])
def test_several_in_one_request(form):
    some = [stored(b"1", **{props.UNIQUE_ID: "a"}), stored(b"2", **{props.UNIQUE_ID: "b"})]
    made = content_of(some, form, "billing", several=True)
    assert len(json.loads(made.body)) == 2
    assert made.message_id.startswith("batch_")
    assert made.message_id == content_of(some, form, "billing", several=True).message_id
    assert made.message_id != content_of(some[:1], form, "billing", several=True).message_id
    assert made.fields["content-type"] == (cloud_events.BATCH if form == STRUCTURED else "application/json")
    assert isinstance(json.loads(content_of(some[:1], form, "billing", several=True).body), list)


def test_the_id_stays_when_a_message_comes_again():
    """Brokers keep UNIQ_KEY; of a message without one they keep the place of the first copy."""
    first = stored(**{props.UNIQUE_ID: "u"})
    again = stored(**{props.UNIQUE_ID: "u", props.ORIGIN_MESSAGE_ID: "first"})
    assert message_id(first) == message_id(again) == "u"
    nameless = StoredMessage(topic="t", body=b"x", log_offset=9)
    copy = StoredMessage(
        topic="t",
        body=b"x",
        log_offset=99,
        properties_raw=props.join({props.ORIGIN_MESSAGE_ID: nameless.offset_id}).encode(),
    )
    assert message_id(nameless) == message_id(copy) == nameless.offset_id


@pytest.mark.parametrize("form", FORMATS)
def test_hostile_properties_make_no_header_field_of_ours(form):
    hostile = {
        "webhook-signature": "v1,x", "Host": "evil", "x\r\nwebhook-id": "1", "CE_contenttype": "text/plain\r\nx: y", "ü": "\u2028",
        "a" * 300: "b" * 3000, "\x7f": "\x00\x1f",
    }  # fmt: skip
    made = content_of([stored(**hostile)], form, "billing")
    for name, value in made.fields.items():
        assert name.isascii()
        assert name.isprintable()
        assert value.isascii()
        assert value.isprintable()
        assert name.startswith(("metaq-", "ce-", "content-type"))
