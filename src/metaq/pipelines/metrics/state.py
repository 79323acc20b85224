"""State of the metrics: open windows. No I/O: rows of a batch and samples go in, closed windows and alerts come out.

A window of messages closes once every queue of its topic at its broker was read beyond the window's end plus `graceSeconds`: to a
message stored later than that, or to the queue's end at a time later than that. Messages that come later make another row of the
same window, marked late: the sums over all rows are always right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct, field

from metaq.errors import StoreCorrupt
from metaq.model.queue import MessageQueue
from metaq.pipelines.metrics.alerts import Alert, RuleState, RuleStates
from metaq.pipelines.metrics.counting import BEGUN, FOLLOWED, FOLLOWED_TYPE, READ, STORED, TOLD, TOLD_TYPE
from metaq.pipelines.metrics.figures import METRICS
from metaq.pipelines.metrics.following import KNOWN_TYPE, Known, limited
from metaq.pipelines.metrics.histogram import Histogram
from metaq.pipelines.metrics.rules import FOR_MAX, Rule
from metaq.pipelines.metrics.sizes import Sizes
from metaq.pipelines.metrics.windows import MetricSeries, MetricWindow, window_start

STATE = "_state"
"""Name of its file in the pipeline's folder."""
CLOCKS_MS = 60_000
"""Tolerated clock skew, ms."""
OUTBOX_MAX = 1000
"""Most undelivered alerts; beyond that the oldest are dropped."""


class GroupSample(NamedTuple):
    """Progress of a group in one topic at one broker."""

    topic: str
    group: str
    broker: str
    positions: Mapping[int, int]
    """Queue id → offset of the next message to consume."""
    lag_messages: int
    lag_seconds: float


class BrokerSample(NamedTuple):
    """A broker's counters since its start."""

    broker: str
    started_ms: int
    counters: Mapping[str, int]
    """Column of the metric `brokers` → counter."""


class ClusterSample(NamedTuple):
    """Sample of the cluster at one moment."""

    now_ms: int
    ends: Mapping[MessageQueue, int]
    """Ends of all queues of the measured topics and the trace topic."""
    groups: Iterable[GroupSample] = ()
    brokers: Iterable[BrokerSample] = ()


class Closed(NamedTuple):
    """A closed window."""

    series: MetricSeries
    start_ms: int
    window: MetricWindow
    late: bool


class Limits(Struct, frozen=True, kw_only=True):
    """Options of times, ms."""

    window_ms: int
    grace_ms: int = 0
    follow_ms: int = 600_000
    """Time for which a message is followed through traces, from its store time."""
    trace_topic: str = ""
    from_latest: bool = False
    """Whether a queue that was never read begins at its end."""


class Mail(Struct):
    """An alert to be delivered."""

    alert: Alert
    to: str
    """`topic` or `command`."""


class _Open(Struct, array_like=True):
    series: MetricSeries
    start_ms: int
    window: MetricWindow


class _Queue(Struct):
    """Progress in a queue. `end`: offset read up to. `newest_ms`: newest store time read. `caught_ms`: when it was last read to
    its end."""

    topic: str
    broker: str
    queue_id: int
    end: int = -1
    newest_ms: int = 0
    caught_ms: int = 0
    sizes: Sizes = field(default_factory=Sizes)


class _Counters(Struct):
    started_ms: int
    values: dict[str, int]


class _Position(Struct, array_like=True):
    group: str
    topic: str
    broker: str
    queue_id: int
    offset: int
    sized: int
    """Offset up to which bytes are counted, at most the end of what was read of the queue."""


class Saved(Struct, kw_only=True):
    """The state as saved in the folder, and the files that were published with it."""

    v: int = 1
    query: str
    window_ms: int
    began_ms: int
    """Begin of the first window that rules look at."""
    batch: int = -1
    """Last batch of the query that it includes."""
    step: int = 0
    files: list[tuple[str, str]] = []
    """Staged and final names, relative to the folder, of the last step."""
    open: list[_Open] = []
    over: list[tuple[MetricSeries, int]] = []
    """MetricSeries → time up to which its windows are closed."""
    queues: list[_Queue] = []
    positions: list[_Position] = []
    counters: dict[str, _Counters] = {}
    places: list[tuple[str, str]] = []
    known: list[str] = []
    """Names of the chunks of followed messages."""
    waiting: dict[str, bytes] = {}
    unmatched: int = 0
    unreadable: int = 0
    """Records of traces that did not decode."""
    watched: list[RuleState] = []
    mails: list[Mail] = []


def encode(saved: Saved) -> bytes:
    return msgspec.msgpack.encode(saved, enc_hook=_enc)


def decode(data: bytes, where: object = STATE) -> Saved:
    """Decode a saved state. Args: where: the file, for the error. Raises StoreCorrupt."""
    try:
        return msgspec.msgpack.decode(data, type=Saved, dec_hook=_dec)
    except msgspec.DecodeError as fault:
        raise StoreCorrupt(
            f"the state of the metrics, {where}, cannot be read ({fault}): restore it from a copy with the rest of its folder, or "
            "begin in an empty one"
        ) from None


def _enc(value: Any) -> bytes:
    assert isinstance(value, Histogram)
    return value.encode()


def _dec(_kind: type, value: Any) -> Histogram:
    return Histogram.decode(value)


class MetricsState:
    """The state in memory. Mutable, not thread-safe.

    After a step that could not be saved it must be discarded and loaded again.
    """

    def __init__(self, saved: Saved, limits: Limits, rules: Iterable[Rule], known: Known) -> None:
        self._limits, self._saved = limits, saved
        self._open = {(one.series, one.start_ms): one.window for one in saved.open}
        self._over = dict(saved.over)
        self._queues = {MessageQueue(one.topic, one.broker, one.queue_id): one for one in saved.queues}
        self._positions = {
            (one.group, MessageQueue(one.topic, one.broker, one.queue_id)): one for one in saved.positions
        }
        self._places = {place: number for number, place in enumerate(saved.places)}
        self._waiting = {group: np.frombuffer(data, TOLD_TYPE) for group, data in saved.waiting.items()}
        self._watch = RuleStates(rules, saved.watched)
        self.known = known
        self._live: Mapping[MessageQueue, int] = {}
        """Ends of queues in the last sample; empty before the first."""
        self._sampled_ms = 0
        self.set_back_ms = 0
        """Time by which the driver's clock was set back, ms; the caller that logs it resets it."""
        self.forgotten = 0
        """Messages that were dropped early because too many were followed."""

    @property
    def batch(self) -> int:
        return self._saved.batch

    @property
    def step(self) -> int:
        return self._saved.step

    @property
    def unreadable(self) -> int:
        """Total of trace records that did not decode."""
        return self._saved.unreadable

    @property
    def mails(self) -> list[Mail]:
        """Undelivered alerts, oldest first."""
        return self._saved.mails

    def belongs_to(self, query: str) -> None:
        """Set the query's id."""
        self._saved.query = query

    @property
    def alerts_on(self) -> list[RuleState]:
        return self._watch.on

    def saved(self, batch: int | None, files: list[tuple[str, str]]) -> Saved:
        """Return the state to save with the next step."""
        s = self._saved
        self._saved = Saved(
            query=s.query, window_ms=s.window_ms, began_ms=s.began_ms, batch=s.batch if batch is None else batch,
            step=s.step + 1, files=files,
            open=[_Open(series, start, window) for (series, start), window in sorted(self._open.items(), key=lambda one: one[0])],
            over=sorted(self._over.items()), queues=list(self._queues.values()),
            positions=[one for _, one in sorted(self._positions.items())],
            counters=s.counters, places=list(self._places), known=list(self.known.chunks),
            waiting={group: rows.tobytes() for group, rows in self._waiting.items()}, unmatched=s.unmatched,
            unreadable=s.unreadable,
            watched=self._watch.watched, mails=s.mails,
        )  # fmt: skip
        return self._saved

    # -------------------------------------------------------------- input
    def fold_rows(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add rows of COUNTED, of one batch. Returns the number of messages of the measured topics."""
        messages, told, fresh, read = 0, dict[str, list[Any]](), list[Any](), list[Mapping[str, Any]]()
        for row in rows:
            kind, topic, broker = row["kind"], row["topic"], row["broker"]
            if kind == STORED:
                window = self._window(MetricSeries("messages", topic, broker=broker), row["start_ms"])
                window.count("messages", row["messages"])
                window.count("bytes", row["bytes"])
                window.spread("born_stored").merge(Histogram.decode(row["data"]))
                messages += row["messages"]
            elif kind == READ:
                read.append(row)
            elif kind == FOLLOWED:
                fresh.append(self._known_rows(row["data"], topic, broker))
            elif kind == TOLD:
                told.setdefault(row["grp"], []).append(np.frombuffer(row["data"], TOLD_TYPE))
        # `Sizes.read` wants the slices of a queue in order; tasks end in any.
        for row in sorted(read, key=lambda row: int(row["end_offset"])):
            queue = self._queue(MessageQueue(row["topic"], row["broker"], row["queue_id"]))
            self._saved.unreadable += row.get("messages") or 0
            queue.end = max(queue.end, row["end_offset"])
            # The broker's clock was ahead and is right again: its earlier times no longer count.
            before_ms = 0 if self._is_ahead(queue.newest_ms) else queue.newest_ms
            queue.newest_ms = max(before_ms, row["newest_ms"])
            queue.sizes.read(row["start_offset"], row["end_offset"], row["bytes"])
        self._follow(fresh, told)
        return messages

    def fold_sample(self, sample: ClusterSample) -> None:
        self._turn_back(sample.now_ms)
        self._live, self._sampled_ms = sample.ends, max(self._sampled_ms, sample.now_ms)
        for queue, end in sample.ends.items():
            one = self._queue(queue)
            # Nothing in it will be read: it counts as read to its end, or its topic's windows would never close.
            if one.end < 0 and (self._limits.from_latest or end == 0):
                one.end = end
            if one.end >= end:
                one.caught_ms = max(one.caught_ms, sample.now_ms)
        # A sample at the very end of a window belongs to that window, not to the next.
        start_ms = window_start(sample.now_ms - 1, self._limits.window_ms)
        for group in sample.groups:
            window = self._window(MetricSeries("groups", group.topic, group.group, group.broker), start_ms)
            self._consumed(group, window)
            window.level("lag_messages", group.lag_messages)
            window.level("lag_seconds", group.lag_seconds)
        for broker in sample.brokers:
            self._counted(broker, start_ms)

    def _turn_back(self, now_ms: int) -> None:
        """Reopen windows that were closed too early, after the driver's clock was set back."""
        caught = max((one.caught_ms for one in self._queues.values()), default=0)
        before_ms = max(self._sampled_ms, caught, self._saved.began_ms, *self._over.values())
        if before_ms <= now_ms + CLOCKS_MS:
            return
        self.set_back_ms = before_ms - now_ms
        self._sampled_ms = now_ms
        for one in self._queues.values():
            one.caught_ms = min(one.caught_ms, now_ms)
        # While the clock was ahead all open windows were published, the current one too.
        behind = window_start(now_ms, self._limits.window_ms) + self._limits.window_ms
        self._over = {series: min(over, behind) for series, over in self._over.items()}
        self._saved.began_ms = min(self._saved.began_ms, behind)

    def _is_ahead(self, moment_ms: int) -> bool:
        return bool(self._sampled_ms) and moment_ms > self._sampled_ms + CLOCKS_MS

    @property
    def ahead(self) -> dict[MessageQueue, int]:
        """Return queue → store time of its newest message, where that is ahead of the driver's clock."""
        return {queue: one.newest_ms for queue, one in self._queues.items() if self._is_ahead(one.newest_ms)}

    def delivered(self, mails: Iterable[Mail]) -> None:
        """Remove delivered alerts."""
        done = list(mails)
        self._saved.mails = [one for one in self._saved.mails if one not in done]

    def post(self, alerts: Iterable[Alert], ways: Iterable[str]) -> int:
        """Queue alerts for delivery. Returns the number of older ones that were dropped for them."""
        mails = [*self._saved.mails, *(Mail(alert, way) for alert in alerts for way in ways)]
        self._saved.mails = mails[-OUTBOX_MAX:]
        return len(mails) - len(self._saved.mails)

    # -------------------------------------------------------------- output
    def close(self) -> tuple[list[Closed], list[Alert]]:
        """Close the windows that are due, and evaluate the rules on them."""
        closed, alerts = list[Closed](), self._watch.removed()
        by_series: dict[MetricSeries, dict[int, MetricWindow]] = {series: {} for series in self._over}
        # Topics without messages too: rules must see their empty windows.
        for queue in self._live:
            if queue.topic != self._limits.trace_topic:
                by_series.setdefault(MetricSeries("messages", queue.topic, broker=queue.broker), {})
        for (series, start_ms), window in self._open.items():
            by_series.setdefault(series, {})[start_ms] = window
        for series, windows in sorted(by_series.items()):
            bound = self._bound(series)
            was = self._over.get(series, 0)
            mine = {start: windows[start] for start in sorted(windows) if start < bound}
            for start, window in mine.items():
                del self._open[series, start]
                closed.append(Closed(series, start, window, late=start < was))
            if bound > was:
                alerts += self._ruled(series, mine, max(was, self._saved.began_ms), bound)
                self._over[series] = bound
        return closed, alerts

    def _ruled(
        self, series: MetricSeries, windows: Mapping[int, MetricWindow], begin_ms: int, end_ms: int
    ) -> list[Alert]:
        if not self._watch.about(series.metric):
            return []
        metric, window_ms = METRICS[series.metric], self._limits.window_ms
        # A sampled metric has no value without a sample.
        if metric.levels or metric.labels[0] != "topic":
            starts: Iterable[int] = (start for start in windows if start >= begin_ms)
        else:  # A window without messages has zeros. More than FOR_MAX of them in a row change no rule's result.
            first = max(begin_ms, end_ms - FOR_MAX * window_ms)
            starts = sorted({*range(first, end_ms, window_ms), *(start for start in windows if start >= begin_ms)})
        alerts: list[Alert] = []
        for start in starts:
            columns = windows.get(start, _EMPTY).columns(metric.name, window_ms / 1000)
            alerts += self._watch.window(series, start, columns)
        return alerts

    def _bound(self, series: MetricSeries) -> int:
        """Return the time before which a series' windows are due to close: a whole multiple of a window."""
        limits = self._limits
        if series.metric == "messages":
            over = self._read_to(lambda queue: (queue.topic, queue.broker) == (series.topic, series.broker))
        elif series.metric == "deliveries":
            over = self._traces_to
        else:
            # Samples come in the order of time: all windows before that of the last one are over.
            return window_start(max(self._sampled_ms, 0), limits.window_ms)
        return window_start(max(over - limits.grace_ms, 0), limits.window_ms)

    def _read_to(self, mine: Callable[[MessageQueue], bool]) -> int:
        """Return the time before which all stored messages of these queues were read; without queues, the last sample's."""
        if not self._sampled_ms:
            return 0
        # A store time ahead of the driver's clock does not show when other messages were stored.
        reached = [
            max(0 if self._is_ahead(one.newest_ms) else one.newest_ms, one.caught_ms)
            for one in map(self._queue, filter(mine, self._live))
        ]
        return min(reached, default=self._sampled_ms)

    @property
    def _traces_to(self) -> int:
        return self._read_to(lambda queue: queue.topic == self._limits.trace_topic)

    @property
    def _messages_to(self) -> int:
        return self._read_to(lambda queue: queue.topic != self._limits.trace_topic)

    # -------------------------------------------------------------- parts
    def _window(self, series: MetricSeries, start_ms: int) -> MetricWindow:
        return self._open.setdefault((series, start_ms), MetricWindow())

    def _queue(self, queue: MessageQueue) -> _Queue:
        if queue not in self._queues:
            self._queues[queue] = _Queue(*queue)
        return self._queues[queue]

    def _consumed(self, sample: GroupSample, window: MetricWindow) -> None:
        messages = size = 0
        for queue_id, offset in sample.positions.items():
            queue = MessageQueue(sample.topic, sample.broker, queue_id)
            # The first sample of a group is its beginning: what it consumed before is in no window.
            known = self._positions.setdefault(
                (sample.group, queue), _Position(sample.group, *queue, offset=offset, sized=offset)
            )
            # A group whose offset was reset to an earlier one has consumed nothing by that.
            messages += max(0, offset - known.offset)
            known.offset, known.sized = offset, min(known.sized, offset)
            sizes = self._queue(queue).sizes
            if sizes.known:
                # Sizes are known only of what this pipeline has read.
                known.sized = max(known.sized, sizes.known.start)
                reached = min(offset, sizes.known.stop)
                if reached > known.sized:
                    size += sizes.up_to(reached) - sizes.up_to(known.sized)
                    known.sized = reached
        window.count("consumed", messages)
        window.count("consumed_bytes", size)

    def _counted(self, sample: BrokerSample, start_ms: int) -> None:
        known = self._saved.counters.get(sample.broker)
        self._saved.counters[sample.broker] = _Counters(sample.started_ms, dict(sample.counters))
        window = self._window(MetricSeries("brokers", broker=sample.broker), start_ms)
        if known is None:
            return  # A broker's counters before the first sample belong to no window.
        restarted = known.started_ms != sample.started_ms
        for name, value in sample.counters.items():
            # A broker counts from its start.
            before = 0 if restarted else known.values.get(name, 0)
            window.count(name, max(0, value - before))

    def _known_rows(self, data: bytes, topic: str, broker: str) -> Any:
        found = np.frombuffer(data, FOLLOWED_TYPE)
        rows = np.empty(len(found), KNOWN_TYPE)
        for name in FOLLOWED_TYPE.names or ():
            rows[name] = found[name]
        rows["place"] = self._places.setdefault((topic, broker), len(self._places))
        return rows

    def _follow(self, fresh: list[Any], told: Mapping[str, list[Any]]) -> None:
        if fresh:
            rows = np.concatenate(fresh)
            self.known.add(f"{self.step + 1:012d}", rows)
        if not (fresh or told):
            return
        # By how far traces are read: one that still waits in its topic must find its message.
        self.forgotten += self.known.expire(self._traces_to - self._limits.follow_ms)
        places = list(self._places)
        waiting: dict[str, Any] = {}
        for group in sorted({*told, *self._waiting}):
            rows = np.concatenate([*([self._waiting[group]] if group in self._waiting else []), *told.get(group, [])])
            matched, left = self.known.match(rows)
            for place in np.unique(matched.known["place"]).tolist():
                of_place = matched.known["place"] == place
                self._deliver(places[place], group, matched.told[of_place], matched.known[of_place])
            waiting[group] = left
        # By how far messages are read: the message of a trace may still be to come.
        self._waiting, given_up = limited(waiting, self._messages_to - self._limits.follow_ms)
        self._saved.unmatched += given_up

    def _deliver(self, place: tuple[str, str], group: str, told: Any, known: Any) -> None:
        topic, broker = place
        starts = told["time_ms"] - told["time_ms"] % self._limits.window_ms
        for start in np.unique(starts).tolist():
            mine = starts == start
            window = self._window(MetricSeries("deliveries", topic, group, broker), start)
            begun = mine & (told["cost_ms"] == BEGUN)
            ended = mine & (told["cost_ms"] != BEGUN)
            window.count("deliveries", int(begun.sum()))
            window.count("failed", int(told["failed"][ended].sum()))
            if begun.any():
                times = told["time_ms"][begun]
                window.spread("stored_consumed").add(times - known["store_ms"][begun])
                window.spread("born_consumed").add(times - np.clip(known["born_ms"][begun], 0, 1 << 60))
            if ended.any():
                window.spread("handling").add(told["cost_ms"][ended].astype(np.int64))


_EMPTY = MetricWindow()
