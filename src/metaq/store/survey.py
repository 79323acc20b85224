"""The facts of a folder that is about to be opened: what its small files and file names say, before the log is read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from metaq.saved_file import read
from metaq.store.checkpoint import Checkpoint, Tails
from metaq.store.config_file import ConfigFile
from metaq.store.folder import StoreFolder
from metaq.store.log.commit_log import CommitLog
from metaq.store.queues.index_file import Index, IndexHeader
from metaq.wire.files import DELETED_TOPICS


class Facts(Struct, frozen=True):
    """What the folder's small files and file names say, before the log is read."""

    clean: bool
    """No abort file: the last run ended in order."""
    checkpoint: Checkpoint
    tails: Tails | None
    """None also when the log is no longer the one that the tails were written for."""
    log_min: int
    first_ms: tuple[tuple[int, int], ...]
    """(start, store time of the first record or 0) of each log file."""
    index: tuple[tuple[str, IndexHeader], ...] | None
    """None: no index is kept."""
    index_unfit: tuple[str, ...] = ()
    deleted: Mapping[str, int] = field(default_factory=dict)
    """Topic → the log offset below which records of this name are of a topic that was deleted there."""
    same_boot: bool = False
    """The machine has not restarted since a broker of ours wrote the tails."""
    began_empty: bool = False
    """The tails say that the log was empty: all its records are this broker's, none a RocketMQ's, and none is known to
    be durable."""


def survey(folder: StoreFolder, commit_log: CommitLog, index: Index | None) -> Facts:
    """Gather the facts; changes nothing. Raises StoreCorrupt, StoreForeign: the folder cannot be opened as it is."""
    # The log comes first: a folder that cannot be opened as it is is refused before anything else is read.
    commit_log.run.load("mappedFileSizeCommitLog")
    unfit = [path.name for path in index.load()] if index else []
    tails = Tails.load(folder.tails)
    log_min = commit_log.run.files[0].start if commit_log.run.files else 0
    began_empty = tails is not None and tails.last_record < 0 and tails.log_end == log_min
    boot = tails.boot if tails is not None else ""
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
        same_boot=boot != "" and boot == folder.disk.boot() and (tails is not None or began_empty),
    )


def _deleted_topics(folder: StoreFolder) -> dict[str, int]:
    """Return topic → the LogOffset below which its records are of a topic that was deleted."""
    # They stay in the log until retention takes them. A start that dispatched them would give them to a new topic of the name.
    found = read(ConfigFile(folder.config / DELETED_TOPICS.name), DELETED_TOPICS)
    return found[1] if found else {}


def _fits(tails: Tails, commit_log: CommitLog) -> bool:
    """Whether the tails are this log's: their newest record is where they say, as large and of the same store time."""
    # A RocketMQ may have worked on the folder since, or an administrator may have put another log there.
    last = commit_log.head(tails.last_record)
    return last is not None and last == (tails.log_end - tails.last_record, tails.last_store_ms)
