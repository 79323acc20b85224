"""The archive pipeline: topics → Parquet, partitioned by topic and store date, every message once.

    source (rows=slices) ──► foreachBatch ──► mapInArrow: fetch, decode, write beside the archive   (executors)
                                         └──► drop repeats, manifest, rename                 (driver)

Exactly once, because each step is: the source's ranges are absolute offsets in Spark's checkpoint; a replayed batch finds
its manifest, or finds none and does everything again; publishing is one rename (`metaq.archive.folder`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from metaq.amounts import count, size
from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import ArchivedFile, Manifest, final_path
from metaq.archive.replacements import ever_replaced
from metaq.clock import SYSTEM
from metaq.errors import StoreCorrupt
from metaq.model import offsets
from metaq.model.offsets import Positions
from metaq.pipelines.archive.decoding import BodyColumns, settle
from metaq.pipelines.archive.dedupe import OFF, Ids, IdWindow, Rooms
from metaq.pipelines.archive.hadoop.folder import HadoopFolder
from metaq.pipelines.archive.hadoop.lease import HadoopLease
from metaq.pipelines.archive.hadoop.output import HadoopOutput
from metaq.pipelines.archive.hadoop.retention import HadoopRetention
from metaq.pipelines.archive.options import ArchiveOptions
from metaq.pipelines.archive.outputs import LocalOutput, Output, Staged, Wanted
from metaq.pipelines.archive.parting import Parting
from metaq.pipelines.checkpoints import Checkpoint, checkpoint_of
from metaq.pipelines.compact.service import Compactor, UpkeepStep
from metaq.pipelines.compact.tabling import tables_of
from metaq.pipelines.driver import supervised
from metaq.pipelines.job import BatchJob, SliceStream, check_session
from metaq.pipelines.run import Run
from metaq.pipelines.uris import is_uri, plain_path
from metaq.spark.engine.hadoop import HadoopFiles
from metaq.spark.source.settings import SourceOptions

if TYPE_CHECKING:
    from metaq.archive.iceberg import IcebergTables

_LOG = logging.getLogger(__name__)

KEEP_UP_SECONDS = 20.0
"""Time for merging after a batch; the rest is left to the next batch, so that archiving never falls behind by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedBatch:
    """Figures of one batch, for progress reports."""

    batch: int
    """Number of the batch, from 0."""
    rows: int
    """Archived messages."""
    repeats: int
    """Messages left out as repeats."""
    files: int
    """Files that were written."""
    size: int
    """Bytes of the files."""
    seconds: float
    """How long it took."""
    replayed: bool = False
    """The batch had been published before a restart; nothing was fetched."""
    compacted: int = 0
    """Small files that merged ones replaced after this batch."""
    expired: int = 0
    """Files that retention removed."""
    corrupt: int = 0
    """Messages whose bodies did not decode: they are archived, with the body in `_corrupt`."""
    held: str = ""
    """Dates that retention keeps although they are due by the clock, and why; empty: none."""

    def __str__(self) -> str:
        rate = self.rows / self.seconds if self.seconds else 0
        repeats = f", {count(self.repeats, 'repeat')} left out" if self.repeats else ""
        unread = "1 body does not decode" if self.corrupt == 1 else f"{self.corrupt:,} bodies do not decode"
        repeats += f", {unread}" if self.corrupt else ""
        how = "was published before the restart" if self.replayed else f"{self.seconds:.1f} s, {rate:,.0f}/s"
        kept = f", {count(self.compacted, 'small file')} merged" if self.compacted else ""
        kept += f", {count(self.expired, 'old file')} gone" if self.expired else ""
        written = f"{count(self.rows, 'message')} in {count(self.files, 'file')}, {size(self.size)}"
        held = f"; {self.held}" if self.held else ""
        return f"batch {self.batch}: {written}{repeats}{kept} ({how}){held}"


def archive(
    spark: Any,
    *,
    name_servers: str,
    acl_file: str | Path | None = None,
    topics: str | Iterable[str],
    output: str | Path,
    checkpoint: str | Path | None = None,
    staging: str | Path | None = None,
    once: bool = ArchiveOptions.once,
    trigger_seconds: float = ArchiveOptions.trigger_seconds,
    progress_group: str | None = None,
    dedupe: str = ArchiveOptions.dedupe,
    dedupe_seconds: float = ArchiveOptions.dedupe_seconds,
    messages_per_batch: int = ArchiveOptions.max_offsets_per_trigger,
    messages_per_file: int = ArchiveOptions.messages_per_file,
    on_batch: Callable[[ArchivedBatch], None] | None = None,
    source: Mapping[str, str] | None = None,
    compact_files: int = ArchiveOptions.compact_files,
    compact_bytes: int = ArchiveOptions.compact_bytes,
    grace_seconds: float = ArchiveOptions.grace_seconds,
    keep_days: int | None = None,
    trust_clock: bool = ArchiveOptions.trust_clock,
    partition_by: str = ArchiveOptions.partition_by,
    run_folder: str | Path | None = None,
    lease_seconds: float = ArchiveOptions.lease_seconds,
    decode: Mapping[str, Any] | str | None = None,
    table_format: str | None = None,
) -> Any:
    """Start archiving. Returns the StreamingQuery: `awaitTermination()`, `stop()`.

    Args:
        spark: the session.
        name_servers: of the cluster, `host:port`, `;`-separated.
        acl_file: file of the keys by which requests are signed (docs/client.md, "Access control"); by default as the environment says.
        topics: names, one or several. A retry topic has the same unique id many times: archive it with dedupe="off".
        output: the archive's own folder, or a URI of one on a Hadoop file system.
        checkpoint: Spark's checkpoint, by default inside the output; one output has one checkpoint, for ever.
        staging: folder of unfinished files, on the file system of the output and not in it; by default beside it.
        once: archive what is there now and end; otherwise go on, looking every `trigger_seconds`.
        trigger_seconds: seconds between two batches, 60 by default.
        progress_group: consumer group to report progress as.
        dedupe: identity of a repeat: `unique_id`, the producer's; `key`, all of the application's keys together, where
            messages without one are never repeats; `off`: everything is archived.
        dedupe_seconds: of two messages with one id stored within so many seconds only the first is archived; 0: off.
        messages_per_batch: most messages of a batch.
        messages_per_file: most messages of a file.
        on_batch: called in this process after every batch, with its figures: `batch`, `rows`, `repeats`, `files`, `size` (bytes),
            `seconds` and others.
        source: more options of `format("metaq")`, such as startingOffsets (earliest).
        compact_files: merge the small files of a folder that has more than so many; 0: never.
        compact_bytes: approximate size of a merged file, bytes.
        grace_seconds: seconds for which replaced and expired files stay, for tables that were planned before.
        keep_days: remove dates that ended more days ago, by the clock and by the newest archived messages; None: never.
        trust_clock: go by the clock alone for `keep_days`.
        partition_by: folders below the topic's: `date`, `date,tag` or `date,key:N`; fixed with the archive's first batch.
        run_folder: local folder of the run's status if the output is a URI.
        lease_seconds: seconds without a sign of life after which a run that writes to a URI counts as dead.
        decode: bodies as columns: the format, or the options `decode`, `decode_schema` and so on (docs/archive.md).
        table_format: `iceberg`: keep an Iceberg table per topic up to date with the archive.

    Raises: ConfigError: the output belongs to another checkpoint or cannot be written to, an option is wrong, the file
            system cannot do what publishing, `compact_files` or `keep_days` need, or the session is a client of Spark Connect.
        StoreLocked: another run writes into the output; the text says which.
    """
    options = ArchiveOptions(
        name_servers=name_servers,
        acl_file=None if acl_file is None else str(acl_file),
        topics=topics if isinstance(topics, str) else ",".join(topics),
        output=str(output),
        checkpoint=None if checkpoint is None else str(checkpoint),
        staging=None if staging is None else str(staging),
        once=once,
        trigger_seconds=trigger_seconds,
        progress_group=progress_group,
        dedupe=dedupe,
        dedupe_seconds=dedupe_seconds,
        max_offsets_per_trigger=messages_per_batch,
        messages_per_file=messages_per_file,
        compact_files=compact_files,
        compact_bytes=compact_bytes,
        grace_seconds=grace_seconds,
        keep_days=keep_days,
        trust_clock=trust_clock,
        partition_by=partition_by,
        run_folder=None if run_folder is None else str(run_folder),
        lease_seconds=lease_seconds,
        table_format=table_format,
        **({"decode": decode} if isinstance(decode, str) else dict(decode or {})),
    )
    options.check()
    report = None if on_batch is None else lambda _line, figures: on_batch(ArchivedBatch(**figures))
    run = Run("archive", options.place, on_batch=report)
    return supervised(run, lambda: start(spark, options, run, source or {}))


def start(spark: Any, options: ArchiveOptions, run: Run, source: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Start the pipeline `archive`, see `catalogue.Pipeline.start`. Args: source: more source options. Raises as `archive`."""
    check_session(spark, run.status.pipeline)
    stream = SliceStream.of(
        options,
        {
            "subscribe": ",".join(options.topics_read),
            "maxOffsetsPerPartition": str(options.messages_per_file),
            **source,
        },
    )
    ends = contextlib.ExitStack()
    run.at_end(ends.close, "archive")
    output, upkeep = _remote(spark, options, ends) if is_uri(options.output) else _local(options)
    checkpoint = checkpoint_of(spark, options.checkpoint, options.output)
    parting = Parting.of(options.partition_by)
    # One output, one checkpoint: a fresh checkpoint would archive everything a second time.
    output.records.guard(checkpoint, checkpoint.query_id(), str(parting))
    dedupe = _Dedupe(options.dedupe, options.dedupe_seconds)
    decoding, tables = None, None
    if isinstance(output.records, ArchiveFolder):
        tables = tables_of(output.records, options.table_format, options.grace_seconds)
        decoding = settle(output.records, options)
    archiver = _Archiver(output, checkpoint, stream.source, dedupe, run, upkeep, parting, decoding, tables)
    # Called before the lease's release: an ExitStack goes backwards.
    ends.callback(archiver.close)
    return stream.start(spark, archiver)


def _local(options: ArchiveOptions) -> tuple[Output, Upkeep | None]:
    folder = ArchiveFolder(plain_path(options.output), options.staging)
    folder.prepare()
    # Also if the options no longer ask for it: an earlier run's unfinished replacements must be finished.
    wanted = options.keeps_up or folder.kept.exists()
    return LocalOutput(folder), Compactor(folder, options, options.compact_files) if wanted else None


def _remote(spark: Any, options: ArchiveOptions, ends: contextlib.ExitStack) -> tuple[Output, Upkeep | None]:
    files = HadoopFiles(spark, options.output)
    folder = HadoopFolder(files, options.staging)
    # Before the lease, which needs what is probed: files that only one of several runs can create.
    folder.prepare()
    lease = HadoopLease(files, options.lease_seconds)
    lease.take()
    ends.callback(lease.release)
    return HadoopOutput(spark, folder, lease), HadoopRetention(folder, options)


class Upkeep(Protocol):
    """Upkeep of published files: merging and retention."""

    held: str
    """Dates that retention keeps although they are due by the clock, and why; empty: none."""

    def prepare(self) -> None:
        """Check that the file system supports it, and resume what an earlier run began."""
        ...

    def look(self) -> Iterator[UpkeepStep]:
        """Do whatever is due, and yield after each step. A caller that stops early leaves the rest for the next call."""
        ...

    def close(self) -> None: ...


class _Dedupe(NamedTuple):
    """Deduplication: the identity of a message, and the window in seconds."""

    by: str
    seconds: float

    @property
    def on(self) -> bool:
        return self.by != OFF and self.seconds > 0


class _Archiver(BatchJob):
    """Publishes a micro-batch's files, then merges small ones and expires old dates."""

    NAME, DONE = "archive", "published"

    def __init__(
        self,
        output: Output,
        checkpoint: Checkpoint,
        options: SourceOptions,
        dedupe: _Dedupe,
        run: Run,
        upkeep: Upkeep | None,
        parting: Parting,
        decoding: BodyColumns | None,
        tables: IcebergTables | None,
    ) -> None:
        super().__init__(checkpoint)
        self._tables = tables
        self._output, self._records, self._upkeep = output, output.records, upkeep
        self._dedupe, self._run = dedupe, run
        self._wanted = Wanted(
            name_servers=options.name_servers,
            settings=options.fetch_of_stream,
            parting=parting,
            dedupe=dedupe.by if dedupe.on else OFF,
            decoding=decoding,
        )
        self._windows: dict[str, IdWindow] = {}
        """Topic → ids of its last messages."""
        self._rooms = Rooms()
        self._positions: Positions = {}
        """Queue → end of what is archived."""
        self._newest_ms = 0
        """Newest store time of the last batch."""
        with self._disk_faults(f"what the last run left could not be finished, {self._after_fault()}"):
            self._recover()

    def _recover(self) -> None:
        """Finish what a crash left undone, and restore the deduplication window."""
        known: dict[str, str] = {}
        last = None
        for last in self._records.manifests():
            known |= last.id_files
        if last is not None:
            # Of the newest batch only: each was finished before the next one was written.
            self._output.finish(last, self._replaced)
            self._positions, self._newest_ms = last.end, last.newest_ms
        self._output.recover(-1 if last is None else last.batch, known)
        # Manifests are never rewritten: files of ids that expired are still named there.
        there = self._output.list_ids()
        for name, topic in sorted(known.items()):
            if self._dedupe.on and name in there:
                self._window(topic).restore(name, self._output.load_ids(name))
        if self._upkeep is not None:
            self._upkeep.prepare()
        # Commits to the tables that a crash prevented.
        if self._tables is not None:
            self._tables.align()

    def _replaced(self) -> frozenset[str]:
        return ever_replaced(self._records)

    def close(self) -> None:
        super().close()
        with contextlib.suppress(OSError):
            self._output.close()
        if self._upkeep is not None:
            self._upkeep.close()
        if self._tables is not None:
            self._tables.close()

    def _after_fault(self) -> str:
        return f"the archive in {self._records.at('')} is as it was before it"

    def _process(self, frame: Any, batch: int, query: str) -> None:
        began = SYSTEM.monotonic()
        published = self._records.find(query, batch)
        # Spark repeats a batch if the driver died after it was published and before Spark's own commit log was written.
        if published is not None:
            # Its renames, and the table's commit, may be missing yet.
            self._output.finish(published, self._replaced)
            if self._tables is not None:
                self._tables.align()
            self._report(published, began, replayed=True)
            return
        files = self._output.write(frame, batch, self._wanted)
        if files:
            self._publish(query, batch, files, began)

    def _publish(self, query: str, batch: int, files: list[Staged], began: float) -> None:
        # In one order whichever task ended first: of two copies with one store time the one in the earlier row stays.
        files.sort(key=lambda file: (file.wanted.queue, file.wanted.start, file.date, file.part))
        self._check_continues(batch, files)
        ids = self._drop_repeats(query, batch, files) if self._dedupe.on else {}
        for file in files:
            queue = file.wanted.queue
            self._positions[queue] = max(self._positions.get(queue, 0), file.wanted.end)
        self._output.seal(files)
        left = [
            ArchivedFile(
                path=final_path(query, batch, file.wanted, file.date, file.part),
                staged=file.path,
                topic=file.wanted.queue.topic,
                date=file.date,
                rows=file.rows,
                size=file.size,
                sha256=file.sha256,
            )
            for file in files
            if file.rows
        ]
        manifest = Manifest(
            query=query,
            batch=batch,
            files=left,
            rows=sum(file.rows for file in left),
            repeats=sum(file.repeats for file in files),
            positions=offsets.to_json(self._positions),
            ids=ids,
            newest_ms=self._newest_ms,
            partition_by=str(self._wanted.parting),
            corrupt=sum(file.corrupt for file in files),
        )
        # The order is what a crash leaves: synced files without a manifest are dropped and written again; a manifest without
        # final names is finished by the next run.
        self._output.commit(manifest)
        self._output.finish(manifest)
        # Behind the renames: the table names files by their final paths.
        if self._tables is not None:
            self._tables.publish(manifest)
        self._output.clean(batch)
        # Behind the commit: a replay of this batch would need the ids that expire now.
        self._expire()
        self._report(manifest, began)

    def _check_continues(self, batch: int, files: list[Staged]) -> None:
        """Raise StoreCorrupt if the batch begins before the archive's end: the checkpoint is older than the archive."""
        for file in files:
            end = self._positions.get(file.wanted.queue, 0)
            # With failOnDataLoss=false a queue may begin again at a lower offset: its topic was made anew.
            if file.wanted.start < end and self._wanted.settings.fail_on_data_loss:
                raise StoreCorrupt(
                    f"batch {batch} begins at offset {file.wanted.start} of {file.wanted.queue}, and {self._records.at('')} has its "
                    f"messages up to {end}: the checkpoint {self.checkpoint} is older than the archive, or two runs have written "
                    "it. Nothing of the batch was published. Give the checkpoint that the archive was written with, or begin a "
                    "new archive"
                )

    # -------------------------------------------------------------- repeats
    def _drop_repeats(self, query: str, batch: int, files: list[Staged]) -> dict[str, str | list[str]]:
        """Remove repeats from the staged files, and save the other messages' ids.

        Returns: topic → its new files of ids. Sets `rows` and `repeats` of the staged files.
        """
        names: dict[str, str | list[str]] = {}
        newest: list[int] = []
        found: list[tuple[Staged, Any]] = []
        numbers = itertools.count()
        by_topic: dict[str, list[tuple[Staged, Ids]]] = {}
        for file in files:
            if file.ids is not None and len(file.ids):
                by_topic.setdefault(file.wanted.queue.topic, []).append((file, file.ids))
        for topic, mine in sorted(by_topic.items()):
            window = self._window(topic)
            drop = window.repeats(*(ids for _, ids in mine))
            newest.append(max(int(ids.store_ms.max()) for _, ids in mine))
            begin, kept, rest = 0, [], []
            for file, ids in mine:
                hits = drop[(drop >= begin) & (drop < begin + len(ids))] - begin
                begin += len(ids)
                if len(hits):
                    found.append((file, ids.queue_offset[hits]))
                    file.repeats = len(hits)
                name = self._output.ids_name(query, batch, next(numbers))
                # Kept as it is only without repeats: the file has the ids of all messages that the task has read.
                if not len(hits) and self._output.keep_ids(name, file):
                    window.restore(name, ids)
                    kept.append(name)
                else:
                    rest.append(ids.without(hits))
            if rest:
                kept.append(name := self._output.ids_name(query, batch, next(numbers)))
                window.add(name, self._output.save_ids(name, window.ordered(window.join(rest))))
            names[topic] = kept[0] if len(kept) == 1 else kept
        # Of this batch alone, not the maximum of all: after one message from a clock that was ahead, every id would expire at
        # once, for years.
        self._newest_ms = max(newest, default=self._newest_ms)
        self._output.drop(found)
        return names

    def _expire(self) -> None:
        for window in self._windows.values():
            for name in window.expire(self._newest_ms):
                self._output.remove_ids(name)

    def _window(self, topic: str) -> IdWindow:
        return self._windows.setdefault(topic, IdWindow(self._dedupe.seconds, self._rooms))

    def _keep_up(self) -> dict[str, int]:
        """Merge small files and expire old dates, for at most KEEP_UP_SECONDS. Returns files by kind of step."""
        done = {"replaced": 0, "expired": 0}
        if self._upkeep is None:
            return done
        began = SYSTEM.monotonic()
        for step in self._upkeep.look():
            _LOG.info("archive: %s", step)
            if self._tables is not None:
                self._tables.align(changed_only=True)
            done[step.what] = done.get(step.what, 0) + step.files
            if SYSTEM.monotonic() - began > KEEP_UP_SECONDS:
                break
        return done

    def _report(self, manifest: Manifest, began: float, *, replayed: bool = False) -> None:
        seconds = SYSTEM.monotonic() - began
        done = self._keep_up()
        report = ArchivedBatch(
            batch=manifest.batch,
            rows=manifest.rows,
            repeats=manifest.repeats,
            files=len(manifest.files),
            size=sum(file.size for file in manifest.files),
            seconds=seconds,
            replayed=replayed,
            compacted=done["replaced"],
            expired=done["expired"],
            corrupt=manifest.corrupt,
            held="" if self._upkeep is None else self._upkeep.held,
        )
        _LOG.info("archive: %s", report)
        self._run.tell(str(report), **dataclasses.asdict(report))
