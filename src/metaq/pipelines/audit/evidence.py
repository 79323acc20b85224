"""Both sides of an audit as DataFrames of the rows of `comparing`, read from topics, traces and ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import functions as sql

from metaq.clock import SYSTEM
from metaq.errors import NoRoute
from metaq.model.queue import MessageQueue
from metaq.model.topics.system import TOOLS_GROUP
from metaq.model.topics.topic import DEAD_LETTER_PREFIX
from metaq.pipelines.audit import records
from metaq.pipelines.audit.comparing import DEAD_DDL, DELIVERIES_DDL
from metaq.pipelines.audit.options import KEY, LEDGER, TOPIC, TRACE, AuditOptions, Span
from metaq.pipelines.options import access_of
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.source.fetch import GROUP

SLACK_MS = 60_000
"""Most time between an event and the storing of its trace or ledger record, clock skew included."""
_KEYS = "array_join(keys, ' ')"
_SENT = ("id", "topic", "key", "tag", "lane", "place", "time_ms", "certain", "timed", "copy")


@dataclass
class Evidence:
    """DataFrames of both sides. `release` frees those that are cached."""

    sent: Any
    """Sends, also from before and after the audited time; with the additional column `tag`."""
    known: Any
    """Ids that are known to have been sent, column `id`."""
    deliveries: Any
    """Deliveries to groups."""
    unreadable: int = 0
    """Number of records that cannot be read."""
    _cached: list[Any] = field(default_factory=list)

    def release(self) -> None:
        for frame in self._cached:
            frame.unpersist()


def gather(spark: Any, options: AuditOptions, span: Span) -> Evidence:
    """Read the sources that the options name. Raises as reading a topic does, here or when the DataFrames are used."""
    cached: list[Any] = []
    trace, unreadable = None, 0
    if TRACE in (options.sent, options.consumed):
        # Both sides may come from it: read and decode the topic once.
        trace = _trace(spark, options, span).persist()
        cached.append(trace)
        lost = trace.where(sql.col("what") == records.UNREADABLE).agg(sql.sum("place")).first()[0]
        unreadable += lost or 0
    if options.sent == TOPIC:
        sent = _stored(spark, options, span)
    elif options.sent == TRACE:
        sent = _sends(trace).where(sql.col("topic").isin(options.topics_named))
    else:
        sent, bad = _sent_ledger(spark, options, span)
        unreadable += bad
    if options.consumed == TRACE:
        deliveries = _deliveries(trace)
    elif options.consumed == LEDGER:
        deliveries, bad = _consumed_ledger(spark, options, span)
        unreadable += bad
    else:
        deliveries = spark.createDataFrame([], DELIVERIES_DDL)
    named = list(dict.fromkeys(one.group for one in options.expected))
    # The group of query tools only looks at messages: it counts only if it is named.
    chosen = sql.col("group").isin(named) if named else sql.col("group") != TOOLS_GROUP
    deliveries = deliveries.where(chosen)
    if options.match == KEY:
        sent = sent.withColumn("id", sql.col("key"))
        deliveries = deliveries.withColumn("id", sql.col("key"))
    sent = sent.persist()  # Otherwise each action would read the topics again.
    cached.append(sent)
    known = sent.select("id")
    if trace is not None:  # Sends to any topic: a traced delivery does not name its topic.
        known = known.union(_sends(trace).select("key" if options.match == KEY else "id"))
    deliveries = deliveries.where("id != ''").select("group", "id", "time_ms", "success", "ended")
    return Evidence(sent, known, deliveries, unreadable, cached)


# ------------------------------------------------------------------ topics


def _read(spark: Any, options: AuditOptions, topics: Sequence[str], columns: str, since: int | None, until: int) -> Any:
    """Return the messages of topics stored from `since` (None: the beginning) until `until`, ms since 1970."""
    reader = spark.read.format("metaq").options(
        **options.reach,
        subscribe=",".join(topics),
        columns=columns,
        # By default a queue is a partition: few queues would leave cores idle.
        minPartitions=str(spark.sparkContext.defaultParallelism),
    )
    if since is not None:
        reader = reader.option("startingTimestamp", str(max(0, since)))
    # Without it the read ends at the newest message: nothing is stored behind now.
    if until < SYSTEM.now_ms():
        # The source refuses an end that is not behind its start.
        reader = reader.option("endingTimestamp", str(max(1, until, (since or 0) + 1)))
    return reader.load()


def _from(options: AuditOptions, span: Span) -> int | None:
    return None if span.since_ms is None else span.since_ms - round(options.look_back_seconds * 1000)


def _stored(spark: Any, options: AuditOptions, span: Span) -> Any:
    columns = "topic,broker,queue_id,queue_offset,message_id,keys,tag,store_time"
    stored = _read(spark, options, options.topics_named, columns, _from(options, span), span.deadline_ms + SLACK_MS)
    # The text of a MessageQueue, as `ask` writes groups' offsets: both sides are joined by it.
    lane = sql.concat(sql.col("topic"), sql.lit("@"), sql.col("broker"), sql.lit(":"), sql.col("queue_id"))
    return stored.select(
        sql.col("message_id").alias("id"),
        "topic",
        sql.coalesce(sql.expr(_KEYS), sql.lit("")).alias("key"),
        sql.coalesce("tag", sql.lit("")).alias("tag"),
        lane.alias("lane"),
        sql.col("queue_offset").alias("place"),
        sql.unix_millis("store_time").alias("time_ms"),
        sql.lit(True).alias("certain"),
        sql.lit(True).alias("timed"),
        sql.concat(lane, sql.lit(":"), sql.col("queue_offset")).alias("copy"),
    )


def dead_letters(spark: Any, options: AuditOptions, span: Span, groups: Sequence[str]) -> Any:
    """Return the dead letters of these groups, which have some, as rows of `comparing.DEAD_DDL`."""
    found = spark.createDataFrame([], DEAD_DDL)
    if groups:
        since = None if span.since_ms is None else span.since_ms - SLACK_MS
        topics = [f"{DEAD_LETTER_PREFIX}{group}" for group in groups]
        stored = _read(spark, options, topics, "topic,message_id,keys", since, span.deadline_ms + SLACK_MS)
        named = sql.expr(_KEYS) if options.match == KEY else sql.col("message_id")
        group = sql.expr(f"substring(topic, {len(DEAD_LETTER_PREFIX) + 1})")
        found = stored.select(group.alias("group"), named.alias("id")).where("id != ''")
    return found


# ------------------------------------------------------------------ traces


def _trace(spark: Any, options: AuditOptions, span: Span) -> Any:
    since = _from(options, span)
    stored = _read(
        spark, options, [options.trace_topic], "body",
        None if since is None else since - SLACK_MS, span.deadline_ms + SLACK_MS,
    )  # fmt: skip
    return stored.mapInArrow(records.rows_of, records.DDL)


def _sends(trace: Any) -> Any:
    """Return the traced sends. A half message counts as sent if it was committed.

    A delayed message is neither certain nor timed: traces do not have the time at which it is due.
    """
    committed = trace.where((sql.col("what") == records.SETTLED) & sql.col("success")).select("id").distinct()
    pubs = trace.where(sql.col("what") == records.SENT).join(committed.withColumn("_done", sql.lit(True)), "id", "left")
    certain = sql.col("success") & ~sql.col("delayed") & (~sql.col("half") | sql.coalesce("_done", sql.lit(False)))
    return (
        pubs.withColumn("certain", certain)
        .withColumn("timed", ~sql.col("delayed") & ~sql.col("half"))
        .withColumn("key", sql.coalesce("key", sql.lit("")))
        .select(*_SENT)
    )


def _deliveries(trace: Any) -> Any:
    """Join the two records of a delivery, begun and ended, into one row; a record that is stored twice counts once."""
    began, ended = sql.col("what") == records.BEGUN, sql.col("what") == records.ENDED
    # 0 stands for a time that an old client's record lacks.
    time = sql.when(sql.col("time_ms") > 0, sql.col("time_ms"))
    grouped = (
        trace.where(began | ended)
        .groupBy("request", "id")
        .agg(
            sql.max("group").alias("group"),  # An old client's end record has no group.
            sql.max(sql.coalesce("key", sql.lit(""))).alias("key"),
            sql.min(sql.when(began, time)).alias("began_ms"),
            sql.max(sql.when(ended, time)).alias("ended_ms"),
            sql.coalesce(sql.bool_or(sql.when(ended, sql.col("success"))), sql.lit(False)).alias("success"),
            sql.bool_or(ended).alias("ended"),
        )
    )
    return grouped.where("`group` != ''").withColumn(
        "time_ms", sql.coalesce("ended_ms", "began_ms", sql.lit(0).cast("bigint"))
    )


# ------------------------------------------------------------------ ledgers


def _ledger(spark: Any, options: AuditOptions, span: Span, topic: str, since: int | None) -> Any:
    """Return a ledger's entries; a record that was sent twice counts once. `time_ms` is null if it cannot be parsed."""
    entry = "id string, key string, topic string, `group` string, time string, success boolean"
    stored = _read(spark, options, [topic], "message_id,body,store_time", since, span.deadline_ms + SLACK_MS)
    entries = stored.dropDuplicates(["message_id"]).withColumn(
        "e", sql.from_json(sql.col("body").cast("string"), entry)
    )
    time = sql.trim("e.time")
    # `try_`: in ANSI mode one malformed time would fail the whole query.
    entry_ms = sql.when(time.rlike(r"^\d+$"), time.try_cast("bigint")).otherwise(
        sql.unix_millis(sql.try_to_timestamp(time))
    )
    stored_ms = sql.unix_millis("store_time")
    return entries.select(
        sql.coalesce(sql.col("e.id"), sql.lit("")).alias("id"),
        sql.coalesce(sql.col("e.key"), sql.lit("")).alias("key"),
        sql.coalesce(sql.col("e.topic"), sql.lit("")).alias("topic"),
        sql.coalesce(sql.col("e.group"), sql.lit("")).alias("group"),
        sql.when(sql.col("e.time").isNull(), stored_ms).otherwise(entry_ms).alias("time_ms"),
        sql.coalesce(sql.col("e.success"), sql.lit(True)).alias("success"),
        sql.col("message_id").alias("copy"),
    )


def _readable(options: AuditOptions) -> Any:
    return (sql.col("key" if options.match == KEY else "id") != "") & sql.col("time_ms").isNotNull()


def _sent_ledger(spark: Any, options: AuditOptions, span: Span) -> tuple[Any, int]:
    entries = _ledger(spark, options, span, options.sent_ledger, _from(options, span))
    bad = entries.where(~_readable(options)).count()
    if options.topics_named:
        entries = entries.where(sql.col("topic").isin(options.topics_named))
    sent = (
        entries.where(_readable(options))
        .withColumn("tag", sql.lit(""))
        .withColumn("lane", sql.lit(None).cast("string"))
        .withColumn("place", sql.lit(None).cast("bigint"))
        .withColumn("certain", sql.col("success"))
        .withColumn("timed", sql.lit(True))
    )
    return sent.select(*_SENT), bad


def _consumed_ledger(spark: Any, options: AuditOptions, span: Span) -> tuple[Any, int]:
    since = None if span.since_ms is None else span.since_ms - SLACK_MS
    entries = _ledger(spark, options, span, options.consumed_ledger, since)
    named = {one.group for one in options.expected}
    if len(named) == 1:  # Entries need not name the only group.
        group = sql.when(sql.col("group") == "", sql.lit(*named)).otherwise(sql.col("group"))
        entries = entries.withColumn("group", group)
    fine = _readable(options) & (sql.col("group") != "")
    return entries.where(fine).withColumn("ended", sql.lit(True)), entries.where(~fine).count()


# ------------------------------------------------------------------ brokers


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """Answers of the brokers on the audited topics."""

    stored: int | None
    """Messages stored in the audited time; None: not asked."""
    progress: list[tuple[str, str, int]]
    """Rows of `comparing.PROGRESS_DDL`."""
    with_dead_letters: list[str] = field(default_factory=list)
    """Groups that have a topic of dead letters."""
    newest_ms: int | None = None
    """Store time of the newest message of the audited topics, by its broker's clock; None: not asked."""


def ask(options: AuditOptions, span: Span, groups: Sequence[str]) -> BrokerReport:
    """Ask the brokers for the number of stored messages (sent=trace) or for the groups' offsets (sent=topic).

    Raises as `ClusterClient`.
    """
    client = ClusterClient(options.servers, 30.0, access=access_of(options))
    try:
        stored, progress, newest = None, [], None
        if options.sent == TRACE:
            queues = client.queues(options.topics_named)
            first = client.starts(queues) if span.since_ms is None else client.at(queues, span.since_ms, GROUP)
            last = client.at(queues, span.until_ms, GROUP)
            stored = sum(max(0, last[queue] - first[queue]) for queue in queues)
            newest = _newest_ms(client, queues)
        if options.sent == TOPIC:
            queues = client.queues(options.topics_named)
            progress = [
                (group, str(queue), offset)
                for group in groups
                for queue, offset in client.progress(group, queues).items()
                if offset is not None
            ]
            newest = _newest_ms(client, queues)
        dead = [group for group in groups if _has_dead_letters(client, group)]
    finally:
        client.close()
    return BrokerReport(stored, progress, dead, newest)


def _has_dead_letters(client: ClusterClient, group: str) -> bool:
    try:
        queues = client.queues([f"{DEAD_LETTER_PREFIX}{group}"], 0.0)
    except NoRoute:  # it is made with the first
        return False
    starts = client.starts(queues)
    return any(end > starts[queue] for queue, end in client.ends(queues).items())


def _newest_ms(client: ClusterClient, queues: Sequence[MessageQueue]) -> int | None:
    last = {queue: end - 1 for queue, end in client.ends(queues).items() if end}
    return max((ms for ms in client.store_times(last).values() if ms is not None), default=None)
