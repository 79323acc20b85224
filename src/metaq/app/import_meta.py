"""Import of the data of a MetaQ 1.x server: every message keeps its id and its position.

The queues themselves tell how far an import has come, so an interrupted one continues where it stopped.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from metaq.app.configuration import Configuration
from metaq.app.files import broker_files
from metaq.app.metaq1_slave.appending import RECORD_MORE, CopiedPartitions
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import SYSTEM
from metaq.errors import Reason, Refused, StoreError
from metaq.model.message import host_bytes
from metaq.saved import Saving
from metaq.store.config_file import ConfigFile
from metaq.store.journalled_file import JournalledFile
from metaq.store.log.writer import PutRecord
from metaq.store.message_store import MessageStore
from metaq.store.offline.segments import FRAME_BYTES_MAX, Found, Segment, SegmentReader, segments_in
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.wire.metaq1.frame import LIVE

_BATCH_BYTES: Final = 256 * 1024
_SETTLE_SECONDS: Final = 0.01
_FLUSH_EVERY: Final = 32 * 1024 * 1024

Result = TypeVar("Result")


class Imported(Struct):
    """Outcome of the import of one partition."""

    topic: str
    partition: int
    begin: int
    """Position of the first message."""
    end: int
    """Position behind the last message taken."""
    messages: int = 0
    """Messages taken in this run."""
    bytes: int = 0
    already: int = 0
    """Bytes taken by earlier runs."""
    damaged: str = ""
    """What follows `end` in the last file and was not taken: a server of 1.x would cut it off at its start, too."""
    problem: str = ""
    """Why the partition was not taken, or not wholly; empty if it was."""


class PartitionImport:
    """One run over the segments of a data folder.

    Args:
        broker: the broker to import into; it serves nobody.
        segments: the data files, by partition.
        progress: called after each batch.
        stopped: asked between batches; True ends the run, as a crash would.
    """

    def __init__(
        self,
        broker: Broker,
        segments: Iterable[Segment],
        *,
        progress: Callable[[Imported], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        assert broker.metaq1 is not None, "the broker serves MetaQ 1.x: its messages have byte positions"
        self._broker, self._store, self._bases = broker, broker.store, broker.metaq1.bases
        self._partitions = CopiedPartitions(broker)
        self._segments, self._progress, self._stopped = segments, progress, stopped
        self._unflushed = 0
        # A batch has to fit into one log file, records being larger than frames.
        self._batch_bytes = min(_BATCH_BYTES, self._store.log.file_bytes // 4)

    def run(self) -> list[Imported]:
        """Import all partitions, one after the other. Raises Refused NOT_STORED, StoreError: the disk is full or
        broken."""
        results = []
        for (topic, partition), found in itertools.groupby(self._segments, lambda one: (one.topic, one.partition)):
            segments = list(found)
            imported = Imported(topic, partition, segments[0].start, segments[0].start)
            results.append(imported)
            try:
                self._take(imported, segments)
            except Refused as error:
                if error.reason is Reason.NOT_STORED:
                    raise
                imported.problem = str(error)
            self._progress(imported)
            if self._stopped():
                break
        return results

    def _take(self, imported: Imported, segments: Sequence[Segment]) -> None:
        topic, partition = imported.topic, imported.partition
        self._settled(lambda: self._partitions.make_topic(topic, partition))
        queue = self._settled(lambda: self._store.reader.queue(topic, partition))
        if queue.max_offset == 0:
            self._settled(lambda: self._bases.begin_at(topic, partition, imported.begin))
        elif not self._goes_on(imported, queue, segments):
            return
        for number, segment in enumerate(segments):
            if segment.start > imported.end:
                imported.problem = (
                    f"{segment.path} begins at position {segment.start}, and the file before it ends at {imported.end}: it "
                    "and all behind it were not taken"
                )
                return
            reader = SegmentReader(segment)
            wanted = (found for found in reader if found.position >= imported.end)
            self._take_frames(imported, segment, wanted)
            if self._stopped():
                imported.problem = "stopped: the same command goes on from here"
                return
            if reader.why and number + 1 < len(segments):
                imported.problem = (
                    f"{segment.path} holds {reader.why} at position {reader.end}, in the middle of the partition: it was "
                    "taken up to there"
                )
                return
            imported.damaged = reader.why
        self._check_end(imported)

    def _goes_on(self, imported: Imported, queue: ConsumeQueue, segments: Sequence[Segment]) -> bool:
        """Find where an earlier run ended. Returns False if the queue holds something else; `imported.problem` says
        so."""
        topic, partition = imported.topic, imported.partition
        positions = self._bases.find(topic, partition)
        if positions is None:
            imported.problem = (
                f"queue {partition} of topic {topic} holds messages that were not imported: nothing was taken; import into a "
                "store in which the topic has none"
            )
            return False
        end = self._settled(lambda: positions.max)
        imported.end, imported.already = end, max(0, end - imported.begin)
        before = _last_before(segments, end)
        # The position alone proves nothing: other data may end at the same one.
        if before is None or before.frame.message_id != self._partitions.last_id(queue):
            imported.problem = (
                f"queue {partition} of topic {topic} ends at position {end} with another message than the data has there: "
                "nothing was taken; it holds newer messages, or others"
            )
            return False
        return True

    def _take_frames(self, imported: Imported, segment: Segment, frames: Iterator[Found]) -> None:
        modified_ms = int(segment.path.stat().st_mtime * 1000)
        batch: list[PutRecord] = []
        size = 0
        for position, frame in frames:
            if position != imported.end + size:
                raise StoreError(f"{segment.path}: the frame at {position} does not follow the one before it")
            batch.append(self._partitions.record(imported.topic, imported.partition, frame, modified_ms))
            size += frame.size
            if size + len(batch) * RECORD_MORE >= self._batch_bytes:
                self._put(imported, batch, size)
                batch, size = [], 0
                if self._stopped():
                    return
        if batch:
            self._put(imported, batch, size)

    def _put(self, imported: Imported, batch: list[PutRecord], size: int) -> None:
        self._settled(lambda: self._partitions.append(batch))
        imported.messages += len(batch)
        imported.bytes += size
        imported.end += size
        self._unflushed += size
        if self._unflushed >= _FLUSH_EVERY:
            self._store.flusher.flush()
            self._unflushed = 0
        self._progress(imported)

    def _check_end(self, imported: Imported) -> None:
        positions = self._bases.find(imported.topic, imported.partition)
        assert positions is not None, "the import began them, or went on with them"
        end = self._settled(lambda: positions.max)
        if end != imported.end:
            raise StoreError(
                f"queue {imported.partition} of topic {imported.topic} ends at position {end} after an import up to "
                f"{imported.end}: please report this"
            )

    def _settled(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, repeated until what it needs is saved."""
        while True:
            try:
                return work()
            except Saving as saving:
                ended = threading.Event()
                for pending in saving.pending:
                    pending.when_done(lambda _error, ended=ended: ended.set())  # type: ignore[misc]
                while not ended.wait(_SETTLE_SECONDS):
                    self._store.flusher.flush()
                    self._broker.deliver()


def _last_before(segments: Sequence[Segment], end: int) -> Found | None:
    """Return the frame that ends at a position, None if none does."""
    for segment in reversed(segments):
        if segment.start < end:
            for found in SegmentReader(segment):
                if found.position + found.frame.size >= end:
                    return found if found.position + found.frame.size == end else None
    return None


def import_meta(
    folder: Path,
    configuration: Configuration,
    *,
    progress: Callable[[Imported], None],
    stopped: Callable[[], bool] = lambda: False,
) -> list[Imported]:
    """Import the `.meta` files under `folder` (`PartitionImport`), by a broker without servers on the store.

    Raises StoreForeign: there are none. StoreLocked: a broker runs on the store. Others as a broker's start.
    """
    segments = [segment for segment in segments_in(folder) if segment.path.name.endswith(LIVE) and segment.topic]
    options = configuration.broker
    store_options = configuration.store.replace(max_message_size=FRAME_BYTES_MAX)
    settings = Metaq1Settings(configuration.metaq1, configuration.rules, configuration.server_ini)
    host = host_bytes(options.broker_ip1 or options.bind_address, options.listen_port)
    store = MessageStore(store_options, SYSTEM, host, options.broker_cluster_name)
    try:
        environment = Environment(options, store_options, SYSTEM, store, options.broker_name or "broker", host)
        broker = Broker(
            environment,
            broker_files(
                lambda name: ConfigFile(store.folder.config / name, store.disk),
                lambda name: JournalledFile(store.folder.config / name, store.disk),
            ),
            metaq1=settings,
        )
        broker.lead()
        try:
            return PartitionImport(broker, segments, progress=progress, stopped=stopped).run()
        finally:
            broker.close()
    finally:
        store.close()
