"""Messages in lists, and links to their pages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct

from metaq.client.identity.names import milliseconds
from metaq.dashboard.bodies import preview
from metaq.dashboard.rendering.renderer import segment
from metaq.errors import BadRequest
from metaq.model import StoredMessage

CHARS_MAX: Final = 200
"""Characters of a tag or keys that a list shows."""


class MessageRow(Struct, frozen=True):
    """`place`: BROKER:QUEUE:OFFSET, in the URL of its page, for several messages may have one id. `body`: its beginning."""

    id: str
    topic: str
    broker: str
    queue: int
    offset: int
    place: str
    tag: str
    keys: str
    stored_ms: int
    size: int
    retries: int
    body: str


def row_of(message: StoredMessage) -> MessageRow:
    """Return a message as a list shows it."""
    return MessageRow(
        id=message.message_id,
        topic=message.topic,
        broker=message.broker,
        queue=message.queue_id,
        offset=message.queue_offset,
        place=place_text(message),
        tag=(message.tag or "")[:CHARS_MAX],
        keys=" ".join(message.keys)[:CHARS_MAX],
        stored_ms=message.store_ms,
        size=len(message.body),
        retries=message.reconsume_times,
        body=preview(message.body),
    )


def rows_of(messages: Iterable[StoredMessage]) -> list[MessageRow]:
    """Return messages as a list shows them."""
    return [row_of(one) for one in messages]


def place_text(message: StoredMessage) -> str:
    """Return where a message is, as `metaq.admin.queues.browsing.place_of` reads it."""
    return f"{message.broker}:{message.queue_id}:{message.queue_offset}"


def linked(message_id: str, topic: str, place: str) -> str:
    """Return the URL of a message's page."""
    return f"/messages/{segment(message_id)}?{urlencode({'topic': topic, 'place': place})}"


def time_of(text: str, what: str) -> int | None:
    """Return a time of a form, ms since the epoch, UTC unless it says otherwise; None: it was left out. Raises BadRequest."""
    if not text.strip():
        return None
    try:
        moment = dt.datetime.fromisoformat(text.strip())
        return milliseconds(moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC))
    except (ValueError, OverflowError, OSError):
        raise BadRequest(f"{what} is {text[:60]!r}: a time is such as 2026-01-31T08:00:00, in UTC") from None


def number_of(text: str, what: str) -> int | None:
    """Return a number of a form; None: it was left out. Raises BadRequest."""
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise BadRequest(f"{what} is {text[:60]!r}: a whole number is wanted")
    return int(text)


def properties_of(text: str) -> dict[str, str]:
    """Parse properties of a form: `name=value` in each line. Raises BadRequest."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip() or not value:
            raise BadRequest(f"{line[:60]!r} is no property: NAME=VALUE, each in a line of its own")
        found[name.strip()] = value
    return found


def properties_text(properties: Mapping[str, str]) -> str:
    """Return properties as a form has them."""
    return "\n".join(f"{name}={value}" for name, value in properties.items())
