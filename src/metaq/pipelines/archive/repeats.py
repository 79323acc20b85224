"""`metaq.spark.without_repeats`: deduplication of repeated sends.

An acknowledgement is lost, the producer sends again, and the broker has the message twice: with one unique id, at two
offsets. Exactly-once reading of offsets does not remove it; only the id shows the repeat.

**A stream counts the time since it read a message, not since it was stored.** Spark drops rows whose event time is before
the watermark, and the watermark follows the newest row of all queues. With the store time as event time, a queue that is
read late, because its broker was away or its backlog was longer, would silently lose its messages.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from pyspark.sql import functions as sql

from metaq.errors import ConfigError
from metaq.pipelines.archive.dedupe import DEDUPE

WITHIN = "10 minutes"
"""Default window: far longer than any producer retries a send."""

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_PLACE = ("broker", "queue_id", "queue_offset")
_OF, _READ, _BEFORE = "_metaq_repeat_of", "_metaq_read_at", "_metaq_stored_before"
_WATERMARK = "spark.watermarkDelayMs"
"""Key in the metadata of a column with a watermark."""


def without_repeats(frame: Any, dedupe: str = "unique_id", within: str | None = WITHIN) -> Any:
    """Return the messages of `frame` without repeats. Nothing else is left out.

        orders = metaq.spark.without_repeats(spark.readStream.format("metaq")....load())

    In a batch read a message is a repeat if a copy was stored at most `within` before it. In a stream it is one if the query
    has read a copy within the last `within`, however long ago that was stored: the query's state is an id for each message
    read in that time. Copies in different topics are different messages (if the frame has the column `topic`).

    Args:
        frame: rows of `format("metaq")`: message_id or keys; for a batch read store_time too.
        dedupe: `unique_id`: the producer's id of the message. `key`: the keys that the application gave it, all of them
            together; messages without a key are never repeats. `off`: nothing is left out.
        within: a number of seconds, minutes, hours or days. None: in a batch read however far apart copies are; in a
            stream by the watermark that the frame has. Later windows of store time need that, because Spark refuses a
            watermark behind a stateful step; Spark then drops rows that are later than the watermark.

    Raises: ConfigError: an unknown `dedupe` or `within`; a column is missing; a stream has a watermark already, or has none.
    """
    if dedupe not in DEDUPE:
        raise ConfigError(f"dedupe={dedupe!r}: need {', '.join(DEDUPE[:-1])} or {DEDUPE[-1]}")
    seconds = _seconds(within) if within is not None else None
    if dedupe == "off":
        return frame
    _need(frame, "message_id" if dedupe == "unique_id" else "keys", dedupe)
    marked = frame.withColumn(_OF, sql.col("message_id") if dedupe == "unique_id" else _key_of(frame))
    by = [_OF, *(name for name in ["topic"] if name in frame.columns)]
    if frame.isStreaming:
        kept = _streamed(frame, marked, by, within)
    elif seconds is None:
        kept = marked.dropDuplicates(by)
    else:
        kept = _stored_apart(frame, marked, by, seconds)
    return kept.select(*frame.columns)


def _streamed(frame: Any, marked: Any, by: list[str], within: str | None) -> Any:
    watermarks = [field.name for field in frame.schema.fields if _WATERMARK in field.metadata]
    if within is None:
        if not watermarks:
            raise ConfigError("without_repeats: within=None goes by the watermark of the stream, and it has none")
        return marked.dropDuplicatesWithinWatermark(by)
    if watermarks:
        raise ConfigError(
            f"without_repeats: the stream has a watermark on {watermarks[0]}, and Spark heeds one only. Give within=None to go"
            " by that one: rows that are later than it are dropped then"
        )
    # Spark's time of the batch: one for all rows, and the same when the batch is replayed.
    read = marked.withColumn(_READ, sql.current_timestamp())
    return read.withWatermark(_READ, within).dropDuplicatesWithinWatermark(by)


def _stored_apart(frame: Any, marked: Any, by: list[str], seconds: int) -> Any:
    from pyspark.sql import Window

    _need(frame, "store_time", "within in a batch read")
    # Copies with one store time are ordered by their place, so that the same one stays each time.
    order = ["store_time", *(name for name in _PLACE if name in frame.columns)]
    before = sql.lag("store_time").over(Window.partitionBy(*by).orderBy(*order))
    gap = sql.unix_micros("store_time") - sql.unix_micros(_BEFORE)
    return marked.withColumn(_BEFORE, before).where(sql.col(_BEFORE).isNull() | (gap > seconds * 1_000_000))


def _key_of(frame: Any) -> Any:
    """Return a Column with a message's keys as one text; a text of no other message if it has none."""
    place = [name for name in _PLACE if name in frame.columns]
    alone = sql.concat_ws("/", *place) if len(place) == len(_PLACE) else sql.uuid()
    keys = sql.concat_ws(" ", "keys")  # No key has a blank, the separator of keys on the wire.
    return sql.when(keys != "", sql.concat(sql.lit("k"), keys)).otherwise(sql.concat(sql.lit("p"), alone))


def _need(frame: Any, column: str, what: str) -> None:
    if column not in frame.columns:
        raise ConfigError(
            f"without_repeats: {what} needs the column {column}, and the frame has {', '.join(frame.columns)}"
        )


@functools.cache
def _seconds(within: str) -> int:
    found = re.fullmatch(r"\s*(\d+)\s*(second|minute|hour|day)s?\s*", within)
    if found is None or not int(found[1]):
        raise ConfigError(f"within={within!r}: need a number of seconds, minutes, hours or days, as in {WITHIN!r}")
    return int(found[1]) * _UNITS[found[2]]
