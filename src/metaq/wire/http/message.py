"""Messages that come in by HTTP, as JSON, NDJSON or raw bytes (docs/http.md).

A message as JSON is an object:

    {"body": "a lamp", "tag": "paid", "keys": ["4711"], "properties": {"shop": "8"}, "queue": 0, "delayLevel": 3}

`body` is text, or any other JSON value, which is stored as its JSON; `bodyBase64` is for bytes. All but one of these may be missing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from metaq.errors import BadRequest, InvalidMessage
from metaq.model.message import Message

ANY_QUEUE: Final = -1
MESSAGES_MAX: Final = 10_000
"""Messages of one request at most: each is an answer of its own."""
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
FIELD: Final = "metaq-"
"""Prefix of header fields that say more of a raw body."""
PROPERTY_FIELD: Final = "metaq-property-"

Whole = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class NewMessage(NamedTuple):
    """A message to be stored, and the queue it is for; below 0, the broker chooses."""

    message: Message
    queue: int = ANY_QUEUE


def new_message(
    topic: str,
    body: bytes,
    *,
    tag: str = "",
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    queue: int = ANY_QUEUE,
    delay_level: int = 0,
    flag: int = 0,
    wait: bool = True,
) -> NewMessage:
    """Return a message. Raises BadRequest: it has a value that no message can have, or no body."""
    if not body:
        raise BadRequest("the body of the message is empty")
    try:
        message = Message(topic, body, tag or None, tuple(keys), flag, delay_level, wait, dict(properties or {}))
    except InvalidMessage as error:
        raise BadRequest(str(error)) from None
    return NewMessage(message, queue)


class JsonMessage(Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A message as JSON."""

    body: msgspec.Raw | UnsetType = UNSET
    body_base64: str | UnsetType = field(name="bodyBase64", default=UNSET)
    tag: str = ""
    keys: str | list[str] = []
    properties: dict[str, str] = {}
    queue: Whole | UnsetType = UNSET
    delay_level: Whole = 0
    flag: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    wait: bool = True
    """Whether the answer waits for what the broker promises: the disk, or a replica."""

    def message(self, topic: str) -> NewMessage:
        """Return it, for a topic. Raises BadRequest: two bodies or none, Base64 that is none, and as `new_message`."""
        return new_message(
            topic, self._bytes(), tag=self.tag, keys=self.keys.split() if isinstance(self.keys, str) else self.keys,
            properties=self.properties, queue=ANY_QUEUE if self.queue is UNSET else self.queue,
            delay_level=self.delay_level, flag=self.flag, wait=self.wait,
        )  # fmt: skip

    def _bytes(self) -> bytes:
        if (self.body is UNSET) is (self.body_base64 is UNSET):
            raise BadRequest("a message has either `body` or `bodyBase64`")
        if isinstance(self.body, msgspec.Raw):
            raw = bytes(self.body)
            return msgspec.json.decode(raw, type=str).encode() if raw[:1] == b'"' else raw
        assert isinstance(self.body_base64, str), "one of the two is there"
        return from_base64("bodyBase64", self.body_base64)


class JsonMessages(Struct, forbid_unknown_fields=True):
    """Several messages as JSON."""

    messages: list[JsonMessage]


_ONE_OR_MORE: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ONE: Final = msgspec.json.Decoder(JsonMessage)
_MORE: Final = msgspec.json.Decoder(JsonMessages)


def from_base64(name: str, text: str) -> bytes:
    """Return the bytes. Raises BadRequest: the text is no Base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{name} is no Base64: {error}") from None


def of_json(topic: str, body: bytes) -> tuple[list[NewMessage], bool]:
    """Return the messages of a JSON body, and whether it is a list of them. Raises BadRequest."""
    try:
        is_list = "messages" in _ONE_OR_MORE.decode(body)
        found = _MORE.decode(body).messages if is_list else [_ONE.decode(body)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no message as JSON: {error}") from None
    return [one.message(topic) for one in checked_count(found)], is_list


def of_ndjson(topic: str, body: bytes) -> list[NewMessage]:
    """Return the messages of an NDJSON body, one in each line. Raises BadRequest; it names the line."""
    found = list[NewMessage]()
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        if len(found) == MESSAGES_MAX:
            raise BadRequest(f"there are more than {MESSAGES_MAX} messages: send them in several requests")
        try:
            found.append(_ONE.decode(line).message(topic))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadRequest) as error:
            raise BadRequest(f"line {number} is no message as JSON: {error}") from None
    if not found:
        raise BadRequest("the body has no message")
    return found


def of_raw(topic: str, body: bytes, fields: Mapping[str, str]) -> NewMessage:
    """Return the message of a raw body, of which header fields may say more: `metaq-tag`, `metaq-keys`, `metaq-queue`,
    `metaq-delay-level`, `metaq-flag`, and `metaq-property-NAME` in lower case. Raises BadRequest.

    Args: fields: all of the request, by names in lower case.
    """
    properties = {
        name.removeprefix(PROPERTY_FIELD): value for name, value in fields.items() if name.startswith(PROPERTY_FIELD)
    }
    known = {"tag", "keys", "queue", "delay-level", "flag", "wait"}
    for name in fields:
        if name.startswith(FIELD) and not name.startswith(PROPERTY_FIELD) and name.removeprefix(FIELD) not in known:
            raise BadRequest(f"there is no header field {name:.100}: {', '.join(sorted(FIELD + one for one in known))}")
    return new_message(
        topic, body, tag=fields.get("metaq-tag", ""), keys=fields.get("metaq-keys", "").split(), properties=properties,
        queue=whole(fields, "metaq-queue", ANY_QUEUE), delay_level=whole(fields, "metaq-delay-level", 0),
        flag=whole(fields, "metaq-flag", 0), wait=fields.get("metaq-wait", "true").lower() != "false",
    )  # fmt: skip


def whole(fields: Mapping[str, str], name: str, default: int) -> int:
    """Return a number from 0 to 2^31 - 1. Raises BadRequest: it is none."""
    text = fields.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 2**31):
        raise BadRequest(f"{name} is {text!r:.50}, no number from 0 to {2**31 - 1}")
    return int(text)


def checked_count(found: Sequence[JsonMessage]) -> Sequence[JsonMessage]:
    """Raises BadRequest: no message, or too many."""
    if not found:
        raise BadRequest("`messages` is empty")
    if len(found) > MESSAGES_MAX:
        raise BadRequest(f"there are {len(found)} messages, {MESSAGES_MAX} are at most: send them in several requests")
    return found


class Stored(Struct, frozen=True, rename="camel"):
    """A message that was stored: where, and under which id. `warning`: what is not promised of it; "": nothing."""

    topic: str
    broker: str
    queue: int
    offset: int
    message_id: str
    warning: str = ""


class StoredMessages(Struct, frozen=True):
    """Several messages that were stored, in the order of the request."""

    messages: list[Stored]
