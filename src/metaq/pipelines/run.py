"""One run of a pipeline: it has the folder's lease while it lasts, writes its status there, and can be asked to stop.

FOLDER/_lease       locked by the run (metaq.pipelines.lease)
FOLDER/_run.json    its status: `metaq pipeline status` reads it, from any machine that sees the folder
FOLDER/_stop        names the run that is to stop: `metaq pipeline stop` writes it
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
"""Interval of looking for a request to stop, and of reporting the backlog."""

_WORKS_ON = {"compact": "archive"}
"""Pipeline → the pipeline whose folder it works on."""
_SIGNS = ("_manifests", "_checkpoint")
"""Names that mark a folder as a pipeline's without status or lease: one of an early release, or a copy."""
_SHOWN = 3
"""Most file names in an error text."""

RUNNING, ENDED, STOPPED, FAILED, LOST = "running", "ended", "stopped", "failed", "lost"
"""States of a run. `lost`: its status says running and nobody holds the lease, so it was killed."""

OnBatch: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Called with a line for people and the figures of each batch, in the thread that processed it."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a run, the content of FOLDER/_run.json."""

    v: int = 1
    """Version of the file's format."""
    pipeline: str
    """Name of the pipeline."""
    run: str
    """Id, unique among the folder's runs."""
    host: str
    """Name of the machine that it runs on."""
    pid: int
    """Its process there."""
    since: str
    """ISO 8601, UTC."""
    seen: str
    """Time of writing."""
    state: str
    """`running`, `ended`, `stopped` or `failed`; `lost`: it was killed, for it says running and nobody holds the folder's lease."""
    batches: int = 0
    """Batches that this run has finished."""
    total: dict[str, int] = {}
    """Sums of the whole-number figures of this run's batches."""
    last: dict[str, Any] = {}
    """Figures of the last batch."""
    behind: int | None = None
    """Backlog in messages, where the source knows it."""
    fault: str = ""
    """Why it failed; "": it has not."""
    doing: str = ""
    """What the run does now, for people: `starting Spark`, `batch 0: 3 of 12 slices`."""
    slices: int = 0
    """Slices of the batch under way; 0: none is, or it is not known."""
    slices_done: int = 0
    """Those of them that are done."""
    runs: int = 1
    """Runs in this folder, this one included."""
    earlier: dict[str, dict[str, int]] = {}
    """Pipeline → `batches`, and the sums of `total`, of the earlier runs in this folder (`compact` works on the archive's)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a pipeline that is not a stream."""

    figures: Mapping[str, Any]
    """Results for programs, by name."""
    text: str = ""
    """Result for the terminal, in lines."""
    exit_status: int = 0
    """Exit status of the command."""


class Run:
    """A run: it holds the folder's lease from `begin` to `end`. Thread-safe."""

    def __init__(self, pipeline: str, place: Path, *, on_batch: OnBatch | None = None) -> None:
        """
        Args:
            pipeline: its name.
            place: its folder.
            on_batch: called after each batch.
        """
        self.place = place
        self._on_batch = on_batch
        self._lease: Lease | None = None
        self._stopping, self._awake = threading.Event(), threading.Event()
        self._busy = threading.Lock()
        self._ends: dict[object, Callable[[], None]] = {}
        self._watchers: list[Callable[[RunStatus], None]] = []
        self._status = RunStatus(
            pipeline=pipeline,
            run=f"{platform.node()}-{os.getpid()}-{SYSTEM.now_ms()}-{SYSTEM.token()[:8]}",
            host=platform.node(),
            pid=os.getpid(),
            since=_now(),
            seen=_now(),
            state=RUNNING,
        )

    def begin(self, seconds: float = WAIT_SECONDS) -> Self:
        """Create the folder and take its lease.

        Raises: StoreLocked: another run has it. ConfigError: it cannot be written to, is another pipeline's folder, or has
        files and is no pipeline's.
        """
        refuse_others_folder(self._status.pipeline, self.place)
        make_or_refuse("folder", self.place)
        # Before any other folder is made: the end of an earlier run removes its staging folder, and not ours then.
        lease = lease_on(self.place)
        lease.take(seconds)
        self._lease = lease
        # Of an earlier run: a request names the run that it is for.
        (self.place / STOP).unlink(missing_ok=True)
        self._remember()
        self._write()
        return self

    def doing(self, what: str, slices: int = 0, done: int = 0) -> None:
        """Record what the run does now. Args: slices, done: of the batch under way; 0: not known."""
        with self._busy:
            if (what, slices, done) != (self._status.doing, self._status.slices, self._status.slices_done):
                self._change(doing=what, slices=slices, slices_done=done)
                self._write()

    def tell(self, line: str, **figures: Any) -> None:
        """Record a finished batch in the status.

        Args:
            line: for people.
            figures: for programs; whole numbers other than `batch` are added up over the run.
        """
        with self._busy:
            total = dict(self._status.total)
            for name, value in figures.items():
                if isinstance(value, int) and not isinstance(value, bool) and name != "batch":
                    total[name] = total.get(name, 0) + value
            self._change(batches=self._status.batches + 1, total=total, last=figures, doing="", slices=0, slices_done=0)
            self._write()
        if self._on_batch is not None:
            self._on_batch(line, figures)

    def behind(self, messages: int | None) -> None:
        """Record the backlog, in messages; None: not known."""
        with self._busy:
            # Written only if it has changed: the watcher reports it twice a second.
            if messages != self._status.behind:
                self._change(behind=messages)
                self._write()

    def watch(self, seen: Callable[[RunStatus], None]) -> None:
        """Register `seen` to be called with each new status, in the thread that changed it."""
        self._watchers.append(seen)

    def stop(self) -> None:
        """Ask the run to stop, from within this process."""
        self._stopping.set()
        self._awake.set()

    def wake(self) -> None:
        """End the current `wait`, or the next one: the work has ended."""
        self._awake.set()

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to stop, here or by a file. Jobs check it between their steps."""
        if not self._stopping.is_set():
            with contextlib.suppress(OSError):
                # A request names its run: one that comes too late does not end the next.
                if (self.place / STOP).read_text(encoding="utf-8") == self._status.run:
                    self._stopping.set()
        return self._stopping.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for some seconds, or until `stop` or `wake`. Returns `stopping`."""
        self._awake.wait(seconds)
        # A run that is to stop stays awake: no later `wait` may delay it.
        if not self._stopping.is_set():
            self._awake.clear()
        return self.stopping

    @property
    def status(self) -> RunStatus:
        """What the run does now, and what it has done so far."""
        return self._status

    def at_end(self, act: Callable[[], None], name: str | None = None) -> None:
        """Register `act` to be called at the end of the run, before the lease is released: it ends unfinished work.

        Args: name: an earlier `act` of this name is called now and replaced, for a query that is started again.
        """
        before = self._ends.pop(name, None) if name is not None else None
        if before is not None:
            before()
        self._ends[name if name is not None else object()] = act

    def end(self, fault: str = "") -> None:
        """Write the last status and release the lease. May be repeated."""
        for act in self._ends.values():
            act()
        with self._busy:
            lease, self._lease = self._lease, None
            if lease is None:
                return
            self._change(
                state=FAILED if fault else STOPPED if self._stopping.is_set() else ENDED, fault=fault,
                doing="", slices=0, slices_done=0,
            )  # fmt: skip
            self._write()
            # Before the lease is released: after that the file may be a request to the next run.
            (self.place / STOP).unlink(missing_ok=True)
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, fault: BaseException | None, _trace: object) -> None:
        self.end("" if fault is None else str(fault) or type(fault).__name__)

    def _remember(self) -> None:
        """Take over what the status of the last run says of it and of those before."""
        # After a power cut it may be empty: then they are forgotten, which harms nothing.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            last = msgspec.json.decode((self.place / STATUS).read_bytes(), type=RunStatus)
            mine = dict(last.earlier.get(last.pipeline, {}))
            for name, value in {"batches": last.batches, **last.total}.items():
                mine[name] = mine.get(name, 0) + value
            self._change(runs=last.runs + 1, earlier={**last.earlier, last.pipeline: mine})

    def _change(self, **values: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **values)

    def _write(self) -> None:
        """Write the status file. A failure is only logged: no message depends on it."""
        self._change(seen=_now())
        for seen in self._watchers:
            seen(self._status)
        making = self.place / f"{STATUS}.tmp"
        try:
            # Renamed, so that `status` never reads half a file; not synced, because no message depends on it.
            making.write_bytes(msgspec.json.format(msgspec.json.encode(self._status), indent=1))
            making.rename(self.place / STATUS)
        except OSError as fault:
            _LOG.warning(
                "%s cannot be written (%s): `metaq pipeline status` shows what was before", making, fault.strerror
            )


def refuse_others_folder(pipeline: str, place: Path) -> None:
    """Raise ConfigError if the folder is another pipeline's, or has other files and was never a pipeline's.

    Else one pipeline would take another's checkpoint and state for its own, or an archive lie beside files that a reader's
    glob takes for messages.
    """
    try:
        names = {path.name for path in place.iterdir()}
    except OSError:  # It does not exist yet; any other fault shows when its lease is taken.
        return
    mine = _WORKS_ON.get(pipeline, pipeline)
    if STATUS in names:
        # The status is not synced: after a power cut it may be empty, and then nothing is known.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            owner = msgspec.json.decode((place / STATUS).read_bytes(), type=RunStatus).pipeline
            if _WORKS_ON.get(owner, owner) != mine:
                raise ConfigError(
                    f"{place} is the folder of the pipeline {owner}, and {pipeline} would take what is in there for its own: "
                    "give it a folder of its own"
                )
    # Hidden files come from file managers, `lost+found` from a new file system.
    others = sorted(name for name in names if not name.startswith((".", "_")) and name != "lost+found")
    if others and not names & {STATUS, LEASE, *_SIGNS}:
        raise ConfigError(
            f"the folder {place} is no pipeline's and has other files in it ({', '.join(others[:_SHOWN])}"
            f"{', ...' if len(others) > _SHOWN else ''}): give an empty or a new one"
        )


def status_of(place: Path) -> RunStatus | None:
    """Return the status of the newest run in a folder; None: there was none. Raises ConfigError: it cannot be read."""
    path = place / STATUS
    try:
        found = msgspec.json.decode(path.read_bytes(), type=RunStatus)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as fault:
        raise ConfigError(f"the status {path} cannot be read: {fault}") from None
    # A process that was killed writes no last status.
    if found.state == RUNNING and is_free(place):
        return msgspec.structs.replace(found, state=LOST)
    return found


def ask_to_stop(place: Path) -> RunStatus | None:
    """Ask the run in a folder to stop. Returns its last status; None: nothing runs there. Raises ConfigError."""
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
