"""Small text files that are replaced whole: topics.json, consumerOffset.json and the like."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from metaq.errors import ConfigError
from metaq.store.disk import Disk
from metaq.store.sealed import is_sealed_file, seal, unseal

log = logging.getLogger(__name__)


class ConfigFile:
    """A text file that is always either the old or the new version, with the version before it in `.bak`.

    As RocketMQ writes its own: new text to `.tmp`, the present text to `.bak`, then the rename. Unlike it, the text and
    the names are durable before `save` returns: a rename that only the page cache knows is undone by a power cut.
    """

    def __init__(self, path: Path | str, disk: Disk | None = None) -> None:
        self.path = Path(path)
        self._disk = disk or Disk()

    @property
    def where(self) -> str:
        """Its path, for errors."""
        return str(self.path)

    @property
    def paths(self) -> tuple[Path, Path]:
        """The file, and the version before it."""
        return self.path, self._beside(".bak")

    def load(self) -> str:
        """Return the text; that of `.bak` if the file is missing or empty; "" if there is neither.

        Our own files come without their envelope (`metaq.store.sealed`).

        Raises ConfigError: it is there and cannot be read, or does not fit its checksum. StoreForeign: a later release wrote it.
        """
        for path in self.paths:
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "not UTF-8"
                raise ConfigError(f"cannot read {path}: {why}; mend it or move it away") from None
            if text.strip():  # RocketMQ does not sync before its rename: a crash can leave an empty file
                return unseal(text, str(path)) if is_sealed_file(self.path.name) else text
        return ""

    def save(self, text: str) -> None:
        """Replace the text, durably.

        Raises OSError: the text before is there then; if that could not be made durable either, a power cut leaves one of the two.
        """
        # `.tmp`, `.bak`, rename: RocketMQ's steps, so that either broker finds a whole file whatever the other left.
        # A name server's folder may be missing at its first save.
        self._disk.make_folder(self.path.parent)
        temporary = self._beside(".tmp")
        descriptor = self._disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(seal(text) if is_sealed_file(self.path.name) else text)
            file.flush()
            # The text is synced before the rename: otherwise the name may be durable before it, and a power cut leaves
            # an empty file.
            self._disk.sync_file(file.fileno())
        was_there, backup = self.path.exists(), self._beside(".bak")
        if was_there:
            # A crash behind this leaves no backup, but a whole file: the rename below has not begun.
            _link(backup, self.path)  # never a moment without a whole file under the name
        temporary.replace(self.path)
        try:
            # Both names, of the file and of the backup, lie in this folder: one sync makes both durable.
            self._disk.sync_folder(self.path.parent)
        except OSError:
            # Whoever asked for the change is told that it was refused: a process that is killed next must not leave it.
            if was_there:
                _link(temporary, backup)
                temporary.replace(self.path)
            else:
                self.path.unlink()
            with contextlib.suppress(OSError):
                self._disk.sync_folder(self.path.parent)
            raise

    def save_soon(self, text: Callable[[], str], done: Callable[[OSError | None], None]) -> None:
        """`save` at once, then call `done`, with the error if there is one."""
        done(ending(lambda: self.save(text())))

    def flush(self) -> None:
        """Do nothing: `save` returns when the text is on the disk."""

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)


def _link(path: Path, other: Path) -> None:
    """Make `path` another name of the file `other`, or a copy of it. Raises OSError."""
    path.unlink(missing_ok=True)
    try:
        path.hardlink_to(other)
    except OSError:  # a file system without links
        import shutil  # here and not above: it brings every kind of compression along, at each start

        shutil.copyfile(other, path)


class BackgroundFile:
    """A `ConfigFile` that a thread writes: no event loop should stall with a sync, nor with making a long text."""

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        # One thread: saves must not overtake each other.
        self._writer = ThreadPoolExecutor(1, f"metaq-save-{file.path.stem}")
        self._last: Future[None] | None = None
        self._failing = ""

    @property
    def where(self) -> str:
        """Its path, for errors."""
        return self._file.where

    def load(self) -> str:
        """As `ConfigFile.load`."""
        return self._file.load()

    def save(self, text: str) -> None:
        """Replace the text soon. A failure is logged; the next save tries again."""
        self.save_soon(lambda: text, self._log)

    def save_soon(self, text: Callable[[], str], done: Callable[[OSError | None], None]) -> None:
        """Replace the text, which the thread makes, then call `done` from there. Saves are done in their order."""
        self._last = self._writer.submit(self._write, text, done)

    def flush(self) -> None:
        """Return when what was saved is on the disk, or could not be put there."""
        if self._last is not None:
            # Waiting for the last save is enough: one thread does them in their order.
            wait([self._last])

    def _write(self, text: Callable[[], str], done: Callable[[OSError | None], None]) -> None:
        done(ending(lambda: self._file.save(text())))

    def _log(self, error: OSError | None) -> None:
        reason = "" if error is None else str(error)
        if reason and reason != self._failing:  # once per reason, not every few seconds
            log.error("%s could not be saved: %s", self.where, reason)
        self._failing = reason


def ending(save: Callable[[], None]) -> OSError | None:
    """Call `save`. Returns how it failed, None if it did not: also a fault of ours, since the caller has somebody waiting."""
    try:
        save()
    except OSError as error:
        return error
    except MemoryError:
        # A client waits for the outcome: out of memory is told to it as a failed save.
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    except Exception as error:  # a fault of ours
        log.exception("a configuration file could not be saved")
        return OSError(f"{type(error).__name__}: {error}")
    return None
