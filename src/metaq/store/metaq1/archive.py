"""Archives of expired messages, as data files of MetaQ 1.x (docs/formats/metaq1-segments.md): `deletePolicy=archive`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final, Protocol, cast

from msgspec import Struct, structs

from metaq.errors import StoreError
from metaq.model.metaq1.settings import DeletePolicy, Expired
from metaq.store.message_store import MessageStore
from metaq.store.metaq1.frames import CompressedError, plain_only
from metaq.store.metaq1.position_bases import ANEW_STEP
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.store.worker import Worker
from metaq.wire import hot
from metaq.wire.frame_size import FRAME_BODY_BYTES_MAX, expanded_body
from metaq.wire.metaq1.frame import ARCHIVED, LIVE, NAME_DIGITS, ZIPPED

log = logging.getLogger(__name__)
_BLOCK_BYTES: Final = 1024 * 1024
_FRAME_BYTES_MAX: Final = FRAME_BODY_BYTES_MAX + 64 * 1024
"""Size of the frame of a body that was compressed, header and attribute included, at most."""
_BUSY_SECONDS, _IDLE_SECONDS = 0.2, 60.0
_TRIES_MAX: Final = 3


class PositionsOf(Protocol):
    """The byte positions of a queue's messages, as 1.x clients see them."""

    def __call__(self, topic: str, queue_id: int, queue_offsets: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the positions; None: they are being computed, ask again. Called from any thread.

        If the queue's positions begin behind the first offset: -1 and the queue offset where they begin.
        """
        ...

    def misfits(self, topic: str, queue_id: int) -> frozenset[int] | None:
        """Return queue offsets of damaged messages whose frames are not as long as the positions say; None: ask again."""
        ...


class _Slice(Struct, frozen=True):
    """The messages of a queue in one log file."""

    queue: ConsumeQueue
    low: int
    high: int
    """QueueOffsets: [low, high)."""
    policy: DeletePolicy


class Archiver:
    """Writes archives of messages before they expire, and keeps their log files until then (`Owed`, `Ask`).

    An archive file holds the messages of one queue in one log file, and is named by the position of its first frame. It is
    complete and durable before the messages expire; one that a crash cuts is written again, the same bytes under the same name.
    """

    what = "messages to be archived"

    def __init__(
        self,
        store: MessageStore,
        folder: Path,
        policy: Callable[[str], DeletePolicy],
        positions: PositionsOf,
        *,
        broker_id: int,
        at_once: int = 1,
    ) -> None:
        """
        Args:
            policy: the delete policy of a topic.
            at_once: how many files are written in parallel.
        """
        self._store, self.folder, self._policy, self._positions = store, folder, policy, positions
        self._broker_id, self._at_once = broker_id, at_once
        self._lock = threading.Lock()
        self._wanted: dict[str, int] = {}
        """Topic → LogOffset up to which it is to be archived."""
        self._done: dict[str, int] = {}
        """Topic → LogOffset up to which it is archived."""
        self.worker = Worker("archive", self.step, self._seconds)
        self._started = False
        self._tidied: set[Path] = set()
        """Folders that were searched for `.tmp` files of a crash."""
        self._misfits: dict[ConsumeQueue, frozenset[int]] = {}
        """`PositionsOf.misfits` of queues that have some."""
        store.keeper.helped_by(self.worker)

    def stop(self) -> None:
        """End the thread, if there is one. A file that is half written is written again after the next start."""
        self.worker.stop()

    def _seconds(self) -> float:
        return _BUSY_SECONDS if self._wanted else _IDLE_SECONDS

    # ------------------------------------------------------------------ what others ask

    def may_go(self, topic: str, log_offset: int) -> bool:
        """Whether all of the topic's messages below are archived, or need not be; else begin with it. See `Ask`."""
        if self._policy(topic).what is not Expired.ARCHIVE or self._done.get(topic, 0) >= log_offset:
            return True
        self._want(topic, log_offset)
        return False

    def oldest(self) -> int | None:
        """See `Owed`."""
        places = [place for _, place in self._owed()]
        return min(places, default=None)

    def carry(self, before: int) -> None:
        """See `Owed`."""
        border = max((file.start for file in self._store.log.run.files if file.start <= before), default=0)
        for topic, place in self._owed():
            if place < border:
                self._want(topic, border)

    def _owed(self) -> Iterator[tuple[str, int]]:
        for topic, place in self._store.keeper.kept.items():
            if self._policy(topic).what is Expired.ARCHIVE:
                yield topic, max(place, self._done.get(topic, 0))

    def _want(self, topic: str, log_offset: int) -> None:
        with self._lock:
            self._wanted[topic] = max(log_offset, self._wanted.get(topic, 0))
            if not self._started:
                self._started = True
                self.worker.start()
        self.worker.wake()

    # ------------------------------------------------------------------ writing

    def step(self) -> None:
        """Write what is wanted, as far as positions are known. The thread's step. Raises OSError; files that are there stay."""
        with self._lock:
            wanted = dict(self._wanted)
        for topic, place in wanted.items():
            if self.worker.stopping:
                return
            if self._archive(topic, place):
                with self._lock:
                    if self._wanted.get(topic) == place:  # else more was asked for meanwhile
                        del self._wanted[topic]

    def _archive(self, topic: str, stop: int) -> bool:
        """Archive the topic below `stop`. Returns False where positions are not known yet."""
        policy = self._policy(topic)
        for file in self._store.log.run.files:
            if file.start >= stop:
                break
            if file.end <= self._done.get(topic, 0):
                continue
            slices = [
                part
                for queue in self._store.reader.queues().values()
                if queue.topic == topic and (part := _slice(queue, file.start, file.end, policy))
            ]
            if not all(self._in_parallel(slices)):
                return False
            self._done[topic] = file.end
        return True

    def _in_parallel(self, slices: list[_Slice]) -> list[bool]:
        if len(slices) < 2 or self._at_once < 2:
            return [self._write(part) for part in slices]
        with ThreadPoolExecutor(min(self._at_once, len(slices)), "metaq-archive") as threads:
            return list(threads.map(self._write, slices))

    def _write(self, part: _Slice) -> bool:
        """Write the files of a slice: one, or more if messages in it are lost. Returns False: positions are not known yet."""
        queue, offset = part.queue, part.low
        while offset < part.high:
            high = min((misfit for misfit in self._misfits.get(queue, ()) if misfit >= offset), default=part.high)
            high = min(high, part.high)
            places = self._positions(queue.topic, queue.queue_id, (offset, high))
            if places is None:
                return False
            if places[0] < 0:  # archived and deleted before: a power cut has brought their log file back
                offset = places[1]
                continue
            behind = self._write_run(structs.replace(part, high=high), offset, *places) if offset < high else high
            if self._store.reader.existing_queue(queue.topic, queue.queue_id) is not queue:
                return True  # the topic was deleted meanwhile
            if behind is None:  # a damaged message has a frame of another length: leave that one out
                found = self._positions.misfits(queue.topic, queue.queue_id)
                if found is None:
                    return False
                if not any(offset <= misfit < high for misfit in found):
                    raise StoreError(
                        f"the archive of queue {queue.queue_id} of topic {queue.topic} from position {places[0]} on does not "
                        f"end where the next message's position is, at {places[1]}: its messages are kept; please report this"
                    )
                self._misfits[queue] = found
                continue
            if behind < min(part.high, queue.min_offset):  # the disk was full: retention deleted them unarchived
                behind = queue.min_offset
            elif behind < part.high:
                log.error(
                    "the message at queue offset %d of queue %d of topic %s is lost, and missing in its archive",
                    behind, queue.queue_id, queue.topic,
                )  # fmt: skip
                behind += 1
            offset = behind
        return True

    def _write_run(self, part: _Slice, offset: int, position: int, end: int) -> int | None:
        """Write one file. Returns the queue offset of the first message that is missing in it.

        None: the frames do not end at position `end`, and the file was deleted.
        """
        store, queue, disk = self._store, part.queue, self._store.disk
        folder = self.folder / f"{queue.topic}-{queue.queue_id}"
        disk.make_folder(folder)
        if folder not in self._tidied:
            self._tidied.add(folder)
            for left in folder.glob(
                "*.tmp"
            ):  # of a crash: under another policy the name is another one, and it would stay
                left.unlink()
        name = f"{position:0{NAME_DIGITS}d}"
        path = folder / (name + (ZIPPED if part.policy.compress else ARCHIVED))
        temporary = path.with_name(path.name + ".tmp")
        size = tries = 0
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(os.fdopen(disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC), "w+b"))
            with _entry(cast("IO[bytes]", file), name + LIVE, compress=part.policy.compress) as entry:
                while offset < part.high:
                    found = _pulled(store, queue, offset, part.high - offset)
                    if found.status is not ReadStatus.FOUND:
                        if found.next_offset > offset or tries == _TRIES_MAX:
                            break
                        tries += 1
                        store.reader.repairs.step()  # now, not when that thread comes to it: repaired, or known to be lost
                        continue
                    for frames in _frames(found.body, self._broker_id):
                        entry.write(frames)
                        size += len(frames)
                    offset += found.count
            file.flush()
            # Before it has its name: the log file may be deleted as soon as the archive is there.
            disk.sync_file(file.fileno())
        if offset >= part.high and position + size != end:
            temporary.unlink()
            return None
        if size:
            # The same bytes: a crash came behind the rename. Others are those of a deleted topic of that name.
            if _differ(path, temporary) if path.exists() else _is_anew(folder, position):
                temporary = self._keep_aside(path) / temporary.name
            temporary.replace(path)
            disk.sync_folder(folder)
            disk.sync_folder(self.folder)
        else:
            temporary.unlink()
        return offset

    def _keep_aside(self, path: Path) -> Path:
        """Rename the archive folder of a deleted topic of the same name. Returns where the new file goes."""
        folder = path.parent
        numbered = (folder.with_name(f"{folder.name}.before{number}") for number in itertools.count(1))
        aside = next(name for name in numbered if not name.exists())
        folder.rename(aside)
        self._store.disk.make_folder(folder)
        log.warning(
            "what was archived before %s is of a deleted topic of the same name, and in %s now", path, aside
        )  # fmt: skip
        return aside


def _is_anew(folder: Path, position: int) -> bool:
    """Whether a file at this position is the first of a topic that was made anew, and the folder holds the one before."""
    return position > 0 and position % ANEW_STEP == 0 and any(path.suffix != ".tmp" for path in folder.iterdir())


def _frames(records: bytes | memoryview, broker_id: int) -> Iterator[bytes]:
    """Yield the frames of records, in pieces; with compressed bodies one by one, since a few could expand to gigabytes."""
    try:
        yield hot.frames(records, broker_id, 0, len(records), plain_only)[0]  # a frame is shorter than its record
    except CompressedError:
        place = 0
        while place < len(records):
            stop = place + int.from_bytes(records[place : place + 4], "big")
            size = max(_FRAME_BYTES_MAX, stop - place)
            yield hot.frames(records[place:stop], broker_id, 0, size, expanded_body)[0]
            place = stop


def _differ(one: Path, other: Path) -> bool:
    import filecmp  # here and not above: a server that archives nothing goes without

    return not filecmp.cmp(one, other, shallow=False)


def _slice(queue: ConsumeQueue, start: int, end: int, policy: DeletePolicy) -> _Slice | None:
    """Return the queue's messages between two LogOffsets; None: there are none, or the topic was deleted meanwhile."""
    try:
        low, high = max(queue.min_offset, queue.first_at(start)), queue.first_at(end)
    except FileNotFoundError:
        return None
    return _Slice(queue, low, high, policy) if low < high else None


def _pulled(store: MessageStore, queue: ConsumeQueue, offset: int, count: int) -> ReadResult:
    found = store.reader.pull(queue.topic, queue.queue_id, offset, count, _BLOCK_BYTES)
    return found.job() if found.status is ReadStatus.COLD and found.job else found


@contextlib.contextmanager
def _entry(file: IO[bytes], name: str, *, compress: bool) -> Iterator[IO[bytes]]:
    """Open the file for frames, or the entry of the zip file that it becomes."""
    if not compress:
        yield file
        return
    import zipfile  # here and not above: it brings every kind of compression along

    with zipfile.ZipFile(file, "w") as archive:
        entry = zipfile.ZipInfo(name)  # without a time: written again, it has the same bytes
        entry.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(entry, "w", force_zip64=True) as opened:
            yield opened
