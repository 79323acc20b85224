"""Comparison of what was sent with what was consumed: joins and aggregations of DataFrames. Pure: no clock, topic or option.

    sent         id, topic, key, lane, place, time_ms, certain, timed, copy      a row per stored copy or record of a send
    deliveries   group, id, time_ms, success, ended                              a row per delivery
    progress     group, lane, committed                                          a row per group and queue: its offset
    dead         group, id                                                       a row per dead letter of a group

`lane`: where a copy is stored, a queue or a broker's log; `place`: its offset there, which is the order of storing; both null if
unknown. `certain`: whether it was surely sent, so that every group should have it by now. `timed`: whether `time_ms` is the time
from which it could be consumed. `copy`: id of a stored copy of a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as sql

from metaq.pipelines.audit.options import KEY, OFF, Span

SENT_DDL = (
    "id string, topic string, key string, lane string, place bigint, time_ms bigint, certain boolean, timed boolean, "
    "copy string"
)
DELIVERIES_DDL = "`group` string, id string, time_ms bigint, success boolean, ended boolean"
PROGRESS_DDL = "`group` string, lane string, committed bigint"
PAIRS_DDL = "`group` string, topic string"

DEAD_DDL = "`group` string, id string"

MISSING, DEAD, REPEATED, OUT_OF_ORDER, LATE, STRAY = KINDS = (
    "missing", "dead", "repeated", "out_of_order", "late", "stray"
)  # fmt: skip
_OF_MESSAGES = KINDS[:-1]
PERCENTILES = (0.5, 0.95, 0.99)
_EXACTLY = 10_000
"""Accuracy of percentiles: exact up to so many distinct values, else off by at most a ten-thousandth of the rows."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of the comparison."""

    span: Span
    """Audited time."""
    late_ms: int
    """Latency above which a message is late."""
    order: str
    """Messages that must be consumed in order: of one `key`, of one `queue`, or `off`."""


def once(sent: Any) -> Any:
    """Return a row per message: its first copy, and the number of its copies."""
    # A struct is compared field by field: the first copy by time, then by place.
    first = sql.min(sql.struct("time_ms", "place", "lane", "topic", "key", "timed"))
    grouped = sent.groupBy("id").agg(
        first.alias("first"), sql.count_distinct("copy").alias("copies"), sql.max("certain").alias("certain")
    )
    return grouped.select("id", "first.*", "copies", "certain")


def judged(messages: Any, span: Span) -> Any:
    """Return the messages sent within the audited time."""
    within = sql.col("time_ms") < span.until_ms
    return messages.where(within if span.since_ms is None else within & (sql.col("time_ms") >= span.since_ms))


def consumed(deliveries: Any, deadline_ms: int) -> Any:
    """Return a row per group and message: its deliveries, aggregated."""
    well = sql.col("success") & sql.col("ended")
    in_time = well & (sql.col("time_ms") <= deadline_ms)
    return deliveries.groupBy("group", "id").agg(
        sql.count("*").alias("deliveries"),
        sql.count_if(in_time).alias("successes"),
        sql.min(sql.when(in_time, sql.col("time_ms"))).alias("first_ms"),
        sql.count_if(well & ~in_time).alias("after"),
        sql.count_if(sql.col("ended") & ~sql.col("success")).alias("failures"),
        sql.count_if(~sql.col("ended")).alias("open"),
    )


def pairs_seen(messages: Any, got: Any) -> Any:
    """Return the distinct pairs of group and topic that it has consumed from."""
    return got.join(messages.select("id", "topic"), "id").select("group", "topic").distinct()


def verdicts(messages: Any, got: Any, pairs: Any, progress: Any, dead: Any, rules: Rules) -> Any:
    """Return a row per group and message that it should have consumed.

    Args: messages: from `judged`. progress, dead: may be empty.
    """
    # Pairs and progress are small: broadcast joins, so that only the two large sides are shuffled.
    joined = (
        messages.join(sql.broadcast(pairs), "topic")
        .join(got, ["group", "id"], "left")
        .join(sql.broadcast(progress), ["group", "lane"], "left")
        .fillna(0, ["deliveries", "successes", "after", "failures", "open"])
    )
    return _judged(_ordered(_marked(joined, dead), rules.order), rules)


def verdicts_by_progress(messages: Any, pairs: Any, progress: Any, dead: Any, rules: Rules) -> Any:
    """Return verdicts from a group's offsets: messages below them count as consumed, at an unknown time, but for dead letters."""
    nothing = {"deliveries": 0, "successes": 0, "after": 0, "failures": 0, "open": 0}
    joined = messages.join(sql.broadcast(pairs), "topic").join(sql.broadcast(progress), ["group", "lane"], "left")
    for name, value in nothing.items():
        joined = joined.withColumn(name, sql.lit(value).cast("bigint"))
    # A queue without an offset is one where the group has consumed nothing yet.
    joined = joined.withColumn("committed", sql.coalesce(sql.col("committed"), sql.lit(0)))
    joined = _marked(joined, dead)
    passed = (sql.col("place") < sql.col("committed")) & ~sql.col(DEAD)
    joined = joined.withColumn("successes", passed.cast("bigint")).withColumn("first_ms", sql.lit(None).cast("bigint"))
    return _judged(joined.withColumn(OUT_OF_ORDER, sql.lit(False)), rules)


def _marked(joined: Any, dead: Any) -> Any:
    """Add a column: whether the message is a dead letter of the group."""
    marks = dead.distinct().withColumn(DEAD, sql.lit(True))
    return joined.join(marks, ["group", "id"], "left").fillna(False, [DEAD])


def strays(deliveries: Any, known: Any) -> Any:
    """Return messages that were consumed in time and are not among the ids of `known`. Args: deliveries: from `consumed`."""
    return deliveries.where("successes > 0").join(known.select("id").distinct(), "id", "left_anti")


def _ordered(joined: Any, order: str) -> Any:
    """Add a column: whether a message was consumed after one that was stored later.

    Within a queue or log (`lane`) the offset orders messages; across them the store time does, where it differs.
    """
    if order == OFF:
        return joined.withColumn(OUT_OF_ORDER, sql.lit(False))
    lane = ["group", "topic", "lane"]
    if order == KEY:
        # Messages without a key are no sequence; together they would be one huge window partition in one task.
        alone = sql.when(sql.col("key") == "", sql.concat(sql.lit("i"), "id")).otherwise(
            sql.concat(sql.lit("k"), "key")
        )
        joined = joined.withColumn("_of", alone)
        lane.append("_of")
    # Backwards: the rows before one in this window were stored behind it.
    behind = Window.partitionBy(*lane).orderBy(-sql.col("place")).rowsBetween(Window.unboundedPreceding, -1)
    placed = sql.col("place").isNotNull() & sql.col("lane").isNotNull()
    sooner = sql.when(placed, sql.min(sql.when(placed, sql.col("first_ms"))).over(behind))
    if order == KEY:
        # By range and not by row: copies with one store time have no order.
        later = (
            Window.partitionBy("group", "topic", "_of")
            .orderBy(-sql.col("time_ms"))
            .rangeBetween(Window.unboundedPreceding, -1)
        )
        sooner = sql.least(sooner, sql.min("first_ms").over(later))
    found = joined.withColumn(OUT_OF_ORDER, sql.coalesce(sql.col("first_ms") > sooner, sql.lit(False)))
    return found.drop("_of")


def _judged(joined: Any, rules: Rules) -> Any:
    got = sql.col("successes") > 0
    latency = sql.when(sql.col("timed"), sql.col("first_ms") - sql.col("time_ms"))
    return (
        joined.withColumn("latency_ms", latency)
        .withColumn("got", got)
        .withColumn(DEAD, ~got & sql.col(DEAD))
        .withColumn(MISSING, ~got & ~sql.col(DEAD) & sql.col("certain"))
        .withColumn("unjudged", ~got & ~sql.col(DEAD) & ~sql.col("certain"))
        .withColumn(REPEATED, sql.col("successes") > 1)
        .withColumn(LATE, sql.coalesce(sql.col("latency_ms") > rules.late_ms, sql.lit(False)))
        .withColumn("why", _why())
    )


def _why() -> Any:
    """Return a Column: the reason why a message was not consumed, as far as it is known."""
    return (
        sql.when(sql.col("successes") > 0, sql.lit(None))
        .when(sql.col("after") > 0, sql.lit("consumed after the grace"))
        .when(sql.col("failures") > 0, sql.concat(sql.lit("failed "), sql.col("failures"), sql.lit(" times")))
        .when(sql.col("open") > 0, sql.lit("its handling has not ended"))
        .when(sql.col(DEAD), sql.lit("given up or rejected"))
        .when(sql.col("place") >= sql.col("committed"), sql.lit("not reached by the group"))
        .when(sql.col("place") < sql.col("committed"), sql.lit("passed by, no delivery is recorded"))
        .otherwise(sql.lit("no delivery is recorded"))
    )


# ------------------------------------------------------------------ aggregates


def _counts() -> list[Any]:
    flags = [sql.count_if(name).alias(name) for name in (*_OF_MESSAGES, "unjudged")]
    wanted = sql.array(*(sql.lit(one) for one in PERCENTILES))
    return [
        sql.count("*").alias("sent"),
        sql.count_if("got").alias("consumed"),
        *flags,
        sql.sum(sql.greatest(sql.col("successes") - 1, sql.lit(0))).alias("extra"),
        sql.count_if(sql.col(REPEATED) & (sql.col("copies") > 1)).alias("stored_twice"),
        sql.percentile_approx("latency_ms", wanted, _EXACTLY).alias("percentiles"),
        sql.max("latency_ms").alias("latency_max"),
    ]


def _spread(frame: Any) -> Any:
    for number, name in enumerate(("p50", "p95", "p99")):
        frame = frame.withColumn(f"latency_{name}", sql.col("percentiles")[number])
    return frame.drop("percentiles")


def totals(verdict: Any) -> Any:
    """Return a row per group (topic null) and per group and topic: percentiles of topics cannot be added up."""
    return _spread(verdict.rollup("group", "topic").agg(*_counts())).where("`group` is not null")


def windows(verdict: Any, window_ms: int) -> Any:
    """Return a row per group and window of the send time. The column `window_ms` is the window's start."""
    # pmod: the remainder of a time before 1970 would be negative.
    start = sql.col("time_ms") - sql.pmod(sql.col("time_ms"), sql.lit(window_ms))
    return _spread(verdict.withColumn("window_ms", start).groupBy("group", "window_ms").agg(*_counts()))


def keys(verdict: Any) -> Any:
    """Return a row per group, topic and key with findings."""
    counted = _spread(verdict.where("key != ''").groupBy("group", "topic", "key").agg(*_counts()))
    wrong = sum((sql.col(name) for name in _OF_MESSAGES), start=sql.lit(0))
    return counted.withColumn("findings", wrong).where("findings > 0")


def findings(verdict: Any, stray: Any) -> Any:
    """Return a row per finding: group, kind, and all that is known of the message."""
    marks = [sql.when(sql.col(name), sql.lit(name)) for name in _OF_MESSAGES]
    kinds = sql.array_compact(sql.array(*marks))
    time = {"sent_time": "time_ms", "consumed_time": "first_ms"}
    columns = [
        "group", "kind", "topic", "key", "id", "lane", "place",
        *(sql.timestamp_millis(old).alias(new) for new, old in time.items()),
        "latency_ms", "copies", "deliveries", "successes", "failures", "why",
    ]  # fmt: skip
    wrong = verdict.where(" or ".join(_OF_MESSAGES))
    judged_wrong = wrong.withColumn("kind", sql.explode(kinds)).select(*columns)
    alone = stray.select(
        "group", sql.lit(STRAY).alias("kind"), "id", sql.timestamp_millis("first_ms").alias("consumed_time"),
        "deliveries", "successes", "failures",
    )  # fmt: skip
    return judged_wrong.unionByName(alone, allowMissingColumns=True)
