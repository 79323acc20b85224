"""Keys of messages: deliveries with one key are one message."""

from __future__ import annotations

import hashlib
from typing import Any

from metaq.model import properties as props

OUTBOX_MARK = "metaq-outbox="
"""What the attribute of a 1.x message begins with that an outbox has sent; its id follows."""
KEY_CHARS_MAX = 255


def message_key(message: Any) -> str:
    """Return the key of a message of either generation.

    RocketMQ's: the producer's unique id, which repeated sends, retries and dead letters keep; of a message without one its place
    at the first delivery. MetaQ 1.x: the id that an outbox has put into the attribute, else the message id, which servers of one
    cluster give once; a producer that repeats a send gets another. Raises TypeError: it is no message.
    """
    properties = getattr(message, "properties", None)
    if isinstance(properties, dict):
        # A retried message is a copy at another place, and names the first.
        return str(properties.get(props.UNIQUE_ID) or properties.get(props.ORIGIN_MESSAGE_ID) or message.message_id)
    attribute = getattr(message, "attribute", None)
    if isinstance(attribute, str) and attribute.startswith(OUTBOX_MARK):
        return attribute.removeprefix(OUTBOX_MARK)
    for name in ("message_id", "id"):
        found = getattr(message, name, None)
        if isinstance(found, int | str):
            return str(found)
    raise TypeError(f"{message!r:.100} is no message of a consumer: pass a key function to Idempotence")


def column_text(key: object) -> str:
    """Return a key as its column takes it; a long one, or one that is not plain ASCII, by its hash.

    Raises TypeError: no text. ValueError: an empty text, under which all messages would be one.
    """
    if not isinstance(key, str):
        raise TypeError(f"the key of a message is {key!r:.100}: the key function must return text")
    if not key:
        raise ValueError("the key of a message is empty: all messages with this key would be one")
    if len(key) <= KEY_CHARS_MAX and key.isascii() and key.isprintable() and key == key.strip():
        return key
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
