"""Lease of an archive on a file system without locks: one run writes at a time, and a crash frees it.

    OUTPUT/_lease/TERM              its holder, and since when. Created only if there is none: one of several runs gets a term
    OUTPUT/_lease/TERM.BEAT         heartbeat, created again and again under ascending numbers while the holder lives
    OUTPUT/_lease/TERM.ended        released

The highest term is the valid one. A run that wants the lease and sees no new beat for `seconds`, by its own monotonic clock,
takes the next term; clocks of two machines are never compared. A holder that was only paused finds the higher term when it
checks, before it publishes; if it checks too early, the other run's manifest refuses it (`folder`). So the lease only keeps
two runs from wasting work: correctness does not depend on it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import platform
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, StoreLocked
from metaq.pipelines.lease import LEASE, WAIT_SECONDS
from metaq.spark.engine.hadoop import HadoopFiles

_LOG = logging.getLogger(__name__)

BEATS: Final = 4
"""Beats within the time after which a holder counts as dead."""
_ENDED: Final = "ended"
_LOOK_SECONDS: Final = 0.2


class _Observed(NamedTuple):
    """Newest term, as its files show it."""

    term: int
    beat: int
    """Number of the newest heartbeat."""
    ended: bool
    """Whether it was released."""


_NOBODY: Final = _Observed(0, 0, True)


class HadoopLease:
    """A lease on one archive. `take`, `check` and `release` are for one thread at a time."""

    def __init__(
        self, files: HadoopFiles, seconds: float, clock: Clock = SYSTEM, pause: Callable[[float], object] | None = None
    ) -> None:
        """
        Args:
            files: the archive's file system.
            seconds: a holder whose last beat is older counts as dead.
            clock: monotonic time of that.
            pause: waits for so many seconds.
        """
        self._files, self._seconds, self._clock = files, seconds, clock
        self._ended = threading.Event()
        self._pause = pause or threading.Event().wait
        self._term = self._beat = 0
        self._thread: threading.Thread | None = None
        self.fault = ""
        """Reason why this run has lost the lease; empty: it has it."""

    def take(self, seconds: float = WAIT_SECONDS) -> None:
        """Take the lease, waiting up to `seconds` for a living holder to release it, and longer for one that may be dead.

        Raises: StoreLocked: another run lives and has it; the text names it. ConfigError: the archive cannot be written to.
        """
        try:
            self._files.make_folder(LEASE)
            self._wait_for(seconds)
            self._tidy()
        except OSError as fault:
            raise ConfigError(f"{self._files.root} cannot be written to: {fault.strerror}") from None
        self._thread = threading.Thread(target=self._live, name="metaq-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that this run still has it. Raises: StoreLocked: another run has taken it. OSError: it cannot be read."""
        if not self.fault:
            seen = self._look()
            if seen.term > self._term:
                self.fault = (
                    f"another run writes into {self._files.root}: {self._holder(seen.term)}. This one, not heard of for more than "
                    f"{self._seconds:g} s, was taken for dead; start it again when the other one has ended"
                )
        if self.fault:
            raise StoreLocked(self.fault)

    def release(self) -> None:
        """Release it. May be repeated."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ended.set()
        thread.join(self._seconds)  # Not without end: its file system may hang.
        # Not released then; it is free once its last beat is old enough.
        with contextlib.suppress(OSError):
            self._files.write(self._name(_ENDED), b"", sync=False)

    def beat(self) -> None:
        """Write the next heartbeat. Raises StoreLocked, OSError, as `check`."""
        self.check()
        before = self._name(f"{self._beat:010d}")
        self._beat += 1
        # The new beat first: a look in between finds two of them, and never none.
        self._files.write(self._name(f"{self._beat:010d}"), b"", sync=False)
        self._files.remove(before)

    # ---- taking it
    def _wait_for(self, seconds: float) -> None:
        began = since = self._clock.monotonic()
        first = seen = self._look()
        while True:
            now = self._clock.monotonic()
            newest = self._look()
            if newest != seen:
                seen, since = newest, now
            if seen.ended or now - since >= self._seconds:
                if self._claim(seen):
                    return
            elif seen != first and now - began >= seconds:  # It has changed since we began to look: its holder lives.
                raise StoreLocked(
                    f"another run writes into {self._files.root}: {self._holder(seen.term)}. Stop it, or give this one an "
                    "output folder of its own"
                )
            self._pause(_LOOK_SECONDS)

    def _claim(self, seen: _Observed) -> bool:
        """Try to create the next term. Returns False if another run was quicker."""
        if not seen.ended:
            _LOG.warning(
                "%s: nothing was heard for %g s of the run that has it (%s): it is taken for dead",
                self._files.root, self._seconds, self._holder(seen.term),
            )  # fmt: skip
        self._term, self._beat = seen.term + 1, 0
        since = dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC).isoformat(timespec="seconds")
        text = json.dumps({"host": platform.node(), "pid": os.getpid(), "since": since})
        try:
            self._files.create(self._name(), text.encode())
        # FileNotFoundError: the quicker run has removed the temporary file.
        except (FileExistsError, FileNotFoundError):
            return False
        # An old term, whose file the holder of a newer one had removed.
        if self._look().term > self._term:
            self._files.remove(self._name())
            return False
        return True

    def _tidy(self) -> None:
        for entry in self._files.entries(LEASE):
            term = entry.name.partition(".")[0]
            if not term.isdigit() or int(term) < self._term:
                with contextlib.suppress(OSError):
                    self._files.remove(f"{LEASE}/{entry.name}")

    def _look(self) -> _Observed:
        newest = _NOBODY
        for entry in self._files.entries(LEASE):
            term, _, more = entry.name.partition(".")
            if not term.isdigit():
                continue
            found = _Observed(int(term), int(more) if more.isdigit() else 0, more == _ENDED)
            if found.term > newest.term:
                newest = found
            elif found.term == newest.term:
                newest = _Observed(found.term, max(found.beat, newest.beat), found.ended or newest.ended)
        return newest

    def _name(self, more: str = "") -> str:
        return f"{LEASE}/{self._term:010d}{'.' if more else ''}{more}"

    def _holder(self, term: int) -> str:
        try:
            holder = json.loads(self._files.read(f"{LEASE}/{term:010d}"))
            return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "it has not said which process it is"

    # ---- keeping it
    def _live(self) -> None:
        """Write heartbeats, in a thread. A failed write is only logged: `check` decides whether the lease is lost."""
        while not self._ended.wait(self._seconds / BEATS):
            try:
                self.beat()
            except StoreLocked as lost:
                _LOG.warning("%s", lost)
                return
            except OSError as fault:
                _LOG.warning("%s: this run cannot tell that it lives: %s", self._files.root, fault.strerror)
            except Exception as fault:  # noqa: BLE001  `check` tells whoever publishes
                # The run has ended, and the JVM may have gone with it.
                if self._ended.is_set():
                    return
                self.fault = f"the thread that keeps {self._files.root} for this run has failed: {fault!r}"
                _LOG.exception("%s", self.fault)
                return
