"""Looking at a store folder without changing it: the facts from which recovery makes its plan."""

from __future__ import annotations

import logging

from metaq.saved_file import read
from metaq.store.checkpoint import Checkpoint, Tails
from metaq.store.config_file import ConfigFile
from metaq.store.folder import StoreFolder
from metaq.store.log.commit_log import CommitLog
from metaq.store.queues.index_file import Index
from metaq.store.recovery.recover import Facts
from metaq.wire.files import DELETED_TOPICS

log = logging.getLogger(__name__)


def look_at(folder: StoreFolder, commit_log: CommitLog, index: Index | None) -> Facts:
    """Gather the facts. Raises StoreCorrupt, StoreForeign: the folder cannot be opened as it is."""
    commit_log.run.load("mappedFileSizeCommitLog")
    unfit = [path.name for path in index.load()] if index else []
    tails = Tails.load(folder.tails)
    log_min = commit_log.run.files[0].start if commit_log.run.files else 0
    began_empty = tails is not None and tails.last_record < 0 and tails.log_end == log_min
    if tails is not None and not _fits(tails, commit_log):
        tails = None
    # Every start of ours writes tails, and an end in order leaves some that fit. Without a file of them it was a RocketMQ's.
    in_order = folder.was_clean and (tails is not None or not any(path.exists() for path in folder.tails.paths))
    files = commit_log.run.files
    return Facts(
        clean=in_order,
        checkpoint=Checkpoint.load(folder.checkpoint),
        tails=tails,
        log_min=log_min,
        # Where there are tails nobody asks for the times, and opening each file would take longer the more there are.
        first_ms=tuple(
            (file.start, 0 if tails is not None else max(0, commit_log.store_time(file.start, written=True)))
            for file in files
        ),
        index=tuple((file.name, file.header) for file in index.files) if index else None,
        index_unfit=tuple(unfit),
        deleted=_deleted_topics(folder),
        began_empty=began_empty,
    )


def _deleted_topics(folder: StoreFolder) -> dict[str, int]:
    """Topic → the LogOffset below which its records are of a topic that was deleted.

    They stay in the log until their time is up. Without this memory a start would find them there and, if a topic of
    that name exists again, give them back to it.
    """
    found = read(ConfigFile(folder.config / DELETED_TOPICS.name), DELETED_TOPICS)
    return found[1] if found else {}


def _fits(tails: Tails, commit_log: CommitLog) -> bool:
    """Whether the log is the one that the tails speak of: their last record is where they say, and as large."""
    last = commit_log.head(tails.last_record)
    return last is not None and last == (tails.log_end - tails.last_record, tails.last_store_ms)
