"""Starts a server in the background, and waits until it is ready or has ended."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from metaq.app.background.life import READY, TAKEN
from metaq.app.background.places import Description, Found, Places
from metaq.app.runtime import STOP_WITH_STDIN
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, MetaqError

LOOK_SECONDS: Final = 0.05
TAIL_LINES: Final = 15
_TAIL_BYTES: Final = 64 * 1024


class RunsAlready(MetaqError):
    """A server of this name runs, or is on its way."""


class EndedAtStart(MetaqError):
    """The server has ended before it was ready. `code`: its exit code; negative: the signal that ended it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class NotReadyYet(MetaqError):
    """The server goes on starting."""


class LogSettings(NamedTuple):
    """The log file of a server in the background."""

    path: pathlib.Path
    bytes_max: int
    """Size at which a new one is begun; 0: never."""
    older: int
    """Older ones that are kept."""


def start_in_background(
    places: Places,
    name: str,
    command: Callable[[int], Sequence[str]],
    log: LogSettings,
    timeout: float,
    progress: Callable[[float], None] = lambda _seconds: None,
    clock: Clock = SYSTEM,
) -> Description:
    """Start a server as a process of its own session, and return when it accepts clients.

    Args:
        places: folder of its files.
        name: what it is called there.
        command: returns its command line, from the descriptor of the pipe that it reports to (`metaq.app.background.life`).
        log: gets its output.
        timeout: longest wait, s. It goes on starting afterwards.
        progress: called with the seconds that have passed, about 20 times a second.
        clock: a test's, or the system's.
    Raises:
        RunsAlready, EndedAtStart, NotReadyYet.
        ConfigError: the folder, or the log file, cannot be written.
    """
    places.make()
    if (found := places.find(name)).pid is not None:
        raise RunsAlready(_runs(found, name))
    try:
        log.path.parent.mkdir(parents=True, exist_ok=True)
        output = log.path.open("ab")
    except OSError as fault:
        raise ConfigError(f"the log file {log.path} cannot be written: {fault.strerror}") from None
    mine, its = os.pipe()
    try:
        with output:
            before = output.tell()
            process = subprocess.Popen(  # noqa: S603  our own command
                command(its),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(its,), start_new_session=True,
                env={name: value for name, value in os.environ.items() if name != STOP_WITH_STDIN},
            )  # fmt: skip
        os.close(its)
        os.set_blocking(mine, False)
        said = _wait(process, mine, timeout, progress, clock)
    finally:
        os.close(mine)
    if said == READY and (description := places.find(name).description) is not None:
        return description
    if said == TAKEN:
        process.wait()
        raise RunsAlready(_runs(places.find(name), name))
    if process.poll() is None:
        last = f", which ends with: {lines[0]}\n" if (lines := tail(log.path, before, lines=1)) else "; "
        raise NotReadyYet(
            f"{name} (process {process.pid}) is not ready after {timeout:.0f} s and goes on starting; its log is {log.path}{last}"
            f"`metaq status {name}` says when it is ready, `metaq stop {name}` ends it"
        )
    places.forget(name, process.returncode, clock.now_ms())
    raise EndedAtStart(_how_it_ended(name, process.returncode, log.path, before), process.returncode)


def _wait(
    process: subprocess.Popen[bytes], report: int, timeout: float, progress: Callable[[float], None], clock: Clock
) -> bytes:
    """Return what the process has reported; b"": nothing in time, or it has ended."""
    begun, pause = clock.monotonic(), threading.Event()
    while (passed := clock.monotonic() - begun) < timeout:
        ended = process.poll() is not None  # before the look at the report, which may have come last
        with contextlib.suppress(BlockingIOError):
            if said := os.read(report, 100):
                return said
            process.wait()  # it has closed the pipe without a word: it is about to end
            return b""
        if ended:
            return b""
        progress(passed)
        pause.wait(LOOK_SECONDS)
    return b""


def _runs(found: Found, name: str) -> str:
    what = found.description
    if what is None:
        return f"{name} runs already, or is being started just now; `metaq status {name}` shows it, --as starts this one by another name"
    where = ", ".join(f"{kind} {address}" for kind, address in what.addresses.items()) or "not ready yet"
    return (
        f"{name} runs already (metaq {what.server}, process {found.pid}, {where}); `metaq stop {name}` ends it, --as starts this one by "
        "another name"
    )


def _how_it_ended(name: str, code: int, path: pathlib.Path, before: int) -> str:
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    lines = tail(path, before)
    last = "\n  ".join(lines) if lines else "(nothing)"
    return f"{name} has ended before it was ready ({how}). The last lines of its log {path}:\n  {last}"


def tail(path: pathlib.Path, since: int = 0, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log file, of what stands behind byte `since` if it is that long; [] if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(since if since <= size else 0, size - _TAIL_BYTES)
            file.seek(begin)
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []
