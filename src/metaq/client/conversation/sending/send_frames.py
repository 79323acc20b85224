"""Fast encoding of single sends: the constant part of the request is encoded once per group and queue.

The frames are byte for byte those of `Send(...).request()`, signed if there are credentials, and responses are decoded as by `Send.outcome`. A response in another
form than brokers' usual one is not decoded here, but left to that.
"""

from __future__ import annotations

import struct
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Struct

from metaq.client.conversation.sending.sending import Outgoing, Send, Template
from metaq.model import MessageQueue
from metaq.model.acl.secret import Credentials
from metaq.wire.command import FRAME_BYTES_MAX, encode
from metaq.wire.signing import SIGNATURE, Signer, content, sign

OPAQUE_FIRST, OPAQUE_LAST = 1_000_000_000, 2_147_483_647
# From the private use area, so that no property text contains it by chance.
_ID = "\ue000"
_HEAD_BYTES = 8
# Placeholders, found again in the encoded header: no other field has such a value.
_NUMBER = 1_111_111_111
_BORN_MS = 1_111_111_111_111
_VARYING = b'"f":"%d","g":"%d","h":"%d","i":' % (_NUMBER, _BORN_MS, _NUMBER)
_VARYING_CONTENT = b"%d%d%d%b" % (_NUMBER, _BORN_MS, _NUMBER, _ID.encode())
"""The same in what is signed: values in the order of the fields' names."""
_OPAQUE = b'"opaque":%d' % OPAQUE_FIRST
_text = msgspec.json.encode
_SIZES = struct.Struct(">II")
sizes, _unpack = _SIZES.pack, _SIZES.unpack_from
"""The first 8 bytes of a frame: length behind the first four, and length of the header (type 0: JSON)."""


class SignedForm(Struct, frozen=True):
    """The header of signed messages that have nothing but a tag."""

    header: bytes
    """As an unsigned one, with the signature before the opaque."""
    content: bytes
    """What is signed, without the body. A format for the first three."""
    signer: Signer

    def filled(self, born_ms: int, prefix: bytes, number: int, opaque: int, body: bytes) -> bytes:
        """Return the header of one message."""
        signature = self.signer(b"%b%b" % (self.content % (born_ms, prefix, number), body))
        return self.header % (born_ms, prefix, number, signature, opaque)


Form: TypeAlias = bytes | SignedForm
"""The header of messages that have nothing but a tag. Bytes are a format for (born_ms, unique id without its last four hex
digits, these four as a number, opaque)."""


class SendFrames:
    """Encodes sends of one group to one queue."""

    __slots__ = ("_form", "_signed_content", "_signer")

    def __init__(
        self, group: str, queue: MessageQueue, template: Template, credentials: Credentials | None = None
    ) -> None:
        # The form is cut out of a real request, so that it cannot differ from what `Send` encodes.
        outgoing = Outgoing(queue.topic, b"", _NUMBER, _NUMBER, _ID)
        command = Send(group, outgoing, queue, _BORN_MS, template).request()
        command.opaque = OPAQUE_FIRST
        self._signer, self._signed_content, signature = None, b"", b""
        if credentials is not None:
            sign(command, credentials)
            signature = command.ext[SIGNATURE].encode()
            self._signer = Signer(credentials.secret_key)
            self._signed_content = _escaped(content(command.ext)).replace(_VARYING_CONTENT, b"%d%d%d%b")
        # A format from here on: a % of the header's own is doubled.
        header = _escaped(encode(command)[_HEAD_BYTES:])
        before, after = header.split(_VARYING + _text(_ID))
        after = after.replace(_OPAQUE, b'"opaque":%d')
        if signature:
            after = after.replace(b'"%b"' % signature, b'"%b"')
        self._form = before + b'"f":"%d","g":"%d","h":"%d","i":%b' + after

    def frame(self, outgoing: Outgoing, born_ms: int, opaque: int) -> bytes | None:
        """Encode a request; None: it is larger than a frame may be. `opaque`: correlates it with its response."""
        body = outgoing.body
        properties = outgoing.properties
        if self._signer is None:
            header = self._form % (outgoing.sys_flag, born_ms, outgoing.flag, _text(properties), opaque)
        else:
            text = self._signed_content % (outgoing.sys_flag, born_ms, outgoing.flag, properties.encode())
            signature = self._signer(b"%b%b" % (text, body))
            header = self._form % (outgoing.sys_flag, born_ms, outgoing.flag, _text(properties), signature, opaque)
        return framed(header, body) if len(header) + len(body) < FRAME_BYTES_MAX - _HEAD_BYTES else None

    def plain(self, properties: str) -> Form:
        """Make the header of messages without flags.

        `properties`: property text in which U+E000 stands for the unique id.
        """
        text = _escaped(_text(properties)).replace(_text(_ID)[1:-1], b"%b%04X")
        form = self._form.replace(b'"f":"%d","g":"%d","h":"%d","i":%b', b'"f":"0","g":"%d","h":"0","i":' + text)
        if self._signer is None:
            return form
        raw = _escaped(properties.encode()).replace(_ID.encode(), b"%b%04X")
        return SignedForm(form, self._signed_content.replace(b"%d%d%d%b", b"0%d0" + raw), self._signer)


PLACE_OF_ID = _ID


def _escaped(data: bytes) -> bytes:
    """Make a format of bytes that has no places yet."""
    return data.replace(b"%", b"%%")


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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if answer.opaque != opaque or answer.code or not answer.flag & 1:
        return None
    # msgspec takes 1.0 and 1e3 for whole numbers, too.
    fields = answer.extFields
    if b'"queueId":"%d"' % fields.queueId not in data or b'"queueOffset":"%d"' % fields.queueOffset not in data:
        return None
    return answer
