"""Tables that are kept in a file: a change is on the disk before anybody sees it, or it is refused and never was.

Nothing here waits. A change that is asked for gets an object that ends later, and whoever needs it goes on then. All
changes asked for while a save is running go into the next save together, so that 10 000 of them cost some dozens of
saves and not 10 000; a file's own thread writes it (`metaq.store.config_file.BackgroundFile`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, Self, TypeVar

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

SHOWN_PER_TURN: Final = 8
"""Changes that take effect in one go: whoever waits for them works then, and others want their turn."""
RETRY_SECONDS: Final = 1.0


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

    def save_soon(self, text: Callable[[], str], done: Callable[[OSError | None], None]) -> None:
        """Replace the text durably, then call `done`, with the error if it could not be done.

        Both may be called from another thread, or before this returns.
        """
        ...

    def flush(self) -> None:
        """Return when what was saved is on the disk, or could not be put there."""
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


class TextFile(Struct, Generic[Content], frozen=True):
    """A file that is written as a whole, and its format."""

    file: SavedText
    format: TextFormat[Content]

    def read(self) -> Content | None:
        """What the file says, None if there is none yet. Raises ConfigError."""
        return read(self.file, self.format)


class TableFile(Struct, Generic[Key, Value, Version], frozen=True):
    """A table's file, and its format."""

    file: SavedText
    format: TableFormat[Key, Value, Version]

    def read(self, new: Version, check: Callable[[Key], object] | None = None) -> tuple[Version, dict[Key, Value]]:
        """Version and table; `new` and an empty one if there is no file yet. Raises ConfigError.

        Entries whose key `check` refuses are left out, and the log says so.
        """
        version, table = read(self.file, self.format) or (new, {})
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

    `then`: what to do afterwards instead, if doing it again would not be right. Doors know what to do with this
    (`metaq.doors.parking`).
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
        self._file, self._format = file.file, file.format
        self._clock, self._call_soon, self._when_shown, self._when_stored = clock, call_soon, shown, stored
        self._entries = {key: self._format.entry(key, value) for key, value in table.items()}
        self._saved_version = version
        self._latest: dict[Key, _Change[Key, Value]] = {}
        self._waiting: list[_Change[Key, Value]] = []
        self._saved: deque[_Change[Key, Value]] = deque()
        self._running = self._showing = self._closed = False
        self._retry_at = 0.0

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
        """Add entries while starting: they are known without the file, so they are there even if it cannot be saved."""
        self._set(entries)
        errors: list[OSError | None] = []
        texts, version = dict(self._entries), self._saved_version
        self._file.save_soon(lambda: self._format.whole(texts, version), errors.append)
        self._file.flush()
        if errors and errors[0] is not None:
            self._failed(errors[0])

    def put_back(self, key: Key, value: Value) -> None:
        """Show an entry again that was taken away, at once: what took it away went wrong later. The file follows."""
        self._set({key: value})
        self._tell(key)
        self._failed(None)
        self.retry()

    def _set(self, entries: Mapping[Key, Value]) -> None:
        for key, value in entries.items():
            self.table[key] = value
            self._entries[key] = self._format.entry(key, value)
        self.version = self._saved_version = self._saved_version.next(self._clock.now_ms())

    def retry(self) -> None:
        """Write the file again if it could not be saved: it must not keep what was refused. Call it now and then."""
        if self.failing and not self._running and not self._closed and self._clock.monotonic() >= self._retry_at:
            self._start()

    def close(self) -> None:
        """Refuse further changes, and return when no save is running any more."""
        self._closed = True
        self._file.flush()

    # -- saving
    def _start(self) -> None:
        batch, self._waiting = self._waiting, []
        entries, version = dict(self._entries), self._saved_version
        now_ms = self._clock.now_ms()
        for change in batch:
            if change.value is None:
                entries.pop(change.key, None)
            else:
                entries[change.key] = change.entry
            change.version = version = version.next(now_ms)
        self._running = True

        def done(error: OSError | None) -> None:
            if error is None and self._when_stored is not None:
                try:
                    self._when_stored([change.key for change in batch])
                except Exception:  # the changes are saved all the same
                    log.exception("what is done after a save of %s failed", self._file.where)
            self._call_soon(lambda: self._ended(batch, entries, version, error))

        self._file.save_soon(lambda: self._format.whole(entries, version), done)

    def _ended(
        self, batch: list[_Change[Key, Value]], entries: dict[Key, str], version: Version, error: OSError | None
    ) -> None:
        self._running = False
        if error is None:
            if self.failing:
                log.info("%s could be saved again", self._file.where)
            self.failing = ""
            self._entries, self._saved_version = entries, version
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
