"""From a 1.x message to the record that holds it.

Its attribute becomes the tag, by which RocketMQ's consumers choose. One that is no legal tag stands in a property of its
own, and a block that no property can hold stays in the body.
"""

from __future__ import annotations

from metaq.model import properties as props
from metaq.model.message import is_tag
from metaq.model.metaq1.partition import HAS_ATTRIBUTE

_LENGTH_BYTES = 4
_ATTRIBUTE_BYTES_MAX = props.PROPERTIES_BYTES_MAX - 512
"""Room is left for the other properties of a message, and for those that copies of it get."""


def without_attribute(flag: int, body: bytes) -> tuple[dict[str, str], bytes]:
    """The properties that say the attribute, and the body as it is stored."""
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
            if not (props.NAME_END in text or props.PAIR_END in text):
                return {props.TAGS if is_tag(text) else props.METAQ_ATTRIBUTE: text}, body[stop:]
    return {props.METAQ_BLOCK: "1"}, body
