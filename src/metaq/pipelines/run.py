"""One run of a pipeline: the folder is its own while it lasts, it tells how far it is, and it can be asked to end.

FOLDER/_lease       locked by the run (metaq.pipelines.lease)
FOLDER/_run.json    what it tells: `metaq pipeline status` reads it, from any machine that sees the folder
FOLDER/_stop        somebody asks the run that is named in it to end: `metaq pipeline stop`
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import platform
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from metaq.clock import SYSTEM
from metaq.durable import make_or_refuse
from metaq.errors import ConfigError
from metaq.pipelines.lease import LEASE, WAIT_SECONDS, Lease, is_free, lease_on

_LOG = logging.getLogger(__name__)

STATUS, STOP = "_run.json", "_stop"
LOOK_SECONDS = 0.5
"""A request to stop is seen, and the backlog told, this often."""

_WORKS_ON = {"compact": "archive"}
"""Pipelines that work on the folder of another one."""
_SIGNS = ("_manifests", "_checkpoint")
"""What shows, in a folder of an early release, or in one that was copied without its lease, that it is a pipeline's."""
_SHOWN = 3

RUNNING, ENDED, STOPPED, FAILED, LOST = "running", "ended", "stopped", "failed", "lost"
"""States of a run. `lost`: it says that it runs and nobody holds the lease, so it was killed."""

OnBatch: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Called with a line for people and the figures of each batch, in the thread that processed it."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What a run tells of itself."""

    v: int = 1
    pipeline: str
    run: str
    """Unique among the folder's runs."""
    host: str
    pid: int
    since: str
    """ISO 8601, UTC."""
    seen: str
    """When this was written."""
    state: str
    batches: int = 0
    total: dict[str, int] = {}
    """Figures of all batches of this run together, those that can be added."""
    last: dict[str, Any] = {}
    """Figures of the last batch."""
    behind: int | None = None
    """Messages still to come, where the source can tell."""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pipeline that is no stream has come to."""

    figures: Mapping[str, Any]
    text: str = ""
    """For the terminal, in lines."""
    exit_status: int = 0


class Run:
    """Has the lease from `begin` to `end`. Thread-safe."""

    def __init__(self, pipeline: str, place: Path, *, on_batch: OnBatch | None = None) -> None:
        self.place = place
        self._on_batch = on_batch
        self._lease: Lease | None = None
        self._stopping, self._awake = threading.Event(), threading.Event()
        self._busy = threading.Lock()
        self._ends: dict[object, Callable[[], None]] = {}
        self._watchers: list[Callable[[Status], None]] = []
        self._status = Status(
            pipeline=pipeline,
            run=f"{platform.node()}-{os.getpid()}-{SYSTEM.now_ms()}-{SYSTEM.token()[:8]}",
            host=platform.node(),
            pid=os.getpid(),
            since=_now(),
            seen=_now(),
            state=RUNNING,
        )

    def begin(self, seconds: float = WAIT_SECONDS) -> Self:
        """Make the folder and take its lease.

        Raises: StoreLocked: another run has it. ConfigError: it cannot be written to, is another pipeline's, or is nobody's
        and not empty.
        """
        refuse_others_folder(self._status.pipeline, self.place)
        make_or_refuse("folder", self.place)
        lease = lease_on(self.place)
        lease.take(seconds)
        self._lease = lease
        (self.place / STOP).unlink(missing_ok=True)
        self._write()
        return self

    def tell(self, line: str, **figures: Any) -> None:
        """A batch is done. Args: line: for people. figures: for programs; whole numbers but `batch` are added up over the run."""
        with self._busy:
            total = dict(self._status.total)
            for name, value in figures.items():
                if isinstance(value, int) and not isinstance(value, bool) and name != "batch":
                    total[name] = total.get(name, 0) + value
            self._change(batches=self._status.batches + 1, total=total, last=figures)
            self._write()
        if self._on_batch is not None:
            self._on_batch(line, figures)

    def behind(self, messages: int | None) -> None:
        """So many messages are still to come."""
        with self._busy:
            if messages != self._status.behind:
                self._change(behind=messages)
                self._write()

    def watch(self, seen: Callable[[Status], None]) -> None:
        """Call it with each new status, in whatever thread made it."""
        self._watchers.append(seen)

    def stop(self) -> None:
        """Ask it to end, from within this process."""
        self._stopping.set()
        self._awake.set()

    def wake(self) -> None:
        """End a `wait` that is under way, or the next one: the work has ended."""
        self._awake.set()

    @property
    def stopping(self) -> bool:
        """Whether somebody wants it to end. A job asks between its steps."""
        if not self._stopping.is_set():
            with contextlib.suppress(OSError):
                if (self.place / STOP).read_text(encoding="utf-8") == self._status.run:
                    self._stopping.set()
        return self._stopping.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until `stop` or `wake`. Returns `stopping`."""
        self._awake.wait(seconds)
        if not self._stopping.is_set():
            self._awake.clear()
        return self.stopping

    @property
    def status(self) -> Status:
        return self._status

    def at_end(self, act: Callable[[], None], name: str | None = None) -> None:
        """Call it when the run ends, before the folder is free: what was under way must have ended then.

        Of several of one name only the last counts; the one before is called at once, which must end what it stands for.
        """
        before = self._ends.pop(name, None) if name is not None else None
        if before is not None:
            before()
        self._ends[name if name is not None else object()] = act

    def end(self, fault: str = "") -> None:
        """Tell how it ended, and give the folder free. May be repeated."""
        for act in self._ends.values():
            act()
        with self._busy:
            lease, self._lease = self._lease, None
            if lease is None:
                return
            self._change(state=FAILED if fault else STOPPED if self._stopping.is_set() else ENDED, fault=fault)
            self._write()
            (self.place / STOP).unlink(missing_ok=True)
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, fault: BaseException | None, _trace: object) -> None:
        self.end("" if fault is None else str(fault) or type(fault).__name__)

    def _change(self, **values: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **values)

    def _write(self) -> None:
        """What cannot be told costs no message: it is logged."""
        self._change(seen=_now())
        for seen in self._watchers:
            seen(self._status)
        making = self.place / f"{STATUS}.tmp"
        try:
            making.write_bytes(msgspec.json.format(msgspec.json.encode(self._status), indent=1))
            making.rename(self.place / STATUS)
        except OSError as fault:
            _LOG.warning(
                "%s cannot be written (%s): `metaq pipeline status` shows what was before", making, fault.strerror
            )


def refuse_others_folder(pipeline: str, place: Path) -> None:
    """Raises ConfigError: the folder is another pipeline's, or has something in it and was never one's."""
    try:
        names = {path.name for path in place.iterdir()}
    except OSError:  # There is none yet, or whoever wants to write to it will say what is wrong.
        return
    mine = _WORKS_ON.get(pipeline, pipeline)
    if STATUS in names:
        with contextlib.suppress(
            OSError, msgspec.DecodeError
        ):  # After a power cut it may be empty, which says nothing.
            told = msgspec.json.decode((place / STATUS).read_bytes(), type=Status).pipeline
            if _WORKS_ON.get(told, told) != mine:
                raise ConfigError(
                    f"{place} is the folder of the pipeline {told}, and {pipeline} would take what is in there for its own: "
                    "give it a folder of its own"
                )
    others = sorted(name for name in names if not name.startswith((".", "_")) and name != "lost+found")
    if others and not names & {STATUS, LEASE, *_SIGNS}:
        raise ConfigError(
            f"the folder {place} is no pipeline's and has other files in it ({', '.join(others[:_SHOWN])}"
            f"{', ...' if len(others) > _SHOWN else ''}): give an empty or a new one"
        )


def status_of(place: Path) -> Status | None:
    """What the newest run in a folder tells; None: there never was one. Raises ConfigError: its file cannot be read."""
    path = place / STATUS
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Status)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as fault:
        raise ConfigError(f"the status {path} cannot be read: {fault}") from None
    if found.state == RUNNING and is_free(place):
        return msgspec.structs.replace(found, state=LOST)
    return found


def ask_to_stop(place: Path) -> Status | None:
    """Ask the run in a folder to end. Returns what it told last; None: nothing runs there. Raises ConfigError."""
    found = status_of(place)
    if found is None or found.state != RUNNING:
        return None
    making = place / f"{STOP}.tmp"
    try:
        making.write_text(found.run, encoding="utf-8")
        making.rename(place / STOP)
    except OSError as fault:
        raise ConfigError(f"{making} cannot be written: {fault.strerror}") from None
    return found


def _now() -> str:
    return (
        dt.datetime.fromtimestamp(SYSTEM.now_ms() / 1000, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    )
