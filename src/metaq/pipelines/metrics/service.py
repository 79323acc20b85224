"""Driver side of the metrics: batches and samples, each a step, and the delivery of alerts.

Two threads make steps: Spark's with each batch, and one of ours every `sampleSeconds`, so that lag is measured and windows
close even if nobody sends. A third delivers alerts, which may take long. State and folder are changed under one lock.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from metaq.amounts import count
from metaq.clock import SYSTEM, Clock
from metaq.durable import disk_fault
from metaq.errors import ClientClosed, ConfigError, MetaqError, NoRoute
from metaq.model.queue import MessageQueue
from metaq.pipelines.checkpoints import CHECKPOINT, Checkpoint
from metaq.pipelines.job import QueryJob, SliceStream, check_session
from metaq.pipelines.metrics.counting import COUNTED, Counter
from metaq.pipelines.metrics.folder import MetricsFolder, guard
from metaq.pipelines.metrics.following import Known
from metaq.pipelines.metrics.mailing import CommandMail, TopicMail
from metaq.pipelines.metrics.options import MetricsOptions
from metaq.pipelines.metrics.sampling import Sampler
from metaq.pipelines.metrics.state import ClusterSample, Limits, Mail, MetricsState, Saved
from metaq.pipelines.metrics.tables import moment, tables_of
from metaq.pipelines.metrics.windows import window_start
from metaq.pipelines.options import access_of
from metaq.pipelines.run import Run
from metaq.spark import schema
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.cluster.courier import Courier
from metaq.spark.source.settings import LATEST, SourceOptions

_LOG = logging.getLogger(__name__)
ASK_SECONDS = 5.0
"""Retry time of a sample for a broker that is away: short, because the next sample comes soon."""
TOPIC, COMMAND = "topic", "command"


def start(spark: Any, options: MetricsOptions, run: Run) -> Any:
    """Start the pipeline `metrics`, see `catalogue.Pipeline.start`.

    Raises ConfigError: the folder belongs to another checkpoint or to windows of another length, no topic matches the patterns,
    or the session is a client of Spark Connect. StoreCorrupt: the folder is damaged.
    """
    check_session(spark, run.status.pipeline)
    topics, traced = _topics(options)
    stream = SliceStream.of(options, {"subscribe": ",".join([*topics, *filter(None, [traced])])})
    service = Service(options, run, stream.source, topics, traced)
    # A query that is restarted on a slow machine (`slow_start`) gets a new service: the first one must end before.
    run.at_end(service.close, "metrics")
    service.open()
    query = stream.start(spark, service)
    service.begin()
    return query


def _topics(options: MetricsOptions) -> tuple[list[str], str]:
    """Return the measured topics, and the trace topic if it exists. Raises ConfigError, NoRoute."""
    client = ClusterClient(options.servers, ASK_SECONDS, access=access_of(options))
    try:
        fitting = {topic for pattern in options.patterns for topic in client.topics(pattern)}
        # Without the alert topic, which a pattern may match: it would measure its own alerts.
        topics = sorted({*options.topics_read, *fitting} - {options.traced, options.alert_topic})
        if not topics:
            raise ConfigError(f"topics={options.topics}: no topic fits")
        if not options.traced:
            return topics, ""
        try:
            # Once: each further try would log that there is no route, where nothing is wrong.
            client.queues([options.traced], 0.0)
        except NoRoute:
            _LOG.warning(
                "metrics: there is no trace topic %s yet: latencies of consumers are measured from the next start on, if it is "
                "there then; traceTopic=off if nobody traces", options.traced,
            )  # fmt: skip
            return topics, ""
        return topics, options.traced
    finally:
        client.close()


class Service(QueryJob):
    """Driver side of one query."""

    NAME, DONE = "metrics", "counted"

    def __init__(
        self,
        options: MetricsOptions,
        run: Run,
        source: SourceOptions,
        topics: list[str],
        traced: str,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(Checkpoint(run.place / CHECKPOINT))
        self._options, self._run, self._clock, self._topics = options, run, clock, topics
        self._rules = options.parsed_rules
        self._limits = Limits(
            window_ms=options.window_ms,
            grace_ms=round(options.grace_seconds * 1000),
            follow_ms=round(options.trace_seconds * 1000),
            trace_topic=traced,
            from_latest=options.starting_offsets == LATEST,
        )
        self._counter = Counter(
            name_servers=options.servers, settings=source.fetch_of_stream, window_ms=options.window_ms,
            trace_topic=traced, every=options.trace_every,
        )  # fmt: skip
        self._groups = [one for part in options.groups.split(",") if (one := part.strip())]
        self._sampler = Sampler(
            ClusterClient(options.servers, ASK_SECONDS, access=access_of(options)), topics, traced, self._groups, clock
        )
        self._ways: dict[str, TopicMail | CommandMail] = {}
        if options.alert_topic is not None:
            self._ways[TOPIC] = TopicMail(
                Courier(options.servers, ASK_SECONDS, access_of(options)), options.alert_topic, clock, ASK_SECONDS
            )
        if options.command_words:
            self._ways[COMMAND] = CommandMail(options.command_words, options.alert_command_seconds)
        self._folder = MetricsFolder(run.place)
        self._state: MetricsState | None = None
        self._delivering = threading.Lock()
        self._over, self._posted = threading.Event(), threading.Event()
        self._delivered: list[Mail] = []
        self._ahead: set[MessageQueue] = set()
        """Queues for which it was logged that their messages are ahead of the clock."""
        self._threads: list[threading.Thread] = []

    # -------------------------------------------------------------- life cycle
    def open(self) -> None:
        """Load the state. Raises ConfigError, StoreCorrupt, StoreFull, StoreFailed."""
        with self._busy, self._disk_faults(f"the state in {self._run.place} cannot be taken up"):
            saved = self._folder.load()
            guard(saved, self.checkpoint.query_id(), self._limits.window_ms, self._run.place)
            if saved is not None:
                self._take(saved)
                return
            # Saved before the query gets its id: a checkpoint without a state then means that the state was removed.
            began_ms = window_start(self._clock.now_ms(), self._limits.window_ms)
            state = self._take(Saved(query="", window_ms=self._limits.window_ms, began_ms=began_ms))
            self._folder.save(state, None, {})

    def begin(self) -> None:
        """Start the threads that sample and deliver alerts."""
        for name, work in (("samples", self._sample_on), ("alerts", self._deliver_on)):
            thread = threading.Thread(target=work, name=f"metaq-metrics-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Take a last sample, deliver alerts that can be delivered at once, and end. May be repeated. Raises nothing."""
        with self._busy:
            if self._closed:
                return
        self._over.set()
        self._posted.set()
        # Not under the lock: both threads take it.
        for thread in self._threads:
            thread.join()
        if self._threads:
            self._tick()
            self._deliver(self._clock.monotonic() + self._options.alert_command_seconds)
            if self._delivered:
                self._tick(ask=False)
        with self._busy:
            self._closed = True
        self._sampler.close()
        mail = self._ways.get(TOPIC)
        if isinstance(mail, TopicMail):
            mail.close()

    # -------------------------------------------------------------- batches
    def process(self, frame: Any, batch: int) -> None:
        # Without the lock while workers count, so that samples can be taken meanwhile.
        began = self._clock.monotonic()
        with self._busy:
            self._check_open(batch)
            # A replay after a crash between our step and Spark's commit log.
            if batch <= self._known_state.batch:
                self._run.tell(
                    f"batch {batch}: was counted before the restart",
                    batch=batch,
                    messages=0,
                    windows=0,
                    alerts=0,
                    unreadable=0,
                )
                return
        rows = frame.mapInArrow(self._counter, schema.ddl(COUNTED)).toArrow().to_pylist()
        with self._busy:
            self._check_open(batch)  # Again: the run may have ended while the workers counted.
            self._known_state.belongs_to(self._query_id())
            before = self._known_state.unreadable
            messages = self._known_state.fold_rows(rows)
            unreadable = self._known_state.unreadable - before
            windows, alerts = self._step(batch)
        seconds = self._clock.monotonic() - began
        more = f", {alerts} alerts" if alerts else ""
        more += f", {unreadable:,} trace records do not decode" if unreadable else ""
        if unreadable:
            _LOG.warning(
                "metrics: %d trace records of batch %d do not decode: nothing is counted of them", unreadable, batch
            )
        self._run.tell(
            f"batch {batch}: {count(messages, 'message')}, {count(windows, 'window')} over{more} ({seconds:.1f} s)",
            batch=batch, messages=messages, windows=windows, alerts=alerts, unreadable=unreadable, seconds=seconds,
        )  # fmt: skip

    def _step(self, batch: int | None) -> tuple[int, int]:
        """Close windows that are due, and save. Returns the numbers of closed windows and of alerts."""
        state = self._known_state
        try:
            state.delivered(self._delivered)
            closed, alerts = state.close()
            # Saved with the step that begins them: after a crash alerts are delivered all the same.
            if (lost := state.post(alerts, self._ways)) > 0:
                _LOG.warning("metrics: %d alerts that could not be delivered are given up: too many wait", lost)
            self._folder.save(state, batch, tables_of(closed, alerts, self._limits.window_ms))
        except BaseException as fault:
            self._forget()
            if isinstance(fault, OSError):
                raise disk_fault(fault, f"the metrics in {self._run.place} are as they were before") from fault
            raise
        # Only now that the state without them is saved: after a crash before this they are delivered again.
        self._delivered = []
        for alert in alerts:
            _LOG.warning("metrics: %s", alert)
        if state.forgotten:
            _LOG.warning(
                "metrics: %d messages were forgotten before traceSeconds were over, for there are too many: raise traceEvery",
                state.forgotten,
            )
            state.forgotten = 0
        self._say_clocks(state)
        self._posted.set()
        return len(closed), len(alerts)

    def _say_clocks(self, state: MetricsState) -> None:
        """Log wrong clocks, each once until it is right again."""
        if state.set_back_ms:
            _LOG.warning(
                "metrics: this machine's clock was set back by %d s: windows that it had called over are so again when their time "
                "comes, and what was published of them counts", state.set_back_ms // 1000,
            )  # fmt: skip
            state.set_back_ms = 0
        ahead = state.ahead
        for queue in sorted(ahead.keys() - self._ahead):
            _LOG.warning(
                "metrics: %s has messages that were stored at %s by its broker's clock, which this machine's has not come to: "
                "their windows stay open until then", queue, moment(ahead[queue]).isoformat(timespec="seconds"),
            )  # fmt: skip
        self._ahead = set(ahead)

    def _forget(self) -> None:
        """Reload the saved state: after a failed step the one in memory is ahead of the folder."""
        self._state = None
        try:
            saved = self._folder.load()
            if saved is not None:
                self._take(saved)
        except (OSError, MetaqError) as fault:
            _LOG.warning("metrics: the state in %s cannot be read back: %s", self._run.place, fault)

    def _take(self, saved: Saved) -> MetricsState:
        known = self._folder.known(saved) if saved.known else Known()
        self._state = MetricsState(saved, self._limits, self._rules, known)
        return self._state

    @property
    def _known_state(self) -> MetricsState:
        if self._state is None:
            self._forget()
        if self._state is None:
            raise ClientClosed(f"the state in {self._run.place} cannot be read")
        return self._state

    # -------------------------------------------------------------- samples
    def _sample_on(self) -> None:
        while True:
            self._tick()
            if self._over.wait(self._options.sample_seconds):
                return

    def _tick(self, *, ask: bool = True) -> None:
        """Take a sample, as a step of its own. Failures are logged."""
        try:
            sample = self._sampler.sample() if ask else None
        except MetaqError as fault:  # Windows must close by the clock all the same.
            _LOG.warning("metrics: no sample could be taken: %s", fault)
            sample = None
        try:
            with self._busy:
                if not self._closed:
                    self._fold(sample)
        except (MetaqError, OSError) as fault:
            _LOG.warning("metrics: a sample could not be saved: %s", fault)
        except Exception:  # noqa: BLE001  one sample is lost, not all that come
            _LOG.exception("metrics: a fault in a sample")

    def _fold(self, sample: ClusterSample | None) -> None:
        if sample is not None:
            self._known_state.fold_sample(sample)
        self._step(None)

    # -------------------------------------------------------------- alerts
    def _deliver_on(self) -> None:
        while not self._over.is_set():
            self._posted.wait()
            self._posted.clear()
            try:
                self._deliver()
            except Exception:  # noqa: BLE001  one delivery is lost, not all that come
                _LOG.exception("metrics: a fault in the delivery of alerts")

    def _deliver(self, until: float | None = None) -> None:
        """Deliver waiting alerts, in order; after a failure the later ones to the same destination wait, too.

        Args: until: monotonic time after which no delivery begins; None: the end of the run. The rest waits for the next run.
        """
        with self._delivering:
            with self._busy:
                waiting = (
                    [] if self._state is None else [one for one in self._state.mails if one not in self._delivered]
                )
            stuck: set[str] = set()
            for mail in waiting:
                if self._over.is_set() if until is None else self._clock.monotonic() >= until:
                    return
                way = self._ways.get(mail.to)
                if mail.to in stuck:
                    continue
                if way is None or way.deliver(mail.alert):
                    with self._busy:
                        self._delivered.append(mail)
                else:
                    stuck.add(mail.to)
