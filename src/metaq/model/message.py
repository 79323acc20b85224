"""Messages: what a producer hands in, what a broker has stored, and half messages of transactions."""

from __future__ import annotations

import enum
import functools
import ipaddress
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from metaq.errors import InvalidMessage
from metaq.model import properties as props
from metaq.model.queue import MessageQueue

BODY_BYTES_MAX = 4 * 1024 * 1024
DELAY_LEVEL_MAX = 18
FIRST_RETRY_LEVEL = 3
"""Delay level of the first retry (10 s), as in RocketMQ; each further retry waits a level longer.
`wire/hot/native/back.pxi` repeats the number."""
_SHOWN_BYTES = 60


class SysFlag(enum.IntFlag):
    """Bits of a record's SYSFLAG, and of a send request's (docs/formats/record.md)."""

    COMPRESSED = 0x1
    """The body is compressed: by zlib, or as the bits 0x700 say (0x100 LZ4, 0x200 Zstandard, 0x300 zlib)."""
    MULTI_TAGS = 0x2
    """RocketMQ's bit for several tags in one message; carried, and not asked for."""
    PREPARED = 0x4
    """Half message of a transaction; of the two transaction bits (0xC) alone."""
    COMMITTED = 0x8
    """Message of a transaction that was committed; of the two transaction bits (0xC) alone."""
    ROLLED_BACK = 0xC
    """Both transaction bits: the end of a transaction that was rolled back."""
    BORN_HOST_V6 = 0x10
    """The producer's address has 16 bytes, not 4."""
    STORE_HOST_V6 = 0x20
    """The broker's address has 16 bytes, not 4."""


TRANSACTION_MASK = 0xC
COMPRESSION_TYPE_MASK = 0x700
BODY_AS_STORED = 1 << 30
"""Bit of `sys_flag` in rows of Arrow, Spark and archives, and never in a record: the body cannot be decompressed and is as it
is stored."""
COMPRESSION_LZ4, COMPRESSION_ZSTD, COMPRESSION_ZLIB = 0x100, 0x200, 0x300


@dataclass(slots=True, repr=False)
class Message:
    """One message to send.

    Args:
        topic: where to send it.
        body: bytes, a bytearray or a contiguous memoryview, of which a copy is taken. A `str` is a TypeError: only the
            sender knows its encoding.
        tag: one word by which brokers filter, without `|`.
        keys: words by which it can be looked up, without blanks.
        flag: a signed 32-bit number, carried untouched.
        delay_level: 0, or a level of the broker's delays, 1..18: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h unless
            its `messageDelayLevel` says otherwise.
        wait_store_ok: False has the broker answer before the flush and the replica.
        properties: your own names and values, all `str`; those of the system are refused (docs/client.md).
    Raises:
        TypeError: a value of another type.
        InvalidMessage: a value that the record format cannot carry.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    flag: int = 0
    delay_level: int = 0
    wait_store_ok: bool = True
    properties: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check that it can be sent: its fields may have been set since it was made. Raises as the constructor does, TypeError and
        InvalidMessage."""
        if not isinstance(self.topic, str):
            raise TypeError(f"topic is {self.topic!r}: pass its name, a str")
        # The usual case costs one comparison: this runs for each message sent.
        if type(self.body) is not bytes:
            self.body = as_body(self.body)
        # As above: an empty tuple needs no check.
        if self.keys or self.keys.__class__ is not tuple:
            self.keys = as_keys(self.keys)
        if self.properties or self.properties.__class__ is not dict:
            check_user_properties(self.properties)
        if self.tag is not None:
            check_tag(self.tag)
        if self.delay_level or self.delay_level.__class__ is not int:
            self.delay_level = as_delay_level(self.delay_level)
        if self.flag or self.flag.__class__ is not int:
            self.flag = as_int("flag", self.flag, -(1 << 31), (1 << 31) - 1)
        if self.wait_store_ok is not True and self.wait_store_ok is not False:
            raise TypeError(f"wait_store_ok is {self.wait_store_ok!r}: pass True or False")

    def __repr__(self) -> str:
        shown = repr(self.body) if len(self.body) <= _SHOWN_BYTES else f"<{len(self.body)} bytes>"
        rest = [
            f"{name}={value!r}"
            for name, value, usual in (
                ("tag", self.tag, None), ("keys", self.keys, ()), ("flag", self.flag, 0),
                ("delay_level", self.delay_level, 0), ("wait_store_ok", self.wait_store_ok, True),
                ("properties", self.properties, {}),
            )
            if value != usual
        ]  # fmt: skip
        return f"Message({', '.join([f'topic={self.topic!r}', f'body={shown}', *rest])})"

    def property_text(self, unique_id: str | None, namespace: str = "") -> str:
        """Return the text of all properties, the system's and the user's.

        Args:
            unique_id: UNIQ_KEY of this message; None leaves it to the batch that it goes into.
            namespace: the producer's, which Java's producer writes into a property too.
        """
        pairs = dict(self.properties)
        if namespace:
            pairs[props.INSTANCE_ID] = namespace
        if self.keys:
            pairs[props.KEYS] = " ".join(self.keys)
        if unique_id is not None:
            pairs[props.UNIQUE_ID] = unique_id
        pairs[props.WAIT] = "true" if self.wait_store_ok else "false"
        if self.delay_level:
            pairs[props.DELAY] = str(self.delay_level)
        if self.tag is not None:
            pairs[props.TAGS] = self.tag
        return props.join(pairs)


def as_body(body: object) -> bytes:
    """Return a copy of a body as bytes. Raises TypeError, with the remedy: no bytes, bytearray or contiguous
    memoryview."""
    if isinstance(body, str):
        raise TypeError("body is a str: encode it, for example body.encode()")
    if isinstance(body, memoryview) and not body.c_contiguous:
        raise TypeError("body is a memoryview with gaps: copy it, bytes(body)")
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(
            f"body is {_type(body)}: make bytes of it first, for example json.dumps(body).encode(), "
            "str(body).encode(), or bytes(body) if its elements are the bytes"
        )
    return bytes(body)


def as_int(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number of [low, high]. Raises TypeError for a bool, a float and the like; InvalidMessage out of
    bounds."""
    # True would pass as 1; numpy's integers pass by `__index__`.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}: need a whole number {low}..{high}")
    number = operator.index(value)
    if not low <= number <= high:
        raise InvalidMessage(f"{name}={number}: need {low}..{high}")
    return number


def as_delay_level(level: object) -> int:
    """Return a level of the broker's delays, 0 for none. Raises as `as_int`."""
    return as_int("delay_level", level, 0, DELAY_LEVEL_MAX)


def as_keys(keys: str | Iterable[str]) -> tuple[str, ...]:
    """Return keys as a tuple; a single string is one key.

    Raises: TypeError: no text. InvalidMessage: an empty key, a blank or a control character.
    """
    # All three can be iterated over, and would silently give numbers or names for keys.
    if isinstance(keys, bytes | bytearray | Mapping) or not isinstance(keys, Iterable):
        raise TypeError(f"keys is {_type(keys)}: pass a str or several, such as [str(key)]")
    result = (keys,) if isinstance(keys, str) else tuple(keys)
    for key in result:
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r} is {_type(key)}: pass text, {_remedy(key)}")
        if not key or any(char.isspace() or char in "\x01\x02" for char in key):
            raise InvalidMessage(f"the key {key!r} is empty or holds a blank or a control character")
        _check_text("key", key)
    return result


def check_tag(tag: str) -> str:
    """Return `tag` if a subscription can name it. Raises TypeError: no text; InvalidMessage: no subscription can."""
    if not isinstance(tag, str):
        raise TypeError(f"tag is {_type(tag)}: pass one word of text, {_remedy(tag)}")
    # A tag expression is split at `||` and trimmed, and `*` means all.
    if not tag or tag != tag.strip() or "|" in tag or "\x01" in tag or "\x02" in tag or tag == "*":
        raise InvalidMessage(f"the tag {tag!r} is empty, '*', or holds '|', outer blanks or control characters")
    return _check_text("tag", tag)


def is_tag(text: str) -> bool:
    """Return whether `check_tag` takes a text."""
    try:
        check_tag(text)
    except InvalidMessage:
        return False
    return True


def check_user_properties(pairs: Mapping[str, str]) -> None:
    """Check a user's properties.

    Raises: TypeError: not all text. InvalidMessage: a reserved name, an empty name or value, a separator character.
    """
    if not isinstance(pairs, Mapping):
        raise TypeError(f"properties is {_type(pairs)}: pass a dict of names and values")
    for name, value in pairs.items():
        if not isinstance(name, str):
            raise TypeError(f"the property name {name!r} is {_type(name)}: pass text, {_remedy(name)}")
        if not isinstance(value, str):
            raise TypeError(f"the property {name} is {_type(value)}: pass text, {_remedy(value)}")
        if name in props.RESERVED:
            raise InvalidMessage(f"the property name {name} is reserved for the system")
        if not name or not value:
            raise InvalidMessage(f"the property {name!r} has an empty name or value, which the format drops")
        if props.NAME_END in name + value or props.PAIR_END in name + value:
            raise InvalidMessage(f"the property {name!r} holds 0x01 or 0x02, the format's separators")
        _check_text("property", name + value)


def _check_text(what: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"the {what} {text!r} holds half a character (a lone surrogate): it is no UTF-8") from None
    return text


def _type(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _remedy(value: object) -> str:
    return "value.decode()" if isinstance(value, bytes | bytearray) else f"str({value!r})"


class SendStatus(enum.Enum):
    """What the broker promises of an acknowledged message (docs/replication.md, "What a send promises"). All four are
    stored."""

    SEND_OK = 0
    """Stored, on the disk and at the slaves as far as the broker's options ask for it."""
    FLUSH_DISK_TIMEOUT = 10
    """Stored in the page cache, and not on the disk within the broker's `syncFlushTimeout`."""
    SLAVE_NOT_AVAILABLE = 11
    """Stored at the master alone: no slave has reported, or all are too far behind to wait for."""
    FLUSH_SLAVE_TIMEOUT = 12
    """Stored at the master, and not confirmed by its slaves within `slaveTimeout`."""


class SendReceipt(Struct, frozen=True):
    """A broker's acknowledgement of one message."""

    message_id: str
    """The producer's unique id of the message (UNIQ_KEY), 32 hexadecimal digits, which consumers see as `message_id`."""
    queue: MessageQueue
    """The queue that it is in."""
    offset: int
    """Its QueueOffset there: the number of the message in its queue, from 0 on."""
    status: SendStatus = SendStatus.SEND_OK
    """What the broker promises of it."""
    offset_id: str = ""
    """Id of its place, as RocketMQ's `offsetMsgId`: the broker's address and the LogOffset; "": the broker has not told it."""


class StoredMessage:
    """A message as a broker stored it. Properties and hosts are decoded at first use.

    `metaq.wire.hot.decode_records` fills the slots directly, without a call of `__init__`; a subclass may add slots of
    its own.
    """

    __slots__ = (
        "_properties", "body", "born_host_raw", "born_ms", "broker", "flag", "log_offset", "max_offset", "min_offset",
        "prepared_offset", "properties_raw", "queue_id", "queue_offset", "reconsume_times", "store_host_raw",
        "store_ms", "sys_flag", "topic",
    )  # fmt: skip

    topic: str
    """Topic that it is stored in: of a retry that is `%RETRY%group`, of a dead letter `%DLQ%group`."""
    broker: str
    """Name of the broker that it was read from; "": unknown, as in a file."""
    queue_id: int
    """Number of its queue at the broker, from 0 on."""
    queue_offset: int
    """QueueOffset: its number in its queue, from 0 on."""
    log_offset: int
    """LogOffset: byte at which its record begins in the broker's commit log."""
    flag: int
    """The sender's own number, signed 32 bits."""
    sys_flag: int
    """Bits of `metaq.model.SysFlag`, and 0x700: how the body was compressed."""
    born_ms: int
    """When the producer made it, by the producer's clock, ms since 1970."""
    store_ms: int
    """When the broker stored it, by the broker's clock, ms since 1970."""
    reconsume_times: int
    """How often a group has given it back: 0 at the first delivery."""
    prepared_offset: int
    """LogOffset of the half message that this one commits; below 0: see docs/formats/record.md; else 0."""
    born_host_raw: bytes
    """4 or 16 address bytes, then 4 port bytes, as in the record."""
    store_host_raw: bytes
    """The same of the broker that stored it."""
    body: bytes
    """Uncompressed, whatever the record holds."""
    properties_raw: bytes
    """All properties as the record has them: UTF-8, 0x01 between name and value, 0x02 behind each pair."""
    min_offset: int
    """First QueueOffset that its queue kept at the time of the pull; 0: unknown."""
    max_offset: int
    """End of its queue at the time of the pull: the QueueOffset that the next message gets; 0: unknown."""
    _properties: dict[str, str] | None

    def __init__(
        self, *, topic: str, body: bytes, queue_id: int = 0, queue_offset: int = 0, log_offset: int = 0,
        flag: int = 0, sys_flag: int = 0, born_ms: int = 0, store_ms: int = 0, reconsume_times: int = 0,
        prepared_offset: int = 0, born_host_raw: bytes = bytes(8), store_host_raw: bytes = bytes(8),
        properties_raw: bytes = b"", broker: str = "", min_offset: int = 0, max_offset: int = 0,
    ) -> None:  # fmt: skip
        self.topic, self.body, self.broker = topic, body, broker
        self.queue_id, self.queue_offset, self.log_offset = queue_id, queue_offset, log_offset
        self.flag, self.sys_flag, self.reconsume_times = flag, sys_flag, reconsume_times
        self.born_ms, self.store_ms, self.prepared_offset = born_ms, store_ms, prepared_offset
        self.born_host_raw, self.store_host_raw = born_host_raw, store_host_raw
        self.properties_raw, self._properties = properties_raw, None
        self.min_offset, self.max_offset = min_offset, max_offset

    @property
    def properties(self) -> dict[str, str]:
        """Name → value of all properties, the system's and the producer's; bytes that are no UTF-8 are replaced by U+FFFD."""
        if self._properties is None:
            self._properties = props.parse(self.properties_raw.decode("utf-8", "replace"))
        return self._properties

    @property
    def tag(self) -> str | None:
        """The tag; None: it has none."""
        return self.properties.get(props.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys; empty: it has none."""
        return tuple(self.properties.get(props.KEYS, "").split())

    @property
    def delay_level(self) -> int:
        """The delay level that it was sent with, from 1 on; 0: none."""
        # Anything may stand there: a property text comes from a producer.
        text = self.properties.get(props.DELAY, "0")
        return int(text) if text.isdecimal() and len(text) < 10 else 0

    @property
    def wait_store_ok(self) -> bool:
        """Whether the sender was to be answered only after the flush and the replica, as the broker's options ask for them."""
        return self.properties.get(props.WAIT) != "false"

    @property
    def queue(self) -> MessageQueue:
        """The queue that it lies in."""
        return MessageQueue(self.topic, self.broker, self.queue_id)

    @property
    def message_id(self) -> str:
        """The producer's unique id, which survives its retries; for a message without one, `offset_id`."""
        return self.properties.get(props.UNIQUE_ID) or self.offset_id

    @property
    def offset_id(self) -> str:
        """Store host and log offset in upper-case hex: 32 characters, 56 with IPv6. Brokers look a message up by it: RocketMQ's
        `offsetMsgId`."""
        return f"{self.store_host_raw.hex()}{self.log_offset:016x}".upper()

    @property
    def born_host(self) -> tuple[str, int]:
        """Address and port of the producer, as the broker saw it."""
        return host_of(self.born_host_raw)

    @property
    def store_host(self) -> tuple[str, int]:
        """Address and port of the broker that stored it."""
        return host_of(self.store_host_raw)

    @property
    def backlog(self) -> int:
        """Messages in the queue from this one on, at the time of the pull."""
        return max(0, self.max_offset - self.queue_offset)

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in StoredMessage.__slots__ if name[0] != "_"}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._properties = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"message_id={self.message_id!r}, tag={self.tag!r}, body={len(self.body)} bytes)"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in StoredMessage.__slots__ if name[0] != "_")

    # By identity: the fields may be set.
    __hash__ = object.__hash__


def host_of(raw: bytes) -> tuple[str, int]:
    """Return address and port of a record's host field (4 or 16 address bytes, 4 port bytes)."""
    return str(ipaddress.ip_address(raw[:-4])), int.from_bytes(raw[-4:], "big")


def host_bytes(address: str, port: int) -> bytes:
    """Return the host field of a record for an address and a port."""
    return _packed(address) + port.to_bytes(4, "big")


@functools.lru_cache(1024)
def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed  # 3 µs, and each connection needs it


class TransactionOutcome(enum.Enum):
    """How a local transaction ended, which decides over its half message; RocketMQ's LocalTransactionState."""

    COMMIT = "commit"
    """The message is delivered."""
    ROLLBACK = "roll back"
    """The message is dropped."""
    UNKNOWN = "unknown"
    """The message stays hidden; the broker asks again later."""


class HalfMessage(Struct, frozen=True):
    """The id and offsets of a half message at the broker that stored it."""

    message_id: str
    """UNIQ_KEY that the producer gave it; also the id of the transaction."""
    queue_offset: int
    """QueueOffset in RMQ_SYS_TRANS_HALF_TOPIC. Each check of the broker moves it."""
    log_offset: int
