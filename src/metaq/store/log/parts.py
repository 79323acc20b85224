"""The parts of an open store, as writer, reader and housekeeping share them, and the state that all of them obey."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import NotLeading, StoreError, StoreFailed, StoreFull
from metaq.options import StoreOptions
from metaq.store.disk import Disk
from metaq.store.folder import StoreFolder
from metaq.store.log.commit_log import CommitLog
from metaq.store.queues.index_file import Index
from metaq.store.queues.table import Queues

log = logging.getLogger(__name__)


class State:
    """`MessageStore.state`: whether messages are taken, why not, and how far they are durable. Read from any thread."""

    __slots__ = (
        "_full_percent",
        "_lock",
        "_root",
        "_told",
        "_writable",
        "closed",
        "copies",
        "failed",
        "flushed",
        "follows",
        "takes",
    )

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._told: tuple[Callable[[str], None], ...] = ()
        self.takes = True
        """Whether a message is taken now: not failed, not closed, not a replica's, and room on the disk. One attribute, for the
        hot path."""
        self.copies = True
        """As `takes`, of what a replica's master has appended."""
        self.follows: str | None = None
        """Why no message is taken by a replica's store, for those who want one appended; None: it is none."""
        self.failed: str | None = None
        """Why the store has stopped for good; None while it works."""
        self.closed = False
        self.flushed = 0
        """LogOffset up to which the log is durable. Written by the flusher."""
        self._writable, self._full_percent = True, 90.0

    @property
    def carries(self) -> bool:
        """Whether records are taken that replace older ones so that a log file can go."""
        # Also on a full disk: were they refused, the file would stay, and the disk full.
        return self.failed is None and not self.closed and self.follows is None

    @property
    def writable(self) -> bool:
        """False while the disk is too full for messages (`DiskStep.REFUSE`)."""
        return self._writable

    def set_writable(self, writable: bool, full_percent: float = 90.0) -> None:
        """The disk has room for messages, or not; `full_percent`: above which it has none."""
        with self._lock:
            self._writable, self._full_percent = writable, full_percent
            self._look()

    def follow(self, why: str | None) -> None:
        """Take what a master has appended and no message, whose refusals say `why`; None: messages again."""
        with self._lock:
            self.follows = why
            self._look()

    def close(self) -> bool:
        """Take no more messages. Returns False if it was closed already."""
        with self._lock:
            was, self.closed = self.closed, True
            self._look()
        return not was

    def fail(self, why: str) -> None:
        """Stop for good: take and acknowledge nothing any more. The first reason stands."""
        with self._lock:
            if self.failed is not None:
                return
            self.failed = (
                f"{why}: what is durable is unknown, nothing is acknowledged any more; check the disk and restart"
            )
            self._look()
            # The list is copied under the lock: whoever comes later is told at once, by `when_failed`.
            told = self._told
        log.critical("the store %s has failed: %s", self._root, self.failed)
        for tell in told:  # without the lock, which they may take
            tell(self.failed)

    def when_failed(self, tell: Callable[[str], None]) -> None:
        """Call `tell(why)` once, from whichever thread, when the store fails for good; at once if it has."""
        with self._lock:
            if self.failed is None:
                self._told = (*self._told, tell)
                return
        tell(self.failed)

    def _look(self) -> None:
        # Under the lock: a failed sync and a disk with room again may be told by two threads at the same time.
        self.copies = self.failed is None and not self.closed and self._writable
        self.takes = self.copies and self.follows is None

    def refusal(self, *, copied: bool = False) -> StoreError:
        """Why no message is taken; with `copied`, nothing of a master."""
        if self.failed is not None:
            return StoreFailed(self.failed)
        if self.closed:
            return StoreFailed("the store is closed")
        if self.follows is not None and not copied:
            return NotLeading(self.follows)
        return StoreFull(
            f"the disk of {self._root} is more than {self._full_percent:.0f} percent full: no message is taken until there is room"
        )


class Parts(Struct, frozen=True):
    """The files of one open store, and its clock, disk and options. Hot options change in place while it runs."""

    options: StoreOptions
    clock: Clock
    disk: Disk
    folder: StoreFolder
    log: CommitLog
    index: Index | None
    queues: Queues
    state: State
    delays_ms: tuple[int, ...]
    """What the delay levels stand for, milliseconds."""
    deleted: dict[str, int]
    """Topic → the log offset below which records of this name are of a topic that was deleted there."""
