"""What a store is made of, handed to those who work on it: the writer, housekeeping, pulls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import StoreError, StoreFailed, StoreFull
from metaq.options import StoreOptions
from metaq.store.disk import Disk
from metaq.store.folder import StoreFolder
from metaq.store.log.commit_log import CommitLog
from metaq.store.queues.index_file import Index
from metaq.store.queues.table import Queues

log = logging.getLogger(__name__)


class State:
    """Whether the store takes messages, why not, and what of them is durable. Read from any thread."""

    __slots__ = ("_lock", "_root", "_told", "_writable", "closed", "failed", "flushed", "takes")

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._told: tuple[Callable[[str], None], ...] = ()
        self.takes = True
        """Whether a message is taken now: all of the following in one look."""
        self.failed: str | None = None
        """Why the store has stopped for good; None while it works."""
        self.closed = False
        self.flushed = 0
        """LogOffset up to which the log is durable: the flush thread's word."""
        self._writable = True

    @property
    def carries(self) -> bool:
        """Whether records are taken that are written anew so that a file can go: also while the disk is too full for others."""
        return self.failed is None and not self.closed

    @property
    def writable(self) -> bool:
        """False while the disk is so full that no message is taken."""
        return self._writable

    def set_writable(self, writable: bool) -> None:
        """The disk has room for messages, or not."""
        with self._lock:
            self._writable = writable
            self._look()

    def close(self) -> bool:
        """Take nothing any more. False: it was closed already."""
        with self._lock:
            was, self.closed = self.closed, True
            self._look()
        return not was

    def fail(self, why: str) -> None:
        """Stop for good: nothing is taken or acknowledged any more. The first reason stands."""
        with self._lock:
            if self.failed is not None:
                return
            self.failed = (
                f"{why}: what is durable is unknown, nothing is acknowledged any more; check the disk and restart"
            )
            self._look()
            told = self._told
        log.critical("the store %s has failed: %s", self._root, self.failed)
        for tell in told:
            tell(self.failed)

    def when_failed(self, tell: Callable[[str], None]) -> None:
        """Call `tell(why)` once, from whichever thread, when the store fails for good; at once if it has."""
        with self._lock:
            if self.failed is None:
                self._told = (*self._told, tell)
                return
        tell(self.failed)

    def _look(self) -> None:
        self.takes = self.failed is None and not self.closed and self._writable

    def refusal(self) -> StoreError:
        """Why no message is taken."""
        if self.failed is not None:
            return StoreFailed(self.failed)
        if self.closed:
            return StoreFailed("the store is closed")
        return StoreFull(
            f"the disk of {self._root} is more than 90 percent full: no message is taken until there is room"
        )


class Parts(Struct, frozen=True):
    """The files of one open store, and what they are worked on with. Hot options change in `options` while it runs."""

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
