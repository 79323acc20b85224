"""Rows of Arrow tables → messages: what `metaq.client.arrow.records` reads from records, the other way.

Everything is done column by column; Python looks at a single row only to say what is wrong with it. Bodies and the texts of
properties end up as two Arrow columns that the compiled extension copies into batches (`hot.Batch.add_rows`).

Needs pyarrow and numpy (`pip install 'pymetaq[arrow]'`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from metaq.client.arrow.compute import compute as pc
from metaq.errors import ConfigError, InvalidMessage, Refused
from metaq.model import MessageQueue
from metaq.model import properties as props
from metaq.model.message import DELAY_LEVEL_MAX, as_keys, check_tag, check_user_properties
from metaq.model.topics.topic import RETRY_PREFIX, check_topic
from metaq.wire import hot

TYPES: Final[dict[str, str]] = {
    "topic": "string",
    "body": "binary or string",
    "tag": "string",
    "keys": "string or array<string>",
    "properties": "map<string,string>",
    "flag": "int",
    "ordering_key": "string",
    "broker": "string",
    "queue_id": "int",
    "delay_level": "int",
}
"""The columns that a row may have, and their types in words. Only `body` must be there, and `topic` where none is named."""

Numbers = np.ndarray[Any, Any]

BAD_TAG: Final = r"^$|^\*$|[|\x01\x02]|^\s|\s$"
BAD_KEY: Final = r"^$|[\s\x01\x02]"
BAD_TEXT: Final = r"^$|[\x01\x02]"
"""Patterns that no tag, no key, and no name or value of a property may match."""
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
_PAIRS: Final = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]))


class MessageRows(Struct, frozen=True):
    """The messages of one record batch."""

    columns: hot.RowColumns
    topics: tuple[tuple[str, Numbers], ...]
    """Each topic with the numbers of its rows, in the order of the table."""
    ordering_keys: pa.Array | None = None
    brokers: pa.Array | None = None
    queue_ids: pa.Array | None = None
    delay_levels: Numbers | None = None
    """None: no row is to be delayed."""
    texts: pa.Array | None = None
    """Property text of each row; None: no row has properties."""
    flags: Numbers | None = None

    @property
    def count(self) -> int:
        return self.columns.count

    def flag(self, row: int) -> int:
        return int(self.flags[row]) if self.flags is not None else 0

    def delayed(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Divide `rows` into those that are sent at once and those that are delayed."""
        if self.delay_levels is None:
            return rows, rows[:0]
        later = self.delay_levels[rows] > 0
        return rows[~later], rows[later]

    def by_binding(self, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """`rows`, divided: those that may go anywhere, those with an ordering key alone, and those that name their queue."""
        keyed, named = (
            one.is_valid().to_numpy(zero_copy_only=False)[rows] if one is not None else np.zeros(len(rows), bool)
            for one in (self.ordering_keys, self.queue_ids)
        )
        return rows[~(keyed | named)], rows[keyed & ~named], rows[named]

    def by_queue(
        self, rows: Numbers, queues: Sequence[MessageQueue], anywhere: MessageQueue
    ) -> Iterator[tuple[MessageQueue, Numbers]]:
        """`rows` of one topic, divided by the queue that they go to; each queue's in the order of the table.

        Args:
            queues: those of the topic that can be sent to.
            anywhere: where rows go that name neither queue nor ordering key.

        Raises InvalidMessage: a row names a queue that is not among them.
        """
        if self.ordering_keys is None and self.queue_ids is None:
            yield anywhere, rows
            return
        places = {queue: index for index, queue in enumerate(queues)}
        chosen = np.full(len(rows), places[anywhere], np.int32)
        if self.ordering_keys is not None:
            found = self.ordering_keys.take(pa.array(rows)).dictionary_encode()
            # The queue that a single send with this key would take (`queue_for_key`).
            hashes = [abs(hot.java_hash(key.encode())) % len(queues) for key in found.dictionary.to_pylist()]
            valid = found.indices.is_valid().to_numpy(zero_copy_only=False)
            if hashes:
                chosen[valid] = np.array(hashes, np.int32)[found.indices.drop_null().to_numpy()]
        if self.queue_ids is not None:
            self._choose_named(rows, places, chosen)
        # Stable, so that the rows of a queue keep the table's order.
        order = np.argsort(chosen, kind="stable")
        marks = np.flatnonzero(np.diff(chosen[order])) + 1
        for some in np.split(order, marks):
            yield queues[int(chosen[some[0]])], rows[some]

    def _choose_named(self, rows: Numbers, places: dict[MessageQueue, int], chosen: Numbers) -> None:
        assert self.queue_ids is not None
        ids = self.queue_ids.take(pa.array(rows))
        topic = next(iter(places)).topic
        brokers = sorted({queue.broker for queue in places})
        names = self.brokers.take(pa.array(rows)).to_pylist() if self.brokers is not None else None
        for index, queue_id in enumerate(ids.to_pylist()):
            if queue_id is None:
                continue
            broker = names[index] if names is not None else None
            if broker is None and len(brokers) > 1:
                raise InvalidMessage(
                    f"row {int(rows[index])}: queue_id {queue_id} of topic {topic} is there at {len(brokers)} brokers "
                    f"({', '.join(brokers[:5])}): say which in the column broker"
                )
            queue = MessageQueue(topic, broker or brokers[0], queue_id)
            if queue not in places:
                raise InvalidMessage(f"row {int(rows[index])}: the queue {queue} cannot be sent to")
            chosen[index] = places[queue]


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Raises ConfigError: a column that no message has, one of another type, or one that is missing."""
    for field in schema:
        if field.name not in TYPES:
            raise ConfigError(
                f"a message has no column {field.name!r}; those that it may have are {', '.join(TYPES)}. Leave it out, or "
                "put it into the map `properties`"
            )
        if not _fits(field.name, field.type):
            raise ConfigError(f"the column {field.name} is {TYPES[field.name]}, not {field.type}")
    if len(set(schema.names)) != len(schema.names):
        raise ConfigError(f"a column is named twice in {', '.join(schema.names)}")
    if "body" not in schema.names:
        raise ConfigError("there is no column body: what is a message's content?")
    if topic is None and "topic" not in schema.names:
        raise ConfigError("there is no column topic, and no topic is named")


def rows_of(
    batch: pa.RecordBatch,
    topic: str | None = None,
    namespace: str = "",
    *,
    empty: bool = False,
    only_group: str | None = None,
) -> MessageRows:
    """Return the messages of a record batch.

    Args:
        topic: of rows that name none.
        namespace: of the producer; it is also written to a property.
        empty: bodies may be empty.
        only_group: the one consumer group that gets them, by its retry topic; a property has the topic that its members
            see.

    Raises: ConfigError: as `check_columns`. InvalidMessage: a row that no message can be made of; the text says which.
    """
    check_columns(batch.schema, topic)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    count = batch.num_rows
    delays = _delays(columns.get("delay_level"))
    texts = _texts(columns)
    # Java's producers with a namespace set this property (INSTANCE_ID) on every message, too.
    if namespace:
        said = f"{props.INSTANCE_ID}{props.NAME_END}{namespace}{props.PAIR_END}"
        texts = (
            pc.binary_join_element_wise(said, texts, "") if texts is not None else pa.array([said]).take(_zeros(count))
        )
    topics = tuple(_topics(columns.get("topic"), topic, count))
    if only_group is not None:
        texts = _with_topics(texts, topics, count)
        topics = ((f"{RETRY_PREFIX}{only_group}", np.arange(count, dtype=np.int32)),)
    flags = _flags(columns.get("flag"))
    return MessageRows(
        hot.RowColumns(count, spans(_bodies(columns["body"], empty=empty)), spans(texts) if texts is not None else None, flags),
        topics,
        _some(columns.get("ordering_key"), pa.string()),
        _some(columns.get("broker"), pa.string()),
        _some(columns.get("queue_id"), pa.int64()),
        delays,
        texts,
        flags,
    )  # fmt: skip


def bodies_of(batch: pa.RecordBatch) -> pa.Array:
    """The column of bodies, as bytes."""
    return _bodies(batch.column(batch.schema.names.index("body")))


def _with_topics(texts: pa.Array | None, topics: Sequence[tuple[str, Numbers]], count: int) -> pa.Array:
    """The property texts, and in front of each the topic of its row as that which a retried message comes from."""
    places = np.zeros(count, np.int32)
    for number, (_, rows) in enumerate(topics):
        places[rows] = number
    said = [f"{props.RETRY_TOPIC}{props.NAME_END}{topic}{props.PAIR_END}" for topic, _ in topics]
    own = pa.array(said, pa.string()).take(pa.array(places))
    return own if texts is None else pc.binary_join_element_wise(own, texts, "")


def _zeros(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int32))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _fits(name: str, kind: pa.DataType) -> bool:
    text = _is_text(kind)
    if name == "body":
        return text or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))
    if name == "keys":
        listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        return text or bool(pa.types.is_null(kind) or (listed and _fits("tag", kind.value_type)))
    if name == "properties":
        pairs = pa.types.is_map(kind) and _fits("tag", kind.key_type) and _fits("tag", kind.item_type)
        return bool(pa.types.is_null(kind) or pairs)
    if TYPES[name] == "int":
        return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))
    return text or bool(pa.types.is_null(kind))


def _some(column: pa.Array | None, kind: pa.DataType) -> pa.Array | None:
    """The column as `kind`; None if there is none, or nothing in it."""
    if column is None or column.null_count == len(column):
        return None
    return column.cast(kind)


def spans(column: pa.Array) -> tuple[Any, Any]:
    """Offsets and data of a binary or string column, as `hot.RowColumns` takes them."""
    _, offsets, data = column.buffers()
    # A slice has its parent's buffers, and begins at its own offset.
    first = 4 * column.offset
    view = memoryview(offsets)[first : first + 4 * (len(column) + 1)] if offsets is not None else bytes(4)
    return view, memoryview(data) if data is not None else b""


def _bodies(column: pa.Array, *, empty: bool = False) -> pa.Array:
    bodies = column.cast(pa.binary())
    if bodies.null_count:
        raise InvalidMessage(f"row {_first(bodies.is_null())}: body is null")
    sizes = pc.binary_length(bodies)
    if not empty and len(bodies) and pc.min(sizes).as_py() == 0:
        raise InvalidMessage(f"row {_first(pc.equal(sizes, 0))}: body is empty")
    return bodies


def _flags(column: pa.Array | None) -> Numbers | None:
    flags = _some(column, pa.int64())
    if flags is None:
        return None
    whole = pc.fill_null(flags, 0)
    if pc.min(whole).as_py() < -(1 << 31) or pc.max(whole).as_py() >= 1 << 31:
        row = _first(pc.or_(pc.less(whole, -(1 << 31)), pc.greater_equal(whole, 1 << 31)))
        raise InvalidMessage(f"row {row}: flag={whole[row]}: need a signed number of 32 bits")
    numbers: Numbers = whole.to_numpy().astype(np.int32)
    return numbers


def _delays(column: pa.Array | None) -> Numbers | None:
    levels = _some(column, pa.int64())
    if levels is None:
        return None
    found: Numbers = pc.fill_null(levels, 0).to_numpy()
    wrong = (found < 0) | (found > DELAY_LEVEL_MAX)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidMessage(f"row {row}: delay_level={found[row]}: need a whole number 0..{DELAY_LEVEL_MAX}")
    # All 0: no row has to go apart.
    return found if found.any() else None


def _topics(column: pa.Array | None, topic: str | None, count: int) -> Iterator[tuple[str, Numbers]]:
    everything = np.arange(count, dtype=np.int32)
    named = _some(column, pa.string())
    if named is None:
        if topic is None and count:
            raise InvalidMessage("row 0: topic is null, and none is named beside")
        if count:
            yield _checked(topic or "", 0), everything
        return
    if named.null_count and topic is None:
        raise InvalidMessage(f"row {_first(named.is_null())}: topic is null, and none is named beside")
    encoded = pc.fill_null(named, topic or "").dictionary_encode()
    indices = encoded.indices.to_numpy()
    for number, name in enumerate(encoded.dictionary.to_pylist()):
        rows = everything[indices == number]
        yield _checked(name, int(rows[0])), rows


def _checked(topic: str, row: int) -> str:
    try:
        return check_topic(topic)
    except Refused as fault:
        raise InvalidMessage(f"row {row}: {fault}") from None


def _texts(columns: dict[str, pa.Array]) -> pa.Array | None:
    """The property text of each row, a string column; None: none has any."""
    parts = []
    properties = columns.get("properties")
    if properties is not None and properties.null_count < len(properties):
        parts.append(_user_text(properties.cast(_PROPERTIES)))
    keys = columns.get("keys")
    if keys is not None and keys.null_count < len(keys):
        parts.append(_named(props.KEYS, _key_text(keys)))
    tags = _some(columns.get("tag"), pa.string())
    if tags is not None:
        _check(tags, BAD_TAG, lambda row: check_tag(tags[row].as_py()))
        parts.append(_named(props.TAGS, tags))
    delays = _some(columns.get("delay_level"), pa.int64())
    if delays is not None:
        parts.append(_named(props.DELAY, pc.if_else(pc.equal(delays, 0), None, delays).cast(pa.string())))
    if not parts:
        return None
    # Each with the separator behind it: joining what is not null would drop rows that are null in all of them (pyarrow 26).
    ended = [pc.fill_null(pc.binary_join_element_wise(part, props.PAIR_END, ""), "") for part in parts]
    return ended[0] if len(ended) == 1 else pc.binary_join_element_wise(*ended, "")


def _named(name: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(name, values, props.NAME_END)


def _key_text(keys: pa.Array) -> pa.Array:
    if _is_text(keys.type):
        texts = keys.cast(pa.string())
        _check(texts, BAD_KEY, lambda row: as_keys(texts[row].as_py()))
        return texts
    lists = keys.cast(pa.list_(pa.string()))
    values = lists.flatten()
    if values.null_count or _any(values, BAD_KEY):
        # One by one only now, to name the row in the error.
        for row, some in enumerate(lists.to_pylist()):
            _at(row, lambda some=some: as_keys(some or ()))
    joined = pc.binary_join(lists, " ")
    return pc.if_else(pc.equal(joined, ""), None, joined)


def _user_text(maps: pa.Array) -> pa.Array:
    lists = maps.cast(_PAIRS)  # Unlike a map's own children, what a list flattens to heeds slices and nulls.
    names, values = lists.flatten().flatten()
    wrong = values.null_count or _any(values, BAD_TEXT) or _any(names, BAD_TEXT)
    if wrong or set(pc.unique(names).to_pylist()) & props.RESERVED:
        # One by one only now, to name the row in the error.
        for row, pairs in enumerate(maps.to_pylist()):
            _at(row, lambda pairs=pairs: check_user_properties(dict(pairs or ())))
    pairs = pc.binary_join_element_wise(names, values, props.NAME_END)
    # New offsets, counted from the flattened values: those of a slice would not begin at 0.
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int32)))
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs), props.PAIR_END)
    return pc.if_else(pc.equal(joined, ""), None, joined)


def _any(values: pa.Array, pattern: str) -> bool:
    if len(values) > 64:  # Many values are often few different ones, and looking at each costs 100 ns.
        values = pc.unique(values)
    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def _check(values: pa.Array, pattern: str, check: Any) -> None:
    """Raises InvalidMessage: the first row for which `check` raises; it is asked only if a value matches."""
    if _any(values, pattern):
        for row in pc.indices_nonzero(pc.fill_null(pc.match_substring_regex(values, pattern), False)).to_pylist():
            _at(row, lambda row=row: check(row))


def _at(row: int, check: Any) -> None:
    try:
        check()
    except (InvalidMessage, TypeError) as fault:
        raise InvalidMessage(f"row {row}: {fault}") from None


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, value=True).as_py())
