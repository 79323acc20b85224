"""Stored messages as JSON."""

from __future__ import annotations

import base64
from typing import Any

from metaq.model import properties as props
from metaq.model.message import StoredMessage

_OWN = frozenset({props.KEYS, props.TAGS, props.UNIQUE_ID, props.WAIT, props.CLUSTER})
"""Properties that have fields of their own, or say nothing to a reader."""


def as_object(message: StoredMessage, body: bytes, *, raw: bool = False) -> dict[str, Any]:
    """Return a message as an object for JSON.

    `body` is text where it is UTF-8, else there is `bodyBase64`; with `raw`, always.

    Args: body: the message's, uncompressed.
    """
    properties = message.properties
    found: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "messageId": message.message_id,
        "bornTime": message.born_ms,
        "storeTime": message.store_ms,
    }
    if message.tag is not None:
        found["tag"] = message.tag
    if keys := properties.get(props.KEYS):
        found["keys"] = keys.split()
    if others := {name: value for name, value in properties.items() if name not in _OWN}:
        found["properties"] = others
    if message.reconsume_times:
        found["reconsumeTimes"] = message.reconsume_times
    if message.flag:
        found["flag"] = message.flag
    if not raw:
        try:
            return {**found, "body": body.decode()}
        except UnicodeDecodeError:
            pass
    return {**found, "bodyBase64": base64.b64encode(body).decode()}
