"""Ends a server in the background: the one that holds the lock of its pid file, and no other process."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from metaq.app.background.places import Places
from metaq.app.background.starting import LOOK_SECONDS
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, MetaqError

KILL_SECONDS: Final = 30.0
"""Longest wait for the end of a process that was killed: the system may have to finish its disk's work."""


class StillRuns(MetaqError):
    """The server has not ended in time."""


class StopOutcome(enum.StrEnum):
    """How `stop` has gone."""

    CLEAN = "stopped"
    KILLED = "killed"
    NOT_RUNNING = "not running"


def stop(
    places: Places,
    name: str,
    timeout: float,
    progress: Callable[[float], None] = lambda _seconds: None,
    clock: Clock = SYSTEM,
    *,
    force: bool = False,
) -> StopOutcome:
    """Have a server end cleanly (SIGTERM), and return when it has.

    Args:
        places: folder of its files.
        name: what it is called there.
        timeout: longest wait, s.
        progress: called with the seconds that have passed, about 20 times a second.
        clock: a test's, or the system's.
        force: kill it (SIGKILL) when it has not ended in time.
    Raises:
        StillRuns: it has not ended in time, and `force` is not set; or not even then.
        ConfigError: it belongs to another user or container.
    """
    pid = _signal(places, name, signal.SIGTERM)
    if pid is None:
        _tidy(places, name, -signal.SIGKILL, clock)  # as nobody said how it has ended
        return StopOutcome.NOT_RUNNING
    if _wait(places, name, pid, timeout, progress, clock):
        _tidy(
            places, name, -signal.SIGTERM, clock
        )  # if it was so early that the signal ended it, and not the server itself
        return StopOutcome.CLEAN
    if not force:
        raise StillRuns(f"{name} (process {pid}) still runs {timeout:.0f} s after it was told to stop")
    if _signal(places, name, signal.SIGKILL, only=pid) is None:
        return StopOutcome.CLEAN
    if not _wait(places, name, pid, KILL_SECONDS, progress, clock):
        raise StillRuns(
            f"{name} (process {pid}) still runs {KILL_SECONDS:.0f} s after it was killed: the system waits for its disk, or something traces it"
        )
    _tidy(places, name, -signal.SIGKILL, clock)
    return StopOutcome.KILLED


def _signal(places: Places, name: str, number: signal.Signals, only: int | None = None) -> int | None:
    """Send a signal to the process that has the lock, and return its id; None: none has, or not `only`."""
    pid = places.find(name).pid
    if pid is None or (only is not None and pid != only):
        return None
    if pid == 0:
        raise ConfigError(f"{name} runs in another container: stop it there")
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        # The handle is of one process for ever. Who has the lock after it was made is that process, and not a later one of the same number.
        if places.find(name).pid != pid:
            return None
        for one in (signal.SIGCONT, number):  # one that is halted would get it only when it goes on
            signal.pidfd_send_signal(handle, one)
    except ProcessLookupError:
        return None
    except PermissionError:
        raise ConfigError(f"{name} (process {pid}) belongs to another user, who alone may stop it") from None
    finally:
        os.close(handle)
    return pid


def _wait(places: Places, name: str, pid: int, timeout: float, progress: Callable[[float], None], clock: Clock) -> bool:
    """Return whether the process has ended in time."""
    begun, pause = clock.monotonic(), threading.Event()
    while places.find(name).pid == pid:
        if (passed := clock.monotonic() - begun) >= timeout:
            return False
        progress(passed)
        pause.wait(LOOK_SECONDS)
    return True


def _tidy(places: Places, name: str, code: int, clock: Clock) -> None:
    if places.find(name).left:
        with contextlib.suppress(OSError):
            places.forget(name, code, clock.now_ms())
