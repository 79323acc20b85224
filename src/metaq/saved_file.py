"""Files that are replaced as a whole, and tables in them: what a file and its format are, and how a table is read.

A large table may have a journal (docs/formats/journal.md): then a change is one line beside the file, and reading the
table brings it up to what the journals say. `metaq.saved` has the table itself; files are `metaq.store.config_file` and
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
    """Version of a table, which changes with it (`metaq.model.DataVersion`)."""

    def next(self, now_ms: int) -> Self:
        """Return the version after one more change."""
        ...


Key = TypeVar("Key")
Value = TypeVar("Value")
Version = TypeVar("Version", bound=Versioned)
Content = TypeVar("Content")
Content_co = TypeVar("Content_co", covariant=True)

Done = Callable[[OSError | None], None]
"""Called at the end of a save, with its error or None, perhaps in another thread."""


class SavedText(Protocol):
    """A small file that is replaced as a whole: of `metaq.store.config_file`, or in a test's memory."""

    @property
    def where(self) -> str:
        """Its path, for errors."""
        ...

    def load(self) -> str:
        """Return the text, "" if there is no file yet."""
        ...

    def save(self, text: str) -> None:
        """Replace the text, now or soon."""
        ...

    def save_soon(self, text: Callable[[], str], done: Done) -> None:
        """Replace the text durably, then call `done`. `text` and `done` may be called in another thread, or before this
        returns."""
        ...

    def flush(self) -> None:
        """Wait until all saves have ended."""
        ...


class Step(Protocol):
    """Change from one state of a table to the next, for the thread that writes it. Valid until its save has ended."""

    def begins(self) -> str:
        """Return the first line of a journal that begins with this step."""
        ...

    def line(self) -> str:
        """Return the line of this step in a journal, without a line break."""
        ...

    def goes_on(self) -> str:
        """Return the first line of a journal that begins after this step."""
        ...

    def text(self) -> str:
        """Return the text of the file after this step."""
        ...

    def snapshot(self) -> Callable[[], str]:
        """Return what makes the text of the file after this step, valid also when the table has changed further."""
        ...


class JournalFound(Struct, frozen=True):
    """A journal of an earlier process: the texts of its lines, its beginning first."""

    where: str
    lines: Sequence[str]


@runtime_checkable
class JournalledText(SavedText, Protocol):
    """A file that is not written whole for each change (`metaq.store.journalled_file`)."""

    @property
    def is_behind(self) -> bool:
        """The file must be written whole before what was read may be relied on."""
        ...

    def journals(self) -> Sequence[JournalFound]:
        """Return the journals found, oldest first. Raises ConfigError."""
        ...

    def change_soon(self, step: Step, done: Done) -> None:
        """Write a step durably, then call `done`, as `save_soon` does."""
        ...

    def replace_soon(self, step: Step, done: Done) -> None:
        """Write the file whole, as of after a step, then call `done`."""
        ...

    @property
    def has_journal(self) -> bool:
        """There are changes that the file itself does not have."""
        ...

    def fold(self, step: Step) -> None:
        """Write the file whole, as of after the newest step, and delete the journals. Failures are logged."""
        ...

    def fold_soon(self, step: Step) -> None:
        """Fold in the file's thread, before the next save."""
        ...


class Readable(Protocol[Content_co]):
    """The reading half of a file's format (`metaq.wire.files`)."""

    @property
    def name(self) -> str:
        """Name of the file, without its folder."""
        ...

    @property
    def remedy(self) -> str:
        """What to do if the file cannot be read, for the error."""
        ...

    def parse(self, text: str) -> Content_co:
        """Parse the text of the file. Raises BadRequest."""
        ...


class TextFormat(Readable[Content], Protocol[Content]):
    """Format of a file that is written as a whole."""

    def text(self, content: Content) -> str:
        """Return the text of the file."""
        ...


class TableFormat(Readable[tuple[Version, dict[Key, Value]]], Protocol[Key, Value, Version]):
    """Format of a table's file. Its text is put together of the texts of its entries, so that a change formats one
    entry only."""

    @property
    def what(self) -> str:
        """Name of the table in errors and in the log."""
        ...

    def entry(self, key: Key, value: Value) -> str:
        """Return the text of one entry."""
        ...

    def whole(self, entries: Mapping[Key, str], version: Version) -> str:
        """Return the text of the file, from those of all entries. Called in the file's thread."""
        ...


class ChangeFormat(Protocol[Key, Value, Version]):
    """Format of a table's journal."""

    def change(self, entries: Mapping[Key, str | None], version: Version) -> str:
        """Return a line with the texts of changed entries (None: deleted) and the version after the change."""
        ...

    def parse_change(self, text: str) -> tuple[Version, dict[Key, Value | None]]:
        """Parse a line into version and changed values (None: deleted). Raises BadRequest."""
        ...


class TextFile(Struct, Generic[Content], frozen=True):
    """A file that is written as a whole, and its format."""

    file: SavedText
    format: TextFormat[Content]

    def read(self) -> Content | None:
        """Return the content of the file, None if there is none yet. Raises ConfigError."""
        return read(self.file, self.format)


class TableFile(Struct, Generic[Key, Value, Version], frozen=True):
    """A table's file, its format, and that of its journal, if it may have one."""

    file: SavedText
    format: TableFormat[Key, Value, Version]
    changes: ChangeFormat[Key, Value, Version] | None = None

    @property
    def journal(self) -> JournalledText | None:
        """The file, if it has a journal."""
        return self.file if self.changes is not None and isinstance(self.file, JournalledText) else None

    def read(self, new: Version, check: Callable[[Key], object] | None = None) -> tuple[Version, dict[Key, Value]]:
        """Return version and table; `new` and an empty table if there is no file yet. Raises ConfigError.

        Entries whose key `check` refuses are left out and logged.
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
    """Return the content of a file, None if there is none yet. Raises ConfigError: it cannot be read."""
    text = file.load()
    if not text:
        return None
    try:
        return form.parse(text)
    except BadRequest as error:
        raise ConfigError(f"{file.where} cannot be read ({error}); {form.remedy}") from error


class _Recorded(Struct, Generic[Key, Value, Version]):
    """A parsed line of a journal. Its first line (`begins`) changes nothing."""

    where: str
    version: Version
    changed: dict[Key, Value | None]
    begins: bool
    is_last: bool


def _recorded(
    journals: Sequence[JournalFound], changes: ChangeFormat[Key, Value, Version]
) -> list[_Recorded[Key, Value, Version]]:
    """Return the parsed lines of all journals. Raises ConfigError: one cannot be parsed."""
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
    """Apply journals to a file's table. Return the version after that.

    The file is the table as of the last line with its version; lines before that are in it already. A journal with a
    first line only, at some other version, is ignored: its process ended before the first change.

    Raises ConfigError: the journals belong to another file, or one of them is missing.
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
