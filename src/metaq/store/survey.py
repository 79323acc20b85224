"""Looking at a store folder without changing it: the facts from which recovery makes its plan."""

from __future__ import annotations

from collections.abc import Iterator

from metaq.errors import BadRequest, StoreCorrupt
from metaq.model.topic import check_topic
from metaq.options import StoreOptions
from metaq.store.checkpoint import Checkpoint, Tails
from metaq.store.commit_log import CommitLog
from metaq.store.consume_queue import UNIT_BYTES, ConsumeQueue
from metaq.store.disk import Disk
from metaq.store.folder import StoreFolder, boot_id
from metaq.store.index_file import Index
from metaq.store.recovery import Facts


def queue_file_bytes(options: StoreOptions) -> int:
    """Size of a consume-queue file: whole units."""
    return -(-options.mapped_file_size_consume_queue // UNIT_BYTES) * UNIT_BYTES


def find_queues(folder: StoreFolder, options: StoreOptions, disk: Disk) -> Iterator[ConsumeQueue]:
    """The queues that have files. Names that no topic can have are passed over.

    Raises StoreCorrupt, StoreForeign as FileRun.load. A file of no bytes is what a crash of RocketMQ leaves: its queue
    is given as empty, and so rebuilt.
    """
    try:
        topics = sorted(path.name for path in folder.consume_queues.iterdir())
    except FileNotFoundError:
        return
    for topic in topics:
        try:
            check_topic(topic)
        except BadRequest:
            continue
        for name in sorted(path.name for path in (folder.consume_queues / topic).iterdir()):
            if not name.isdecimal():
                continue
            queue = ConsumeQueue(folder.consume_queues, topic, int(name), queue_file_bytes(options), disk)
            try:
                queue.run.load("mappedFileSizeConsumeQueue")
            except StoreCorrupt as error:
                if not any(path.stat().st_size == 0 for path in queue.run.folder.iterdir()):
                    raise StoreCorrupt(
                        f"{error}. A consume queue can also be deleted: it is rebuilt from the log at the next start"
                    ) from None
            yield queue


def look_at(folder: StoreFolder, commit_log: CommitLog, index: Index | None) -> Facts:
    """Gather the facts. Raises StoreCorrupt, StoreForeign: the folder cannot be opened as it is."""
    commit_log.run.load("mappedFileSizeCommitLog")
    unfit = [path.name for path in index.load()] if index else []
    boot = boot_id()
    tails = Tails.load(folder.tails)
    usable = tails is not None and 0 <= tails.last_store_ms == commit_log.store_time(tails.last_record, written=True)
    files = commit_log.run.files
    return Facts(
        clean=folder.was_clean,
        same_boot=bool(tails and boot and tails.boot_id == boot),
        checkpoint=Checkpoint.load(folder.checkpoint),
        tails=tails if usable else None,
        log_min=files[0].start if files else 0,
        first_ms=tuple((file.start, max(0, commit_log.store_time(file.start, written=True))) for file in files),
        index=tuple((file.name, file.header) for file in index.files) if index else None,
        index_unfit=tuple(unfit),
    )
