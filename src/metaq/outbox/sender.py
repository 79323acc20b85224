"""`OutboxSender`: a thread that sends what is in an outbox."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Self

from metaq.clock import SYSTEM
from metaq.errors import MetaqError
from metaq.log import RateLimitedLog
from metaq.outbox.entry import Entry
from metaq.outbox.outbox import Outbox, Waker
from metaq.outbox.outlets import outlets_of
from metaq.outbox.work import Database, Rules, Work

LOG = logging.getLogger("metaq.outbox")
CLOSE_SECONDS = 30.0
SETTLE_TRIES = 5


class OutboxSender:
    """Sends the messages of an outbox until it is closed, from a thread of its own. Several may, in any number of processes.

    Whatever goes wrong with the database or the brokers is logged by `metaq.outbox` and tried again.

    Args:
        connect: opens a DB-API connection, or a connection or session of SQLAlchemy, such as a `sessionmaker`; called in the thread.
        producers: a producer, or one of each generation. They are not closed. What no producer given can send is left.
        rules: how it works; None: `Rules()`.

    Raises ConfigError, TypeError.
    """

    def __init__(self, outbox: Outbox, connect: Callable[[], Any], producers: Any, rules: Rules | None = None) -> None:
        self._outbox, self._connect, self._rules = outbox, connect, rules or Rules()
        self._outlets, self._database = outlets_of(producers), Database()
        self._log = RateLimitedLog(LOG)
        self._waker = Waker(self._wake)
        self._awake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="metaq-outbox", daemon=True)
        self.sent = self.failed = self.parked = 0
        """Number of messages that this sender has sent, of tries that failed, and of messages that it has parked."""

    def start(self) -> Self:
        """Start the thread. To be called once; entering a `with` block does it. Raises RuntimeError: it was started before."""
        self._outbox._watched_by(self._waker)  # noqa: SLF001  senders are parts of it
        self._thread.start()
        return self

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Finish what is on its way, and end the thread; waits `timeout` (30) seconds at most. What is left waits in the table."""
        self._closing = True
        self._awake.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_once(self) -> bool:
        """Lease messages and send them, in this thread. Returns False: there were none. Raises what the driver raises."""
        work = Work(self._outbox.table, self._rules, list(self._outlets), self._database)
        target = self._connect()
        try:
            found = work.begin(target)
            while not self._closing and (step := work.step()):
                self._settle(work, target, self._sent(step))
            work.end(target)
        finally:
            self.sent, self.failed, self.parked = (
                self.sent + work.sent, self.failed + work.failed, self.parked + work.parked
            )  # fmt: skip
            target.close()
        return found

    def _settle(self, work: Work, target: Any, outcomes: list[tuple[Entry, Exception | None]]) -> None:
        """Record outcomes; once more after a deadlock with another sender, or all of it would be sent a second time."""
        for left in reversed(range(SETTLE_TRIES)):
            try:
                work.settle(target, outcomes)
                return
            except Exception:
                if not left:
                    raise
                target.rollback()

    def _sent(self, step: list[Entry]) -> list[tuple[Entry, Exception | None]]:
        deadline = SYSTEM.monotonic() + self._rules.timeout
        started = [(entry, self._submitted(entry)) for entry in step]
        outcomes: list[tuple[Entry, Exception | None]] = []
        for entry, future in started:
            error = future if isinstance(future, Exception) else None
            if error is None:
                try:
                    self._outlets[entry.protocol].check(future.result(max(0.0, deadline - SYSTEM.monotonic())))
                except (MetaqError, TimeoutError, ValueError, TypeError) as fault:
                    error = fault
            if error is not None:
                self._log.warning("failed", "message %s for topic %s: %s", entry.message_id, entry.topic, error)
            outcomes.append((entry, error))
        return outcomes

    def _submitted(self, entry: Entry) -> Any:
        outlet = self._outlets[entry.protocol]
        try:
            outlet.prepare(entry.topic)
            return outlet.submit(entry)
        except (MetaqError, ValueError, TypeError) as error:
            return error

    def _wake(self) -> None:
        self._awake.set()

    def _run(self) -> None:
        while not self._closing:
            self._awake.clear()
            try:
                found = self.run_once()
            except Exception as error:  # noqa: BLE001  whatever a driver raises: the thread must not end
                self._log.warning("database", "the table %s cannot be worked on: %s", self._outbox.table, error)
                found = False
            if not found:
                self._awake.wait(self._rules.poll)
