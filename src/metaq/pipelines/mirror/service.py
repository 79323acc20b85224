"""The pipeline `mirror`: copies topics of one cluster to another, every message once and in its queue's order.

    slices of queues ──mapInArrow──▶ tasks read them, and stage copies in the target   (`copying`)
           ▲                                  │ one row a slice
    format("metaq"), rows=slices              ▼
                                     commit all parts, find the copies, save           (driver)
                                              │
                                     groups' progress, by a thread of its own          (`groups`)

Every message once, because a batch is one transaction, numbered by the batch id at its coordinator: a batch that is replayed
after a crash finds its decision there. The state in the folder is only a cache of the copies' offsets: if it is old, they are
read from the target again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import threading
from typing import Any

from metaq import amounts
from metaq.client.conversation.administration import CreateTopic
from metaq.client.conversation.staged import numbered
from metaq.clock import SYSTEM
from metaq.errors import BrokerError, ConfigError, MetaqError, NoRoute, NotSupported
from metaq.model import MessageQueue, offsets
from metaq.model.transactions.staging import transaction_id
from metaq.pipelines.checkpoints import CHECKPOINT, Checkpoint, query_id
from metaq.pipelines.job import BatchJob, SliceStream, check_session
from metaq.pipelines.mirror import finding, queue_map
from metaq.pipelines.mirror.copying import COPIED, Copying, SliceCopier, parts_of
from metaq.pipelines.mirror.finding import Part
from metaq.pipelines.mirror.groups import Carrier, to_json
from metaq.pipelines.mirror.options import LEAVE_OUT, MirrorOptions
from metaq.pipelines.mirror.state import MirrorState, load_state, write_groups
from metaq.pipelines.mirror.table import OffsetRun, Table
from metaq.pipelines.options import access_of
from metaq.pipelines.run import Run
from metaq.spark import schema
from metaq.spark.cluster.client import BATCH_LIMITS, ClusterClient, transaction_limits
from metaq.spark.schema import queue_of_row
from metaq.spark.sink.settings import AT_LEAST_ONCE, SinkOptions
from metaq.spark.sink.sink import Delivery, Written
from metaq.spark.source.settings import SourceOptions

_LOG = logging.getLogger(__name__)

PERM_BOTH = 6
ROUTE_SECONDS = 60.0
"""Time to wait until the name servers know a new topic with all its queues."""
FOUND_SECONDS = 30.0
"""Time that the last search waits for copies that the target has acknowledged but not yet dispatched to their queues."""
LOOK_SECONDS = 0.05


def start(spark: Any, options: MirrorOptions, run: Run) -> Any:
    """Start the pipeline `mirror`, see `catalogue.Pipeline.start`.

    Raises: ConfigError: the options do not fit the clusters or the folder. NotSupported: the target is a RocketMQ, and
        delivery is effectively-once. StoreCorrupt: the folder's state cannot be read.
    """
    check_session(spark, run.status.pipeline)
    read = {"subscribe": options.topics} if options.topics_read else {"subscribePattern": options.topic_pattern or ""}
    stream = SliceStream.of(options, {**read, "failOnDataLoss": str(options.fail_on_data_loss).lower()})
    state = load_state(run.place, options.source_mark, options.target_mark)
    if state.query and query_id(run.place / CHECKPOINT) != state.query:
        raise ConfigError(
            f"the folder {run.place} is of the query {state.query}, and its checkpoint is gone or of another query: going on would "
            "mirror messages twice. Put the checkpoint back; or take an empty folder, and say with startingOffsets where to begin"
        )
    mirror = _Mirror(options, stream.source, state, run)
    run.at_end(mirror.close)  # Before `prepare`, which may raise with connections open.
    mirror.prepare()
    query = stream.start(spark, mirror)
    mirror.carry_groups(query)
    return query


class _Mirror(BatchJob):
    """Copies a micro-batch in one transaction of the target; a thread carries the progress of groups over."""

    NAME, DONE = "mirror", "copied"

    def __init__(self, options: MirrorOptions, chosen: SourceOptions, state: MirrorState, run: Run) -> None:
        super().__init__(Checkpoint(run.place / CHECKPOINT))
        self._options, self._chosen, self._state, self._run = options, chosen, state, run
        self._source = ClusterClient(options.servers, options.retry_seconds, access=access_of(options))
        self._target = ClusterClient(options.to, options.retry_seconds, access=options.target_access)
        self._looking = finding.settings(options.retry_seconds)
        self._sink = SinkOptions(
            name_servers=options.to,
            acl_file=options.to_acl_file,
            delivery=options.delivery,
            retry_seconds=options.retry_seconds,
            empty_bodies=options.exact,
        )
        self._limits = BATCH_LIMITS
        self._remembered = False
        """Whether the coordinator has confirmed that it knows earlier batches."""
        self._copied: dict[MessageQueue, int] = {}
        """Source queue → one past the last message that this run has copied."""
        self._looked = False
        """Whether the target was searched since the start."""
        self._ended = threading.Event()
        self._carrying: threading.Thread | None = None
        """Thread that carries groups over, with clients of its own: a ClusterClient is not thread-safe."""

    def prepare(self) -> None:
        """Check that the target accepts the messages. Raises as `start`."""
        if self._options.exact:
            try:
                # A row that never is: the question only shows whether every broker has such transactions.
                Delivery(self._sink).coordinator("mirror:none")
            except NotSupported:
                raise NotSupported(
                    f"a broker at {self._options.to} has no transactions of several messages: it is a RocketMQ, or an older "
                    f"MetaQ, and cannot take every message once. With delivery = '{AT_LEAST_ONCE}' it can be written to; what is "
                    "repeated after a fault comes twice"
                ) from None
            self._limits = transaction_limits(self._target)
        # Before the query starts: a topic with too few queues in the target is refused at once.
        for topic in self._options.topics_read:
            self._map_topic(topic)

    def carry_groups(self, query: Any) -> None:
        """Start the thread that carries groups over while the query runs, and once more when it has ended."""
        if self._options.group_names:
            self._carrying = threading.Thread(
                target=self._carry_on, args=(query,), name="metaq-mirror-groups", daemon=True
            )
            self._carrying.start()

    def close(self) -> None:
        """Refuse further batches, and carry the groups over once more. Returns when the current work has ended."""
        # At once: no other batch may begin while the groups are carried over.
        self._closed = True
        self._ended.set()
        if self._carrying is not None:
            self._carrying.join()
        with self._busy:
            self._source.close()
            self._target.close()

    # -------------------------------------------------------------- a batch
    def _after_fault(self) -> str:
        return f"the mirror's state in {self._run.place} is as it was saved last"

    def _process(self, frame: Any, batch: int, query: str) -> None:
        """Copy the batch. Raises MetaqError: none of it is in the target, or all of it, which the replay finds."""
        began, state = SYSTEM.monotonic(), self._state
        state.query = query
        # Spark replays a batch if the driver died before Spark's commit log was written.
        if batch <= state.batch:
            self._run.tell(f"batch {batch}: was copied before the restart", batch=batch, rows=0, replayed=True)
            return
        slices = frame.toArrow().to_pylist()
        if not slices:
            return
        self._begin_queues(slices)
        copied = self._copy(frame, query, batch, slices)
        self._find(copied)
        # Saved last: after a crash before this the replay finds the batch's decision at the coordinator.
        state.batch = batch
        state.save(self._run.place)
        figures = {name: sum(row[name] for row in copied) for name in ("rows", "bytes", "came_around", "unfit")}
        self._tell(batch, figures, SYSTEM.monotonic() - began)

    def _copy(self, frame: Any, query: str, batch: int, slices: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Copy all slices, and commit. Returns their summaries."""
        delivery, row, transaction = Delivery(self._sink), f"mirror:{query}", ""
        if self._options.exact:
            coordinator = delivery.coordinator(row)
            self._check_remembered(delivery, row, coordinator)
            transaction = transaction_id(f"mirror-{query}-{batch}-{delivery.token}", coordinator)
        copier = SliceCopier(
            name_servers=self._options.servers,
            settings=self._chosen.fetch_of_stream,
            sink=self._sink,
            transaction=transaction,
            copying=Copying(
                source=self._options.source_mark,
                target=self._options.target_mark,
                leave_out=self._options.unfit == LEAVE_OUT,
                limits=self._limits,
            ),
            queues=tuple((queue, self._state.queues[queue]) for queue in {queue_of_row(one) for one in slices}),
        )
        written = Written(0, transaction, row, batch)
        try:
            copied: list[dict[str, Any]] = frame.mapInArrow(copier, schema.ddl(COPIED)).toArrow().to_pylist()
        except BaseException:
            # Otherwise the staged copies would fill the target until they expire.
            delivery.roll_back([written])
            raise
        parts = tuple(part for one in copied for part in parts_of(one))
        # At-least-once stages nothing, and neither does a batch of messages that are all left out.
        if parts:
            delivery.decide(
                [Written(sum(one["rows"] for one in copied), transaction, row, batch, parts)], f"batch {batch}"
            )
            self._state.decided = batch
        return copied

    def _check_remembered(self, delivery: Delivery, row: str, coordinator: str) -> None:
        """Check, once per run, that the coordinator knows this mirror.

        Raises ConfigError: it does not, but batches were copied.
        """
        if self._remembered or self._state.decided < 0 or self._options.adopt_batch:
            return
        courier, seconds = delivery.courier, self._options.retry_seconds
        if courier.drive(numbered.row_of(row, coordinator, seconds, courier.now)) is None:
            raise ConfigError(
                f"no broker at {self._options.to} remembers earlier batches of this mirror ({row}). If the broker that does is away, "
                "start it. If the target was made anew, take an empty folder; if going on is right, say so once with "
                "adoptBatch = true. Nothing was copied"
            )
        self._remembered = True

    def _find(self, copied: list[dict[str, Any]]) -> None:
        parts = [(self._state.queues[part.queue], part) for one in copied if (part := _part_of(one)) is not None]
        for _, part in parts:
            self._copied[part.queue] = max(part.end, self._copied.get(part.queue, 0))
        try:
            # With at-least-once the messages of a slice are not consecutive: their offsets are found one by one.
            known = parts if self._options.exact else []
            finding.look(self._target, self._state, {target for target, _ in parts}, known, self._looking)
        # The batch is committed: a failure here must not make Spark replay it. The next batch, or the end, searches again.
        except (MetaqError, BrokerError) as fault:
            _LOG.warning("where the last messages lie in the target is found later: %s", fault)

    def _find_rest(self, client: ClusterClient, seconds: float) -> None:
        """Search for copies that their batch did not find, for up to `seconds`: there may be no later batch to do it.

        A RocketMQ acknowledges a message before it is dispatched to its consume queue. Raises as `finding.look`.
        """
        until = SYSTEM.monotonic() + seconds
        while True:
            with self._busy:
                # At first in all queues: an earlier run may have left copies to find, too.
                if targets := self._unfound() if self._looked else set(self._state.seen):
                    finding.look(client, self._state, targets, (), self._looking)
                    self._looked = True
                left = self._unfound()
            if not left or SYSTEM.monotonic() >= until:
                break
            threading.Event().wait(LOOK_SECONDS)
        if left and seconds:
            _LOG.warning(
                "not found in %s within %.0f s, though acknowledged: the last copies. Groups are carried over as far as copies were "
                "found; run the mirror again for the rest",
                ", ".join(map(str, sorted(left))),
                seconds,
            )

    def _unfound(self) -> set[MessageQueue]:
        """Return the target queues with copies that were not found yet."""
        state = self._state
        return {state.queues[queue] for queue, end in self._copied.items() if state.tables[queue].end < end}

    def _tell(self, batch: int, figures: dict[str, int], seconds: float) -> None:
        left = "".join(
            f", {figures[name]:,} {what}"
            for name, what in (("came_around", "left out because they came around"), ("unfit", "left out as unfit"))
            if figures[name]
        )
        rate = figures["rows"] / seconds if seconds else 0
        line = f"batch {batch}: {amounts.count(figures['rows'], 'message')}, {amounts.size(figures['bytes'])}{left} ({seconds:.1f} s, {rate:,.0f}/s)"
        _LOG.info("mirror: %s", line)
        self._run.tell(line, batch=batch, **figures, seconds=round(seconds, 3), replayed=False)

    # -------------------------------------------------------------- queues
    def _begin_queues(self, slices: list[dict[str, Any]]) -> None:
        """Map new queues to the target. The map is saved before anything is copied, so that it is the same after a crash."""
        state = self._state
        for topic in sorted({one["topic"] for one in slices if queue_of_row(one) not in state.queues}):
            self._map_topic(topic, [queue_of_row(one) for one in slices if one["topic"] == topic])
        new = [one for one in slices if queue_of_row(one) not in state.tables]
        for one in new:
            queue = queue_of_row(one)
            target = state.queues[queue]
            if not self._options.again:
                self._check_new(queue, target, one["start_offset"])
            state.tables[queue] = Table((one["start_offset"], state.seen[target]))
        if new:
            state.save(self._run.place)

    def _check_new(self, queue: MessageQueue, target: MessageQueue, start_offset: int) -> None:
        """Raise ConfigError if an earlier mirror has put messages there that would be copied a second time."""
        end = self._state.seen[target]
        newest = finding.newest_of(self._target, target, end, self._state.source, self._looking).get(queue, -1)
        if newest >= start_offset:
            raise ConfigError(
                f"{target} holds messages of {queue} up to offset {newest} already, which another mirror has put there. Go on with "
                f"its folder; or begin behind them, startingOffsets = '{offsets.to_text({queue: newest + 1})}' with all other "
                "queues; or say again = true to have them twice. Nothing was copied"
            )

    def _map_topic(self, topic: str, more: list[MessageQueue] | None = None) -> None:
        """Map each queue of a topic to one of the target. Raises ConfigError: there are too few."""
        state = self._state
        # With the queues of the slices: the route lacks those of a broker that is away.
        source = sorted({*self._source.queues([topic]), *(more or [])})
        name = self._options.target_topic(topic)
        target = self._target_queues(name, len(source))
        state.queues = queue_map.extended(state.queues, source, target, merge=self._options.merge_queues)
        new = {state.queues[queue] for queue in source} - state.seen.keys()
        # Searched from here on: nothing before it is a copy of this mirror's.
        state.seen.update(self._target.ends(new))

    def _target_queues(self, topic: str, wanted: int) -> list[MessageQueue]:
        """Return the writable queues of a topic of the target; a missing topic is created."""
        try:
            # Not `writable`, which guesses queues for a topic that does not exist.
            self._target.queues([topic], 0.0)
        except NoRoute:
            masters = self._target.masters()
            if not masters:
                raise NoRoute(f"no broker is registered at {self._options.to}: is one running?") from None
            counts = queue_map.spread(wanted, sorted(masters))
            for broker, count in counts.items():
                self._target.link(masters[broker]).ask([CreateTopic(topic, count, PERM_BOTH)])
            _LOG.info("the topic %s was made in the target, with %d queues", topic, wanted)
            # The map of queues is fixed for ever: it must not be made from a route that lacks some of the queues.
            until = SYSTEM.monotonic() + ROUTE_SECONDS
            while len(self._known(topic)) < wanted and SYSTEM.monotonic() < until:
                self._ended.wait(0.1)
        return self._target.writable(topic)

    def _known(self, topic: str) -> list[MessageQueue]:
        with contextlib.suppress(NoRoute):
            return self._target.queues([topic], 0.0)
        return []

    # -------------------------------------------------------------- groups
    def _carry_on(self, query: Any) -> None:
        options = self._options
        source = ClusterClient(options.servers, options.retry_seconds, access=access_of(options))
        target = ClusterClient(options.to, options.retry_seconds, access=options.target_access)
        carrier = Carrier(source, target, self._options.group_names)
        try:
            going = True
            while going:
                going = not self._ended.wait(self._options.group_seconds) and _is_active(query)
                self._carry(carrier, target, 0.0 if going else FOUND_SECONDS)
        finally:
            source.close()
            target.close()

    def _carry(self, carrier: Carrier, target: ClusterClient, seconds: float) -> None:
        try:
            self._find_rest(target, seconds)
            with self._busy:
                progress = carrier.carry(self._state)
            now = dt.datetime.fromtimestamp(SYSTEM.now_ms() / 1000, dt.UTC).isoformat(timespec="seconds")
            write_groups(self._run.place, to_json(progress, now))
        except (MetaqError, BrokerError, OSError) as fault:
            _LOG.warning("the progress of groups is carried over later: %s", fault)


def _is_active(query: Any) -> bool:
    try:
        return bool(query.isActive)
    except Exception:  # noqa: BLE001  Spark is gone, in one of many ways
        return False


def _part_of(row: dict[str, Any]) -> Part | None:
    """Return the part of a slice's summary; None: nothing was copied."""
    if not row["rows"]:
        return None
    runs = tuple(OffsetRun(*run) for run in json.loads(row["runs"]))
    # Its first message is known only if the first run was not dropped; otherwise copies are found one by one.
    first = runs[0].source if runs[0].target == 0 else -1
    return Part(queue_of_row(row), first, row["rows"], runs)
