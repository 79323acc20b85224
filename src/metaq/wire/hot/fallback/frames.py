"""The pure-Python fallback of the compiled extension: frames to rows, rows to answers. See __init__.pyi for what each
name promises."""

from __future__ import annotations

import json
import re
import struct
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

KIND_OTHER: Final = 0
KIND_SEND: Final = 1
KIND_BATCH: Final = 2
KIND_PULL: Final = 3
KIND_ENDING: Final = 4
KIND_BACK: Final = 5

_I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_NO_LIMIT: Final = 2**31 - 1
_I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _SendExt(msgspec.Struct):
    """Ext fields of a send under their long names (code 10)."""

    group: str = msgspec.field(name="producerGroup")
    topic: str
    default_topic: str = msgspec.field(name="defaultTopic")
    default_topic_queues: _I32 = msgspec.field(name="defaultTopicQueueNums")
    queue_id: _I32 = msgspec.field(name="queueId")
    sys_flag: _I32 = msgspec.field(name="sysFlag")
    born_ms: _I64 = msgspec.field(name="bornTimestamp")
    flag: _I32
    properties: str | None = None
    reconsume_times: _I32 = msgspec.field(name="reconsumeTimes", default=0)
    batch: bool = False
    retries_max: _I32 = msgspec.field(name="maxReconsumeTimes", default=_NO_LIMIT)


class _LetterExt(msgspec.Struct):
    """Ext fields of a send under the letters of 310 and 320."""

    group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queues: _I32 = msgspec.field(name="d")
    queue_id: _I32 = msgspec.field(name="e")
    sys_flag: _I32 = msgspec.field(name="f")
    born_ms: _I64 = msgspec.field(name="g")
    flag: _I32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: _I32 = msgspec.field(name="j", default=0)
    batch: bool = msgspec.field(name="m", default=False)
    retries_max: _I32 = msgspec.field(name="l", default=_NO_LIMIT)


class _PullExt(msgspec.Struct):
    group: str = msgspec.field(name="consumerGroup")
    topic: str
    queue_id: _I32 = msgspec.field(name="queueId")
    queue_offset: _I64 = msgspec.field(name="queueOffset")
    max_messages: _I32 = msgspec.field(name="maxMsgNums")
    sys_flag: _I32 = msgspec.field(name="sysFlag")
    commit_offset: _I64 = msgspec.field(name="commitOffset")
    suspend_ms: _I64 = msgspec.field(name="suspendTimeoutMillis")
    subscription: str | None = None
    sub_version: _I64 = msgspec.field(name="subVersion", default=0)
    expression_type: str | None = msgspec.field(name="expressionType", default=None)
    max_bytes: _I32 = msgspec.field(name="maxMsgBytes", default=0)

    default_topic = ""


class _EndingExt(msgspec.Struct):
    """Ext fields of the end of a transaction (37)."""

    group: str = msgspec.field(name="producerGroup")
    half_offset: _I64 = msgspec.field(name="tranStateTableOffset")
    log_offset: _I64 = msgspec.field(name="commitLogOffset")
    outcome: _I32 = msgspec.field(name="commitOrRollback")
    from_check: bool = msgspec.field(name="fromTransactionCheck", default=False)
    message_id: str | None = msgspec.field(name="msgId", default=None)


class _BackExt(msgspec.Struct):
    """Ext fields of CONSUMER_SEND_MSG_BACK (36)."""

    group: str
    log_offset: _I64 = msgspec.field(name="offset")
    delay_level: _I32 = msgspec.field(name="delayLevel")
    unit_mode: bool = msgspec.field(name="unitMode", default=False)
    retries_max: _I32 | msgspec.UnsetType = msgspec.field(name="maxReconsumeTimes", default=msgspec.UNSET)
    repeated: bool = msgspec.field(name="metaqRepeated", default=False)


class _Back(NamedTuple):
    """A CONSUMER_SEND_MSG_BACK, with the version of its client."""

    ext: _BackExt
    version: int
    """The client's: older ones do not mean the maxReconsumeTimes that they send."""


class _LetterHead(msgspec.Struct):
    """JSON header of a 310 or 320, the most frequent ones, decoded in one pass."""

    code: _I32
    extFields: _LetterExt  # noqa: N815  the wire's name
    opaque: _I32 = 0
    flag: _I32 = 0


class _RawHead(msgspec.Struct):
    """Any JSON header, with raw ext fields until the code is known."""

    code: _I32
    opaque: _I32 = 0
    flag: _I32 = 0
    extFields: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815  the wire's name
    version: msgspec.Raw = msgspec.Raw(b"0")


class _HeadNumbers(msgspec.Struct):
    """The numbers of a head as they stand there."""

    code: msgspec.Raw = msgspec.Raw(b"0")
    flag: msgspec.Raw = msgspec.Raw(b"0")
    opaque: msgspec.Raw = msgspec.Raw(b"0")


_Ext = _SendExt | _LetterExt | _PullExt
_EXT_OF_CODE: Final[dict[int, Any]] = {
    10: _SendExt, 310: _LetterExt, 320: _LetterExt, 11: _PullExt, 361: _PullExt, 37: _EndingExt, 36: _BackExt,
}  # fmt: skip
_NAMES_OF = {cls: frozenset(f.encode_name for f in msgspec.structs.fields(cls)) for cls in _EXT_OF_CODE.values()}
_EXT_DECODERS = {code: msgspec.json.Decoder(cls, strict=False) for code, cls in _EXT_OF_CODE.items()}
_NUMBERS_OF = {
    cls: frozenset(f.encode_name for f in msgspec.structs.fields(cls) if f.type in {_I32, _I64})
    for cls in _EXT_OF_CODE.values()
}
# The comprehension misses this field: its type is a union with UNSET.
_NUMBERS_OF[_BackExt] |= {"maxReconsumeTimes"}
_version = msgspec.json.Decoder(_I32, strict=False).decode
_JAVA_NUMBER: Final = re.compile(r"([+-]?)0*([0-9]+)", re.ASCII)
_NUMBER_CHARS_MAX: Final = 32
_FRACTION: Final = re.compile(rb':\s*"?[+-]?(?:[0-9]+[.eE\\]|\\)')
"""Where a value may begin with a number that has a fraction or an exponent. `msgspec` takes 1e3 and 5.0 for whole numbers, Java does
not. Texts match too: then they are looked at one by one."""
"""As in the slow path."""
_encode = msgspec.json.encode
_letter_head = msgspec.json.Decoder(_LetterHead, strict=False).decode
_head = msgspec.json.Decoder(_RawHead, strict=False).decode
_head_numbers = msgspec.json.Decoder(_HeadNumbers).decode

_BINARY_HEAD = struct.Struct(">hBhii")
_I32_AT = struct.Struct(">i").unpack_from
_I16_AT = struct.Struct(">h").unpack_from
_FRAME_HEAD = struct.Struct(">iBBH")

_Row = tuple[int, int, int, int, Any, int, int, int, bool]
"""(kind, code, opaque, flag, ext, frame start behind the length, body start, frame end, binary header)."""
_COPIED_MAX = 1 << 20
_UNREADABLE = (0, -1, 0, 0, None)
# The native extension has this limit, so that a peer's nesting does not use up the C stack.
_DEPTH_MAX: Final = 64
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")


class FrameTable:
    __slots__ = ("_bytes_max", "_rows_max", "error", "needed", "raw", "raw_start", "rows", "signed", "view")

    def __init__(self, frame_bytes_max: int, rows_max: int = 4096, signed: bool = False) -> None:
        self._bytes_max, self._rows_max, self.signed = frame_bytes_max, rows_max, signed
        self.error, self.needed = "", 0
        self.rows: list[_Row] = []
        self.view = memoryview(b"")
        self.raw: Any = b""
        """The scanned bytes, from `raw_start` of the view on. A copy up to 1 MiB: slices of bytes are made twice as
        fast as of a view."""
        self.raw_start = 0

    def scan(self, data: Any, start: int, end: int) -> int:
        self.view = view = memoryview(data).cast("B")
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"scan of [{start}, {end}) in a buffer of {len(view)} bytes")
        self.error, self.needed = "", 0
        rows: list[_Row] = []
        self.rows = rows
        rows_max, bytes_max = self._rows_max, self._bytes_max
        raw: Any = view[start:end]
        if end - start <= _COPIED_MAX:
            raw = bytes(raw)
        self.raw = raw
        self.raw_start = start
        at = start
        while len(rows) < rows_max and end - at >= 4:
            # A length that cannot be is told when its four bytes are there: a peer of another protocol may never send
            # eight.
            if end - at < 8:
                (length,) = _I32_AT(view, at)
                serialize, header_bytes = 0, 0
            else:
                length, serialize, high, low = _FRAME_HEAD.unpack_from(view, at)
                header_bytes = high << 16 | low
            if not 4 <= length <= bytes_max - 4:
                self.error = f"frame length {length} is not within 4 to {bytes_max - 4}"
                break
            if serialize > 1:
                self.error = f"serialize type {serialize} is neither 0 (JSON) nor 1 (binary)"
                break
            if header_bytes > length - 4:
                self.error = f"header of {header_bytes} bytes in a frame of {length}"
                break
            stop = at + 4 + length
            if stop > end:
                self.needed = 4 + length
                break
            body = at + 8 + header_bytes
            head = bytes(raw[at + 8 - start : body - start])
            if serialize:
                rows.append((*_binary(head), at + 4, body, stop, True))
            else:
                rows.append((*_json(head), at + 4, body, stop, False))
            at = stop
        return at - start

    def release(self) -> None:
        self.rows = []
        self.raw = b""
        self.view = memoryview(b"")

    def __len__(self) -> int:
        return len(self.rows)

    def kind(self, row: int) -> int:
        return self.rows[row][0]

    def code(self, row: int) -> int:
        return self.rows[row][1]

    def opaque(self, row: int) -> int:
        return self.rows[row][2]

    def flag(self, row: int) -> int:
        return self.rows[row][3]

    def binary(self, row: int) -> bool:
        return self.rows[row][8]

    def topic(self, row: int) -> bytes:
        return self._ext(row).topic.encode()

    def default_topic(self, row: int) -> bytes:
        return self._ext(row).default_topic.encode()

    def group(self, row: int) -> bytes:
        return self._ext(row).group.encode()

    def queue_id(self, row: int) -> int:
        return self._ext(row).queue_id

    def body_bytes(self, row: int) -> int:
        found = self.rows[row]
        return found[7] - found[6]

    def frame(self, row: int) -> memoryview:
        found = self.rows[row]
        return self.view[found[5] : found[7]]

    def pull(self, row: int) -> tuple[bytes, bytes, int, int, int, int, int, int, bytes | None, int, bytes | None, int]:
        ext = self._ext(row)
        if not isinstance(ext, _PullExt):
            raise TypeError(f"row {row} is no pull")
        return (
            ext.group.encode(), ext.topic.encode(), ext.queue_id, ext.queue_offset, ext.max_messages, ext.sys_flag,
            ext.commit_offset, ext.suspend_ms, None if ext.subscription is None else ext.subscription.encode(),
            ext.sub_version, None if ext.expression_type is None else ext.expression_type.encode(), ext.max_bytes,
        )  # fmt: skip

    def ending(self, row: int) -> tuple[bytes, int, int, int, bytes]:
        ext = self.rows[row][4]
        if not isinstance(ext, _EndingExt):
            raise TypeError(f"row {row} is no end of a transaction")
        return ext.group.encode(), ext.half_offset, ext.log_offset, ext.outcome, (ext.message_id or "").encode()

    def back(self, row: int) -> tuple[bytes, int, int, int | None, bool, int]:
        back = self.rows[row][4]
        if not isinstance(back, _Back):
            raise TypeError(f"row {row} is no message that comes back")
        ext = back.ext
        retries_max = None if ext.retries_max is msgspec.UNSET else ext.retries_max
        return ext.group.encode(), ext.log_offset, ext.delay_level, retries_max, ext.repeated, back.version

    def _ext(self, row: int) -> _Ext:
        ext = self.rows[row][4]
        if ext is None or isinstance(ext, _EndingExt | _Back):
            raise TypeError(f"row {row} is neither a send nor a pull")
        return ext  # type: ignore[no-any-return]  # the tuple's slot is Any to keep row making cheap


def _json(head: bytes) -> tuple[int, int, int, int, Any]:
    """Return (kind, code, opaque, flag, ext) of a JSON header; headers not understood here are left to the slow
    path."""
    # Counted first: nearly no header has so many brackets that their nesting matters.
    if head.count(b"[") + head.count(b"{") > _DEPTH_MAX and _depth(head) > _DEPTH_MAX:
        return _UNREADABLE
    try:
        # Java and our client write their keys in alphabetical order, so the code comes first.
        if head.startswith((b'{"code":310,', b'{"code":320,')):
            quick = _letter_head(head)
            if not quick.flag & 1 and quick.code in {310, 320} and not _FRACTION.search(head):
                return _kind(quick.code, quick.extFields), quick.code, quick.opaque, quick.flag, quick.extFields
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        slow = _head(head)
        if _FRACTION.search(head) and _has_fraction(head):
            return _UNREADABLE
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _UNREADABLE
    decoder = _EXT_DECODERS.get(slow.code)
    # A response, or a code without a fast path.
    if decoder is None or slow.flag & 1:
        return 0, slow.code, slow.opaque, slow.flag, None
    try:
        try:
            ext = None if _FRACTION.search(slow.extFields) else decoder.decode(slow.extFields)
        except msgspec.ValidationError:
            ext = None
        if ext is None:
            ext = decoder.decode(_respelled(slow.extFields, decoder.type))
        if isinstance(ext, _BackExt):
            ext = _Back(ext, _version(slow.version))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return 0, slow.code, slow.opaque, slow.flag, None
    return _kind(slow.code, ext), slow.code, slow.opaque, slow.flag, ext


def json_ext(head: bytes) -> bytes:
    """Return the ext fields of a JSON header that is not KIND_OTHER."""
    return bytes(_head(head).extFields)


def _has_fraction(head: bytes) -> bool:
    """Whether a number of the head itself has a fraction or an exponent."""
    numbers = _head_numbers(head)
    found = (json.loads(bytes(number)) for number in (numbers.code, numbers.flag, numbers.opaque))
    return any(
        isinstance(number, float) or (isinstance(number, str) and re.search("[.eE]", number)) for number in found
    )


def _respelled(ext: msgspec.Raw, cls: Any) -> bytes:
    """Return the ext fields with plain numbers for those that only Java's parseLong reads: +5, 007.

    Raises ValidationError: a number is none for Java.
    """
    numbers, names = _NUMBERS_OF[cls], _NAMES_OF[cls]
    text = bytes(ext).decode("utf-8", "replace")  # fields that are not read may be no UTF-8
    broken = text.encode() != bytes(ext)

    as_it_is = lambda text: msgspec.Raw(text.encode())  # noqa: E731
    found = json.loads(text, object_pairs_hook=_Pairs, parse_int=as_it_is)
    if not isinstance(found, _Pairs):
        raise msgspec.ValidationError("the ext fields are no object")
    if broken and any(name in names and "\ufffd" in str(value) for name, value in found):
        raise msgspec.ValidationError("a text is no UTF-8")
    # Pair by pair: of a name that comes twice the last one counts, and the first must fit too.
    fields = ((name, _respelled_value(value, is_number=name in numbers)) for name, value in found)
    return b"{%b}" % b",".join(_encode(name) + b":" + _encode(value) for name, value in fields)


class _Pairs(list[tuple[str, Any]]):
    """Names and values of an object."""


def _respelled_value(value: Any, *, is_number: bool) -> Any:
    if isinstance(value, list):  # an object or a list fits no field, and what is in it is nobody's
        return []
    return _plain_number(value) if is_number and isinstance(value, str | float) else value


def _plain_number(text: str | float) -> str:
    found = _JAVA_NUMBER.fullmatch(text) if isinstance(text, str) else None
    if found is None or len(found[0]) > _NUMBER_CHARS_MAX:
        raise msgspec.ValidationError("a number is none for Java")
    return f"{found[1].replace('+', '')}{found[2]}"


def _depth(head: bytes) -> int:
    """How deep brackets nest outside of strings. The decoder's own bound differs between versions of Python."""
    deepest = depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", head)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _kind(code: int, ext: Any) -> int:
    if code in {11, 361}:
        return KIND_PULL
    if code == 37:
        return KIND_ENDING
    if code == 36:
        return KIND_BACK
    return KIND_BATCH if code == 320 or ext.batch else KIND_SEND


def _binary(head: bytes) -> tuple[int, int, int, int, Any]:
    """The same of a binary header."""
    if len(head) < 21:
        return _UNREADABLE
    code, _, version, opaque, flag = _BINARY_HEAD.unpack_from(head)
    other = 0, code, opaque, flag, None
    (remark_bytes,) = _I32_AT(head, 13)
    if not 0 <= remark_bytes <= len(head) - 21:
        return _UNREADABLE
    at = 21 + remark_bytes
    (ext_bytes,) = _I32_AT(head, at - 4)
    if ext_bytes != len(head) - at:
        return _UNREADABLE
    cls = _EXT_OF_CODE.get(code)
    if cls is None or flag & 1:
        return other
    names = _NAMES_OF[cls]
    pairs: dict[str, str] = {}
    earlier: list[tuple[str, str]] = []  # of a name that comes twice the last one counts, and the first must fit too
    try:
        while at < len(head):
            (size,) = _I16_AT(head, at)
            name = head[at + 2 : at + 2 + size].decode("utf-8", "replace")
            at += 2 + size
            (value_size,) = _I32_AT(head, at)
            stop = at + 4 + value_size
            if size < 0 or value_size < 0 or stop > len(head):
                return other
            # An empty value cannot be told from an absent one in this form, as in `metaq.wire.command`.
            if value_size and name in names:
                if name in pairs:
                    earlier.append((name, pairs[name]))
                pairs[name] = head[at + 4 : stop].decode()
            at = stop
        numbers = _NUMBERS_OF[cls]
        spelled = {name: _plain_number(value) if name in numbers else value for name, value in pairs.items()}
        for name, value in earlier:
            msgspec.convert({**spelled, name: _plain_number(value) if name in numbers else value}, cls, strict=False)
        ext = msgspec.convert(spelled, cls, strict=False)
        if isinstance(ext, _BackExt):
            ext = _Back(ext, version)
    except (struct.error, msgspec.MsgspecError, UnicodeError):
        return other
    return _kind(code, ext), code, opaque, flag, ext


class Replies:
    __slots__ = ("_binary_tail", "_json", "parts", "version")

    def __init__(self, region: bytes, trace_on: bool, version: int = 409) -> None:
        trace = "true" if trace_on else "false"
        # `%` doubled: the text is part of a format.
        region_text = msgspec.json.encode(region.decode("utf-8", "replace")).decode().replace("%", "%%")
        self._json = (
            f'{{"code":0,"extFields":{{"queueId":"%d","TRACE_ON":"{trace}","MSG_REGION":{region_text},'
            f'"msgId":"%b","queueOffset":"%d"}},"flag":1,"language":"PYTHON","opaque":%d,'
            f'"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        ).encode()
        self.version = version
        self._binary_tail = _pair(b"TRACE_ON", trace.encode()) + _pair(b"MSG_REGION", region)
        self.parts: list[bytes] = []

    def take(self) -> bytes:
        joined = b"".join(self.parts)
        self.parts.clear()
        return joined

    def clear(self) -> None:
        self.parts.clear()

    def extend(self, data: Any) -> None:
        self.parts.append(bytes(data))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def add_send(self, opaque: int, binary: bool, queue_id: int, message_id: str, queue_offset: int) -> None:
        self.put_send(opaque, binary, queue_id, message_id.encode(), queue_offset)

    def put_send(self, opaque: int, binary: bool, queue_id: int, message_id: bytes, queue_offset: int) -> None:
        """add_send() of bytes."""
        if binary:
            ext = (
                _pair(b"queueId", b"%d" % queue_id)
                + self._binary_tail
                + _pair(b"msgId", message_id)
                + _pair(b"queueOffset", b"%d" % queue_offset)
            )
            self.parts.append(_binary_frame(0, opaque, self.version, b"", ext, 0))
            return
        head = self._json % (queue_id, message_id, queue_offset, opaque)
        size = len(head)
        self.parts += (size + 4).to_bytes(4, "big"), size.to_bytes(4, "big"), head

    def add_done(self, opaque: int, binary: bool) -> None:
        if binary:
            self.parts.append(_binary_frame(0, opaque, self.version, b"", b"", 0))
            return
        head = b'{"code":0,"flag":1,"language":"PYTHON","opaque":%d,"version":%d}' % (opaque, self.version)
        self.parts += (len(head) + 4).to_bytes(4, "big"), len(head).to_bytes(4, "big"), head

    def add_pull(
        self,
        opaque: int,
        binary: bool,
        code: int,
        remark: str,
        suggest_broker: int,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        body: Any,
    ) -> None:
        head = pull_reply(
            opaque, binary, code, remark, suggest_broker, next_offset, min_offset, max_offset, len(body), self.version
        )
        self.parts += head, bytes(body)


def _pair(name: bytes, value: bytes) -> bytes:
    return len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value


def _binary_frame(code: int, opaque: int, version: int, remark: bytes, ext: bytes, body_bytes: int) -> bytes:
    head = (
        _BINARY_HEAD.pack(code, 3, version, opaque, 1)
        + len(remark).to_bytes(4, "big") + remark + len(ext).to_bytes(4, "big") + ext
    )  # fmt: skip
    return _FRAME_HEAD.pack(4 + len(head) + body_bytes, 1, len(head) >> 16, len(head) & 0xFFFF) + head


def pull_reply(
    opaque: int,
    binary: bool,
    code: int,
    remark: str,
    suggest_broker: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    body_bytes: int,
    version: int = 409,
) -> bytes:
    if binary:
        ext = (
            _pair(b"suggestWhichBrokerId", b"%d" % suggest_broker)
            + _pair(b"nextBeginOffset", b"%d" % next_offset)
            + _pair(b"minOffset", b"%d" % min_offset)
            + _pair(b"maxOffset", b"%d" % max_offset)
        )
        return _binary_frame(code, opaque, version, remark.encode(), ext, body_bytes)
    head = (
        f'{{"code":{code},"extFields":{{"suggestWhichBrokerId":"{suggest_broker}","nextBeginOffset":"{next_offset}",'
        f'"minOffset":"{min_offset}","maxOffset":"{max_offset}"}},"flag":1,"language":"PYTHON","opaque":{opaque},'
        f'"remark":{msgspec.json.encode(remark).decode()},"serializeTypeCurrentRPC":"JSON","version":{version}}}'
    ).encode()
    return _FRAME_HEAD.pack(4 + len(head) + body_bytes, 0, len(head) >> 16, len(head) & 0xFFFF) + head
