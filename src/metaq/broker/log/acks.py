"""What an acknowledgement of a send waits for: nothing, this broker's disk, a replica, or that the disk is less far behind.

One policy for all servers and paths. A server asks it at the end of a read event, and holds the answers back until what is due
has come (`metaq.servers.held_acks`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from metaq.broker.environment import Environment


class Due(NamedTuple):
    """What acknowledgements wait for."""

    flushed: int
    """LogOffset up to which the log must be on this broker's disk; 0 asks for nothing."""
    copied: int
    """LogOffset up to which replicas must have the log; 0 asks for nothing."""
    promised: bool
    """The acknowledgements say that it is so: one that can wait no longer tells what it lacks.

    Otherwise they are only held back because their producers are faster than the disk: whoever waits sends no more.
    """


def later(one: Due | None, other: Due | None) -> Due | None:
    """What answers wait for that wait for both."""
    if one is None or other is None:
        return one or other
    return Due(max(one.flushed, other.flushed), max(one.copied, other.copied), promised=one.promised or other.promised)


class Lack(enum.Enum):
    """The promise that could not be kept in time; the message is stored all the same."""

    FLUSHED = "it is not known to be on this broker's disk"
    COPIED = "it is not known to be on a replica"


class Copies(Protocol):
    """What replicas have of the log."""

    @property
    def required(self) -> bool:
        """Whether sends are acknowledged only when a replica has them."""
        ...

    @property
    def copied(self) -> int:
        """LogOffset up to which enough replicas have the log."""
        ...

    def when_copied(self, log_end: int, done: Callable[[], None]) -> None:
        """Call `done` once they have it up to there; perhaps from another thread."""
        ...


class NoCopies:
    """No replica is configured: nothing waits for one."""

    required = False
    copied = 0

    def when_copied(self, log_end: int, done: Callable[[], None]) -> None:
        raise AssertionError(f"nobody waits for a replica to have the log up to {log_end} ({done})")


NO_COPIES: Final = NoCopies()


class AckPolicy:
    """Decides what acknowledgements wait for."""

    def __init__(self, environment: Environment, copies: Copies = NO_COPIES) -> None:
        self._environment, self.copies = environment, copies
        self._log, self._state = environment.store.log.tail, environment.store.state
        self._flushes = environment.store_options.flush_disk_type == "SYNC_FLUSH"
        self.promises = self._flushes or copies.required
        """Whether acknowledgements say more than that the message is stored. Who asks not to wait then gets less."""
        self.waiting_bytes = 0
        """Of all acknowledgements that wait, of whichever server; the servers count them here."""

    def due(self) -> Due | None:
        """What the acknowledgements of all that is in the log now wait for; None: nothing."""
        end = self._log.end
        if self.promises:
            return Due(end if self._flushes else 0, end if self.copies.required else 0, promised=True)
        slack = self._environment.options.unflushed_bytes_max // 2
        if end - self._state.flushed > slack:
            return Due(end - slack, 0, promised=False)
        return None

    def covers(self, place: int) -> bool:
        """Whether what acknowledgements promise holds for the record at this LogOffset."""
        return (not self._flushes or self._state.flushed > place) and (
            not self.copies.required or self.copies.copied > place
        )

    def lack(self, due: Due) -> Lack | None:
        """What is still missing of what was due."""
        if self._state.flushed < due.flushed:
            return Lack.FLUSHED
        return Lack.COPIED if self.copies.copied < due.copied else None
