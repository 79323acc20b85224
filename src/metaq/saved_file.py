"""Files that are replaced as a whole, and tables in them: what a file and its format are, and how a table is read.

A large table may have a journal (docs/formats/journal.md): then a change is one line beside the file, and reading the table
brings it up to what the journals say. `metaq.saved` has the table itself; files are `metaq.store.config_file` and
`metaq.store.journalled_file`, formats `metaq.wire.files`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

from msgspec import Struct

from metaq.errors import BadRequest, ConfigError, Refused

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
