"""The file in which a coordinator writes what it has decided, before it does it.

`FOLDER/identity.json` has the id with which all its transactions begin; `FOLDER/decisions` one record a line, its CRC in front:

    noted    a branch that is about to be prepared, in a system that cannot list such branches
    commit   the decision, with all prepared branches; none is committed before this is durable
    over     all branches are settled; it is not synced, since to settle them once more does no harm

A transaction that has to wait has a second record of its kind, with what stands in the way. It is for operators, and not synced either.

What is not decided is rolled back. A line that a crash has cut off is the last one and counts as not written; any other that cannot be
read stops the start. The file is written anew at each start, so that what is read is durable before it is acted upon, and when it
has grown.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from metaq.clock import SYSTEM, Clock
from metaq.durable import disk_fault, make_or_refuse, sync_folder, write_whole
from metaq.errors import ClientClosed, ConfigError, StoreCorrupt, StoreError, StoreLocked

GROWN_BYTES: Final = 1 << 20
"""Size above which the file is written anew, without what is over."""
REASON_CHARS_MAX: Final = 500
_ID: Final = re.compile(r"mq[0-9a-f]{16}")


class BranchAt(msgspec.Struct, frozen=True, array_like=True):
    """A branch: the name of its resource, and its text there."""

    resource: str
    text: str


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    transaction: str
    kind: str
    branches: tuple[BranchAt, ...] = ()
    at_ms: int = 0
    """When it was noted or decided; 0: a release before has written it."""
    reasons: tuple[str, ...] = ()


class _Identity(msgspec.Struct, frozen=True):
    id: str


class Open(msgspec.Struct):
    """A transaction that is not over."""

    noted: tuple[BranchAt, ...] = ()
    committed: tuple[BranchAt, ...] | None = None
    """Its prepared branches; None: it is not decided."""
    since_ms: int = 0
    """When it was decided, else noted; 0: unknown."""
    reasons: tuple[str, ...] = ()
    """What stands in the way of its end."""

    @property
    def branches(self) -> tuple[BranchAt, ...]:
        return self.committed if self.committed is not None else self.noted


def look(folder: Path) -> tuple[str, dict[str, Open]]:
    """Return the id of a coordinator, and transaction → what is not over of it. Changes nothing; its process may be running.

    Raises ConfigError: it is no folder of a coordinator; StoreCorrupt; StoreError.
    """
    try:
        return _identity_in(folder), _read(folder / "decisions")
    except FileNotFoundError:
        raise ConfigError(f"{folder} is no folder of a coordinator: it has no identity.json") from None
    except OSError as fault:
        raise disk_fault(fault, f"the coordinator's folder {folder} cannot be read") from fault


class Decisions:
    """Decisions of one coordinator. For any number of threads.

    Args: folder: made if it is not there; one process at a time has it. clock: for the id.
    Raises StoreLocked: another has it; StoreCorrupt: a file cannot be read; ConfigError, StoreError.
    """

    def __init__(self, folder: Path, clock: Clock = SYSTEM) -> None:
        self.folder, self._clock = folder, clock
        make_or_refuse("folder of a coordinator", folder)
        self._lock = threading.Lock()
        self._fault: StoreError | None = None
        self._closed = False
        self._file = -1
        self._held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreLocked(
                    f"the coordinator's folder {folder} is in use: a process, and a Coordinator, needs one of its own"
                ) from None
            self._path = folder / "decisions"
            try:
                self.id = self._identity(clock)
                self._open: dict[str, Open] = _read(self._path)
                self._rewrite()
            except OSError as fault:
                raise disk_fault(fault, f"the coordinator's folder {folder} cannot be used") from fault
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------- records

    def note(self, transaction: str, branch: BranchAt) -> None:
        """Make durable that a branch is about to be prepared. Raises StoreError."""
        with self._lock:
            self._append(_Record(transaction, "noted", (branch,), self._clock.now_ms()), sync=True)

    def commit(self, transaction: str, branches: tuple[BranchAt, ...]) -> None:
        """Make the decision durable. Raises StoreError: it may be, or not, which the next start finds out."""
        with self._lock:
            self._append(_Record(transaction, "commit", branches, self._clock.now_ms()), sync=True)

    def over(self, transaction: str) -> None:
        """All branches are settled. Raises StoreError."""
        with self._lock:
            if transaction in self._open:
                self._append(_Record(transaction, "over"), sync=False)
                self._shrink()

    def wait(self, transaction: str, reasons: Iterable[str]) -> None:
        """Write what stands in the way of a transaction's end, for operators. Raises StoreError."""
        texts = tuple(text[:REASON_CHARS_MAX] for text in reasons)
        with self._lock:
            state = self._open.get(transaction)
            if state is None or state.reasons == texts:
                return
            kind, branches = ("noted", ()) if state.committed is None else ("commit", state.committed)
            self._append(_Record(transaction, kind, branches, state.since_ms, texts), sync=False)
            self._shrink()

    def drop(self, transaction: str) -> bool:
        """Forget a transaction, durably. A branch of it that is still prepared will be rolled back. Returns False: it is not there.

        Raises StoreError.
        """
        with self._lock:
            if transaction not in self._open:
                return False
            self._append(_Record(transaction, "over"), sync=True)
            return True

    @property
    def open(self) -> dict[str, Open]:
        """Return transaction → what is not over of it."""
        with self._lock:
            return dict(self._open)

    def close(self) -> None:
        """Give the folder to others."""
        with self._lock:
            self._closed = True
            for handle in (self._file, self._held):
                if handle >= 0:
                    os.close(handle)
            self._file = self._held = -1

    # -------------------------------------------------------------- the file

    def _append(self, record: _Record, *, sync: bool) -> None:
        if self._closed:
            raise ClientClosed(f"the coordinator of {self.folder} is closed")
        if self._fault is not None:
            raise self._fault
        line = _line(record)

        def write() -> None:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(28, "only a part of a record could be written", str(self._path))
            if sync:
                os.fsync(self._file)

        self._guarded(write)
        self._size += len(line)
        _apply(self._open, record)

    def _shrink(self) -> None:
        if self._size > GROWN_BYTES:
            self._guarded(self._rewrite)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as fault:
            # Whether the record is there is unknown, and what is appended behind half a line could not be read.
            self._fault = disk_fault(fault, f"the decisions in {self.folder} cannot be written")
            raise self._fault from fault

    def _identity(self, clock: Clock) -> str:
        path = self.folder / "identity.json"
        try:
            return _identity_in(self.folder)
        except FileNotFoundError:
            if self._path.exists():
                raise StoreCorrupt(
                    f"{path} is missing, and {self._path} is there: put both back from one backup"
                ) from None
            fresh = f"mq{clock.token()[:16]:0>16}"
            write_whole(path, msgspec.json.encode(_Identity(fresh)))
            return fresh

    def _rewrite(self) -> None:
        """Write what is open anew, durably, and go on behind it."""
        records = []
        for transaction, state in self._open.items():
            if state.noted:
                records.append(_Record(transaction, "noted", state.noted, state.since_ms, state.reasons))
            if state.committed is not None:
                records.append(_Record(transaction, "commit", state.committed, state.since_ms, state.reasons))
        data = b"".join(map(_line, records))
        write_whole(self._path, data)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._size = len(data)
        sync_folder(self.folder)


def _identity_in(folder: Path) -> str:
    path = folder / "identity.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Identity)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"{path} is no identity of a coordinator: {error}") from None
    if _ID.fullmatch(found.id) is None:
        raise StoreCorrupt(f"{path} has {found.id!r:.60}, which is no id of a coordinator")
    return found.id


def _read(path: Path) -> dict[str, Open]:
    found: dict[str, Open] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return found
    rest = lines.pop()  # behind the last line's end: nothing, or what a crash has cut off
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is None:
            # A disk may have written the end of the last record and not its middle.
            if number == len(lines) and not rest:
                break
            raise StoreCorrupt(
                f"{path}: line {number} is damaged. It may say that a transaction is committed: look at the branches in doubt at "
                "each system, end them by hand, and move the file away"
            )
        _apply(found, record)
    return found


def _line(record: _Record) -> bytes:
    body = msgspec.json.encode(record)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _record(line: bytes) -> _Record | None:
    crc, _, body = line.partition(b" ")
    if crc != b"%08x" % zlib.crc32(body):
        return None
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(body, type=_Record)
    return None


def _apply(found: dict[str, Open], record: _Record) -> None:
    if record.kind == "over":
        found.pop(record.transaction, None)
        return
    state = found.setdefault(record.transaction, Open())
    state.since_ms, state.reasons = record.at_ms, record.reasons
    if record.kind == "noted":
        state.noted += record.branches
    elif record.kind == "commit":
        state.committed = record.branches
    else:
        raise ConfigError(f"a record of kind {record.kind!r} was written by a newer MetaQ: use that")
