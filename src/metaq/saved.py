"""Tables that are kept in a file: a change is on the disk before anybody sees it, or it is refused and never was.

Nothing here waits. A change that is asked for gets an object that ends later, and whoever needs it goes on then. All
changes asked for while a save is running go into the next save together, so that 10 000 of them cost some dozens of
saves and not 10 000; a file's own thread writes it (`metaq.store.config_file.BackgroundFile`). A file with a journal
(`metaq.store.journalled_file`) is not written whole for each save, so that one costs the same however large the table is.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, Self, TypeVar, runtime_checkable

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import BadRequest, ConfigError, Reason, Refused, shortage

log = logging.getLogger(__name__)


class Versioned(Protocol):
    """What moves with every change of a table (`metaq.model.DataVersion`)."""

    def next(self, now_ms: int) -> Self:
        """The version after one more change."""
        ...


Key = TypeVar("Key")
Value = TypeVar("Value")
Version = TypeVar("Version", bound=Versioned)
Content = TypeVar("Content")
Content_co = TypeVar("Content_co", covariant=True)

Done = Callable[[OSError | None], None]
"""Is told how a save ended, perhaps from another thread."""

SHOWN_PER_TURN: Final = 8
"""Changes that take effect in one go: whoever waits for them works then, and others want their turn."""
RETRY_SECONDS: Final = 1.0
QUIET_SECONDS, FOLD_SECONDS = 0.25, 2.0
"""A journal goes when its table has not changed for so long, but not more often: others may read the file, or take it over."""


class SavedText(Protocol):
    """A small file that is replaced as a whole: one of `metaq.store.config_file`, or a test's memory."""

    @property
    def where(self) -> str:
        """Its path, for errors."""
        ...

    def load(self) -> str:
        """The text, "" if there is none yet."""
        ...

    def save(self, text: str) -> None:
        """Replace the text, now or soon."""
        ...

    def save_soon(self, text: Callable[[], str], done: Done) -> None:
        """Replace the text durably, then call `done`, with the error if it could not be done.

        Both may be called from another thread, or before this returns.
        """
        ...

    def flush(self) -> None:
        """Return when what was saved is on the disk, or could not be put there."""
        ...


class Step(Protocol):
    """From one state of a table to the next, for the thread that writes it down. Good until the save has ended."""

    def begins(self) -> str:
        """How a journal begins that this is the first step of."""
        ...

    def line(self) -> str:
        """What a journal says of it, without a line break."""
        ...

    def goes_on(self) -> str:
        """How a journal begins that comes after it."""
        ...

    def text(self) -> str:
        """The whole file's text after it."""
        ...

    def snapshot(self) -> Callable[[], str]:
        """The same, also when the table has gone on."""
        ...


class JournalFound(Struct, frozen=True):
    """A journal that an earlier process has left: the texts of its lines, that with which it begins first."""

    where: str
    lines: Sequence[str]


@runtime_checkable
class JournalledText(SavedText, Protocol):
    """A file that is not written whole for each change: one of `metaq.store.journalled_file`."""

    @property
    def is_behind(self) -> bool:
        """The file is to be written whole before anybody believes what was read."""
        ...

    def journals(self) -> Sequence[JournalFound]:
        """Those that there are, the oldest first. Raises ConfigError."""
        ...

    def change_soon(self, step: Step, done: Done) -> None:
        """Write a step down durably, then call `done`, as `save_soon` does."""
        ...

    def replace_soon(self, step: Step, done: Done) -> None:
        """Write the file whole, as it is after a step, then call `done`."""
        ...

    @property
    def has_journal(self) -> bool:
        """The file alone does not say all that was changed."""
        ...

    def fold(self, step: Step) -> None:
        """Leave the file whole, as it is after the newest step, and no journal. What cannot be done is logged."""
        ...

    def fold_soon(self, step: Step) -> None:
        """The same, before whatever is asked for next."""
        ...


class Readable(Protocol[Content_co]):
    """How what a file says is read (`metaq.wire.files`)."""

    @property
    def name(self) -> str:
        """The file's, without its folder."""
        ...

    @property
    def remedy(self) -> str:
        """What to do if it cannot be read."""
        ...

    def parse(self, text: str) -> Content_co:
        """What the text says. Raises BadRequest."""
        ...


class TextFormat(Readable[Content], Protocol[Content]):
    """How something stands in a file that is written as a whole."""

    def text(self, content: Content) -> str:
        """The file's text."""
        ...


class TableFormat(Readable[tuple[Version, dict[Key, Value]]], Protocol[Key, Value, Version]):
    """How a table stands in its file. The text is put together of its entries': a large table is not written anew for
    each change."""

    @property
    def what(self) -> str:
        """The table's name in errors and in the log."""
        ...

    def entry(self, key: Key, value: Value) -> str:
        """The text of one entry."""
        ...

    def whole(self, entries: Mapping[Key, str], version: Version) -> str:
        """The file's text from those of all entries. Called in the file's thread."""
        ...


class ChangeFormat(Protocol[Key, Value, Version]):
    """How changes of a table stand in its journal."""

    def change(self, entries: Mapping[Key, str | None], version: Version) -> str:
        """One line: the entries that are new or changed, None for those that are gone, and the version after that."""
        ...

    def parse_change(self, text: str) -> tuple[Version, dict[Key, Value | None]]:
        """What a line says. Raises BadRequest."""
        ...


class TextFile(Struct, Generic[Content], frozen=True):
    """A file that is written as a whole, and its format."""

    file: SavedText
    format: TextFormat[Content]

    def read(self) -> Content | None:
        """What the file says, None if there is none yet. Raises ConfigError."""
        return read(self.file, self.format)


class TableFile(Struct, Generic[Key, Value, Version], frozen=True):
    """A table's file, its format, and that of its journal, if the file may have one."""

    file: SavedText
    format: TableFormat[Key, Value, Version]
    changes: ChangeFormat[Key, Value, Version] | None = None

    @property
    def journal(self) -> JournalledText | None:
        """The file, if it has a journal."""
        return self.file if self.changes is not None and isinstance(self.file, JournalledText) else None

    def read(self, new: Version, check: Callable[[Key], object] | None = None) -> tuple[Version, dict[Key, Value]]:
        """Version and table; `new` and an empty one if there is no file yet. Raises ConfigError.

        Entries whose key `check` refuses are left out, and the log says so.
        """
        version, table = read(self.file, self.format) or (new, {})
        if self.changes is not None and self.journal is not None:
            version = _replayed(self.file.where, version, table, _recorded(self.journal.journals(), self.changes))
        if check is None:
            return version, table
        for key in list(table):
            try:
                check(key)
            except Refused as error:
                log.warning("%s: passed over an entry: %s", self.file.where, error)
                del table[key]
        return version, table


def read(file: SavedText, form: Readable[Content]) -> Content | None:
    """What a file says, None if there is none yet. Raises ConfigError: it cannot be read."""
    text = file.load()
    if not text:
        return None
    try:
        return form.parse(text)
    except BadRequest as error:
        raise ConfigError(f"{file.where} cannot be read ({error}); {form.remedy}") from error


class _Recorded(Struct, Generic[Key, Value, Version]):
    """A line of a journal, or its beginning: then it changes nothing."""

    where: str
    version: Version
    changed: dict[Key, Value | None]
    begins: bool
    is_last: bool


def _recorded(
    journals: Sequence[JournalFound], changes: ChangeFormat[Key, Value, Version]
) -> list[_Recorded[Key, Value, Version]]:
    """The lines of all journals. Raises ConfigError: one cannot be understood."""
    found = list[_Recorded[Key, Value, Version]]()
    for journal in journals:
        for number, line in enumerate(journal.lines):
            try:
                version, changed = changes.parse_change(line)
            except BadRequest as error:
                raise ConfigError(
                    f"{journal.where} cannot be read (line {number + 1}: {error}); restore it, or move it away: what was "
                    "changed since the file beside it was written is lost then"
                ) from error
            found.append(_Recorded(journal.where, version, changed, number == 0, number == len(journal.lines) - 1))
    return found


def _replayed(
    where: str, version: Version, table: dict[Key, Value], recorded: Sequence[_Recorded[Key, Value, Version]]
) -> Version:
    """Bring a file's table up to what its journals say; returns the version after that.

    The file is the table as it was at the last place with its version: what lies before is in it already. A journal that
    only begins, at some other version, was of no use: the process ended before it was.

    Raises ConfigError: the journals are another file's, or one of them is missing.
    """
    place = max((at for at, one in enumerate(recorded) if one.version == version), default=-1)
    if place < 0:
        if any(one.changed for one in recorded):
            raise ConfigError(
                f"{where} is not the file that {recorded[0].where} goes on from (it is at {version}, the journal begins at "
                f"{recorded[0].version}): somebody has written or restored it since a broker ended here without stopping "
                "in order. Restore the file of that time; or move its journals away to go on with the file as it is, "
                "without the changes that they hold"
            )
        return version
    for one in recorded[place + 1 :]:
        if not one.begins:
            version = one.version
            for key, value in one.changed.items():
                if value is None:
                    table.pop(key, None)
                else:
                    table[key] = value
        elif one.version != version and not one.is_last:
            raise ConfigError(
                f"{one.where} begins at {one.version}, and what is before it ends at {version}: a journal between them is "
                "missing or cut. Restore it; or move those that are left away, which loses the changes that they hold"
            )
    return version


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
