"""A table's file with a journal beside it: a change costs one line, however large the table is (docs/formats/journal.md).

`topics.json` stays as RocketMQ writes it. What has changed since it was written stands in `topics.json.journal.N`, one
line for all changes that were saved together. When the journal has outgrown the file, the next one is begun and the file
is written anew, beside the changes that go on; when nothing has changed for a moment, and at a stop in order, it is
written anew and leaves no journal.

The file holds the table at some place of the journals: its version is that of a line there, and the lines behind it are
still to be applied. So whatever a crash leaves of these steps, one place is right.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from metaq.errors import BadRequest, ConfigError
from metaq.saved_file import Done, JournalFound, Step
from metaq.store.config_file import ConfigFile, ending
from metaq.store.disk import Disk
from metaq.wire import journal

log = logging.getLogger(__name__)

_MARK: Final = ".journal."
FOLD_BYTES: Final = 256 * 1024
"""A journal below this is not worth writing the file anew."""


class JournalledFile:
    """A `ConfigFile` and its journals. All but `_fold` is called in one thread, the caller's.

    Args: beside: runs the rewriting of the file when the journal has grown; by default at once.
    """

    def __init__(
        self,
        path: Path,
        disk: Disk | None = None,
        *,
        beside: Callable[[Callable[[], None]], None] | None = None,
        settle: Callable[[], None] = lambda: None,
        fold_bytes: int = FOLD_BYTES,
    ) -> None:
        """`settle` returns when nothing of `beside` is running any more."""
        self.path = path
        self._file, self._disk = ConfigFile(path, disk), disk or Disk()
        self._beside = beside or (lambda work: work())
        self._settle, self._fold_bytes = settle, fold_bytes
        self._descriptor = -1
        """Of the journal that is written; -1: none is begun."""
        self._bytes = 0
        # Numbers go on behind those of an earlier process, whose journals are read, and deleted once the file is
        # written anew.
        self._number = max(self._numbers(), default=0)
        self._is_behind = self._number > 0
        """File and journals may not hold, or not durably hold, the table: it has to be written whole before the next change."""
        self._folding = False
        self._failing = ""

    # -- reading
    @property
    def where(self) -> str:
        """The file's path, for errors."""
        return self._file.where

    @property
    def is_behind(self) -> bool:
        """Whether the file has to be written anew before the table is used: an earlier process was not stopped in order."""
        return self._is_behind

    @property
    def has_journal(self) -> bool:
        """Whether the file alone does not hold the whole table."""
        return self._descriptor >= 0 or self._is_behind

    def load(self) -> str:
        """The file's text, without the journals'. As `ConfigFile.load`."""
        return self._file.load()

    def journals(self) -> Sequence[JournalFound]:
        """Return the journals, the oldest first. A last line that is torn is left out, and logged.

        Raises ConfigError: one cannot be read, or is damaged.
        """
        found = []
        for number in self._numbers():
            path = self._journal(number)
            try:
                self._secure(path)
                lines = journal.lines(path.read_bytes())
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror}; mend it or move it away") from None
            except BadRequest as error:
                raise ConfigError(
                    f"{path}: {error}; restore it, or move it away: what was changed since {self.path.name} was written "
                    "is lost then"
                ) from None
            if lines.torn_bytes:
                log.warning(
                    "%s: its last %d bytes are no whole line and are dropped: a crash came while they were written, so nobody "
                    "was told that it was done", path, lines.torn_bytes,
                )  # fmt: skip
            found.append(JournalFound(str(path), lines.texts))
        return found

    def _secure(self, path: Path) -> None:
        """Sync a journal before its lines are used. Raises OSError."""
        # After a kill they may be in the page cache only: a power cut would undo a table that clients have seen by then.
        descriptor = self._disk.open(path, os.O_RDONLY)
        try:
            self._disk.sync_file(descriptor)
        finally:
            os.close(descriptor)

    # -- writing
    def save(self, text: str) -> None:
        """Replace the file by a text, and delete all journals. Raises OSError."""
        # A fold under way would write its older text over this one.
        self._settle()
        # The next change begins another journal, behind the text that is written here.
        self._close()
        self._file.save(text)
        self._remove(self._number)
        self._disk.sync_folder(self.path.parent)
        self._is_behind = False

    def replace(self, step: Step) -> None:
        """Write the file anew, with the table as it is after `step`, and delete the journals. Raises OSError."""
        self._settle()
        self._is_behind = True
        self._close()
        last = self._number
        if last and self._numbers():
            # A journal that begins at the new file's version: after a crash a start finds old journals and new file, and sees
            # by it that the file stands behind them.
            os.close(self._begin(step.goes_on()))
        self._file.save(step.text())
        if self._number > last:
            self._remove(last)
            self._disk.sync_folder(self.path.parent)  # first those before it
            self._remove(self._number)
            self._disk.sync_folder(self.path.parent)
        self._is_behind = False

    def change(self, step: Step) -> None:
        """Append what `step` changes to the journal, durably.

        Raises OSError: it is not there then; if that could not be made durable either, a power cut may leave it, until `replace`.
        """
        if self._is_behind or (
            self._descriptor < 0 and not self.path.exists()
        ):  # a journal needs a file that it follows
            self.replace(step)
            return
        self._is_behind = True  # until the sync went well: behind a line that may be torn nothing is appended
        data = journal.line(step.line())
        if self._descriptor < 0:
            self._descriptor = self._begin(step.begins(), data)
        else:
            self._append(self._descriptor, data)
        self._is_behind = False

    def _append(self, descriptor: int, data: bytes) -> None:
        size = os.fstat(descriptor).st_size
        try:
            _write(descriptor, data)
            self._disk.sync_file(descriptor)
        except OSError:
            # Whoever asked for the change is told that it was refused: a process that is killed next must not leave it.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
                self._disk.sync_file(descriptor)
            raise
        self._bytes += len(data)

    def make_room(self, step: Step) -> None:
        """If the journal has outgrown the file, begin another one behind `step`, the newest, and write the file anew."""
        # Not before the journal is as large as the file: so rewriting stays in proportion to the changes.
        if self._folding or self._is_behind or self._bytes < max(self._fold_bytes, self._size()):
            return
        # The fold removes the journals up to this one; the next one, begun below, follows the text that it writes.
        number = self._number
        try:
            descriptor = self._begin(step.goes_on())
        except OSError as error:
            self._bytes = 0  # not at every change
            self._say(error)
            return
        os.close(self._descriptor)
        self._descriptor = descriptor
        # The text is made now, in the caller's thread: the table goes on changing while the file is written.
        text = step.snapshot()
        self._folding = True
        self._beside(lambda: self._fold(text, number))

    def _fold(self, text: Callable[[], str], number: int) -> None:
        """Write the file anew beside the changes that go on, then delete the journals up to `number`."""
        try:
            self._file.save(text())
            self._remove(number)
            self._failing = ""
        except (OSError, MemoryError) as error:
            self._say(error)  # they stay, and are read at the next start: nothing is lost
        except Exception:
            log.exception("%s could not be written anew", self.where)
        finally:
            self._folding = False

    def fold(self, step: Step) -> None:
        """Write the file anew and delete the journals, when nothing changes. A failure is logged, and the journals stay."""
        # Nothing has changed since the file was written.
        if self._descriptor < 0 and not self._is_behind and not self._numbers():
            return
        try:
            self.replace(step)
        except (OSError, MemoryError) as error:
            self._say(error)

    def _say(self, error: BaseException) -> None:
        if str(error) != self._failing:  # once per reason
            log.error(
                "%s could not be written anew: %s; its journal goes on growing, and the next start reads it",
                self.where, error,
            )  # fmt: skip
        self._failing = str(error)

    # -- for a table
    def save_soon(self, text: Callable[[], str], done: Done) -> None:
        """`save` at once, then call `done`."""
        done(ending(lambda: self.save(text())))

    def change_soon(self, step: Step, done: Done) -> None:
        """`change` at once, then call `done`, with the error if there is one."""
        error = ending(lambda: self.change(step))
        if error is None:
            self.make_room(step)  # before anything else changes
        done(error)

    def replace_soon(self, step: Step, done: Done) -> None:
        """`replace` at once, then call `done`."""
        done(ending(lambda: self.replace(step)))

    def fold_soon(self, step: Step) -> None:
        """`fold` at once."""
        self.fold(step)

    def flush(self) -> None:
        """Do nothing: all but the rewriting of the file, which nobody waits for, is done at once."""

    # -- the journals' files
    def _numbers(self) -> list[int]:
        """Return the numbers of the journals that there are, ascending."""
        # Journals are ordered by number and not by name: `.10` comes behind `.9`.
        ends = (path.name.rpartition(".")[2] for path in self.path.parent.glob(f"{self.path.name}{_MARK}*"))
        return sorted(int(end) for end in ends if end.isascii() and end.isdigit())

    def _journal(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}{_MARK}{number}")

    def _begin(self, first: str, more: bytes = b"") -> int:
        """Make the next journal, durably. Returns its descriptor. Raises OSError: there is none, or one without changes."""
        self._number += 1
        path = self._journal(self._number)
        descriptor = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        try:
            data = journal.line(first) + more
            _write(descriptor, data)
            self._disk.sync_file(descriptor)
            # Its name too, before any change in it is told as done.
            self._disk.sync_folder(path.parent)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._bytes = len(data)
        return descriptor

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def _remove(self, last: int) -> None:
        """Delete the journals up to that number, the oldest first: a missing one in between would stop the next start."""
        for number in self._numbers():
            if number <= last:
                self._journal(number).unlink(missing_ok=True)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._close()


class BackgroundTable:
    """A `JournalledFile` with a thread that writes changes and one that rewrites the file: no sync stalls the event loop."""

    def __init__(self, path: Path, disk: Disk | None = None, *, fold_bytes: int = FOLD_BYTES) -> None:
        self._writer = ThreadPoolExecutor(1, f"metaq-save-{path.stem}")
        # Writing the file anew has a thread of its own: 50 000 topics must not delay the next change.
        self._folder = ThreadPoolExecutor(1, f"metaq-fold-{path.stem}")
        self._last: Future[None] | None = None
        self._last_fold: Future[None] | None = None
        self._file = JournalledFile(path, disk, beside=self._fold, settle=self._settle, fold_bytes=fold_bytes)

    @property
    def where(self) -> str:
        """Its path, for errors."""
        return self._file.where

    @property
    def is_behind(self) -> bool:
        """As `JournalledFile.is_behind`; for a start, when nothing is being saved."""
        return self._file.is_behind

    @property
    def has_journal(self) -> bool:
        """As `JournalledFile.has_journal`, when what was asked for is done."""
        return self._file.has_journal

    def load(self) -> str:
        """As `JournalledFile.load`."""
        return self._file.load()

    def journals(self) -> Sequence[JournalFound]:
        """As `JournalledFile.journals`."""
        return self._file.journals()

    def save(self, text: str) -> None:
        """As `JournalledFile.save`, when what was asked for before is done. Raises OSError."""
        self._writer.submit(self._file.save, text).result()

    def save_soon(self, text: Callable[[], str], done: Done) -> None:
        """Replace the text, then call `done` from the thread."""
        self._last = self._writer.submit(self._file.save_soon, text, done)

    def change_soon(self, step: Step, done: Done) -> None:
        """Write down a change, then call `done` from the thread. Everything is done in its order."""
        self._last = self._writer.submit(self._file.change_soon, step, done)

    def replace_soon(self, step: Step, done: Done) -> None:
        """Write the file anew, then call `done` from the thread."""
        self._last = self._writer.submit(self._file.replace_soon, step, done)

    def fold_soon(self, step: Step) -> None:
        """As `JournalledFile.fold`, from the thread."""
        self._last = self._writer.submit(self._file.fold, step)

    def flush(self) -> None:
        """Return when what was saved is on the disk, or could not be put there."""
        if self._last is not None:
            wait([self._last])

    def fold(self, step: Step) -> None:
        """As `JournalledFile.fold`."""
        self._writer.submit(self._file.fold, step).result()

    def _fold(self, work: Callable[[], None]) -> None:
        self._last_fold = self._folder.submit(work)

    def _settle(self) -> None:
        if self._last_fold is not None:
            wait([self._last_fold])


def _write(descriptor: int, data: bytes) -> None:
    """Write all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        # A short write happens on a nearly full disk; the next one then raises ENOSPC.
        view = view[os.write(descriptor, view) :]
