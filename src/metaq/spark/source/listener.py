"""`metaq.spark.ProgressListener`: stores the progress of a session's queries as consumer groups' progress, and logs it.

Spark calls a listener in the driver's Python, between batches: it must not wait for brokers. So the listener only notes
the newest positions, and a thread of its own stores them, broker by broker: one that is away delays no other, and gets
its share when it is back.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from metaq.client.identity.access import Access
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, MetaqError, Refused
from metaq.log import RateLimitedLog
from metaq.model.offsets import Positions
from metaq.model.queue import MessageQueue
from metaq.model.topics.topic import check_group
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.source.progress import RETRY_SECONDS, Lag, of_progress

_LOG = logging.getLogger(__name__)

LOG_SECONDS = 10.0
PAUSE_SECONDS = 5.0
"""Pause before a broker that did not answer is tried again."""
CLOSE_SECONDS = 10.0
LOOK_SECONDS = 0.1


class ProgressStore:
    """Stores the newest position of each queue as the progress of groups, on a thread of its own."""

    def __init__(self, store: Callable[[str, Positions], None], pause_seconds: float = PAUSE_SECONDS) -> None:
        """
        Args:
            store: called with a group and positions of queues of one broker; on any exception it is logged and called
                again later.
            pause_seconds: pause before that.
        """
        self._store, self._pause = store, pause_seconds
        self._due: dict[tuple[str, str], Positions] = {}
        """(group, broker) → positions that are not stored yet."""
        self._storing = self._closed = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._faults = RateLimitedLog(_LOG, seconds=60.0)

    def note(self, group: str, positions: Positions) -> None:
        """Schedule `positions` to be stored as the group's progress. Returns at once."""
        with self._changed:
            for queue, position in positions.items():
                self._due.setdefault((group, queue.broker), {})[queue] = position
            if self._thread is None and not self._closed:
                # A daemon: a broker that is away must not keep the process from ending.
                self._thread = threading.Thread(target=self._run, name="metaq-progress", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settled(self, seconds: float) -> bool:
        """Wait until everything is stored. Returns False after a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._due and not self._storing, seconds)

    def close(self, seconds: float) -> bool:
        """Try once more to store what is due, and end. Returns False if some of it is not stored."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(seconds)
        return self.settled(0)

    def _run(self) -> None:
        last = False
        while not last:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                last = self._closed
                due, self._due, self._storing = self._due, {}, True
            failed = {key: positions for key, positions in due.items() if not self._stored(*key, positions)}
            with self._changed:
                self._storing = False
                # Positions noted meanwhile are newer, and win.
                for key, positions in failed.items():
                    self._due[key] = positions | self._due.get(key, {})
                self._changed.notify_all()
                if failed:
                    # A pause that `close` cuts short.
                    self._changed.wait_for(lambda: self._closed, self._pause)

    def _stored(self, group: str, broker: str, positions: Positions) -> bool:
        try:
            self._store(group, positions)
        except Exception as fault:  # noqa: BLE001  the thread must outlive it: nobody would see that it has ended
            text = "the progress of group %s at broker %s is not stored yet: %s"
            reason = fault if isinstance(fault, MetaqError) else repr(fault)
            self._faults.warning((group, broker), text, group, broker, reason)
            return False
        return True


class _Run(Struct):
    """One run of a query, from its start to its end."""

    query: str
    name: str | None
    group: str | None
    logged_at: float | None = None
    """Time of the last log line, monotonic seconds."""
    last: Lag | None = None

    def __str__(self) -> str:
        return self.name or self.query


class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Mirrors the progress of all queries of a session that read `format("metaq")`.

        spark.streams.addListener(metaq.spark.ProgressListener("localhost:9876", group="spark-{name}"))

    `metaq group show GROUP` and RocketMQ's tools then show a query like any consumer group. Where it goes on is in its
    checkpoint alone. The end of a run is stored too, that of `trigger(availableNow=True)` included: at the latest when the
    process ends, or in `close`.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        group: str | Mapping[str, str] | None = None,
        *,
        log_seconds: float = LOG_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        clock: Clock = SYSTEM,
        acl_file: str | None = None,
    ) -> None:
        """
        Args:
            name_servers: of the cluster that is read, `host:port`, `;`-separated. None: progress is only logged.
            group: the consumer group; in it, `{name}` stands for the query's name (its id, if it has none), `{id}` for its
                id. Or query name → group: other queries are not mirrored. Consumers in that group, or another query that
                reads the same queues, would overwrite its progress: give each query a group of its own.
            log_seconds: seconds between two lines of the log about a query's progress (level INFO), at least; 10 by default. Its end is
                logged, too.
            retry_seconds: seconds for which one attempt to store goes on while a broker is away, 5 by default; there are more, with pauses.
            acl_file: what requests are signed with, as of the source.

        Raises: ConfigError: an address or a group is malformed, or a group is given without name servers.
        """
        self._groups = group if group is None or isinstance(group, str) else dict(group)
        for one in [group] if isinstance(group, str) else (group or {}).values():
            _named(one, "x", "x")
        if group is not None and name_servers is None:
            raise ConfigError("ProgressListener: a group's progress is stored by brokers: give name_servers")
        access = Access(acl_file=acl_file)
        self._client = ClusterClient(name_servers, retry_seconds, access=access) if name_servers is not None else None
        self._mirror = ProgressStore(self._client.report) if self._client is not None else None
        self._log_seconds, self._clock = log_seconds, clock
        self._runs: dict[str, _Run] = {}
        """Run id → run."""
        self._owners: dict[tuple[str, MessageQueue], str] = {}
        """Group and queue → id of the run that stores it."""
        self._warned: set[tuple[str, str]] = set()
        self._changed = threading.Condition()
        # Nobody has to close a listener: the last progress is stored when the process ends.
        atexit.register(self.close)

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Store the last progress of ended queries and whatever else is due, then stop; waits up to `seconds`, 10 by default.

        Spark delivers a query's last events a moment after `awaitTermination` has returned; they are waited for.
        Returns: whether everything is stored. The log names what is not.
        """
        atexit.unregister(self.close)
        until = SYSTEM.monotonic() + seconds
        while self._ended() and SYSTEM.monotonic() < until:
            with self._changed:
                self._changed.wait(LOOK_SECONDS)
        if self._mirror is None:
            return True
        stored = self._mirror.close(max(0.0, until - SYSTEM.monotonic()))
        if stored and self._client is not None:
            self._client.close()
        return stored

    def _ended(self) -> set[str]:
        """Return the ids of ended runs whose last events have not arrived."""
        if not self._runs:
            return set()
        session = self.spark or SparkSession.getActiveSession()
        if session is None:  # Spark itself has ended; it delivers all events before that.
            return set()
        try:
            return set(self._runs) - {str(query.runId) for query in session.streams.active}
        except Exception as fault:  # noqa: BLE001  whatever Spark raises when it has ended
            _LOG.debug("Spark does not tell which queries run: %s", fault)
            return set()

    # -------------------------------------------------------------- what Spark calls; the names are Spark's
    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Take note of the query and of its group."""
        self._run_of(event.runId, event.id, event.name)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Have the progress of a micro-batch stored, and logged if that is due. Queries of other sources are passed over."""
        progress = event.progress
        run = self._run_of(progress.runId, progress.id, progress.name)
        try:
            found = of_progress(progress)
        # A query of other sources: a listener gets the events of all.
        except ConfigError as fault:
            _LOG.debug("%s", fault)
            return
        if found is None:
            return
        run.last = found
        if run.group is not None and self._mirror is not None:
            self._own(str(progress.runId), run, found)
            self._mirror.note(run.group, found.positions)
        now = self._clock.monotonic()
        if run.logged_at is None or now - run.logged_at >= self._log_seconds:
            run.logged_at = now
            _LOG.info(
                "query %s, batch %d: %d rows read, %s", run, found.batch, progress.numInputRows or 0, _behind(found)
            )

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: an idle query has no news."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Have the query's last progress stored and logged."""
        run_id = str(event.runId)
        with self._changed:
            run = self._runs.pop(run_id, None)
            self._owners = {key: owner for key, owner in self._owners.items() if owner != run_id}
            self._changed.notify_all()
        if run is None or run.last is None:
            return
        how = "failed" if event.exception else "ended"
        _LOG.info("query %s has %s after batch %d, %s", run, how, run.last.batch, _behind(run.last))

    # -------------------------------------------------------------- which query is which group
    def _run_of(self, run_id: Any, query: Any, name: str | None) -> _Run:
        # A listener may be added while queries run: they have no start event.
        with self._changed:
            run = self._runs.get(str(run_id))
            if run is None:
                run = self._runs[str(run_id)] = _Run(str(query), name, self._group(str(query), name))
            return run

    def _group(self, query: str, name: str | None) -> str | None:
        text = self._groups if isinstance(self._groups, str | None) else self._groups.get(name or "")
        try:
            return _named(text, name or query, query) if text is not None else None
        except ConfigError as fault:
            _LOG.warning("the progress of query %s is not mirrored: %s", name or query, fault)
            return None

    def _own(self, run_id: str, run: _Run, found: Lag) -> None:
        """Warn, once per pair, of two queries that overwrite each other's progress."""
        assert run.group is not None
        with self._changed:
            others = {self._owners.setdefault((run.group, queue), run_id) for queue in found.positions} - {run_id}
            for other in others:
                if (run_id, other) not in self._warned:
                    self._warned.add((run_id, other))
                    text = (
                        "queries %s and %s read the same queues and are both mirrored to group %s, which shows now the one and"
                        " now the other: give each a group of its own, as in group='spark-{name}'"
                    )
                    _LOG.warning(text, self._runs.get(other, other), run, run.group)


def _named(text: str, name: str, query: str) -> str:
    """Return the group of a query. Raises ConfigError: not a legal group name, or an unknown placeholder."""
    try:
        return check_group(text.format(name=name, id=query))
    except (Refused, KeyError, IndexError, ValueError, AttributeError) as fault:
        why = fault if isinstance(fault, Refused) else "only {name} and {id} are known in it"
        raise ConfigError(f"group={text!r}: {why}") from None


def _behind(found: Lag) -> str:
    behind = "not known how far" if found.behind is None else str(found.behind)
    return f"{behind} behind in {len(found.queues)} queue{'s' * (len(found.queues) != 1)}"
