"""Tables in files: a change is on disk before anybody sees it, or it is refused and never was.

Nothing here blocks. A change is a `Pending`, which ends later. All changes that come while a save is running go into
the next save together, so that 10 000 of them cost some dozens of saves; a thread of the file writes it
(`metaq.store.config_file.BackgroundFile`). A file with a journal (`metaq.store.journalled_file`) is not written whole
for each save, so a save costs the same however large the table is.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import Reason, Refused, shortage
from metaq.saved_file import ChangeFormat, Key, TableFile, TableFormat, Value, Version

log = logging.getLogger(__name__)

T = TypeVar("T")

SHOWN_PER_TURN: Final = 8
"""Most changes that take effect in one turn of the loop: what waits for them runs then, and others want their turn."""
RETRY_SECONDS: Final = 1.0
"""Pause before a failed save is tried again."""
QUIET_SECONDS, FOLD_SECONDS = 0.25, 2.0
"""A journal is folded into its file when the table has not changed for QUIET_SECONDS, at most every FOLD_SECONDS: other
programs read the file alone, and a RocketMQ may take it over."""


class Pending:
    """A change that ends once: it takes effect, or is refused and has changed nothing."""

    __slots__ = ("_acts", "done", "error")

    wait_seconds: ClassVar[float] = 5.0
    """How long a request waits for it at most."""

    def __init__(self) -> None:
        self.done = False
        self.error: Refused | None = None
        self._acts: list[Callable[[Refused | None], None]] = []

    def when_done(self, act: Callable[[Refused | None], None]) -> None:
        """Call `act` at the end, with the refusal or None; at once if it has ended. Calls come in the order of their
        requests."""
        if self.done:
            act(self.error)
        else:
            self._acts.append(act)

    def finish(self, error: Refused | None = None) -> None:
        self.done, self.error = True, error
        acts, self._acts = self._acts, []
        for act in acts:
            try:
                act(error)
            except Exception:  # the others that wait must be called all the same
                log.exception("what waited for a change failed")

    def settle(self) -> None:
        """Return if it has taken effect. Raises the refusal; Saving while it has not ended."""
        if not self.done:
            raise Saving(self)
        if self.error is not None:
            raise self.error


class PendingOutcome(Pending, Generic[T]):
    """Work that ends once, with an outcome or a refusal."""

    __slots__ = ("_outcome",)

    def __init__(self) -> None:
        super().__init__()
        self._outcome: T | None = None

    def succeed(self, outcome: T) -> None:
        """It has ended well."""
        self._outcome = outcome
        self.finish()

    def outcome(self) -> T:
        """Return the outcome. Raises the refusal; Saving while it has not ended."""
        self.settle()
        return cast("T", self._outcome)


def over() -> Pending:
    """Return a change that has taken effect."""
    pending = Pending()
    pending.finish()
    return pending


class Saving(Exception):
    """Not an error: a request needs changes that are being saved. Nothing was done; servers repeat it later
    (`metaq.servers.waiting`).

    Args:
        pending: the changes.
        then: to be called later instead, where repeating the request would be wrong.
    """

    def __init__(self, *pending: Pending, then: Callable[[], Any] | None = None) -> None:
        super().__init__(pending)
        self.pending, self.then = pending, then


class _Change(Pending, Generic[Key, Value]):
    """Change of one entry to `value`; None deletes it."""

    __slots__ = ("entry", "key", "value", "version")

    def __init__(self, key: Key, value: Value | None, entry: str) -> None:
        super().__init__()
        self.key, self.value, self.entry = key, value, entry
        self.version: Any = None


class _Step(Struct, Generic[Key, Value, Version]):
    """A `Step` of a `SavedTable`. `entries` does not change while the step is saved."""

    format: TableFormat[Key, Value, Version]
    changes: ChangeFormat[Key, Value, Version] | None
    entries: dict[Key, str]
    changed: dict[Key, str | None]
    before: Version
    after: Version

    def begins(self) -> str:
        return self._line({}, self.before)

    def line(self) -> str:
        return self._line(self.changed, self.after)

    def goes_on(self) -> str:
        return self._line({}, self.after)

    def _line(self, changed: Mapping[Key, str | None], version: Version) -> str:
        assert self.changes is not None, "only a file with a journal asks"
        return self.changes.change(changed, version)

    def text(self) -> str:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], str]:
        entries = dict(self.entries)
        _apply(self.changed, entries)
        return lambda: self.format.whole(entries, self.after)


def _apply(changed: Mapping[Key, str | None], entries: dict[Key, str]) -> None:
    for key, entry in changed.items():
        if entry is None:
            entries.pop(key, None)
        else:
            entries[key] = entry


def at_once(act: Callable[[], None]) -> None:
    """Call at once: `call_soon` of a table that is used in one thread."""
    act()


class SavedTable(Generic[Key, Value, Version]):
    """A table in a file. `table` and `version` may be seen by everybody: all of them is on disk.

    Args:
        file: the file and its format.
        table: content of the file.
        version: version of that content.
        clock: of versions and pauses.
        call_soon: brings a call from another thread to the one that owns the table.
        shown: called with the key of each change that takes effect, before those that wait for it.
        stored: called in the file's thread with the keys of a save, before they take effect: for work that would hold
            up the event loop.
    """

    def __init__(
        self,
        file: TableFile[Key, Value, Version],
        table: dict[Key, Value],
        version: Version,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
        shown: Callable[[Key], None] | None = None,
        stored: Callable[[list[Key]], None] | None = None,
    ) -> None:
        self.table, self.version = table, version
        self.failing = ""
        """Why the last save failed; "" if it did not. Until a save succeeds the file may hold refused changes."""
        self._file, self._format, self._changes, self._journal = file.file, file.format, file.changes, file.journal
        self._clock, self._call_soon, self._when_shown, self._when_stored = clock, call_soon, shown, stored
        self._entries = {key: self._format.entry(key, value) for key, value in table.items()}
        self._saved_version = version
        self._latest: dict[Key, _Change[Key, Value]] = {}
        self._waiting: list[_Change[Key, Value]] = []
        self._saved: deque[_Change[Key, Value]] = deque()
        self._running = self._showing = self._closed = self._has_put_back = False
        self._step = self._whole()
        self._outcome: list[OSError | None] = []
        self._retry_at = self._saved_at = self._fold_at = 0.0
        if self._journal is not None and self._journal.is_behind:
            self._write_whole()  # an earlier process may have ended before its writes were durable

    # -- questions
    @property
    def count(self) -> int:
        """Number of entries, with those being saved."""
        return len(self.table) + len(self._latest)

    def under_way(self) -> list[Pending]:
        """Return the newest changes of the entries that are being saved, or wait to be."""
        return list(self._latest.values())

    def pending(self, key: Key) -> Pending | None:
        """Return the newest change of an entry that has not ended."""
        return self._latest.get(key)

    def coming(self, key: Key) -> Value | None:
        """Return the value of an entry once all its changes have taken effect."""
        latest = self._latest.get(key)
        return self.table.get(key) if latest is None else latest.value

    def coming_keys(self) -> list[Key]:
        """Return the keys of the entries that there are once all changes have taken effect."""
        return [key for key in {**self.table, **self._latest} if self.coming(key) is not None]

    # -- changes
    def change(self, key: Key, value: Value | None) -> Pending:
        """Save, then show, a new value of an entry; None deletes it. A change to the present value ends at once."""
        latest = self._latest.get(key)
        if latest is None and self.table.get(key) == value:
            return over()
        if latest is not None and latest.value == value:
            return latest
        return self._begin(key, value)

    def renew(self, key: Key) -> Pending:
        """Save and show an entry as it is, for a new version of the table: name servers compare versions alone."""
        return self._begin(key, self.coming(key))

    def _begin(self, key: Key, value: Value | None) -> Pending:
        change = _Change(key, value, "" if value is None else self._format.entry(key, value))
        if self._closed:
            change.finish(
                Refused(Reason.UNAVAILABLE, f"{self._format.what} takes no change any more: the server is stopping")
            )
            return change
        self._latest[key] = change
        self._waiting.append(change)
        if not self._running:
            self._start()
        return change

    def start_with(self, entries: Mapping[Key, Value]) -> None:
        """Show entries at once that must be there even if the file cannot be saved.

        At the start, and when a broker begins to lead: a save may be running then, and the file follows behind it.
        """
        self._set(entries)
        if self._running:
            self._has_put_back = True
            self._failed(None)
        else:
            self._write_whole()
        for key in entries:
            self._tell(key)

    def _write_whole(self) -> None:
        """Write the file whole, and wait for it. Not while a save is running."""
        errors: list[OSError | None] = []
        step = self._whole()
        if self._journal is not None:
            self._journal.replace_soon(step, errors.append)
        else:
            self._file.save_soon(step.text, errors.append)
        self._file.flush()
        if errors and errors[0] is not None:
            self._failed(errors[0])

    def _whole(self) -> _Step[Key, Value, Version]:
        """Return the step that changes nothing."""
        version = self._saved_version
        return _Step(self._format, self._changes, self._entries, {}, version, version)

    def put_back(self, key: Key, value: Value) -> None:
        """Show a deleted entry again, at once: the deletion failed later on. The file follows."""
        self._set({key: value})
        self._has_put_back = self._running
        self._tell(key)
        self._failed(None)
        self.tick()

    def _set(self, entries: Mapping[Key, Value]) -> None:
        self._entries = dict(self._entries)  # those of a running step must not change
        for key, value in entries.items():
            self.table[key] = value
            self._entries[key] = self._format.entry(key, value)
        self.version = self._saved_version = self._saved_version.next(self._clock.now_ms())

    def tick(self) -> None:
        """Save again after a failure, since the file must not keep refused changes; fold the journal if nothing has
        changed lately."""
        if self._running or self._closed:
            return
        now = self._clock.monotonic()
        if self.failing:
            if now >= self._retry_at:
                self._start()
        elif (
            self._journal is not None
            and now >= max(self._fold_at, self._saved_at + QUIET_SECONDS)
            and self._journal.has_journal
        ):
            self._fold_at = now + FOLD_SECONDS
            self._journal.fold_soon(self._whole())

    def close(self) -> None:
        """Refuse further changes, wait for a running save, and leave nothing in the file that was refused."""
        self._closed = True
        self._file.flush()
        # A save may have ended in the file's thread without this thread having heard of it.
        took = self._running and self._outcome == [None]
        if self._journal is not None:
            self._journal.fold(self._step if took else self._whole())
        elif not took and (self._running or self.failing):
            # As `tick` would have done in a moment: a save can fail after its rename.
            self._file.save_soon(self._whole().text, self._left)
            self._file.flush()

    def _left(self, error: OSError | None) -> None:
        if error is not None:
            log.error("%s may hold changes that were refused: %s", self._file.where, _reason(error))

    # -- saving
    def _start(self) -> None:
        batch, self._waiting = self._waiting, []
        changed = dict[Key, str | None]()
        version = self._saved_version
        now_ms = self._clock.now_ms()
        for change in batch:
            changed.pop(change.key, None)  # so that a new entry comes last in the file
            changed[change.key] = None if change.value is None else change.entry
            change.version = version = version.next(now_ms)
        step = self._step = _Step(
            self._format, self._changes, self._entries, changed, before=self._saved_version, after=version
        )
        outcome = self._outcome = []
        self._running = True

        def done(error: OSError | None) -> None:
            if error is None and self._when_stored is not None:
                try:
                    self._when_stored([change.key for change in batch])
                except Exception:  # the changes are saved all the same
                    log.exception("what is done after a save of %s failed", self._file.where)
            outcome.append(error)
            self._call_soon(lambda: self._ended(batch, step, error))

        if self._journal is None:
            self._file.save_soon(step.text, done)
        elif batch and not self.failing:
            self._journal.change_soon(step, done)
        else:
            self._journal.replace_soon(step, done)

    def _ended(self, batch: list[_Change[Key, Value]], step: _Step[Key, Value, Version], error: OSError | None) -> None:
        self._running = False
        put_back, self._has_put_back = self._has_put_back, False
        if error is None:
            self._saved_at = self._clock.monotonic()
            _apply(step.changed, self._entries)
            if put_back:  # the file lacks the entries put back, which have taken the versions of these changes
                for change in batch:
                    change.version = self._saved_version = self._saved_version.next(self._clock.now_ms())
            else:
                if self.failing:
                    log.info("%s could be saved again", self._file.where)
                self.failing = ""
                self._saved_version = step.after
            self._saved.extend(batch)
        else:
            self._failed(error)
            for change in batch:
                self._forget(change)
                change.finish(
                    Refused(
                        Reason.UNAVAILABLE,
                        f"{self._format.what} could not be changed: saving {self._file.where} failed ({_reason(error)}). "
                        "Nothing has changed; try again when the disk takes writes",
                    )
                )
        if self._waiting and not self._running:
            self._start()
        if not self._showing:
            self._show()

    def _failed(self, error: OSError | None) -> None:
        reason = _reason(error) if error is not None else "it is behind what is true"
        if error is not None and reason != self.failing:  # once per reason, not at every try
            log.error("%s could not be saved: %s; changes to it are refused meanwhile", self._file.where, reason)
        self.failing = reason
        self._retry_at = self._clock.monotonic() + (RETRY_SECONDS if error is not None else 0)

    def _show(self) -> None:
        self._showing = False
        for _ in range(SHOWN_PER_TURN):
            if not self._saved:
                return
            change = self._saved.popleft()
            self._forget(change)
            if change.value is None:
                self.table.pop(change.key, None)
            else:
                self.table[change.key] = change.value
            self.version = change.version
            self._tell(change.key)
            change.finish()
        if self._saved and not self._showing:
            self._showing = True
            self._call_soon(self._show)

    def _tell(self, key: Key) -> None:
        if self._when_shown is not None:
            self._when_shown(key)

    def _forget(self, change: _Change[Key, Value]) -> None:
        if self._latest.get(change.key) is change:
            del self._latest[change.key]


def _reason(error: OSError) -> str:
    remedy = shortage(OSError(error.errno, error.strerror)) if error.errno else ""  # the file is named already
    return f"{error.strerror}: {remedy}" if remedy else error.strerror or str(error)
