"""Stored messages as JSON."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType, field

from metaq.model import properties as props
from metaq.model.message import StoredMessage

_OWN = frozenset({props.KEYS, props.TAGS, props.UNIQUE_ID, props.WAIT, props.CLUSTER})
"""Properties that have fields of their own, or say nothing to a reader."""


class StoredAsJson(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A stored message. It has `body` where that is UTF-8, else `bodyBase64`. Times are ms since 1970."""

    topic: str
    broker: str
    queue: int
    offset: int
    message_id: str
    offset_id: str
    born_time: int
    store_time: int
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = {}
    reconsume_times: int = 0
    flag: int = 0
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = field(name="bodyBase64", default=UNSET)


def as_json(message: StoredMessage, body: bytes, *, raw: bool = False) -> StoredAsJson:
    """Return a message as it is told. Args: body: the message's, uncompressed. raw: it is told in Base64 in any case."""
    properties = message.properties
    text: str | UnsetType = UNSET
    coded: str | UnsetType = UNSET
    with contextlib.suppress(UnicodeDecodeError):
        text = UNSET if raw else body.decode()
    if text is UNSET:
        coded = base64.b64encode(body).decode()
    return StoredAsJson(
        message.topic, message.broker, message.queue_id, message.queue_offset, message.message_id, message.offset_id,
        message.born_ms, message.store_ms, message.tag or "", tuple(properties.get(props.KEYS, "").split()),
        {name: value for name, value in properties.items() if name not in _OWN}, message.reconsume_times, message.flag,
        text, coded,
    )  # fmt: skip
