"""Messages that come in by HTTP, as JSON, NDJSON or raw bytes (docs/http.md).

A message as JSON is an object:

    {"body": "a lamp", "tag": "paid", "keys": ["4711"], "properties": {"shop": "8"}, "queue": 0, "delayLevel": 3}

`body` is text, or any other JSON value, which is stored as its JSON; `bodyBase64` is for bytes. All but one of these may be missing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from metaq.errors import BadRequest, InvalidMessage
from metaq.in_pieces import InPieces
from metaq.model.message import Message

ANY_QUEUE: Final = -1
MESSAGES_MAX: Final = 10_000
"""Messages of one request at most: each is an answer of its own."""
COMMAS_MAX: Final = 200_000
"""Commas of a JSON list of messages at most. They bound its elements before any is decoded: five million take 0.6 s and 400 MB."""
LINES_MAX: Final = 10 * MESSAGES_MAX
"""Lines of NDJSON at most, with blank ones."""
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
FIELD: Final = "metaq-"
"""Prefix of header fields that say more of a raw body."""
PROPERTY_FIELD: Final = "metaq-property-"

S = TypeVar("S", "_Several", "_SeveralTopics")
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
    keys: str | list[str] | UnsetType = UNSET
    """Unset and not empty by default: a generated client would send what it takes for the default."""
    properties: dict[str, str] = {}
    queue: Whole | UnsetType = UNSET
    delay_level: Whole = 0
    flag: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    wait: bool = True
    """Whether the answer waits for what the broker promises: the disk, or a replica."""

    def message(self, topic: str) -> NewMessage:
        """Return it, for a topic. Raises BadRequest: two bodies or none, Base64 that is none, and as `new_message`."""
        return new_message(
            topic, self._bytes(), tag=self.tag, keys=self._keys(),
            properties=self.properties, queue=ANY_QUEUE if self.queue is UNSET else self.queue,
            delay_level=self.delay_level, flag=self.flag, wait=self.wait,
        )  # fmt: skip

    def _keys(self) -> Sequence[str]:
        if self.keys is UNSET:
            return ()
        return self.keys.split() if isinstance(self.keys, str) else self.keys

    def _bytes(self) -> bytes:
        if (self.body is UNSET) is (self.body_base64 is UNSET):
            raise BadRequest("a message has either `body` or `bodyBase64`")
        if isinstance(self.body, msgspec.Raw):
            raw = bytes(self.body)
            return msgspec.json.decode(raw, type=str).encode() if raw[:1] == b'"' else raw
        assert isinstance(self.body_base64, str), "one of the two is there"
        return from_base64("bodyBase64", self.body_base64)


class JsonTopicMessage(JsonMessage):
    """A message as JSON, with the topic that it is for."""

    topic: str


class JsonTopicMessages(Struct, forbid_unknown_fields=True):
    """Messages of any topics, which are stored together or not at all.

    `transaction`: name of the request, with which it may be repeated: what was stored is not stored again.
    """

    messages: list[JsonTopicMessage]
    transaction: str = ""


class JsonMessages(Struct, forbid_unknown_fields=True):
    """Several messages as JSON. `atomic`: all of them are stored, or none."""

    messages: list[JsonMessage]
    atomic: bool = False


class _Several(Struct, forbid_unknown_fields=True):
    """`JsonMessages` of which each message is still to be decoded."""

    messages: list[msgspec.Raw]
    atomic: bool = False


class _SeveralTopics(Struct, forbid_unknown_fields=True):
    """`JsonTopicMessages` of which each message is still to be decoded."""

    messages: list[msgspec.Raw]
    transaction: str = ""


class NewMessages(NamedTuple):
    """The messages of one request. `several`: the answer is a list. `atomic`: as of `JsonMessages`."""

    messages: list[NewMessage]
    several: bool = True
    atomic: bool = False


_ONE: Final = msgspec.json.Decoder(JsonMessage)
_ONE_OF_TOPIC: Final = msgspec.json.Decoder(JsonTopicMessage)
_SEVERAL: Final = msgspec.json.Decoder(_Several)
_SEVERAL_TOPICS: Final = msgspec.json.Decoder(_SeveralTopics)


def from_base64(name: str, text: str) -> bytes:
    """Return the bytes. Raises BadRequest: the text is no Base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{name} is no Base64: {error}") from None


def of_json(topic: str, body: bytes) -> InPieces[NewMessages]:
    """Return the messages of a JSON body, some at a time. Raises BadRequest."""
    try:
        return NewMessages([_ONE.decode(body).message(topic)], several=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # One message has neither of these; whatever comes first in a list tells it.
        if "`messages`" not in str(error) and "`atomic`" not in str(error):
            raise BadRequest(f"the body is no message as JSON: {error}") from None
    several = _several(body, _SEVERAL)
    found = list[NewMessage]()
    for number, one in enumerate(several.messages):
        found.append(_decoded(topic, one, f"messages[{number}]"))
        yield
    return NewMessages(found, atomic=several.atomic)


def of_json_topics(body: bytes) -> InPieces[tuple[list[NewMessage], str]]:
    """Return the messages of `JsonTopicMessages`, some at a time, and `transaction`. Raises BadRequest."""
    several, found = _several(body, _SEVERAL_TOPICS), list[NewMessage]()
    for number, raw in enumerate(several.messages):
        try:
            one = _ONE_OF_TOPIC.decode(raw)
            found.append(one.message(one.topic))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadRequest) as error:
            raise BadRequest(f"messages[{number}] is no message as JSON: {error}") from None
        yield
    return found, several.transaction


def _several(body: bytes, decoder: msgspec.json.Decoder[S]) -> S:
    """Return the list in a JSON body. Raises BadRequest."""
    check_commas(body)
    try:
        several = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no list of messages as JSON: {error}") from None
    if not several.messages:
        raise BadRequest("`messages` is empty")
    check_count(len(several.messages))
    return several


def check_commas(body: bytes) -> None:
    """Raise BadRequest: a JSON list could have so many elements that taking it apart would cost too much at once."""
    if body.count(b",") > COMMAS_MAX:
        raise BadRequest(f"a list of messages has {COMMAS_MAX} commas at most: send several requests, or {NDJSON}")


def of_ndjson(topic: str, body: bytes) -> InPieces[list[NewMessage]]:
    """Return the messages of an NDJSON body, one in each line, some at a time. Raises BadRequest; it names the line."""
    found, start, number = list[NewMessage](), 0, 0
    while start < len(body):
        end = body.find(b"\n", start)
        line, start, number = (
            body[start : end if end >= 0 else len(body)],
            end + 1 if end >= 0 else len(body),
            number + 1,
        )
        if number > LINES_MAX:
            raise BadRequest(f"there are more than {LINES_MAX} lines: send them in several requests")
        if line.strip():
            check_count(len(found) + 1)
            found.append(_decoded(topic, line, f"line {number}"))
        yield
    if not found:
        raise BadRequest("the body has no message")
    return found


def _decoded(topic: str, data: bytes | msgspec.Raw, where: str) -> NewMessage:
    try:
        return _ONE.decode(data).message(topic)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadRequest) as error:
        raise BadRequest(f"{where} is no message as JSON: {error}") from None


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


def check_count(count: int) -> None:
    """Raise BadRequest: so many messages are too many."""
    if count > MESSAGES_MAX:
        raise BadRequest(
            f"there are {count} messages or more, {MESSAGES_MAX} are at most: send them in several requests"
        )


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


class StagedMessage(Struct, frozen=True, rename="camel"):
    """A message of several that were stored together: its queue, and its id."""

    topic: str
    broker: str
    queue: int
    message_id: str


class StoredTogether(Struct, frozen=True):
    """Several messages that were stored together, in the order of the request.

    `transaction`: id of the transaction. `delivered`: they are in their queues; else they will be soon. `repeated`: an earlier
    request of this name has stored them, and `messages` is empty. `warning`: what is not promised; "": nothing.
    """

    transaction: str
    delivered: bool
    messages: list[StagedMessage]
    repeated: bool = False
    warning: str = ""
