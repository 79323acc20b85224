"""CloudEvents 1.0 by HTTP, in both forms, and as messages: properties and body as the CloudEvents SDK for Java has them.

Of its binding for RocketMQ: an attribute is the property `CE_` + its name, `datacontenttype` is `CE_contenttype`, and an extension is a
property of its own name. An event without data is a body of one zero byte, since no message is empty.
"""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from metaq.errors import BadRequest
from metaq.in_pieces import InPieces
from metaq.wire.http.message import JSON, NewMessage, check_commas, check_count, from_base64, new_message

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
FIELD: Final = "ce-"
PREFIX: Final = "CE_"
CONTENT_TYPE: Final = "CE_contenttype"
NO_DATA: Final = b"\x00"
"""Body of an event without data, as of io.cloudevents.rocketmq: RocketMQ has no empty bodies. So an event whose data is this one byte comes
back without data."""
_ATTRIBUTES: Final = ("specversion", "id", "source", "type", "subject", "time", "dataschema")
_NEEDED: Final = ("specversion", "id", "source", "type")
_Attribute = str | bool | Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None
_NAME_CHARS_MAX: Final = 20
"""Longest name of an attribute that the specification has in mind."""


def is_event(message_properties: Mapping[str, str]) -> bool:
    """Return whether a message is a CloudEvent."""
    return PREFIX + "specversion" in message_properties


def has_fields(fields: Mapping[str, str]) -> bool:
    """Return whether header fields are those of an event in binary form."""
    return "ce-specversion" in fields or "ce-type" in fields


def of_fields(topic: str, body: bytes, fields: Mapping[str, str]) -> NewMessage:
    """Return the message of an event in binary form. Raises BadRequest.

    Args: fields: of the request, by names in lower case.
    """
    attributes: dict[str, Any] = {
        name.removeprefix(FIELD): urllib.parse.unquote(value)
        for name, value in fields.items()
        if name.startswith(FIELD)
    }
    if "content-type" in fields:
        attributes["datacontenttype"] = fields["content-type"]
    return _message(topic, body or NO_DATA, attributes)


def of_structured(topic: str, body: bytes) -> NewMessage:
    """Return the message of an event in structured form. Raises BadRequest."""
    return _of_object(topic, _decoded(body, dict[str, msgspec.Raw]))


def of_batch(topic: str, body: bytes) -> InPieces[list[NewMessage]]:
    """Return the messages of a batch of events, some at a time. Raises BadRequest."""
    check_commas(body)
    events: list[msgspec.Raw] = _decoded(body, list[msgspec.Raw])
    if not events:
        raise BadRequest("the batch has no event")
    check_count(len(events))
    found = list[NewMessage]()
    for number, event in enumerate(events, 1):
        try:
            found.append(_of_object(topic, _decoded(event, dict[str, msgspec.Raw])))
        except BadRequest as error:
            raise BadRequest(f"event {number} of the batch: {error}") from None
        yield
    return found


def _decoded(body: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no CloudEvent as JSON: {error}") from None


def _of_object(topic: str, event: dict[str, msgspec.Raw]) -> NewMessage:
    data, coded = (_unless_null(event.pop(name, None)) for name in ("data", "data_base64"))
    attributes = {name: _decoded(value, _Attribute) for name, value in event.items()}
    if data is not None and coded is not None:
        raise BadRequest("an event has either `data` or `data_base64`")
    if coded is not None:
        return _message(topic, from_base64("data_base64", _decoded(coded, str)) or NO_DATA, attributes)
    if data is None:
        return _message(topic, NO_DATA, attributes)
    kind = attributes.get("datacontenttype", JSON)
    # Text of another type than JSON stands in the object as it is.
    if data.startswith(b'"') and isinstance(kind, str) and not _is_json(kind):
        return _message(topic, _decoded(data, str).encode() or NO_DATA, attributes)
    # As it came: numbers that no program reads exactly stay what they are.
    return _message(topic, data, {"datacontenttype": JSON, **attributes})


def _unless_null(value: msgspec.Raw | None) -> bytes | None:
    return None if value is None or bytes(value) == b"null" else bytes(value)


def _is_json(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media in {"application/json", "text/json"} or media.endswith("+json")


def _message(topic: str, body: bytes, attributes: Mapping[str, Any]) -> NewMessage:
    for name in _NEEDED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise BadRequest(f"a CloudEvent has the attribute `{name}`, a text that is not empty")
    if attributes["specversion"] != "1.0":
        raise BadRequest(f"specversion is {attributes['specversion']!r:.50}: this server takes CloudEvents 1.0")
    return new_message(topic, body, properties=dict(_properties(attributes.items())))


def _properties(attributes: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, str]]:
    for name, value in attributes:
        if not (name.isascii() and name.isalnum() and name == name.lower() and len(name) <= 4 * _NAME_CHARS_MAX):
            raise BadRequest(f"{name!r:.100} is no name of an attribute: lower-case letters and digits")
        if value is None:
            continue
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, str | int):
            text = str(value)
        else:
            raise BadRequest(f"the attribute `{name}` is neither text, number nor truth value")
        if not text:
            raise BadRequest(f"the attribute `{name}` is empty")
        yield CONTENT_TYPE if name == "datacontenttype" else PREFIX + name if name in _ATTRIBUTES else name, text


def to_object(body: bytes, properties: Mapping[str, str], extensions: Iterable[str]) -> dict[str, Any]:
    """Return the event that a message is, in structured form.

    Args: extensions: names of the properties that are extensions: those that no broker or client has added.
    """
    event: dict[str, Any] = {name: properties[PREFIX + name] for name in _ATTRIBUTES if PREFIX + name in properties} | {
        name: properties[name] for name in extensions
    }
    kind = properties.get(CONTENT_TYPE)
    if kind is not None:
        event["datacontenttype"] = kind
    if body == NO_DATA:
        return event
    if kind is None or _is_json(kind):
        try:
            event["data"] = msgspec.json.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            pass
        else:
            return event
    else:
        try:
            event["data"] = body.decode()
        except UnicodeDecodeError:
            pass
        else:
            return event
    event["data_base64"] = base64.b64encode(body).decode()
    return event
