"""The store's folder: its paths, its lock, and the mark of a run that has not ended in order (docs/formats/store-folder.md)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from metaq import record_lock
from metaq.errors import ConfigError, StoreForeign, StoreLocked
from metaq.options import StoreOptions
from metaq.store.config_file import ConfigFile
from metaq.store.disk import Disk, reserving

log = logging.getLogger(__name__)
_OURS: Final = frozenset({
    "commitlog", "consumequeue", "consumequeue_ext", "index", "checkpoint", "abort", "lock", "config", "positions",
    # A name server's files may lie here, too; the timer files are RocketMQ 5's.
    "namesrv", "logs", "cut", "sums", "timerwheel", "timerlog", "timercheck",
})  # fmt: skip
"""What RocketMQ and we put into a store folder."""
_HARMLESS: Final = frozenset({"lost+found"})
"""An ext4 volume that is mounted as the store's folder has it."""

# No topic's name holds it (`check_partition_topic`), so no topic can have such a folder.
_ASIDE: Final = ".deleted-"

VERSION: Final = 1
"""Of a store's folder and all that we put into it beside RocketMQ's formats. A folder without one is of RocketMQ, or older."""
HALF_COPY: Final = "copying.json"
"""File in a folder that is being copied to (`metaq store copy`)."""
_open_here: set[Path] = set()
"""Folders open in this process. A POSIX record lock belongs to the process, so it does not keep a second store of it out."""


def is_open(root: Path) -> bool:
    """Whether a broker has the folder open: asks for its lock without taking it."""
    if root.resolve() in _open_here:  # opening and closing the lock's file here would give the lock up
        return True
    try:
        descriptor = os.open(root / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return record_lock.holder(descriptor) is not None
    except OSError:
        return False
    finally:
        os.close(descriptor)


class StoreFolder:
    """Paths of one store, its lock and its abort file."""

    def __init__(self, options: StoreOptions, disk: Disk | None = None) -> None:
        self.root = Path(options.store_path_root_dir).expanduser()
        self.commit_log = Path(options.store_path_commit_log or self.root / "commitlog").expanduser()
        self.consume_queues = Path(options.store_path_consume_queue or self.root / "consumequeue").expanduser()
        self.index = Path(options.store_path_index or self.root / "index").expanduser()
        self.checkpoint = Path(options.store_checkpoint or self.root / "checkpoint").expanduser()
        self.abort = Path(options.abort_file or self.root / "abort").expanduser()
        self.config = self.root / "config"
        self.positions = self.root / "positions"
        self.disk = disk or Disk()
        self.tails = ConfigFile(self.config / "metaqTails.json", disk)
        self._version = ConfigFile(self.config / "metaqStore.json", disk)
        self._lock = -1

    def open(self) -> None:
        """Lock the folder; make it if there is none.

        Raises StoreForeign: it holds files, and none of them is a store's. StoreLocked: another broker has it open.
        """
        self._refuse_foreign()
        self.refuse_later()
        with reserving(self.root):
            for folder in self._parts():
                self.disk.make_folder(folder)
        # Behind the folders: the lock is a file in one of them. Nothing in them was changed before.
        self._take_lock()

    def refuse_later(self) -> None:
        """Raises StoreForeign: a later release has worked on the folder, and this one would not understand what it wrote."""
        if (found := self._found_version()) > VERSION:
            raise StoreForeign(
                f"{self.root} is a store of version {found} ({self._version.where}), and this release reads up to {VERSION}: nothing was "
                "touched; use the newer release"
            )

    def _found_version(self) -> int:
        """The version that the folder has; 0: none is there."""
        try:
            text = self._version.load()
            return int(msgspec.json.decode(text, type=dict[str, int]).get("store", 0)) if text else 0
        except (ConfigError, msgspec.DecodeError, RecursionError) as error:
            log.warning("%s is written anew: %s", self._version.where, error)
            return 0

    def _parts(self) -> tuple[Path, ...]:
        parents = (self.checkpoint.parent, self.abort.parent)
        return (self.root, self.commit_log, self.consume_queues, self.index, self.config, *parents)

    def secure(self) -> None:
        """Make the names of all parts durable: they may have been made by a process that was killed. Raises OSError."""
        for folder in dict.fromkeys(part.parent for part in self._parts()):
            if folder.is_relative_to(self.root):
                self.disk.resync_folder(folder)  # again: a sync of the killed process may have failed
            else:
                with contextlib.suppress(PermissionError):  # then we have not made anything in it
                    self.disk.sync_folder(folder)

    def secure_config(self) -> None:
        """Make the names of the configuration files durable, also after what looks like an end in order. Raises OSError."""
        # The abort file says nothing about them: an administrator may have removed it after a kill in the middle of a save.
        # Then a power cut could bring the old text back after this start has acted on the new one.
        self.disk.sync_folder(self.config)

    def _refuse_foreign(self) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise StoreForeign(f"{self.root} is not a folder: nothing was touched; name another one (storePathRootDir)")
        if (self.root / HALF_COPY).exists():
            raise StoreForeign(
                f"{self.root} is a copy that is not whole: nothing was touched; run the `metaq store copy` again that it is of, or delete it"
            )
        # `storePathRootDir` may point at a home folder by mistake: nothing is put between somebody's files.
        names = {path.name for path in self.root.glob("*")} if self.root.exists() else set()
        names = {name for name in names if not name.startswith(".") and name not in _HARMLESS}
        # One known name is enough: there may be other files beside the store's.
        if names and not names & _OURS:
            shown = ", ".join(sorted(names)[:3])
            raise StoreForeign(
                f"{self.root} holds other files ({shown}) and no message store: nothing was touched; "
                "name an empty folder (storePathRootDir)"
            )

    def _take_lock(self) -> None:
        path = self.root / "lock"
        root = self.root.resolve()
        refusal = f"the store {self.root} is open in another process: stop that broker, or name another folder"
        # Also under another path to the same folder: hence `resolve`.
        if root in _open_here:
            raise StoreLocked(refusal)
        with reserving(path):
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not record_lock.take(self._lock):
            os.close(self._lock)
            self._lock = -1
            raise StoreLocked(refusal)
        # RocketMQ writes this text, too.
        os.pwrite(self._lock, b"lock", 0)
        _open_here.add(root)

    def move_aside(self, topic: str, queue_ids: Sequence[int] | None = None) -> Path | None:
        """Rename the folder of a topic's consume queues to a name that no topic can have. Returns the new path; None: no folder.

        Args: queue_ids: only these, into a folder of such a name; None: all. Raises OSError.
        """
        # Deleting thousands of queue files takes long, and the topic may be made again meanwhile. A rename is at once.
        # The number is only a guess: the loop goes on until a name is free.
        taken = len(self.moved_aside())
        while True:
            aside = self.consume_queues / f"{topic}{_ASIDE}{taken}"
            taken += 1
            try:
                if queue_ids is None:
                    return (self.consume_queues / topic).rename(aside)
                aside.mkdir()
            except FileNotFoundError:
                return None
            except OSError:
                # Any other error is told; a taken name only means the next number.
                if not aside.exists():
                    raise
            else:
                for queue_id in queue_ids:
                    with contextlib.suppress(FileNotFoundError):  # it never had a message
                        (self.consume_queues / topic / str(queue_id)).rename(aside / str(queue_id))
                return aside

    def moved_aside(self) -> list[Path]:
        """Folders of deleted topics that still exist."""
        return list(self.consume_queues.glob(f"*{_ASIDE}*"))

    @property
    def was_clean(self) -> bool:
        """Whether the last run ended in order, as RocketMQ marks it: by removing `abort`."""
        return not self.abort.exists()

    def mark_running(self) -> None:
        """Make `abort`, durably: from here on an end without `mark_stopped` counts as a crash. Raises StoreFull."""
        with reserving(self.abort):
            was_there = self.abort.exists()
            os.close(self.disk.open(self.abort, os.O_RDWR | os.O_CREAT))
            if was_there:  # it may be in the page cache only: of a run whose sync failed
                self.disk.resync_folder(self.abort.parent)
            else:
                self.disk.sync_folder(self.abort.parent)
        self._mark_version()

    def _mark_version(self) -> None:
        """Write down the version of the folder's formats, if it is not there. On a full disk the next start does it."""
        if self._found_version() == VERSION:
            return
        try:
            self._version.save(f'{{"store":{VERSION}}}')
        except OSError as error:
            log.warning("%s could not be written: %s", self._version.where, error.strerror)

    def keep_hints(self) -> None:
        """Make checkpoint and tails durable as a start has read them, before it changes the files that they speak of.

        Raises OSError.
        """
        # An administrator may have deleted or replaced one of them a moment ago. If a power cut brought the old one back, it
        # would call files durable which this start has written anew. So would a `.bak` that was not the one that was read.
        tails, before = self.tails.paths
        # What `load` has read: the file itself unless it is missing or empty, else the backup.
        if tails.exists() and tails.stat().st_size:
            before.unlink(missing_ok=True)
        for path in (self.checkpoint, *self.tails.paths):
            try:
                descriptor = self.disk.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                self.disk.sync_file(descriptor)
            finally:
                os.close(descriptor)
        for folder in dict.fromkeys((self.checkpoint.parent, self.config)):
            self.disk.sync_folder(folder)

    def make_way_for_hints(self) -> None:
        """Rename folders that lie where the hints are to be written. Raises OSError."""
        tails, backup = self.tails.paths
        for path in (self.checkpoint, tails, backup, tails.with_name(tails.name + ".tmp")):
            if path.is_dir():
                names = (path.with_name(f"{path.name}.folder-{number}") for number in itertools.count(1))
                aside = next(name for name in names if not name.exists())
                path.rename(aside)
                log.warning("%s was a folder, and is called %s now: a hint has to be there", path, aside.name)

    def mark_stopped(self) -> None:
        """Remove `abort`, durably: everything is durable. Raises OSError."""
        self.abort.unlink(missing_ok=True)
        self.disk.sync_folder(self.abort.parent)

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock >= 0:
            _open_here.discard(self.root.resolve())
            # Closing any descriptor of the file would drop a POSIX lock: nothing else here opens it.
            os.close(self._lock)
            self._lock = -1
