"""Files of one fixed size, named by the offset of their first byte, and runs of them.

A file gets its name only when it has its full size: it is made as `NAME.tmp` and renamed. So a crash never leaves a
file of a wrong size, which RocketMQ and this store refuse to open.

Mappings are never closed explicitly. A pull's answer may be a view of one that waits in a socket's queue; the mapping goes
when the last view does, also if the file was deleted meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from metaq.errors import StoreCorrupt, StoreForeign
from metaq.store.disk import NO_ROOM, Disk, Mapped, SyncNotBegun, populate, read_ahead, reserving

NAME_DIGITS = 20
TEMPORARY = ".tmp"
_ZERO_STEP = 1024 * 1024
_mapping_lock = threading.Lock()
_files_lock = threading.Lock()
"""Held while a run's tuple of files is replaced: one thread adds at its end, another drops at its begin."""


class MappedFile:
    """One file: read by offset through a descriptor, read and written in place through a mapping.

    Both are opened at first use, so that 10 000 queues cost no descriptors until then.
    """

    __slots__ = ("_descriptor", "_mapped", "disk", "end", "given_up", "path", "size", "start")

    def __init__(self, path: Path, start: int, size: int, disk: Disk) -> None:
        self.path, self.start, self.size, self.disk = path, start, size, disk
        self.end = start + size
        self.given_up = False
        """The topic is being deleted, and another file may get this path: what is open stays open, nothing more is opened."""
        self._mapped: Mapped | None = None
        self._descriptor = -1

    @classmethod
    def create(
        cls, path: Path, start: int, size: int, reserved: int, disk: Disk, *, durable: bool = False
    ) -> MappedFile:
        """Make the file with blocks behind its first `reserved` bytes. Raises StoreFull; nothing is left then.

        `durable`: its size is on the disk before it gets its name (the name is the folder's to sync). Else a power cut
        may leave it empty, never of another size.
        """
        temporary = path.with_name(path.name + TEMPORARY)
        with reserving(path):
            # Not synced here: a queue's folders become durable with its first checkpoint (`ConsumeQueue.sync`).
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                os.ftruncate(descriptor, size)  # first: reserving a part alone would make the file only as long as that
                disk.reserve(descriptor, 0, reserved)
                if durable:
                    disk.sync_file(descriptor)
                # The name comes behind the reservation: a full disk leaves no file that a reader would find, and no wrong size.
                temporary.rename(path)
            except BaseException:
                # Else its blocks would stay taken on a disk that is full already.
                temporary.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
        return cls(path, start, size, disk)

    @property
    def buffer(self) -> mmap.mmap:
        """The whole file, writable."""
        held = self._mapped
        return held.buffer if held is not None else self._mapping().buffer

    @property
    def mapped(self) -> Mapped:
        """The mapping, to be held beyond `release`. Raises OSError."""
        return self._mapping()

    def _mapping(self) -> Mapped:
        # No lock is needed: a mapping that is there never changes but to None.
        if (found := self._mapped) is not None:
            return found
        with _mapping_lock:  # two threads at once would each map it, and one of the mappings would go again
            if self._mapped is None:
                mapped = self.disk.map(self.path, self.size)
                self._refuse_another()
                self._mapped = mapped
            return self._mapped

    def _refuse_another(self) -> None:
        """Raises FileNotFoundError: what was just opened by its path may be another topic's file."""
        # `give_up` sets the mark before the folder is renamed: if it is not set after the opening, the file is the right one.
        if self.given_up:
            raise FileNotFoundError(errno.ENOENT, "moved away", str(self.path))

    @property
    def descriptor(self) -> int:
        """For reading."""
        if self._descriptor < 0:
            descriptor = self.disk.open(self.path, os.O_RDONLY)
            try:
                self._refuse_another()
            except FileNotFoundError:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
        return self._descriptor

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` (counted as the file's name is) by pread: no page fault, no GIL held."""
        # The range ends with the file: what follows is another file's, and the caller asks that one.
        return os.pread(self.descriptor, min(size, self.end - offset), offset - self.start)

    def read_cached(self, offset: int, into: memoryview) -> bool:
        """Fill `into` with what is from `offset` on, if it is all in memory: True. Waits for no disk. Raises OSError."""
        return offset + len(into) <= self.end and self.disk.read_cached(self.descriptor, into, offset - self.start)

    def view_cached(self, offset: int, size: int) -> memoryview | None:
        """[offset, offset + size) of the mapping, if all of it is in memory."""
        place = offset - self.start
        if offset + size > self.end:
            return None
        try:
            mapped = self._mapping()
        except OSError:  # no descriptors, no room for mappings; or the file is gone, whose descriptor is still open
            return None
        return memoryview(mapped.buffer)[place : place + size] if self.disk.is_cached(mapped, place, size) else None

    def peek(self, offset: int, size: int) -> bytes:
        """Read as `read`, but close a file again that was not open."""
        if self._descriptor >= 0:
            return self.read(offset, size)
        descriptor = self.disk.open(self.path, os.O_RDONLY)
        try:
            self._refuse_another()
            return os.pread(descriptor, min(size, self.end - offset), offset - self.start)
        finally:
            os.close(descriptor)

    def reserve(self, offset: int, size: int) -> None:
        """Reserve blocks for [offset, offset + size). Raises StoreFull."""
        with reserving(self.path):
            descriptor = self.disk.open(self.path, os.O_RDWR)
            try:
                self.disk.reserve(descriptor, offset - self.start, size)
            finally:
                os.close(descriptor)

    def sync(self, offset: int, stop: int) -> None:
        """Make [offset, stop) durable. Raises OSError."""
        if stop > offset:
            self.disk.sync_range(self._mapping(), offset - self.start, stop - offset)

    def sync_whole(self) -> None:
        """Make the file durable with its size. Raises OSError."""
        descriptor = self.disk.open(self.path, os.O_RDWR)
        try:
            self.disk.sync_file(descriptor)
        finally:
            os.close(descriptor)

    def rewrite(self, offset: int, stop: int) -> None:
        """Make the next sync write [offset, stop), also pages that the kernel takes for written: see `Disk.rewrite`."""
        if stop > offset:
            self.disk.rewrite(self._mapping(), offset - self.start, stop - offset)

    def touch_singly(self, *, singly: bool = True) -> None:
        """Switch read-ahead of the mapping off, or on again: see `disk.read_ahead`."""
        held = self._mapping()
        read_ahead(held.address, self.size, on=not singly)

    def populate(self, offset: int, size: int) -> bool:
        """Fault in [offset, offset + size) for writing. False: this kernel cannot."""
        held = self._mapping()
        return populate(held.address + offset - self.start, size)

    def zero(self, offset: int, *, again: bool = False) -> bool:
        """Zero the file from `offset` to its end, durably. Returns whether there was anything but zeros.

        `again`: pages that hold zeros are written too, since the sync of an earlier zeroing may have failed.
        """
        changed = False
        # Only stretches with data are read (SEEK_DATA): the untouched rest of 1 GiB costs nothing.
        with self.path.open("r+b", buffering=0) as file:
            for start, stop in self._data(offset - self.start):
                if again:
                    self.rewrite(self.start + start, self.start + stop)
                for place in range(start, stop, _ZERO_STEP):
                    size = min(_ZERO_STEP, stop - place)
                    if any_byte(os.pread(file.fileno(), size, place)):
                        os.pwrite(file.fileno(), bytes(size), place)
                        changed = True
            if changed or again:
                self.disk.sync_file(file.fileno())
        return changed

    def data_from(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield the parts behind `offset` that were ever written, as far as the file system knows: (offset, stop)."""
        return ((self.start + start, self.start + stop) for start, stop in self._data(offset - self.start))

    def _data(self, place: int) -> Iterator[tuple[int, int]]:
        while place < self.size:
            try:
                start = os.lseek(self.descriptor, place, os.SEEK_DATA)
            except OSError:  # ENXIO: nothing but holes from here
                return
            # Where the file system knows no holes, all of the file is data: slower, and right all the same.
            stop = os.lseek(self.descriptor, start, os.SEEK_HOLE)
            yield start, stop
            place = stop

    def release(self) -> None:
        """Drop the mapping; it is unmapped when its last view goes, and made again when it is needed."""
        self._mapped = None

    def close(self) -> None:
        """Let mapping and descriptor go."""
        self.release()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def delete(self, folder: int) -> None:
        """Remove the file; `folder` is a descriptor of the folder that it is in, whatever that is called now."""
        # Its own descriptor is left to `__del__`: a reader in another thread may still hold it.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path.name, dir_fd=folder)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)


class FileRun:
    """Files of equal size that follow each other: a commit log, or one consume queue.

    `files` is a tuple that is replaced, never changed: other threads may walk the old one.
    """

    __slots__ = ("_leftovers", "_settled", "disk", "file_bytes", "files", "folder", "given_up", "unsynced")

    def __init__(self, folder: Path, file_bytes: int, disk: Disk) -> None:
        self.folder, self.file_bytes, self.disk = folder, file_bytes, disk
        self.files: tuple[MappedFile, ...] = ()
        self.unsynced = False
        """Files were made whose directory entries are not durable yet: `sync_folder` is due."""
        self.given_up = False
        """The topic is being deleted, and another folder may get the name: see `give_up`."""
        self._settled = True
        """No file was deleted that a power cut could bring back."""
        self._leftovers: list[Path] = []

    def load(self, option: str, *, derived: bool = False) -> None:
        """Find the files of the folder; changes nothing. `option` names the setting that says their size.

        Args: derived: the files can be made again, so those are left out (and deleted by `remove_leftovers`) that a
              power cut may leave: one without a byte, and all that follow it or a missing one.
        Raises StoreForeign for a name that is not ours, StoreCorrupt for a wrong size or a missing file.
        """
        found: list[MappedFile] = []
        try:
            entries = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            entries = []
        self._leftovers = []
        for entry in entries:
            if entry.name.endswith(TEMPORARY) and entry.name[:-4].isdigit():
                continue  # its process was killed while it made the file
            if len(entry.name) != NAME_DIGITS or not (entry.name.isascii() and entry.name.isdigit()):
                raise StoreForeign(
                    f"{entry.path} is no store file (their names are 20 digits): nothing was touched; "
                    "move it away, or name another folder"
                )
            start, size = int(entry.name), entry.stat().st_size
            # Queue files are not synced when they are made: a power cut can leave one empty, or take one out of the middle.
            if derived and (self._leftovers or size == 0 or (found and start != found[-1].end)):
                self._leftovers.append(Path(entry.path))
                continue
            if size != self.file_bytes or entry.is_dir():  # as RocketMQ, which refuses to start
                raise StoreCorrupt(
                    f"{entry.path} has {size} bytes, expected are {self.file_bytes} ({option}): nothing was touched; "
                    f"set {option}={size} if the folder was made with that, else restore the file from a copy"
                )
            if found and start != found[-1].end:
                raise StoreCorrupt(
                    f"{self.folder} goes from {found[-1].path.name} straight to {entry.name}, the file "
                    f"{found[-1].end:020d} is missing: nothing was touched; restore it from a copy"
                )
            found.append(MappedFile(Path(entry.path), start, size, self.disk))
        # The list is replaced as a whole: other threads may walk the old one.
        self.files = tuple(found)
        # What an earlier process deleted may come back. What is derived may have holes: it is made again.
        self._settled = derived or not found

    @property
    def is_whole(self) -> bool:
        """Whether `load` took all that the folder holds."""
        return not self._leftovers

    def remove_leftovers(self) -> None:
        """Delete files that were being made when their process was killed, and what `load` left out."""
        for path in [*self.folder.glob("*" + TEMPORARY), *reversed(self._leftovers)]:
            path.unlink(missing_ok=True)
            self.unsynced = True
        self._leftovers = []

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds `offset`."""
        files = self.files
        if not files or offset < files[0].start:
            return None
        # The number follows by division: all files have one size, and `load` has refused gaps.
        ordinal = (offset - files[0].start) // self.file_bytes
        return files[ordinal] if ordinal < len(files) else None

    def add(self, start: int, reserved: int, *, durable: bool = False) -> MappedFile:
        """Make the file that begins at `start`, behind all others. Raises StoreFull. `durable`: as MappedFile.create."""
        assert not self.files or start == self.files[-1].end, f"{self.folder} cannot go on at {start}"
        if self.given_up:
            raise FileNotFoundError(errno.ENOENT, "moved away", str(self.folder))
        path = self.folder / f"{start:0{NAME_DIGITS}d}"
        file = MappedFile.create(path, start, self.file_bytes, reserved, self.disk, durable=durable)
        with _files_lock:
            # Before the file can be found: whoever finds it must see that its name is not durable yet.
            self.unsynced = True
            self.files = (*self.files, file)
        return file

    def drop_before(self, offset: int) -> list[MappedFile]:
        """Delete the files that end at or below `offset`; returns them. Raises OSError."""
        with _files_lock:
            # Taken from the table first: no reader finds a file that is being deleted, and those who hold it keep
            # reading.
            gone = [file for file in self.files if file.end <= offset]
            self.files = self.files[len(gone) :]
        self._delete(gone)
        return gone

    def drop_from(self, offset: int) -> list[MappedFile]:
        """Delete the files that begin at or above `offset`; returns them. Raises OSError."""
        with _files_lock:
            gone = [file for file in self.files if file.start >= offset]
            self.files = self.files[: len(self.files) - len(gone)]
        self._delete(gone[::-1])  # the last first: what a crash leaves has no hole
        return gone

    def _delete(self, gone: list[MappedFile]) -> None:
        """Delete files one after the other, each durably before the next. Raises OSError: the rest stays in `files`."""
        # Two deletions under way may survive a power cut in the other order, and leave a hole, with which no start opens the
        # run. So may those of two processes, and one whose sync has failed: hence `Disk.resync_folder`. Files that an error
        # leaves stay known: forgotten, they would lie beside a hole after the next deletion.
        if not gone:
            return
        deleted = 0
        try:
            folder = self.disk.open(self.folder, os.O_RDONLY)
            try:
                if (
                    self.given_up
                ):  # then the descriptor may be another topic's folder; else it stays ours when that is renamed
                    raise FileNotFoundError(errno.ENOENT, "moved away", str(self.folder))
                for file in gone:
                    if not self._settled:
                        self._settle()
                    self._settled = False
                    file.delete(folder)
                    deleted += 1
            finally:
                os.close(folder)
        finally:
            if left := gone[deleted:]:
                with _files_lock:
                    self.files = tuple(sorted((*self.files, *left), key=lambda file: file.start))

    def settle(self) -> None:
        """Make deletions durable: no power cut brings the files back. Raises OSError."""
        if not self._settled:
            self._settle()

    def _settle(self) -> None:
        try:
            self.disk.resync_folder(self.folder)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.disk.sync_folder(self.folder)  # deleting is what a full disk needs most
        self._settled = True

    def sync_folder(self, above: int = 0) -> None:
        """Make the folder's entries durable: a file whose name is lost is lost. Raises OSError.

        Args: above: how many of the folders above it may be new, and are synced too.
        """
        self.unsynced = False  # first: what is made meanwhile is due again
        try:
            for folder in (self.folder, *self.folder.parents[:above]):
                self.disk.sync_folder(folder)
        except SyncNotBegun:
            self.unsynced = True
            raise

    def give_up(self) -> None:
        """Open, make and delete nothing by name any more: the folder is renamed next. What is open stays readable."""
        # Other threads may be at work on the run, and a topic made again gets a folder of the same name.
        self.given_up = True
        for file in self.files:
            file.given_up = True

    def close(self) -> None:
        for file in self.files:
            file.close()


def any_byte(data: bytes) -> bool:
    """Whether `data` holds anything but zeros."""
    # A comparison runs at memory speed, a loop over the bytes does not.
    return data != bytes(len(data))
