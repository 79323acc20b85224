"""Typed headers: one class per request or response of reference section 2, flattened to `extFields` and back.

A field's wire name is its Python name in camelCase unless `wire(...)` says otherwise. A field without a default must
be there; None is not sent. Fields that the class does not have are passed over, as every RocketMQ endpoint does.
Numbers are bounded to their Java type, and their digits are counted before they are converted.
"""
# ruff: noqa: RUF009  `wire` makes a dataclass field, as `field` does

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from metaq.errors import BadRequest
from metaq.model.system import AUTO_CREATE_TOPIC


class _Bits(NamedTuple):
    width: int

    def holds(self, value: int) -> bool:
        return -(1 << (self.width - 1)) <= value < 1 << (self.width - 1)


Int = Annotated[int, _Bits(32)]
"""Java's int."""
Long = Annotated[int, _Bits(64)]
"""Java's long."""

_NUMBER_CHARS_MAX = 32  # Java takes leading zeros, so more than the 20 of a long's digits and sign.
_TRUE = {"true", "1"}  # C++ sends `m` as 1.


def wire(name: str, default: Any = dataclasses.MISSING) -> Any:
    """A header field with a wire name of its own."""
    return dataclasses.field(default=default, metadata={"wire": name})


class _Item(NamedTuple):
    """One field of a header class, as the codec needs it."""

    attribute: str
    wire_name: str
    kind: type
    bits: _Bits
    required: bool


@dataclass(slots=True, kw_only=True)
class Header:
    """Base of the typed headers."""

    def to_ext(self) -> dict[str, str]:
        """The fields as `extFields`: decimal numbers, `true`/`false`, None left out."""
        ext: dict[str, str] = {}
        for attribute, name, kind, _, _ in _items(type(self)):
            value = getattr(self, attribute)
            if value is not None:
                ext[name] = value if kind is str else _plain(value) if kind is bool else str(value)
        return ext

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """The header in `extFields`. Raises BadRequest that names the field and its value."""
        return cls(**_read(_items(cls), ext))


def _plain(value: float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _items(cls: type[Header]) -> tuple[_Item, ...]:
    """How the class is read and written; worked out at its first use."""
    known = _ITEMS.get(cls)
    if known is None:
        known = _ITEMS[cls] = _work_out(cls)
    return known


_ITEMS: dict[type[Header], tuple[_Item, ...]] = {}


def _work_out(cls: type[Header]) -> tuple[_Item, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    items = []
    for field in dataclasses.fields(cls):
        kind, bits = _kind(hints[field.name])
        name = field.metadata.get("wire") or _camel(field.name)
        items.append(_Item(field.name, name, kind, bits, field.default is dataclasses.MISSING))
    return tuple(items)


def _kind(hint: Any) -> tuple[type, _Bits]:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is Annotated:
        return typing.get_args(hint)[0], typing.get_args(hint)[1]
    if options and not isinstance(hint, type):  # X | None
        return _kind(options[0])
    return hint, _Bits(64)


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def _read(items: tuple[_Item, ...], ext: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute, name, kind, bits, required in items:
        text = ext.get(name)
        if text is None:
            if required:
                raise BadRequest(f"the request lacks the field {name}")
        elif kind is str:
            values[attribute] = text
        elif kind is int:
            values[attribute] = _whole(name, text, bits)
        elif kind is bool:
            values[attribute] = text.lower() in _TRUE
        else:
            values[attribute] = _real(name, text)
    return values


def _whole(name: str, text: str, bits: _Bits) -> int:
    try:
        if len(text) > _NUMBER_CHARS_MAX or "_" in text:  # Digits are counted first: int() is quadratic in them.
            raise ValueError  # noqa: TRY301  one place says what is wrong
        value = int(text)
    except ValueError:
        raise BadRequest(f"the field {name}={text[:40]!r} is not a whole number") from None
    if not bits.holds(value):
        raise BadRequest(f"the field {name}={value} does not fit {bits.width} bits")
    return value


def _real(name: str, text: str) -> float:
    try:
        if len(text) > _NUMBER_CHARS_MAX:
            raise ValueError  # noqa: TRY301  one place says what is wrong
        return float(text)
    except ValueError:
        raise BadRequest(f"the field {name}={text[:40]!r} is not a number") from None


# ------------------------------------------------------------------ sending


@dataclass(slots=True, kw_only=True)
class SendHeader(Header):
    """10, 310, 320 and 324, 325. Sent with V2's one-letter names; both spellings are read."""

    producer_group: str = wire("a")
    topic: str = wire("b")
    default_topic: str = wire("c", AUTO_CREATE_TOPIC)
    """The topic whose settings an automatically created one copies."""
    default_topic_queues: Int = wire("d", 4)
    queue_id: Int = wire("e")
    """Below zero lets the broker choose."""
    sys_flag: Int = wire("f", 0)
    born_ms: Long = wire("g")
    flag: Int = wire("h", 0)
    properties: str = wire("i", "")
    reconsume_times: Int = wire("j", 0)
    unit_mode: bool = wire("k", default=False)
    max_reconsume_times: Int | None = wire("l", None)
    """Only looked at in sends to `%RETRY%` topics: Go sends 0 with every message."""
    batch: bool = wire("m", default=False)
    broker_name: str | None = wire("n", None)

    LONG_NAMES: ClassVar[dict[str, str]] = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
        "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
        "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
    }  # fmt: skip

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        return cls(**_read(_items(cls), ext)) if "b" in ext else cls.from_long_ext(ext)

    @classmethod
    def from_long_ext(cls, ext: Mapping[str, str]) -> Self:
        """The header of code 10 and 324, with long names."""
        return cls(**_read(_long_send_items(), ext))

    def to_long_ext(self) -> dict[str, str]:
        """The fields under their long names, for code 10 and 324."""
        return {self.LONG_NAMES[letter]: value for letter, value in self.to_ext().items()}


@functools.cache
def _long_send_items() -> tuple[_Item, ...]:
    return tuple(item._replace(wire_name=SendHeader.LONG_NAMES[item.wire_name]) for item in _items(SendHeader))


@dataclass(slots=True, kw_only=True)
class SendReplyHeader(Header):
    """Answers 10, 310, 320. Java needs `MSG_REGION` and `TRACE_ON` beside these; the door adds them."""

    message_id: str = wire("msgId")
    """The offset id; of a batch, all of them, comma-separated."""
    queue_id: Int
    queue_offset: Long
    """Of a batch, the first."""
    transaction_id: str | None = None


@dataclass(slots=True, kw_only=True)
class SendBackHeader(Header):
    """36: this message failed; deliver it again later, or file it with the dead letters."""

    offset: Long
    """LogOffset of the record that failed."""
    group: str
    delay_level: Int
    """Below zero: straight to the dead letters; 0: the broker chooses; above: that level."""
    origin_message_id: str | None = wire("originMsgId", None)
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    broker_name: str | None = wire("bname", None)
    repeated: bool | None = wire("metaqRepeated", None)
    """Ours: an earlier request like this one may have been answered, and the answer lost."""


# ------------------------------------------------------------------ pulling and offsets


@dataclass(slots=True, kw_only=True)
class PullHeader(Header):
    """11."""

    COMMIT_OFFSET: ClassVar[int] = 1
    SUSPEND: ClassVar[int] = 2
    SUBSCRIPTION: ClassVar[int] = 4
    """Bits of `sys_flag`: commit_offset is valid; may be held; subscription here beats the heartbeat's."""

    group: str = wire("consumerGroup")
    topic: str
    queue_id: Int
    queue_offset: Long
    max_messages: Int = wire("maxMsgNums")
    sys_flag: Int
    commit_offset: Long = 0
    suspend_ms: Long = wire("suspendTimeoutMillis", 0)
    subscription: str | None = None
    sub_version: Long = 0
    expression_type: str | None = None
    broker_name: str | None = wire("bname", None)
    max_msg_bytes: Int | None = None
    """Ours (docs/formats/extensions.md): lifts the limits of 32 messages and 256 KiB."""


@dataclass(slots=True, kw_only=True)
class PullReplyHeader(Header):
    """Answers 11 with code 0, 19, 20 or 21: clients decode all four fields for each."""

    suggest_broker_id: Long = wire("suggestWhichBrokerId", 0)
    next_offset: Long = wire("nextBeginOffset")
    min_offset: Long
    max_offset: Long


@dataclass(slots=True, kw_only=True)
class QueueHeader(Header):
    """30, 31, 32."""

    topic: str
    queue_id: Int
    broker_name: str | None = wire("bname", None)


@dataclass(slots=True, kw_only=True)
class SearchOffsetHeader(Header):
    """29: the offset at a store time in milliseconds."""

    topic: str
    queue_id: Int
    timestamp: Long
    broker_name: str | None = wire("bname", None)


@dataclass(slots=True, kw_only=True)
class OffsetReplyHeader(Header):
    """Answers 14, 29, 30, 31."""

    offset: Long


@dataclass(slots=True, kw_only=True)
class TimestampReplyHeader(Header):
    """Answers 32; -1 for an empty queue."""

    timestamp: Long


@dataclass(slots=True, kw_only=True)
class QueryOffsetHeader(Header):
    """14."""

    group: str = wire("consumerGroup")
    topic: str
    queue_id: Int
    broker_name: str | None = wire("bname", None)


@dataclass(slots=True, kw_only=True)
class UpdateOffsetHeader(Header):
    """15."""

    group: str = wire("consumerGroup")
    topic: str
    queue_id: Int
    commit_offset: Long
    broker_name: str | None = wire("bname", None)


@dataclass(slots=True, kw_only=True)
class QueryMessageHeader(Header):
    """12: look messages up by key. Times in ms, both inclusive."""

    topic: str
    key: str
    max_messages: Int = wire("maxNum")
    begin_ms: Long = wire("beginTimestamp")
    end_ms: Long = wire("endTimestamp")
    unique_id_query: bool = wire("_UNIQUE_KEY_QUERY", default=False)


@dataclass(slots=True, kw_only=True)
class QueryMessageReplyHeader(Header):
    """Answers 12."""

    index_last_update_ms: Long = wire("indexLastUpdateTimestamp")
    index_last_update_offset: Long = wire("indexLastUpdatePhyoffset")


@dataclass(slots=True, kw_only=True)
class ViewMessageHeader(Header):
    """33: the record at a LogOffset."""

    offset: Long


# ------------------------------------------------------------------ clients and groups


@dataclass(slots=True, kw_only=True)
class UnregisterClientHeader(Header):
    """35."""

    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(slots=True, kw_only=True)
class ConsumerGroupHeader(Header):
    """38, 40, 203."""

    consumer_group: str


@dataclass(slots=True, kw_only=True)
class ProducerGroupHeader(Header):
    """204."""

    producer_group: str


# ------------------------------------------------------------------ administration of a broker


@dataclass(slots=True, kw_only=True)
class CreateTopicHeader(Header):
    """17."""

    topic: str
    default_topic: str = AUTO_CREATE_TOPIC
    read_queues: Int = wire("readQueueNums")
    write_queues: Int = wire("writeQueueNums")
    perm: Int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False


@dataclass(slots=True, kw_only=True)
class TopicHeader(Header):
    """202, 215, 300."""

    topic: str


@dataclass(slots=True, kw_only=True)
class DeleteGroupHeader(Header):
    """207."""

    group: str = wire("groupName")
    remove_offset: bool = False


@dataclass(slots=True, kw_only=True)
class ConsumeStatsHeader(Header):
    """208; without a topic, all that the group has offsets for."""

    consumer_group: str
    topic: str | None = None


@dataclass(slots=True, kw_only=True)
class VersionReplyHeader(Header):
    """Answers 26: the DataVersion of the configuration, as JSON."""

    version: str


# ------------------------------------------------------------------ name server


@dataclass(slots=True, kw_only=True)
class RegisterBrokerHeader(Header):
    """103. The body's checksum, 31 bits, is over the bytes as sent; 0 is unchecked."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster: str = wire("clusterName")
    ha_address: str = wire("haServerAddr", "")
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0


@dataclass(slots=True, kw_only=True)
class RegisterBrokerReplyHeader(Header):
    """Answers 103; both only to a slave whose master is alive."""

    ha_address: str | None = wire("haServerAddr", None)
    master_address: str | None = wire("masterAddr", None)


@dataclass(slots=True, kw_only=True)
class BrokerHeader(Header):
    """104, 322: which broker speaks."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster: str = wire("clusterName")
    broker_id: Long


@dataclass(slots=True, kw_only=True)
class DataVersionReplyHeader(Header):
    """Answers 322."""

    changed: bool


@dataclass(slots=True, kw_only=True)
class RouteHeader(Header):
    """105."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(slots=True, kw_only=True)
class PutKvHeader(Header):
    """100."""

    namespace: str
    key: str
    value: str


@dataclass(slots=True, kw_only=True)
class KvKeyHeader(Header):
    """101, 102."""

    namespace: str
    key: str


@dataclass(slots=True, kw_only=True)
class KvValueReplyHeader(Header):
    """Answers 101."""

    value: str


@dataclass(slots=True, kw_only=True)
class NamespaceHeader(Header):
    """219."""

    namespace: str


@dataclass(slots=True, kw_only=True)
class BrokerNameHeader(Header):
    """205, 327."""

    broker_name: str


@dataclass(slots=True, kw_only=True)
class WipedReplyHeader(Header):
    """Answers 205: topics touched."""

    topics: Int = wire("wipeTopicCount")


@dataclass(slots=True, kw_only=True)
class RestoredReplyHeader(Header):
    """Answers 327: topics touched."""

    topics: Int = wire("addTopicCount")


@dataclass(slots=True, kw_only=True)
class DeleteRouteHeader(Header):
    """216; with a cluster, only that cluster's brokers lose the topic."""

    topic: str
    cluster: str | None = wire("clusterName", None)


@dataclass(slots=True, kw_only=True)
class ClusterHeader(Header):
    """224."""

    cluster: str
