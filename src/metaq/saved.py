"""Tables that are kept in a file: a change is on the disk before anybody sees it, or it is refused and never was.

Nothing here waits. A change that is asked for gets an object that ends later, and whoever needs it goes on then. All
changes asked for while a save is running go into the next save together, so that 10 000 of them cost some dozens of
saves and not 10 000; a file's own thread writes it (`metaq.store.config_file.BackgroundFile`). A file with a journal
(`metaq.store.journalled_file`) is not written whole for each save, so that one costs the same however large the table is.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import Reason, Refused, shortage
from metaq.saved_file import ChangeFormat, Key, TableFile, TableFormat, Value, Version

log = logging.getLogger(__name__)

SHOWN_PER_TURN: Final = 8
"""Changes that take effect in one go: whoever waits for them works then, and others want their turn."""
RETRY_SECONDS: Final = 1.0
QUIET_SECONDS, FOLD_SECONDS = 0.25, 2.0
"""A journal goes when its table has not changed for so long, but not more often: others may read the file, or take it over."""


class Pending:
    """Something that is under way and ends once: it has taken effect, or was refused and changed nothing."""

    __slots__ = ("_acts", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: Refused | None = None
        self._acts: list[Callable[[Refused | None], None]] = []

    def when_done(self, act: Callable[[Refused | None], None]) -> None:
        """Call `act` at the end, with the refusal if there is one; at once if it is over. First come, first called."""
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
            except Exception:  # one who waited must not spoil it for the next
                log.exception("what waited for a change failed")

    def settle(self) -> None:
        """Return if it has taken effect. Raises the refusal, or Saving while it is under way."""
        if not self.done:
            raise Saving(self)
        if self.error is not None:
            raise self.error


def over() -> Pending:
    """One that has taken effect already."""
    pending = Pending()
    pending.finish()
    return pending


class Saving(Exception):
    """Not an error: the request needs a change that is being saved. Nothing was done; do it again afterwards.

    `then`: what to do afterwards instead, if doing it again would not be right. Servers know what to do with this
    (`metaq.servers.waiting`).
    """

    def __init__(self, *pending: Pending, then: Callable[[], Any] | None = None) -> None:
        super().__init__(pending)
        self.pending, self.then = pending, then


class _Change(Pending, Generic[Key, Value]):
    """One entry that becomes `value`; None takes it away."""

    __slots__ = ("entry", "key", "value", "version")

    def __init__(self, key: Key, value: Value | None, entry: str) -> None:
        super().__init__()
        self.key, self.value, self.entry = key, value, entry
        self.version: Any = None


class _Step(Struct, Generic[Key, Value, Version]):
    """Of a `SavedTable`: `entries` stays as it is while the step is saved."""

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
    """What brings a call to the thread that makes it."""
    act()


class SavedTable(Generic[Key, Value, Version]):
    """A table in a file. `table` and `version` are what everybody may see: all of it is on the disk.

    Args: table, version: what the file says, and what is known without it. call_soon: brings a call from another thread to
          the one that owns the table. shown: called with the key of each change that has taken effect, before those who
          wait for it. stored: called in the file's thread with the keys of a save, before they take effect: for what
          should not be done on the event loop afterwards.
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
        """Why the file could not be saved last; "" when it could. It may then hold what was refused, until it can."""
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
            self._write_whole()  # what an earlier process has written may not be durable, and here it is believed

    # -- questions
    @property
    def count(self) -> int:
        """Entries, those that are being saved included."""
        return len(self.table) + len(self._latest)

    def pending(self, key: Key) -> Pending | None:
        """The newest change of this entry that is under way."""
        return self._latest.get(key)

    def coming(self, key: Key) -> Value | None:
        """What the entry will be when all that is under way has taken effect."""
        latest = self._latest.get(key)
        return self.table.get(key) if latest is None else latest.value

    # -- changes
    def change(self, key: Key, value: Value | None) -> Pending:
        """Save, then show, a new value for an entry; None takes it away. What already is so is over at once."""
        latest = self._latest.get(key)
        if latest is None and self.table.get(key) == value:
            return over()
        if latest is not None and latest.value == value:
            return latest
        return self._begin(key, value)

    def renew(self, key: Key) -> Pending:
        """Save and show an entry again as it is, so that the version moves on: what is told of the table has changed."""
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
        """Show entries at once that are known without the file: they are there even if it cannot be saved.

        While starting, and when a broker begins to lead: then a save may be under way, and the file follows behind it.
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
        """Write the file whole, and wait for it. Only while no save is under way."""
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
        """The step that changes nothing."""
        version = self._saved_version
        return _Step(self._format, self._changes, self._entries, {}, version, version)

    def put_back(self, key: Key, value: Value) -> None:
        """Show an entry again that was taken away, at once: what took it away went wrong later. The file follows."""
        self._set({key: value})
        self._has_put_back = self._running
        self._tell(key)
        self._failed(None)
        self.tick()

    def _set(self, entries: Mapping[Key, Value]) -> None:
        self._entries = dict(self._entries)  # those of a step under way stay as they are
        for key, value in entries.items():
            self.table[key] = value
            self._entries[key] = self._format.entry(key, value)
        self.version = self._saved_version = self._saved_version.next(self._clock.now_ms())

    def tick(self) -> None:
        """Let time pass: the file is written again if it could not be saved, as it must not keep what was refused; and
        whole, without a journal, if nothing has changed lately."""
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
        """Refuse further changes, and return when no save is running any more; there is no journal then."""
        self._closed = True
        self._file.flush()
        if self._journal is not None:
            # Of a save that has ended, this thread may not have heard yet.
            self._journal.fold(self._step if self._running and self._outcome == [None] else self._whole())

    # -- saving
    def _start(self) -> None:
        batch, self._waiting = self._waiting, []
        changed = dict[Key, str | None]()
        version = self._saved_version
        now_ms = self._clock.now_ms()
        for change in batch:
            changed.pop(change.key, None)  # a new entry comes last
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
            if put_back:  # what was saved is without that, whose version these changes would have
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
