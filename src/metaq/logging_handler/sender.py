"""The thread that sends the buffer's records, in batches, until they are acknowledged.

The first record starts it, and the next one restarts it if it has died. While no broker accepts messages it retries with growing
pauses, and the buffer fills up. It reports that on the logger `metaq.logging_handler`, whose records no `MetaQHandler` sends,
and never from a thread of the application.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import MetaqError
from metaq.log import RateLimitedLog
from metaq.logging_handler.buffer import Buffer, Entry
from metaq.logging_handler.formats import cut

LOG = logging.getLogger("metaq.logging_handler")

BATCH_RECORDS, BATCH_BYTES = 2000, 1024 * 1024
LOOK_SECONDS = 1.0
"""Longest sleep of an idle sender, in case a wake-up was missed."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.25, 5.0
"""First and longest pause between two tries while nothing can be sent; it doubles."""
SUMMARY_SECONDS = 10.0
"""Least seconds between two summaries of dropped records."""
RESULT_SECONDS = 120.0
"""Longest time of a producer's send; after it the producer's thread counts as stuck."""
CUT_BYTES_MIN = 1024
"""Smallest body to which a record is cut: a broker that refuses that will accept none."""
LEAVE_SECONDS = 0.2
"""Time for closing the producer once the time of `close` is over."""

OWN_THREADS: set[int] = set()
"""Thread idents of this process's senders: their log records are not sent."""


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of sending. Sizes in bytes, durations in seconds."""

    topic: str
    buffer_records_max: int
    buffer_bytes_max: int
    record_bytes_max: int
    linger: float


class Way(Protocol):
    """How records get to a server: a producer of one generation or the other."""

    def prepare(self) -> None:
        """Called before each batch. Raises MetaqError: nothing can be sent now."""
        ...

    def submit(self, entry: Entry) -> Any:
        """Start a send. Returns what `error` takes. Raises MetaqError."""
        ...

    def error(self, entry: Entry, send: Any, seconds: float) -> Exception | None:
        """Wait for the outcome of a send: its error, and after so many seconds RequestTimeout; None: it is stored."""
        ...

    def is_too_long(self, error: Exception) -> bool:
        """Return whether a shorter record may be accepted."""
        ...

    def may_pass(self, error: Exception) -> bool:
        """Return whether the same record may be accepted later."""
        ...

    def close(self, seconds: float) -> None:
        """Raises MetaqError."""
        ...


class Sender:
    """Sender of one handler, in one process."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], Way],
        summary: Callable[[Counter[str]], Entry],
        clock: Clock,
    ) -> None:
        """

        Args:
            connect: makes the way to the server.
            summary: makes a record that says how many were dropped, by reason.
        """
        self.buffer = Buffer(settings.buffer_records_max, settings.buffer_bytes_max)
        self.sent = self.shortened = self.restarts = 0
        self._settings, self._connect, self._summary, self._clock = settings, connect, summary, clock
        self.record_bytes_max = settings.record_bytes_max
        """The longest body that the broker is known to accept."""
        self._way: Way | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Wake-ups; True: hurry. A SimpleQueue, because a signal handler may put into it in the middle of another put."""
        self._idle = self._away = self._closing = self._abandoned = False
        self._pause = PAUSE_SECONDS
        self._summed_up: Counter[str] = Counter()
        self._summary_at: float | None = None
        self._limited_log = RateLimitedLog(_Voice(LOG.name), clock)

    # -------------------------------------------------------------- threads of the application

    def put(self, entry: Entry) -> None:
        """Put a record into the buffer. Never waits, raises nothing."""
        self.buffer.put(entry)
        if not self._closing:
            self._see_to_thread()
        # Only an idle sender has to be woken; LOOK_SECONDS bounds the delay of a wake-up that is missed.
        if self._idle:
            self._idle = False
            self._wake.put(False)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was put is sent or dropped. Returns False: some is not after `timeout` seconds."""
        # The sender's own thread would wait for itself.
        if not self.buffer.count or threading.get_ident() in OWN_THREADS:
            return not self.buffer.count
        _know_levels()
        self._see_to_thread()
        self._wake.put(True)
        return self.buffer.wait(timeout)

    def close(self, timeout: float) -> None:
        """Accept no more records and send the waiting ones; after `timeout` seconds drop, count and report them."""
        self.buffer.close()
        # A second `close`, as from `logging.shutdown` at exit, has nothing left to do.
        if self._abandoned:
            return
        deadline = self._clock.monotonic() + timeout
        _know_levels()
        if self.buffer.count and timeout > 0:
            self._see_to_thread()
        # After the thread was seen to, since a closing sender starts none any more.
        self._closing = True
        self._wake.put(True)
        thread = self._thread
        if thread is not None and thread.ident not in {None, threading.get_ident()}:
            thread.join(max(0.0, timeout))
        self._abandoned = True
        # A sender in a pause between two tries wakes, and finds that it is to end.
        self._wake.put(True)
        if left := self.buffer.abandon():
            self._limited_log.error(
                "left", "%d log records for topic %s are lost: they could not be sent within the %.1f s for closing",
                left, self._settings.topic, timeout,
            )  # fmt: skip
        if self._way is not None:
            with contextlib.suppress(MetaqError):
                self._way.close(max(LEAVE_SECONDS, deadline - self._clock.monotonic()))
        self._limited_log.tick()

    def late(self, name: str) -> None:
        """Report a record of logger `name` that came after `close`."""
        self._limited_log.warning(
            "late", "a record of logger %s is lost: the handler of topic %s is closed", name, self._settings.topic
        )

    def warn(self, kind: str, text: str, *args: object) -> None:
        """Log a warning, rate limited."""
        self._limited_log.warning(kind, text, *args)

    def _see_to_thread(self) -> None:
        """Start the sending thread if there is none, unless another call is doing so."""
        thread = self._thread
        # Not blocking: logging never waits, and the lock may be held further up in this very thread (a signal handler).
        if (thread is not None and thread.is_alive()) or not self._starting.acquire(blocking=False):
            return
        try:
            thread = self._thread
            if thread is not None and thread.is_alive():
                return
            fresh = threading.Thread(target=self._run, name="metaq-logging", daemon=True)
            # Stored only once it runs: if no thread can be started, the next record tries again.
            fresh.start()
            self._thread = fresh
            if thread is None:
                self._close_with_child()
            else:
                self.restarts += 1
                self.warn("died", "the thread that sends log records to topic %s had died; it was started again",
                          self._settings.topic)  # fmt: skip
        except (
            RuntimeError
        ) as error:  # "can't start new thread": at a limit of the system, or at the interpreter's exit.
            self.warn("no thread", "no thread to send log records to topic %s: %s", self._settings.topic, error)
        finally:
            self._starting.release()

    def _close_with_child(self) -> None:
        """Register `close` in a child of `multiprocessing`, which ends without `atexit` but runs its finalizers.

        Only if `multiprocessing` is imported already.
        """
        process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
        if process is not None and util is not None and process.parent_process() is not None:
            util.Finalize(None, self.close, args=(LOOK_SECONDS * 5,), exitpriority=0)

    # -------------------------------------------------------------- its own thread

    def _run(self) -> None:
        ident = threading.get_ident()
        OWN_THREADS.add(ident)
        try:
            while True:
                try:
                    self._work()
                    return
                except BaseException as error:  # noqa: BLE001  SystemExit too: who logs must not lose its sender
                    self._limited_log.error("failed", "sending log records to topic %s failed and is tried again: %r",
                                     self._settings.topic, error, error=error)  # fmt: skip
                    self._wait(self._pause)
        finally:
            OWN_THREADS.discard(ident)

    def _work(self) -> None:
        while entries := self._next():
            self._send(entries)

    def _next(self) -> list[Entry]:
        """Wait for records, and return those to send now; [] at the end."""
        while not self._abandoned:
            # While nothing can be sent, try with a single record.
            if entries := self.buffer.first(1 if self._away else BATCH_RECORDS, BATCH_BYTES):
                return entries
            self._sum_up(at_once=self._closing)
            if self.buffer.count:
                continue
            if self._closing:
                break
            self._idle = True
            # The buffer is looked at again after `_idle` was set: a record put before that has woken nobody.
            urgent = self._wait(LOOK_SECONDS) if not self.buffer.count else False
            self._idle = False
            if not urgent and self.buffer.count:
                self._wait(self._settings.linger)  # More records may come: send them in one batch.
            self._limited_log.tick()
        return []

    def _wait(self, seconds: float) -> bool:
        """Sleep until woken. Returns whether there is a hurry."""
        try:
            urgent = self._wake.get(timeout=seconds)
        except queue.Empty:
            return False
        with contextlib.suppress(queue.Empty):
            while True:
                urgent = self._wake.get_nowait() or urgent
        return urgent

    def _send(self, entries: list[Entry]) -> None:
        """Send a batch and wait for the acknowledgements. Raises as making a producer does."""
        if self._way is None:
            self._way = self._connect()
        way = self._way
        outcomes: list[_Again | _Refused | None]
        try:
            way.prepare()
        except MetaqError as error:
            outcomes = [_Again(entry, error) for entry in entries]
        else:
            sends = [self._submit(way, entry) for entry in entries]
            outcomes = [self._outcome(way, entry, send) for entry, send in zip(entries, sends, strict=True)]
        again = [one.entry for one in outcomes if isinstance(one, _Again)]
        refusals = [one.error for one in outcomes if isinstance(one, _Refused)]
        delays = [one.error for one in outcomes if isinstance(one, _Again) and one.error is not None]
        self.sent += len(entries) - len(again) - len(refusals)
        self.buffer.settle(len(entries), again, len(refusals))
        topic = self._settings.topic
        if refusals and not self._abandoned:  # `close` has told of these as what is left
            text = "%d log records are lost: they cannot be sent to topic %s: %s"
            self._limited_log.error("refused", text, len(refusals), topic, refusals[0])
        # From now on single records are tried until one is stored, see `_next`.
        self._away = bool(delays)
        if delays and not self._abandoned:
            text = "log records cannot be sent to topic %s: %s. %d wait, %d were dropped since the start"
            self._limited_log.warning("away", text, topic, delays[0], self.buffer.count, self.buffer.dropped.total())
            self._limited_log.tick()
            self._wait(self._pause)
            self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)
        elif not delays:
            self._pause = PAUSE_SECONDS
            self._sum_up()

    @staticmethod
    def _submit(way: Way, entry: Entry) -> Any:
        """Start a send. Returns it, or the error that it failed with."""
        try:
            return way.submit(entry)
        except MetaqError as error:
            return error

    def _outcome(self, way: Way, entry: Entry, send: Any) -> _Again | _Refused | None:
        """Return the outcome of a send; None: it is stored."""
        error = send if isinstance(send, MetaqError) else way.error(entry, send, RESULT_SECONDS)
        if error is None:
            return None
        # How long a record may be is not known before: halve until it is accepted, and remember the size.
        if way.is_too_long(error) and len(entry.body) > CUT_BYTES_MIN:
            self.record_bytes_max = max(CUT_BYTES_MIN, len(entry.body) // 2)
            shorter = cut(entry.body, self.record_bytes_max, is_json=entry.is_json)
            self.shortened += 1
            # Without the old message id: nothing was stored under it.
            return _Again(Entry(shorter, entry.tag, entry.keys, entry.is_json))
        return _Again(entry, error) if way.may_pass(error) else _Refused(error)

    def _sum_up(self, *, at_once: bool = False) -> None:
        """Send a summary of records dropped since the last one, if there are any and SUMMARY_SECONDS have passed."""
        dropped = self.buffer.dropped
        if dropped == self._summed_up:
            return
        now = self._clock.monotonic()
        if not at_once and self._summary_at is not None and now - self._summary_at < SUMMARY_SECONDS:
            return
        self._summary_at = now
        fresh = dropped - self._summed_up
        self._summed_up = dropped
        self._limited_log.warning("dropped", "%d log records for topic %s were dropped (%s)",
                           fresh.total(), self._settings.topic, reasons(fresh))  # fmt: skip
        self.buffer.put_first(self._summary(fresh))


class _Again(NamedTuple):
    """A record to send again; after a pause if there is an `error`."""

    entry: Entry
    error: Exception | None = None


class _Refused(NamedTuple):
    error: Exception


def reasons(dropped: Counter[str]) -> str:
    """Return dropped records as text, `full: 12, refused: 1`."""
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(dropped.items()))


def _know_levels() -> None:
    """Fill the level caches of the client's loggers, before this thread waits for the client.

    `logging.config` clears these caches, and calls `flush` and `close` while it holds the lock of `logging`. A logger
    with an empty cache takes that lock: the client's thread would wait for it, and this thread for the client. This
    thread holds it already.
    """
    for name, logger in list(LOG.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in {"metaq", "asyncio"}:
            for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
                logger.isEnabledFor(level)


class _Voice(logging.Logger):
    """Logs for `LOG`: to its handlers, or to stderr if only a MetaQHandler would get the record.

    Not by `LOG` itself: its check of the level may wait for a thread that configures logging, and that thread waits for this one.
    """

    def isEnabledFor(self, level: int) -> bool:  # noqa: ARG002, N802  logging's name
        return True

    def handle(self, record: logging.LogRecord) -> None:
        if LOG.getEffectiveLevel() > record.levelno:
            return
        if not LOG.disabled and _has_ears(record.levelno):
            LOG.callHandlers(record)
        elif sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"{LOG.name}: {record.getMessage()}\n")


def _has_ears(level: int) -> bool:
    logger: logging.Logger | None = LOG
    while logger is not None:
        if any(handler.level <= level and not getattr(handler, "sends_to_metaq", False) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
