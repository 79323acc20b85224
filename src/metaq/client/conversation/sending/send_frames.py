"""Fast encoding of single sends: the constant part of the request is encoded once per group and queue.

The frames are byte for byte those of `Send(...).request()`, and responses are decoded as by `Send.outcome`. A response in another
form than brokers' usual one is not decoded here, but left to that.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Struct

from metaq.client.conversation.sending.sending import Outgoing, Send, Template
from metaq.model import MessageQueue
from metaq.wire.command import FRAME_BYTES_MAX, encode

OPAQUE_FIRST, OPAQUE_LAST = 1_000_000_000, 2_147_483_647
# From the private use area, so that no property text contains it by chance.
_ID = "\ue000"
_HEAD_BYTES = 8
# Placeholders, found again in the encoded header: no other field has such a value.
_NUMBER = 1_111_111_111
_BORN_MS = 1_111_111_111_111
_VARYING = b'"f":"%d","g":"%d","h":"%d","i":' % (_NUMBER, _BORN_MS, _NUMBER)
_OPAQUE = b'"opaque":%d' % OPAQUE_FIRST
_text = msgspec.json.encode
_SIZES = struct.Struct(">II")
sizes, _unpack = _SIZES.pack, _SIZES.unpack_from
"""The first 8 bytes of a frame: length behind the first four, and length of the header (type 0: JSON)."""


class SendFrames:
    """Encodes sends of one group to one queue."""

    __slots__ = ("_form",)

    def __init__(self, group: str, queue: MessageQueue, template: Template) -> None:
        # The form is cut out of a real request, so that it cannot differ from what `Send` encodes.
        outgoing = Outgoing(queue.topic, b"", _NUMBER, _NUMBER, _ID)
        command = Send(group, outgoing, queue, _BORN_MS, template).request()
        command.opaque = OPAQUE_FIRST
        # A format from here on: a % of the header's own is doubled.
        header = encode(command)[_HEAD_BYTES:].replace(b"%", b"%%")
        before, after = header.split(_VARYING + _text(_ID))
        self._form = before + b'"f":"%d","g":"%d","h":"%d","i":%b' + after.replace(_OPAQUE, b'"opaque":%d')

    def frame(self, outgoing: Outgoing, born_ms: int, opaque: int) -> bytes | None:
        """Encode a request; None: it is larger than a frame may be. `opaque`: correlates it with its response."""
        body = outgoing.body
        header = self._form % (outgoing.sys_flag, born_ms, outgoing.flag, _text(outgoing.properties), opaque)
        return framed(header, body) if len(header) + len(body) < FRAME_BYTES_MAX - _HEAD_BYTES else None

    def plain(self, properties: str) -> bytes:
        """Make the header of messages without flags, as a format.

        It is for (born_ms, unique id without its last four hex digits, these four as a number, opaque).

        `properties`: property text in which U+E000 stands for the unique id.
        """
        text = _text(properties).replace(b"%", b"%%").replace(_text(_ID)[1:-1], b"%b%04X")
        return self._form.replace(b'"f":"%d","g":"%d","h":"%d","i":%b', b'"f":"0","g":"%d","h":"0","i":' + text)


PLACE_OF_ID = _ID


def framed(header: bytes, body: bytes) -> bytes:
    """Encode a frame with a JSON header."""
    size = len(header)
    return b"%b%b%b" % (sizes(size + 4 + len(body), size), header, body)


class _StoredFields(Struct):
    msgId: str  # noqa: N815  the key on the wire
    queueId: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]  # noqa: N815
    queueOffset: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # noqa: N815
    MSG_REGION: str = ""
    TRACE_ON: str = ""
    metaqWaitMs: str = ""  # noqa: N815


class StoredAnswer(Struct):
    """A successful response, in brokers' usual form."""

    code: int
    opaque: int
    flag: int
    extFields: _StoredFields  # noqa: N815  the key on the wire


# Not strict, because brokers write the numbers in extFields as texts.
_read = msgspec.json.Decoder(StoredAnswer, strict=False).decode


def stored_answer(data: bytes, opaque: int) -> StoredAnswer | None:
    """Decode the response to `opaque`; None: it is another one, incomplete, or in another form."""
    # Both lengths at once: anything but one whole frame with a JSON header and no body is left to the slow way.
    size = len(data)
    if size < _HEAD_BYTES or _unpack(data) != (size - 4, size - _HEAD_BYTES):
        return None
    try:
        answer = _read(data[_HEAD_BYTES:])
    except msgspec.MsgspecError:
        return None
    if answer.opaque != opaque or answer.code or not answer.flag & 1:
        return None
    # msgspec takes 1.0 and 1e3 for whole numbers, too.
    fields = answer.extFields
    if b'"queueId":"%d"' % fields.queueId not in data or b'"queueOffset":"%d"' % fields.queueOffset not in data:
        return None
    return answer
