"""Messages as the requests of a webhook: body and header fields in each of its formats (docs/webhooks.md)."""

from __future__ import annotations

import datetime as dt
import hashlib
import urllib.parse
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from metaq.model import properties as props
from metaq.model.message import StoredMessage
from metaq.wire.http import cloud_events
from metaq.wire.http.message import JSON
from metaq.wire.http.stored import as_json

RAW: Final = "raw"
AS_JSON: Final = "json"
EVENT: Final = "cloudevents"
STRUCTURED: Final = "cloudevents-structured"
FORMATS: Final = (RAW, AS_JSON, EVENT, STRUCTURED)
SEVERAL: Final = frozenset({AS_JSON, STRUCTURED})
"""Formats that can have several messages in one request."""
_BYTES: Final = "application/octet-stream"
_TYPE: Final = "org.metaq.message"
"""The type of an event that was no CloudEvent when it was sent."""
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that stand in a header field as they are; all others are written %20, as CloudEvents wants it."""
_NAME_CHARS: Final = "!#$&'*+-.^_`|~"
"""Characters of names of header fields besides letters and digits; % is one, too, and left to the others."""


class Content(Struct, frozen=True):
    """A request's body, and the header fields that belong to it."""

    message_id: str
    fields: dict[str, str]
    body: bytes


def message_id(message: StoredMessage) -> str:
    """Return the id that a message keeps when it comes again through the group's retries."""
    properties = message.properties
    return properties.get(props.UNIQUE_ID) or properties.get(props.ORIGIN_MESSAGE_ID) or message.message_id


def content_of(messages: Sequence[StoredMessage], form: str, group: str, *, several: bool = False) -> Content:
    """Return the request of messages.

    Args:
        messages: one, if the format is not among `SEVERAL`, or `several` is not set.
        form: of `FORMATS`.
        group: the consumer group that they are pushed for.
        several: the body is an array, even of one message.
    """
    first = messages[0]
    if several:
        ids = [message_id(one) for one in messages]
        # The same for the same messages: whoever has seen it has had all of them.
        whole = f"batch_{hashlib.sha256(' '.join(ids).encode()).hexdigest()[:40]}"
        fields = {"metaq-group": _text(group), "metaq-messages": str(len(messages))}
        if form == AS_JSON:
            body = msgspec.json.encode([as_json(one, one.body) for one in messages])
            return Content(whole, {"content-type": JSON, **fields}, body)
        body = msgspec.json.encode([_event(one) for one in messages])
        return Content(whole, {"content-type": cloud_events.BATCH, **fields}, body)
    identity = message_id(first)
    if form == RAW:
        kind = first.properties.get(cloud_events.CONTENT_TYPE, "")
        return Content(
            identity, {"content-type": _media(kind, _BYTES), **_raw_fields(first, identity, group)}, first.body
        )
    if form == AS_JSON:
        return Content(identity, {"content-type": JSON}, msgspec.json.encode(as_json(first, first.body)))
    if form == STRUCTURED:
        return Content(identity, {"content-type": cloud_events.STRUCTURED}, msgspec.json.encode(_event(first)))
    return Content(identity, *_binary(first))


def _raw_fields(message: StoredMessage, identity: str, group: str) -> dict[str, str]:
    found = {
        "metaq-message-id": identity,
        "metaq-topic": message.topic,
        "metaq-group": group,
        "metaq-broker": message.broker,
        "metaq-queue": str(message.queue_id),
        "metaq-offset": str(message.queue_offset),
        "metaq-born-time": str(message.born_ms),
        "metaq-store-time": str(message.store_ms),
        "metaq-reconsume-times": str(message.reconsume_times),
    }
    fields = {name: _text(value) for name, value in found.items()}
    if message.tag:
        fields["metaq-tag"] = _text(message.tag)
    if message.keys:
        fields["metaq-keys"] = " ".join(_text(key) for key in message.keys)
    for name, value in _own_properties(message).items():
        fields[f"metaq-property-{urllib.parse.quote(name, safe=_NAME_CHARS)}"] = _text(value)
    return fields


def _own_properties(message: StoredMessage) -> dict[str, str]:
    """Return the properties that the sender has given; those of the system say how the message went through it."""
    return {name: value for name, value in message.properties.items() if name not in props.RESERVED}


def _event(message: StoredMessage) -> dict[str, Any]:
    """Return a message as a CloudEvent in structured form: the one that was sent, or one that is made of it."""
    properties = message.properties
    if cloud_events.is_event(properties):
        names = [
            name for name in _own_properties(message) if not name.startswith(cloud_events.PREFIX) and _is_name(name)
        ]
        return cloud_events.to_object(message.body, properties, names)
    made = {cloud_events.PREFIX + name: value for name, value in _attributes(message).items()}
    extensions = {"metaqqueue": str(message.queue_id), "metaqoffset": str(message.queue_offset), **_extensions(message)}
    return cloud_events.to_object(message.body, {**extensions, **made}, extensions)


def _attributes(message: StoredMessage) -> dict[str, str]:
    born = dt.datetime.fromtimestamp(max(0, message.born_ms) / 1000, dt.UTC).isoformat(timespec="milliseconds")
    found = {
        "specversion": "1.0",
        "id": message_id(message),
        "source": f"/topics/{urllib.parse.quote(message.topic, safe='')}",
        "type": _TYPE,
        "time": born.replace("+00:00", "Z"),
    }
    return found | ({"subject": message.keys[0]} if message.keys else {})


def _extensions(message: StoredMessage) -> dict[str, str]:
    """Return properties whose names an attribute can have, and the tag."""
    known = {"specversion", "id", "source", "type", "time", "subject", "dataschema", "datacontenttype", "data"}
    found = {name: value for name, value in _own_properties(message).items() if _is_name(name) and name not in known}
    return found | ({"metaqtag": message.tag} if message.tag else {})


def _is_name(name: str) -> bool:
    return name.isascii() and name.isalnum() and name == name.lower()


def _binary(message: StoredMessage) -> tuple[dict[str, str], bytes]:
    """Return header fields and body of a CloudEvent in binary form."""
    event = _event(message)
    kind = str(event.pop("datacontenttype", ""))
    for name in ("data", "data_base64"):
        event.pop(name, None)
    fields = {f"{cloud_events.FIELD}{name}": _text(str(value)) for name, value in event.items()}
    body = b"" if message.body == cloud_events.NO_DATA else message.body
    # Without a type, data is JSON or bytes, as its receiver finds out.
    media = _media(kind, "")
    return ({"content-type": media, **fields} if body and media else fields), body


def _media(kind: str, default: str) -> str:
    """Return a content type as a header field can have it; the default if it cannot."""
    kind = kind.strip()
    return kind if kind and kind.isascii() and kind.isprintable() else default


def _text(value: str) -> str:
    return urllib.parse.quote(value, safe=_SAFE)
