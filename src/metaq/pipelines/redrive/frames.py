"""Dead letters as DataFrames: the columns for SQL, the chosen messages, and the rows that are sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, NullType, StringType, StructType

from metaq.client.arrow import records
from metaq.client.arrow.rows import BAD_KEY, BAD_TAG, BAD_TEXT
from metaq.errors import ConfigError
from metaq.model import offsets
from metaq.model import properties as props
from metaq.model.message import BODY_AS_STORED
from metaq.model.offsets import Positions
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX
from metaq.option_table import nearest
from metaq.pipelines.redrive.offset_ranges import Ranges, pieces
from metaq.pipelines.redrive.options import UTF8, RedriveOptions, split_expressions
from metaq.spark import schema
from metaq.spark.cluster.client import MessageLimits
from metaq.spark.decode import CORRUPT, json, text

ID, FROM, TIMES = "REDRIVE_ID", "REDRIVEN_FROM", "REDRIVES"
"""Properties of sent messages: the offset id of the dead letter, its place (topic/broker/queue/offset), and the number of times
the message was redriven, this time included. An id names one dead letter, whichever folder it is redriven from."""

COLUMNS: Final = (
    "topic", "broker", "queue_id", "queue_offset", "message_id", "tag", "keys", "body", "born_time", "store_time", "properties",
    "flag", "sys_flag", "reconsume_times", "offset_id", "log_offset",
)  # fmt: skip
PLACE: Final = ("broker", "queue_id", "queue_offset")
OLDEST_FIRST: Final = ("store_time", *PLACE)

NAMED: Final = ("body", "tag", "keys", "properties", "topic", "flag", "ordering_key")
"""Columns that `select` may set, beside `properties.NAME`."""
_ONE: Final = "properties."

CHOSEN, LEFT, CORRUPTED, HOMELESS = "chosen", "left", "corrupt", "homeless"
EMPTY, LARGE, ILLEGAL = "empty", "large", "illegal"
"""Fates of a message: to be sent; not chosen by `where`; undecodable; without a topic; without a body; larger than its broker
accepts; with an illegal tag, keys or properties."""

_MARGIN_BYTES: Final = 1024
"""Bytes of properties that are reserved for what client and broker add."""
# Length of the array that one `sequence` makes in an executor's memory, at most.
_EXPLODED_MAX: Final = 10_000


class Frames:
    """Makes the DataFrames of one run. Its SQL is analysed on construction."""

    def __init__(self, spark: Any, options: RedriveOptions, limits: MessageLimits) -> None:
        """Args: limits: of messages in a transaction. Raises ConfigError: the SQL is wrong."""
        self._spark, self._options, self._limits = spark, options, limits
        self._decoder = _decoder(options)
        empty = self.seen(spark.createDataFrame([], schema.ddl(records.schema_of(COLUMNS))))
        self._where = sql.lit(True)
        if options.where:
            self._where = _expression(options.where, "where")
            _analysed("where", lambda: empty.filter(self._where).schema)
        self._new = self._sent_as(empty, split_expressions(options.select, "select"))
        self.ordered = "ordering_key" in _analysed("select", lambda: empty.select(self._new)).schema[0].dataType.names

    # -------------------------------------------------------------- reading
    def read(self, start: Positions, end: Positions, partitions: int = 1) -> Any:
        """Return the messages of the topic between two positions."""
        return (
            self._spark.read.format("metaq")
            .options(
                **self._options.reach,
                subscribe=self._options.source,
                startingOffsets=offsets.to_text(start),
                endingOffsets=offsets.to_text(end),
                columns=",".join(COLUMNS),
                minPartitions=str(partitions),
                retrySeconds=str(self._options.retry_seconds),
            )
            .load()
        )

    def seen(self, messages: Any) -> Any:
        """Add the columns that SQL sees beside the message's own."""
        retry, real = (sql.col("properties").getItem(name) for name in (props.RETRY_TOPIC, props.REAL_TOPIC))
        frame = messages.withColumns(
            {
                "origin": sql.when(_of_users(retry), retry).when(_of_users(real), real),
                "origin_message_id": sql.col("properties").getItem(props.ORIGIN_MESSAGE_ID),
            }
        )
        # As it is stored, it would be sent as another body.
        unread = sql.col("sys_flag").bitwiseAND(BODY_AS_STORED) != 0
        if self._decoder is None:
            return frame.withColumn("_broken", unread)
        whole = frame.withColumn("_decoded", self._decoder)
        decoded = sql.col("_decoded")
        if self._options.decode == UTF8:
            found = whole.withColumn("text", decoded.getField("text"))
        else:
            names = [name for name in whole.schema["_decoded"].dataType.names if name != CORRUPT]
            found = whole.withColumn("value", sql.struct(*(decoded.getField(name).alias(name) for name in names)))
        return found.withColumn("_broken", unread | decoded.getField(CORRUPT).isNotNull()).drop("_decoded")

    def without(self, messages: Any, sent: Ranges) -> Any:
        """Return the messages that are not in the ranges."""
        return messages.join(self._places(sent), list(PLACE), "left_anti") if sent else messages

    def only(self, messages: Any, wanted: Ranges) -> Any:
        """Return the messages that are in the ranges, in unchanged order."""
        # Broadcast: a shuffle would lose the order.
        return messages.join(sql.broadcast(self._places(wanted)), list(PLACE), "left_semi")

    def without_ids(self, messages: Any, targets: Iterable[str], since_ms: int) -> Any:
        """Return the messages without a copy in one of the topics that was stored at `since_ms` or later."""
        there = (
            self._spark.read.format("metaq")
            .options(
                **self._options.reach, subscribe=",".join(sorted(targets)), startingTimestamp=str(since_ms),
                columns="properties", retrySeconds=str(self._options.retry_seconds),
            )
            .load()
        )  # fmt: skip
        ids = (
            there.select(sql.col("properties").getItem(ID).alias("offset_id")).where("offset_id is not null").distinct()
        )
        return messages.join(ids, ["offset_id"], "left_anti")

    def _places(self, ranges: Ranges) -> Any:
        """Return a row for each offset of the ranges."""
        rows = [
            (broker, queue_id, start, end - 1)
            for (broker, queue_id), some in sorted(ranges.items())
            for start, end in pieces(some, _EXPLODED_MAX)
        ]
        kinds = (("broker", pa.string()), ("queue_id", pa.int32()), ("first", pa.int64()), ("last", pa.int64()))
        table = {name: pa.array([row[at] for row in rows], kind) for at, (name, kind) in enumerate(kinds)}
        # From Arrow, whose types are given: Spark infers none from an empty list.
        return self._spark.createDataFrame(pa.table(table)).selectExpr(
            "broker", "queue_id", "explode(sequence(first, last)) as queue_offset"
        )

    # -------------------------------------------------------------- judging and sending
    def judged(self, messages: Any) -> Any:
        """Add the columns `fate` and, for messages chosen by `where`, `new`: the message that would be sent."""
        frame = self.seen(messages)
        taken = sql.when(sql.col("_broken"), CORRUPTED).when(self._where, CHOSEN).otherwise(LEFT)
        frame = frame.withColumn("fate", taken)
        # Only for chosen messages: an expression may fail for others, and would fail the query.
        frame = frame.withColumn("new", sql.when(sql.col("fate") == CHOSEN, self._new))
        new, body = sql.col("new"), sql.col("new.body")
        text_bytes = sum(
            (sql.coalesce(sql.octet_length(column), sql.lit(0)) for column in _texts(new, ordered=self.ordered)),
            4 * sql.coalesce(sql.size("new.properties"), sql.lit(0)),
        )
        body_bytes, limits = sql.octet_length(body), self._limits
        large = (text_bytes > props.PROPERTIES_BYTES_MAX - _MARGIN_BYTES) | (body_bytes > limits.body_bytes)
        if limits.whole_bytes is not None:
            large |= body_bytes + text_bytes > limits.whole_bytes - _MARGIN_BYTES
        # A dead letter with an empty body is sent with it, if the brokers accept such messages.
        empty = body_bytes == 0
        if limits.empty:
            empty &= sql.octet_length("body") > 0
        fate = (
            sql.when(sql.col("fate") != CHOSEN, sql.col("fate"))
            .when(new.getField("topic").isNull(), HOMELESS)
            .when(body.isNull() | empty, EMPTY)
            .when(large, LARGE)
            .when(_illegal(new), ILLEGAL)
            .otherwise(CHOSEN)
        )
        return frame.withColumn("fate", fate)

    def sent(self, messages: Any) -> Any:
        """Return rows for the sink, of messages that are to be sent."""
        whole = self.seen(messages).select(self._new, *OLDEST_FIRST)
        # All rows of a key in one task, the oldest first: tasks write in no order among each other.
        if self.ordered:
            whole = whole.repartition(sql.col("new.ordering_key")).sortWithinPartitions(*OLDEST_FIRST)
        return whole.select("new.*")

    def _sent_as(self, empty: Any, expressions: Sequence[str]) -> Any:
        """Return the struct `new`. Raises ConfigError: an expression is wrong."""
        chosen: dict[str, Any] = {}
        single: dict[str, Any] = {}
        for text_ in expressions:
            column = _expression(text_, f"select: {text_}")
            # Analysed inside a struct, where Spark rejects generators such as explode, and aggregates.
            kind = _analysed(f"select: {text_}", lambda column=column: empty.select("*", sql.struct(column)).schema[-1])
            (field,) = kind.dataType.fields
            name = field.name
            if name.startswith(_ONE) and name != _ONE:
                single[name.removeprefix(_ONE)] = _as(field.dataType, column, name)
            elif name in NAMED:
                if name in chosen:
                    raise ConfigError(f"select: {name} is named twice")
                chosen[name] = _as(field.dataType, column, name)
            else:
                raise ConfigError(
                    f"select: {text_}: say what it is, `... as NAME`, one of {', '.join(NAMED)} or `{_ONE}NAME` in "
                    f"backticks, and not {name}{nearest(name, NAMED)}"
                )
        if "topic" in chosen and self._options.to:
            raise ConfigError("the topic is chosen twice, by to and by select")
        if reserved := sorted(props.RESERVED & single.keys()):
            raise ConfigError(f"select: the property name {reserved[0]} is reserved for the system")
        values = {
            "body": sql.col("body"),
            "tag": sql.col("tag"),
            "keys": sql.col("keys"),
            "topic": sql.lit(self._options.to) if self._options.to else sql.col("origin"),
            "flag": sql.col("flag"),
            **chosen,
        }
        values["tag"] = sql.nullif(values["tag"], sql.lit(""))
        values["properties"] = _properties(values.pop("properties", sql.col("properties")), single)
        return sql.struct(*(column.alias(name) for name, column in values.items())).alias("new")


def _decoder(options: RedriveOptions) -> Any:
    """Return a function for the struct of a decoded body, None if bodies are not decoded. Raises ConfigError: a wrong schema."""
    said = options.schema or ""
    match options.decode:
        case "utf8":
            return text()
        case "json":
            return json(said)
        case "avro":
            from metaq.spark.decode import avro  # Lazily: needs the extra `decode`.

            try:
                with open(said, encoding="utf-8") as file:  # noqa: PTH123
                    return avro(file.read())
            except (OSError, UnicodeDecodeError) as fault:
                raise ConfigError(f"the Avro schema {said} cannot be read: {fault}") from None
        case "protobuf":
            from metaq.spark.decode import protobuf  # Lazily: needs the extra `decode`.

            return protobuf(said, options.message or "")
    return None


def _of_users(topic: Any) -> Any:
    return topic.isNotNull() & ~topic.startswith(RETRY_PREFIX) & ~topic.startswith(DEAD_LETTER_PREFIX)


def _expression(text_: str, what: str) -> Any:
    return _analysed(what, lambda: sql.expr(text_))


def _analysed(what: str, look: Any) -> Any:
    """Call `look`. Raises ConfigError: Spark rejects the SQL; the text has Spark's reason."""
    try:
        return look()
    except (AnalysisException, ParseException) as fault:
        raise ConfigError(f"{what}: {one_line(fault)}") from None


def one_line(fault: Exception) -> str:
    """Return a Spark error in one line, without the plan and the SQL text that follow."""
    lines: list[str] = []
    for line in str(fault).strip().splitlines():
        if not line.strip() or line.startswith(("==", "'", "+-", ";")):
            break
        lines.append(line.strip())
    return " ".join(lines).split(" SQLSTATE:", 1)[0].rstrip(";") or type(fault).__name__


def _as(kind: DataType, value: Any, name: str) -> Any:
    """Cast a value to the type of a message's column. Raises ConfigError: it cannot be cast."""
    # `null as tag`: a null has no type of its own.
    if isinstance(kind, NullType):
        kinds = {"keys": "array<string>", "properties": "map<string,string>", "flag": "int"}
        return value.cast(kinds.get(name, "string"))
    listed = isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)
    mapped = (
        isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    )
    if (name == "keys" and listed) or (name == "properties" and mapped):
        return value
    if name == "keys" and isinstance(kind, StringType):
        return sql.array_compact(sql.array(value))
    if name == "body" and isinstance(kind, BinaryType):
        return value
    if name == "flag" and kind.simpleString() in {"int", "smallint", "tinyint", "bigint"}:
        return value.cast("int")
    whole = isinstance(kind, ArrayType | MapType | StructType | BinaryType) or kind.simpleString() == "variant"
    if whole or name in {"keys", "properties", "flag"}:
        wanted = {
            "keys": "a text or array<string>", "properties": "map<string,string>", "flag": "a whole number",
            "body": "binary or a text (to_json makes one)",
        }.get(name, "a text")  # fmt: skip
        raise ConfigError(f"select: {name} is {kind.simpleString()}, and must be {wanted}")
    return value.cast("string")


def _properties(given: Any, single: dict[str, Any]) -> Any:
    """Return the properties of the sent message: the user's, those that `select` sets, and the marks."""
    marks = {
        ID: sql.col("offset_id"),
        FROM: sql.concat_ws("/", "topic", *PLACE),
        # try_cast: an application may have written anything there, and ANSI's cast would fail the query.
        TIMES: (sql.coalesce(sql.col("properties").getItem(TIMES).try_cast("int"), sql.lit(0)) + 1).cast("string"),
    }
    dropped = [*sorted(props.RESERVED), *single, *marks]
    empty = sql.create_map().cast("map<string,string>")

    def kept(name: Any, value: Any) -> Any:
        return ~name.isin(dropped) & value.isNotNull() & (value != "")

    added = sql.create_map(*(part for name, value in {**single, **marks}.items() for part in (sql.lit(name), value)))
    own = sql.map_filter(sql.coalesce(given, empty), kept)
    # No name is in both, on which map_concat fails: `kept` drops those that are added.
    return sql.map_concat(own, sql.map_filter(added, lambda _, value: value.isNotNull() & (value != "")))


def _illegal(new: Any) -> Any:
    """Return a Boolean Column: the sink would refuse the message. Other producers can send such messages."""
    properties = new.getField("properties")

    def any_bad(texts: Any, pattern: str) -> Any:
        return sql.coalesce(sql.exists(texts, lambda text_: text_.isNull() | text_.rlike(pattern)), sql.lit(False))

    return (
        sql.coalesce(new.getField("tag").rlike(BAD_TAG), sql.lit(False))
        | any_bad(new.getField("keys"), BAD_KEY)
        | any_bad(sql.map_keys(properties), BAD_TEXT)
        | any_bad(sql.map_values(properties), BAD_TEXT)
    )


def _texts(new: Any, *, ordered: bool) -> list[Any]:
    """Return the texts that a message's properties are made of, all checked before anything is sent."""
    found = [
        new.getField("tag"),
        sql.concat_ws(" ", new.getField("keys")),
        sql.concat_ws("", sql.map_keys(new.getField("properties"))),
        sql.concat_ws("", sql.map_values(new.getField("properties"))),
        new.getField("topic"),
    ]
    return [*found, new.getField("ordering_key")] if ordered else found
