"""The pipeline `redrive`: sends dead letters, chosen by SQL, back to their topics, each once.

    read the queues' ends ─► count the chosen messages ─► the oldest of them, some thousands at a time:
        plan, saved in the folder ─► one numbered transaction of the sink ─► its result, saved in the folder

Each once, because a plan names its messages by queue and offset, whatever the SQL would choose the next time, and because the
transaction's coordinator remembers its number: `fence` asks it about a plan without a saved result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
from pyspark.sql import functions as sql

from metaq import amounts
from metaq.clock import SYSTEM
from metaq.errors import ConfigError, MetaqError, NotSupported
from metaq.model.offsets import Positions, Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.driver import root_text
from metaq.pipelines.job import RunStopped, check_session, stoppable
from metaq.pipelines.options import access_of
from metaq.pipelines.redrive import frames
from metaq.pipelines.redrive.fence import Fence
from metaq.pipelines.redrive.frames import CHOSEN, PLACE, Frames
from metaq.pipelines.redrive.ledger import Ledger, PlannedStep, Witness
from metaq.pipelines.redrive.offset_ranges import Place, Ranges, count, first_gap, ranges_of, within
from metaq.pipelines.redrive.options import FAIL, RedriveOptions
from metaq.pipelines.redrive.report import Report, SampleMessage, refusal
from metaq.pipelines.redrive.topics import check_source, check_targets
from metaq.pipelines.run import LOOK_SECONDS, Outcome, Run
from metaq.spark.cluster.client import transaction_limits
from metaq.spark.cluster.courier import Courier
from metaq.spark.source.fetch import read_slice
from metaq.spark.source.plan import Planner
from metaq.spark.source.settings import EARLIEST, SourceOptions

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

WINDOW: Final = 1_000_000
"""Messages whose offsets are in the driver's memory at a time: some 40 MB."""
SAMPLES: Final = 5
SAMPLE_CHARS: Final = 120
SKEW_MS: Final = 3_600_000
"""Tolerated skew between brokers' clocks, ms: a copy may seem stored that much before its dead letter."""


_OF_A_VALUE: Final = (
    ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException, NumberFormatException, SparkRuntimeException,
)  # fmt: skip
"""Spark's exceptions for an expression that fails for a row."""


def start(spark: Any, options: RedriveOptions, run: Run) -> Outcome:
    """Run the pipeline `redrive`, see `catalogue.Pipeline.start`.

    Raises: ConfigError: an option or its SQL is wrong, a topic to send to does not exist, the folder contradicts the brokers,
        or the SQL fails for a message. NoRoute: the topic to read does not exist. NotSupported: the brokers are a RocketMQ's.
        What Spark raises.
    """
    check_session(spark, run.status.pipeline)
    check_source(options)
    return _Redrive(spark, options, run).go()


@dataclass
class _Redrive:
    """One run."""

    spark: Any
    options: RedriveOptions
    run: Run
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        self.report = Report(
            options.source,
            dry_run=options.dry_run,
            cap=options.cap,
            only_group=options.group if options.only_group else None,
        )
        self.looked_at: tuple[list[str], int] | None = None
        """Topics that were searched for copies, and from which store time (ms since 1970)."""
        self.ledger = Ledger(self.run.place)
        self.ledger.check_topic(options.source)
        self.courier = Courier(options.servers, options.retry_seconds, access_of(options))
        self.fence = Fence(self.courier, options.retry_seconds)
        pairs = {
            **options.reach, "subscribe": options.source, "retrySeconds": str(options.retry_seconds),
            "startingTimestamp": options.starting_ms, "endingTimestamp": options.ending_ms,
        }  # fmt: skip
        self.source = SourceOptions.of({name: str(value) for name, value in pairs.items() if value is not None})
        self.planner = Planner(self.source)
        self.limits = transaction_limits(self.planner.client)
        self.frames = Frames(self.spark, options, self.limits)

    def go(self) -> Outcome:
        try:
            return self._go()
        except RunStopped:
            self.report.stopped = True
            return self.report.outcome()
        finally:
            self.courier.close()

    def _go(self) -> Outcome:
        begin, end = self._bounds()
        self._settle()  # First: a step of an earlier run without a result may have been sent.
        self._check_same_topic(end)
        self.report.sent_before = sum(
            stop - start
            for queue, offset in end.items()
            for start, stop in within(self._ranges(queue), begin[queue], offset)
        )
        messages = sum(end[queue] - begin[queue] for queue in end)
        self.run.tell(
            f"looking through {amounts.count(messages, 'message')} of {self.options.source}", looked_through=messages
        )
        judged = self._count(begin, end)
        self._check_stop()
        if self.options.dry_run or not self.report.chosen:
            self.report.samples = self._samples(judged)
            return self.report.outcome()
        if self.ledger.head is None:
            # Only now, so that a dry run leaves no folder bound to a topic.
            self.ledger.begin(self.fence.new_head(self.options.source))
            self._settle()
        # After the dry run, which works at any broker.
        if self.options.only_group and not self.limits.retry_topics:
            raise NotSupported(
                "onlyGroup needs brokers of this version: an older one takes no transaction with messages for a retry topic. "
                "Nothing was sent; bring it up to date, or give the group a topic of its own by to"
            )
        self._send_all(begin, end, judged)
        return self.report.outcome()

    # -------------------------------------------------------------- choosing
    def _bounds(self) -> tuple[Positions, Positions]:
        """Return begin and end in each queue. Messages stored later are for the next run."""
        begin = self.planner.start(EARLIEST)
        end = self.planner.end(sorted(begin))
        return begin, {queue: max(offset, begin[queue]) for queue, offset in end.items()}

    def _settle(self) -> None:
        if self.ledger.head is None:
            return
        planned = self.ledger.planned
        sent = self.fence.settle(self.ledger)
        if planned is not None and sent is not None:
            done = "were sent" if sent else "were not sent, and are looked at anew"
            self.run.tell(
                f"step {planned.number} of an earlier run had no end: its {amounts.count(planned.rows, 'message')} {done}"
            )

    def _check_same_topic(self, end: Positions) -> None:
        """Raise ConfigError if the topic was deleted and made anew, so that the ledger's offsets name other messages."""
        starts = self.planner.client.starts(end)
        ends = self.planner.client.ends(end)
        for (broker, queue_id), witness in self.ledger.witnesses.items():
            queue = MessageQueue(self.options.source, broker, queue_id)
            if queue not in ends:
                _LOG.warning("%s is not there, its broker may be away: nothing of it is redriven in this run", queue)
                continue
            # Retention has taken the witness: nothing shows another topic.
            if witness.offset < starts[queue]:
                continue
            if witness.offset < ends[queue]:
                wanted = Slice(queue, witness.offset, witness.offset + 1)
                found = [
                    place
                    for decoded in read_slice(self.planner.client, wanted, self.source.fetch)
                    for place in decoded.log_offsets.tolist()
                ]
                if found == [witness.log_offset]:
                    continue
            raise ConfigError(
                f"{queue} is not what it was when {self.run.place} wrote down what was sent of it: the topic was deleted and made "
                "anew, or its store replaced. Begin in a new folder, with checkTarget if the messages may be the same"
            )

    def _ranges(self, queue: MessageQueue) -> list[tuple[int, int]]:
        return self.ledger.sent.get((queue.broker, queue.queue_id), [])

    def _judged(self, begin: Positions, end: Positions) -> Any:
        """Return the messages that were not sent before, with their fates."""
        # Skip the sent messages at the beginning without reading them; those behind the first gap are joined away.
        behind = {queue: min(first_gap(self._ranges(queue), offset), end[queue]) for queue, offset in begin.items()}
        sent: Ranges = {}
        for queue, offset in behind.items():
            if some := within(self._ranges(queue), offset, end[queue]):
                sent[queue.broker, queue.queue_id] = some
        partitions = self.spark.sparkContext.defaultParallelism
        found = self.frames.without(self.frames.read(behind, end, partitions), sent)
        if self.looked_at is not None:
            found = self.frames.without_ids(found, *self.looked_at)
        return self.frames.judged(found)

    def _count(self, begin: Positions, end: Positions) -> Any:
        """Count the messages by fate. Returns them, with their fates.

        Raises ConfigError: a topic to send to does not exist, or a chosen message cannot be sent and onCorrupt=fail.
        """
        judged = self._judged(begin, end)
        oldest = self._counted(judged)
        retries = self.options.retry_topic
        wanted = {retries: self.report.chosen} if retries and self.report.chosen else self.report.targets
        targets = sorted(wanted)
        check_targets(self.planner.client, wanted)
        # Only the first count shows which topics to search for copies, and from which time: so the messages are judged twice.
        if self.options.check_target and targets:
            chosen, self.looked_at = self.report.chosen, (targets, max(0, oldest - SKEW_MS))
            judged = self._judged(begin, end)
            self._counted(judged)
            self.report.there = chosen - self.report.chosen
        if self.report.unfit and self.options.on_corrupt == FAIL:
            raise ConfigError(refusal(self.report))
        return judged

    def _counted(self, judged: Any) -> int:
        """Add counts by fate and target to the report. Returns the oldest chosen message's store time, ms since 1970."""
        grouped = judged.groupBy("fate", sql.col("new.topic").alias("target")).agg(
            sql.count(sql.lit(1)).alias("messages"), sql.min(sql.unix_millis("store_time")).alias("oldest")
        )
        try:
            rows = self._stoppable(grouped.collect)
        except _OF_A_VALUE as fault:
            raise ConfigError(
                f"where or select fails for a message, and nothing was sent: {frames.one_line(fault)}"
            ) from fault
        self.report.count([(row.fate, row.target, row.messages) for row in rows])
        if self.report.unfit:
            unfit = judged.filter(~sql.col("fate").isin(CHOSEN, frames.LEFT)).orderBy(*frames.OLDEST_FIRST)
            found = self._stoppable(unfit.select("fate", *PLACE).limit(SAMPLES).collect)
            self.report.unfit_places = [(row.fate, f"{row.broker}/{row.queue_id}/{row.queue_offset}") for row in found]
        return min((row.oldest for row in rows if row.fate == CHOSEN), default=0)

    def _samples(self, judged: Any) -> list[SampleMessage]:
        new = sql.col("new")
        wanted = judged.filter(sql.col("fate") == CHOSEN).orderBy(*frames.OLDEST_FIRST).limit(SAMPLES)
        rows = self._stoppable(
            wanted.select(
                *PLACE,
                new.getField("topic").alias("topic"),
                new.getField("tag").alias("tag"),
                new.getField("keys").alias("keys"),
                new.getField("body").cast("binary").alias("body"),
            ).collect
        )
        return [
            SampleMessage(
                f"{row.broker}/{row.queue_id}/{row.queue_offset}", row.topic, row.tag or "", " ".join(row["keys"] or ()),
                bytes(row.body).decode("utf-8", "backslashreplace")[:SAMPLE_CHARS],
            )
            for row in rows
        ]  # fmt: skip

    # -------------------------------------------------------------- sending
    def _send_all(self, begin: Positions, end: Positions, judged: Any) -> None:
        # Includes an earlier attempt of this run, which a slow machine made start again (`slow_start`).
        self.report.sent = self.ledger.sent_by(self.run.status.run)
        self.report.chosen += self.report.sent
        self.report.sent_before -= self.report.sent
        pace = Pace(self.options.rate)
        while (room := self.report.room) > 0:
            window = self._window(judged, min(room, WINDOW))
            if not window.num_rows:
                return
            size = pace.step(self.options.batch)
            for first in range(0, window.num_rows, size):
                self._wait(pace)
                began = SYSTEM.monotonic()
                columns = window.slice(first, size).columns
                some = list(zip(*(column.to_pylist() for column in columns), strict=True))
                if self._send(some):
                    pace.sent(len(some), began)
                self.run.behind(self.report.room)
            judged = self._judged(begin, end)  # Anew, without the messages that were sent.

    def _window(self, judged: Any, most: int) -> Any:
        """Return an Arrow table: broker, queue id, queue offset and log offset of the oldest chosen messages."""
        chosen = judged.filter(sql.col("fate") == CHOSEN).orderBy(*frames.OLDEST_FIRST).limit(most)
        return self._stoppable(chosen.select(*PLACE, "log_offset").toArrow)

    def _wait(self, pace: Pace) -> None:
        """Wait until the rate allows the next step. Raises RunStopped."""
        while (seconds := pace.pause(SYSTEM.monotonic())) > 0 and not self.run.stopping:
            self.run.wait(min(seconds, LOOK_SECONDS))
        self._check_stop()

    def _check_stop(self) -> None:
        if self.run.stopping:
            raise RunStopped

    def _send(self, some: list[tuple[str, int, int, int]]) -> bool:
        """Plan a step, send it, and record the result. Returns whether it was sent. Raises what the write raises."""
        # The plan is durable before anything is sent: after a crash it names the messages whose fate must be asked for.
        ranges, witnesses = _places(some)
        step = self.ledger.plan(self.run.status.run, ranges, witnesses)
        try:
            self._stoppable(lambda: self._write(step))
        except BaseException as fault:
            if not self._ended_well(step, fault):
                raise
        else:
            self.ledger.end(sent=True)
        self.report.sent += step.rows
        line = f"step {step.number}: {amounts.count(step.rows, 'message')} sent, {self.report.sent:,} of {self.report.chosen:,}"
        self.run.tell(line, batch=step.number, rows=step.rows)
        return True

    def _ended_well(self, step: PlannedStep, fault: BaseException) -> bool:
        """Return whether a step was sent although its write failed. If that is not known now, the next run finds out."""
        try:
            sent = self.fence.settle(self.ledger)
        except MetaqError as unknown:
            _LOG.warning("whether step %d was sent is not known, the next run finds out: %s", step.number, unknown)
            return False
        if sent:
            _LOG.warning("step %d was sent, although its write failed: %s", step.number, root_text(str(fault)))
        return bool(sent)

    def _write(self, step: PlannedStep) -> None:
        head = self.ledger.head
        assert head is not None
        ranges = step.ranges
        begin = {self._queue(place): some[0][0] for place, some in ranges.items()}
        end = {self._queue(place): some[-1][1] for place, some in ranges.items()}
        rows = self.frames.read(begin, end)
        # By the plan's offsets, not by the SQL condition, which may depend on the time or on other tables.
        # Ranges without gaps are all of what was read, and need no join.
        if count(ranges) < sum(end[queue] - begin[queue] for queue in end):
            rows = self.frames.only(rows, ranges)
        only = {"onlyGroup": self.options.group} if self.options.only_group else {}
        # The coordinator is named: only the broker in the ledger's head knows the last number.
        self.frames.sent(rows).write.format("metaq").options(
            **only,
            **self.options.reach,
            txnAppId=head.ledger,
            txnVersion=str(step.number),
            coordinator=head.coordinator,
            emptyBodies="true",
            retrySeconds=str(self.options.retry_seconds),
        ).mode("append").save()

    def _queue(self, place: Place) -> MessageQueue:
        return MessageQueue(self.options.source, *place)

    def _stoppable(self, act: Callable[[], T]) -> T:
        """Do Spark work that a request to stop cancels. Raises RunStopped, or what `act` raises."""
        with stoppable(self.spark, self.run, interrupt=True):
            return act()


STEP_SECONDS = 5.0
"""Seconds' worth of messages in one transaction: consumers see bursts of that size."""


class Pace:
    """Rate limiter. Time lost while a broker was away is not made up for by a burst."""

    def __init__(self, rate: float | None) -> None:
        """Args: rate: messages a second, above 0; None: no limit."""
        self._rate = rate
        self._free_at: float | None = None

    def step(self, most: int) -> int:
        """Return the number of messages of the next step, from 1 to `most`."""
        return most if self._rate is None else max(1, min(most, int(self._rate * STEP_SECONDS)))

    def pause(self, now: float) -> float:
        """Return the seconds until the next messages may be sent; 0: now."""
        return 0.0 if self._free_at is None else max(0.0, self._free_at - now)

    def sent(self, messages: int, began: float) -> None:
        """Account for messages sent in a step that began at `began`."""
        if self._rate is not None:
            self._free_at = max(began, self._free_at or began) + messages / self._rate


def _places(some: list[tuple[str, int, int, int]]) -> tuple[Ranges, dict[Place, Witness]]:
    """Return ranges and witnesses of a step's plan."""
    queues: dict[Place, list[tuple[int, int]]] = {}
    for broker, queue_id, offset, log_offset in some:
        queues.setdefault((broker, queue_id), []).append((offset, log_offset))
    ranges = {place: ranges_of(offset for offset, _ in sorted(pairs)) for place, pairs in queues.items()}
    return ranges, {place: Witness(*max(pairs)) for place, pairs in queues.items()}
