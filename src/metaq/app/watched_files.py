"""Files that a server has read at its start, and reads again when one of them has changed: accounts, certificates."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeAlias, TypeVar

from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError
from metaq.log import RateLimitedLog

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
"""As often as RocketMQ looks."""

Found = TypeVar("Found")
Marks: TypeAlias = Mapping[str, tuple[int, int, int] | None]
"""Path → what tells that a file is another one: time of its change in ns, size, inode; None: it is not there."""


def marks_of(paths: Iterable[str]) -> Marks:
    """Return what is there now."""
    found: dict[str, tuple[int, int, int] | None] = {}
    for path in paths:
        try:
            stat = pathlib.Path(path).stat()
        except OSError:
            found[path] = None
        else:
            found[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return found


class WatchedFiles(Generic[Found]):
    """Reads files together, and again when one of them has changed, in a thread: they may be on a slow disk, and long.

    What cannot be read changes nothing; the log says so once for each state of the files. The thread does jobs, too, between two
    looks: changes of the files that are asked for. One that has died is started again by `tick`.

    Args:
        what: the files, in the log.
        stays: what does not change when they cannot be read, in the log.
        marks: returns what is there now. Raises ConfigError: it cannot be looked at.
        read: reads what these marks found. Raises ConfigError or OSError: file and reason.
        take: puts in force what was read. Called in the event loop.
        call_soon: brings a call from another thread to the event loop.
        seen: marks of what is in force. Taken before the files were read: a change in between is seen at the first look.
    """

    def __init__(
        self,
        what: str,
        stays: str,
        marks: Callable[[], Marks],
        read: Callable[[Marks], Found],
        take: Callable[[Found], None],
        call_soon: Callable[[Callable[[], None]], object],
        seen: Marks,
        clock: Clock = SYSTEM,
    ) -> None:
        self._what, self._stays, self._find, self._read, self._take = what, stays, marks, read, take
        self._call_soon = call_soon
        self.seen: Marks | None = seen
        """Marks of the last reading; None: the files could not be looked at. A job sets those of what it has written itself."""
        self._why = ""
        self._jobs = queue.SimpleQueue[Callable[[], None]]()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._death: BaseException | None = None
        self._faults = RateLimitedLog(log, clock)

    @property
    def trouble(self) -> str:
        """What of the files could not be read, and what does not change for that; "" while all is well."""
        why = self._why
        return f"{self._stays}: {why}" if why else ""

    def start(self) -> None:
        """Look from now on."""
        self._thread = threading.Thread(target=self._run, name=f"metaq-files-{self._what}", daemon=True)
        self._thread.start()

    def tick(self) -> None:
        """Let time pass, and start the thread again if it has died. In the event loop."""
        self._faults.tick()
        if self._thread is not None and not self._thread.is_alive() and not self._ended.is_set():
            text = "the watch over the files of %s has died: it is started again"
            self._faults.write(logging.CRITICAL, "died", text, self._what, error=self._death)
            self.start()

    def stop(self) -> None:
        """Look no more. Jobs that wait are still done; they see for themselves that the server stops."""
        self._ended.set()
        self._jobs.put(lambda: None)

    def do(self, job: Callable[[], None]) -> None:
        """Call `job` in the thread soon, after those before it."""
        self._jobs.put(job)

    def look(self) -> None:
        """Read the files again if one has changed since the last look."""
        marks: Marks | None = None
        try:
            marks = self._find()
            if marks == self.seen:
                return
            found = self._read(marks)
        except (ConfigError, OSError) as error:
            # Once for each state of the files, not twice a second.
            if marks is not None or str(error) != self._why:
                log.error("%s: %s", self._stays, error)  # noqa: TRY400  theirs, not ours
            self.seen, self._why = marks, str(error)
            return
        self.seen, self._why = marks, ""
        self._call_soon(lambda: self._take(found))

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._turn()
            with contextlib.suppress(queue.Empty, RuntimeError):  # RuntimeError: the loop is closed
                while True:
                    self._jobs.get_nowait()()
        except BaseException as error:  # noqa: BLE001  `tick` tells it
            self._death = error

    def _turn(self) -> None:
        try:
            try:
                job = self._jobs.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                job = self.look
            job()
        except Exception as error:  # noqa: BLE001  logged and tried again
            if not self._ended.is_set():  # else the loop is closed, and nobody is asked any more
                self._faults.error(
                    "look", "looking after the files of %s failed; it is tried again", self._what, error=error
                )
