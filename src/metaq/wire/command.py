"""A remoting command: a frame, its header and its body.

    offset  bytes
    0       4      L = number of bytes that follow = 4 + header + body
    4       1      serialize type of the header: 0 JSON, 1 binary
    5       3      h = bytes of the header
    8       h      header
    8 + h   L-4-h  body, may be empty

Frames follow each other without padding. All numbers are unsigned big-endian here: a "negative" length is a huge one.
Everything that the first eight bytes can tell is checked when they are in, before memory is taken for the rest.

The header travels in one of two forms, and every endpoint reads both and answers in kind:

JSON (type 0), compact, keys in alphabetical order as Java writes them:
    {"code":310,"extFields":{"a":"PG",...},"flag":0,"language":"JAVA","opaque":8,"remark":"...","version":409}
Reading is lenient, because the clients are: Node and C++ send numbers and booleans unquoted in `extFields`, some send
the language as an ordinal, and all send keys that others do not know. Writing is strict: C++ reads strings only.

Binary (type 1):
    i16 code | u8 language | i16 version | i32 opaque | i32 flag
    i32 remark bytes, remark | i32 bytes of all ext fields, then per field: i16 + key, i32 + value
An empty remark, key or value cannot be told from an absent one and is read as absent.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Annotated, Protocol, TypeAlias

import msgspec
from msgspec import Struct, field

from metaq.errors import LocalProtocolError, RemoteProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""RocketMQ's `com.rocketmq.remoting.frameMaxLength`: the whole frame, its 4-byte length included, as Netty counts."""
LENGTH_BYTES = 4
HEAD_BYTES = 8
SERIALIZE_TYPES = 2

_TLS_CLIENT_HELLO = 0x16
# Read as a length, such a start is a frame of more than a gigabyte: the limit catches it, these words explain it.
_HTTP_STARTS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN")


VERSION = 409
"""RocketMQ 4.9.8, the version in our answers: Java consumers do not pull by SQL from a broker below 232 (4.1.0)."""

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
)  # fmt: skip
"""Names by ordinal, as the binary form sends them."""
_ORDINALS = {name: ordinal for ordinal, name in enumerate(LANGUAGES)}
_OTHER = _ORDINALS["OTHER"]

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_Int32 = Annotated[int, msgspec.Meta(ge=_INT32_MIN, le=_INT32_MAX)]

_FIXED = struct.Struct(">hBhiii")  # up to and with the remark's length
_KEY = struct.Struct(">h")
_VALUE = struct.Struct(">i")


def frame_bytes(data: Buffer, start: int, end: int, limit: int = FRAME_BYTES_MAX) -> int:
    """Return the size of the frame that begins at `start`, its 4-byte length included; 0 while that is unknown.

    The frame is whole when `end - start` has reached it. Raises RemoteProtocolError: this can never become a frame.
    """
    have = end - start
    if have < LENGTH_BYTES:
        return 0
    length = int.from_bytes(data[start : start + LENGTH_BYTES], "big")
    # The limit is checked first, before memory is taken for the frame.
    if LENGTH_BYTES + length > limit:
        raise RemoteProtocolError(_not_a_length(bytes(data[start : start + LENGTH_BYTES]), length, limit))
    if length < LENGTH_BYTES:
        raise RemoteProtocolError(f"a frame of {length} bytes has no room for its header length")
    # Judged as soon as eight bytes are there: a peer must not send 16 MiB first, only to hear that its header is
    # impossible.
    if have >= HEAD_BYTES:
        header = int.from_bytes(data[start + 5 : start + HEAD_BYTES], "big")
        if data[start + LENGTH_BYTES] >= SERIALIZE_TYPES:
            raise RemoteProtocolError(f"serialize type {data[start + LENGTH_BYTES]} is neither 0 (JSON) nor 1 (binary)")
        if header > length - LENGTH_BYTES:
            raise RemoteProtocolError(f"a header of {header} bytes does not fit a frame of {length}")
    return LENGTH_BYTES + length


def _not_a_length(start: bytes, length: int, limit: int) -> str:
    if start[0] == _TLS_CLIENT_HELLO:
        return "the peer opened with TLS, and this port speaks plain text only"
    if start in _HTTP_STARTS:
        return "the peer speaks HTTP, and this port speaks RocketMQ's remoting protocol"
    return f"a frame of {LENGTH_BYTES + length} bytes, the limit is {limit}"


class SerializeType(enum.IntEnum):
    """The form of a header."""

    JSON = 0
    BINARY = 1


class ExtWriter(Protocol):
    """A typed header (`metaq.wire.headers`)."""

    def to_ext(self) -> dict[str, str]: ...


class Command(Struct):
    """One request or response. `opaque` pairs the two; `ext` is the typed header flattened to strings."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = "PYTHON"
    version: int = VERSION
    remark: str | None = None
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    serialize: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)


class _Head(msgspec.Struct):
    """The JSON header as Java, Go and we send it: read in one pass, without conversions."""

    code: _Int32
    extFields: dict[str, str] | None = None  # noqa: N815  the key on the wire
    flag: _Int32 = 0
    language: str = ""
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


class _LenientHead(msgspec.Struct):
    """The JSON header as Node and C++ send it, with bare numbers and booleans in `extFields`; some send the language as
    an ordinal."""

    code: _Int32
    extFields: dict[str, str | int | float | bool | None] | None = None  # noqa: N815  the key on the wire
    flag: _Int32 = 0
    language: str | int | None = None
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


# In alphabetical order, as Java writes them: the fallback's quick path looks for the code in front.
class _WrittenHead(msgspec.Struct):
    """The JSON header as we write it, keys in the order of the fields. UNSET ones are left out."""

    code: int
    extFields: dict[str, str] | msgspec.UnsetType  # noqa: N815  the key on the wire
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    version: int


_read_head = msgspec.json.Decoder(_Head).decode
_read_lenient_head = msgspec.json.Decoder(_LenientHead, strict=False).decode
_JSON, _BINARY = SerializeType.JSON, SerializeType.BINARY


def request(
    code: int,
    header: ExtWriter | None = None,
    body: bytes = b"",
    *,
    oneway: bool = False,
    serialize: SerializeType = SerializeType.JSON,
) -> Command:
    """Make a request. The transport that sends it assigns its `opaque`."""
    ext = header.to_ext() if header is not None else {}
    return Command(code, flag=ONEWAY_FLAG if oneway else 0, ext=ext, body=body, serialize=serialize)


def reply(
    to: Command,
    code: int = 0,
    header: ExtWriter | Mapping[str, str] | None = None,
    *,
    remark: str | None = None,
    body: bytes = b"",
) -> Command:
    """Make the answer to `to`, in the header form of the request: C++ and Node read JSON only."""
    if header is None:
        ext: dict[str, str] = {}
    elif isinstance(header, Mapping):
        ext = dict(header)
    else:
        ext = header.to_ext()
    return Command(code, to.opaque, RESPONSE_FLAG, remark=remark, ext=ext, body=body, serialize=to.serialize)


def encode(command: Command) -> bytes:
    """Return the whole frame, its 4-byte length included. Raises LocalProtocolError: the protocol cannot carry this."""
    body = command.body
    # `join` and not `+`: bodies of several MiB are copied once.
    return b"".join((encode_prefix(command, len(body)), body)) if len(body) else encode_prefix(command, 0)


def encode_prefix(command: Command, body_bytes: int) -> bytes:
    """Return all of the frame before its body, for bodies that are written by themselves (a slice of the log)."""
    header = _encode_json(command) if command.serialize is _JSON else _encode_binary(command)
    length = LENGTH_BYTES + len(header) + body_bytes
    if LENGTH_BYTES + length > FRAME_BYTES_MAX:
        raise LocalProtocolError(
            f"a frame of {LENGTH_BYTES + length} bytes (code {command.code}, body {body_bytes}), the limit is {FRAME_BYTES_MAX}"
        )
    # Node and C++ take the whole word for the header's length: type 0, JSON, keeps it right for them.
    word = command.serialize << 24 | len(header)
    return length.to_bytes(4, "big") + word.to_bytes(4, "big") + header


def decode(frame: bytes | bytearray | memoryview) -> Command:
    """Return the command in a frame without its 4-byte length. The body is copied: the buffer may be used again.

    Raises RemoteProtocolError: not a header; the peer's next bytes cannot be trusted either.
    """
    size = len(frame)
    if size < LENGTH_BYTES:
        raise RemoteProtocolError(f"a frame of {size} bytes has no room for its header length")
    # Three bytes: the fourth is the type, which Node and C++ take for a part of the length.
    header_end = LENGTH_BYTES + int.from_bytes(frame[1:4], "big")
    if header_end > size:
        raise RemoteProtocolError(f"a header of {header_end - LENGTH_BYTES} bytes does not fit a frame of {size}")
    form = frame[0]
    if form >= SERIALIZE_TYPES:
        raise RemoteProtocolError(f"serialize type {form} is neither 0 (JSON) nor 1 (binary)")
    header = frame[LENGTH_BYTES:header_end]
    command = _decode_json(header) if form == 0 else _decode_binary(bytes(header))
    if header_end < size:
        command.body = bytes(frame[header_end:])
    return command


def _encode_json(command: Command) -> bytes:
    try:
        return msgspec.json.encode(
            _WrittenHead(
                command.code,
                # Left out if empty. Java's client crashes on answers to sends without ext fields, but those always have
                # some.
                command.ext or msgspec.UNSET,
                command.flag,
                command.language,
                command.opaque,
                msgspec.UNSET if command.remark is None else command.remark,
                command.version,
            )
        )
    except (UnicodeEncodeError, TypeError) as error:
        raise LocalProtocolError(f"the header of a command with code {command.code} cannot be sent: {error}") from error


def _decode_json(header: bytes | bytearray | memoryview) -> Command:
    try:
        head = _read_head(header)
    except msgspec.ValidationError:  # of Node or C++, or no command at all
        # Only headers of Node and C++ are read twice: Java's, Go's and our client's are read by the first decoder.
        return _decode_lenient_json(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"the header is not JSON: {error}") from error
    return Command(head.code, head.opaque, head.flag, head.language, head.version, head.remark, head.extFields or {})


def _decode_lenient_json(header: bytes | bytearray | memoryview) -> Command:
    try:
        head = _read_lenient_head(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RemoteProtocolError(f"the header is not a command: {error}") from error
    # As texts, as Java would read them: Node sends numbers and booleans bare, C++ some of its ints.
    ext = {key: _text(value) for key, value in (head.extFields or {}).items() if value is not None}
    language = head.language
    if not isinstance(language, str):
        # An ordinal, as Java's parsers take it; an unknown one must not end the connection.
        language = LANGUAGES[language] if language is not None and 0 <= language < len(LANGUAGES) else "OTHER"
    return Command(head.code, head.opaque, head.flag, language, head.version, head.remark, ext)


def _text(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _encode_binary(command: Command) -> bytes:
    try:
        remark = (command.remark or "").encode()
        parts = []
        for key, value in command.ext.items():
            # The other end reads an empty text as null: leave the field out.
            if key and value:
                raw_key, raw_value = key.encode(), value.encode()
                parts += [_KEY.pack(len(raw_key)), raw_key, _VALUE.pack(len(raw_value)), raw_value]
        ext = b"".join(parts)
        # The binary form has the language as a byte; a name that it does not know goes as OTHER.
        language = _ORDINALS.get(command.language, _OTHER)
        fixed = _FIXED.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"code {command.code} does not fit a binary header: {error}") from error
    return b"".join((fixed, remark, _VALUE.pack(len(ext)), ext))


def _decode_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
        position = _FIXED.size
        remark, position = _take(header, position, remark_bytes)
        (ext_bytes,) = _VALUE.unpack_from(header, position)
        position += 4
        # Signed numbers of a peer: a negative size would read backwards.
        if not 0 <= ext_bytes <= len(header) - position:
            raise RemoteProtocolError(f"ext fields of {ext_bytes} bytes do not fit a header of {len(header)}")
        end = position + ext_bytes
        ext: dict[str, str] = {}
        # Of a name that comes twice the last value counts, as in Java's map.
        while position < end:
            key, position = _take(header, position + 2, _KEY.unpack_from(header, position)[0])
            value, position = _take(header, position + 4, _VALUE.unpack_from(header, position)[0])
            if key and value:
                ext[key] = value
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the binary header of {len(header)} bytes is broken: {error}") from error
    if position > end:
        raise RemoteProtocolError(f"the last ext field runs {position - end} bytes past its section")
    name = LANGUAGES[language] if language < len(LANGUAGES) else "OTHER"
    return Command(code, opaque, flag, name, version, remark or None, ext, serialize=_BINARY)


def _take(header: bytes, start: int, size: int) -> tuple[str, int]:
    if not 0 <= size <= len(header) - start:
        raise RemoteProtocolError(f"a text of {size} bytes at {start} does not fit a header of {len(header)}")
    return header[start : start + size].decode(), start + size
