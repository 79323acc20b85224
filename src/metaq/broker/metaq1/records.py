"""Records of MetaQ 1.x messages.

The attribute becomes the tag, so that RocketMQ's consumers can subscribe to it. One that is no legal tag gets a property of its
own, and an attribute block that no property can hold stays in the body.
"""

from __future__ import annotations

from metaq.model import properties as props
from metaq.model.message import is_tag
from metaq.model.metaq1.partition import HAS_ATTRIBUTE

_LENGTH_BYTES = 4
_ATTRIBUTE_BYTES_MAX = props.PROPERTIES_BYTES_MAX - 512
"""Longest attribute stored as a property; the rest is for other properties, also of retries and copies."""


def without_attribute(flag: int, body: bytes) -> tuple[dict[str, str], bytes]:
    """Return the properties for the attribute, and the body to store."""
    if not flag & HAS_ATTRIBUTE:
        return {}, body
    start = _LENGTH_BYTES
    stop = start + int.from_bytes(body[:start], "big", signed=True)
    if len(body) >= start and start < stop <= min(len(body), start + _ATTRIBUTE_BYTES_MAX):
        try:
            text = body[start:stop].decode()
        except UnicodeDecodeError:
            pass
        else:
            # The property encoding has no escapes: such an attribute stays in the body, and METAQ_BLOCK says so.
            if not (props.NAME_END in text or props.PAIR_END in text):
                return {props.TAGS if is_tag(text) else props.METAQ_ATTRIBUTE: text}, body[stop:]
    return {props.METAQ_BLOCK: "1"}, body
