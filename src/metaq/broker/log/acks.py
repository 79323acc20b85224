"""Acknowledgement policy of sends: respond at once, after the flush (SYNC_FLUSH), after replication (SYNC_MASTER), or when the
disk has caught up.

One policy for all servers and paths. A server asks it at the end of a read event, and holds the responses back until the
requirement is met (`metaq.servers.held_acks`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from metaq.broker.environment import Environment


class Due(NamedTuple):
    """Condition for the acknowledgements of a read event."""

    flushed: int
    """LogOffset up to which the log must be on this broker's disk; 0: no condition."""
    copied: int
    """LogOffset up to which replicas must have the log; 0: no condition."""
    promised: bool
    """Whether the acknowledgement states that the condition is met. After a time-out it is FLUSH_DISK_TIMEOUT or the like then.

    Otherwise it is only delayed to slow down producers that are faster than the disk, and is SEND_OK in any case.
    """
    lack: Lack | None = None
    """What the acknowledgement has to say of the promise whatever it waits for; None: nothing."""
    begin: int = 0
    """LogOffset from which on the log was appended that replicas must have."""


def later(one: Due | None, other: Due | None) -> Due | None:
    """Return the condition that covers both."""
    if one is None or other is None:
        return one or other
    return Due(
        max(one.flushed, other.flushed),
        max(one.copied, other.copied),
        promised=one.promised or other.promised,
        lack=one.lack or other.lack,
        begin=min([due.begin for due in (one, other) if due.copied], default=0),
    )


class Lack(enum.Enum):
    """The condition that was not met in time. The message is stored nevertheless."""

    # Sent to RocketMQ's clients as FLUSH_DISK_TIMEOUT (10), FLUSH_SLAVE_TIMEOUT (12) and SLAVE_NOT_AVAILABLE (11), which they
    # treat as stored.
    FLUSHED = "it is not known to be on this broker's disk"
    COPIED = "it is not known to be on a replica"
    NO_REPLICA = "no replica is near enough to have it soon"
    DOUBT = "this broker may not lead any more: whether the message is kept is not known"


class Copies(Protocol):
    """Replication progress."""

    @property
    def required(self) -> bool:
        """Whether sends are acknowledged only when a replica has them."""
        ...

    @property
    def available(self) -> bool:
        """Whether enough replicas follow closely enough to be waited for."""
        ...

    @property
    def enough(self) -> bool:
        """Whether so many replicas are there that sends are taken at all."""
        ...

    @property
    def lacking(self) -> str:
        """Why there are not `enough`."""
        ...

    @property
    def lacks_for_now(self) -> bool:
        """Whether there will be `enough` soon by itself, or another broker leads: followers of a new leader are just coming."""
        ...

    @property
    def in_doubt(self) -> bool:
        """Whether another broker may lead by now."""
        ...

    @property
    def copied(self) -> int:
        """LogOffset up to which enough replicas have the log."""
        ...

    @property
    def carries_alone(self) -> bool:
        """Whether what the broker itself carries on is stored without enough replicas, too."""
        ...

    def lacks(self, begin: int, end: int) -> bool:
        """Return whether a record in this range of the log was given up, though `copied` is behind it."""
        ...

    def refusal_of(self, topic: str) -> str | None:
        """Return why a topic takes no messages because replicas would not get them; None: they do."""
        ...

    def when_copied(self, log_end: int, done: Callable[[], None]) -> None:
        """Call `done` when enough replicas have the log up to there, perhaps from another thread."""
        ...


class NoCopies:
    """Replication progress of a broker without synchronous replicas: nothing waits."""

    required = False
    available = False
    enough = True
    lacking = ""
    in_doubt = False
    lacks_for_now = False
    copied = 0
    carries_alone = False

    def lacks(self, begin: int, end: int) -> bool:  # noqa: ARG002
        return False

    def refusal_of(self, topic: str) -> str | None:  # noqa: ARG002
        return None

    def when_copied(self, log_end: int, done: Callable[[], None]) -> None:
        raise AssertionError(f"nobody waits for a replica to have the log up to {log_end} ({done})")


NO_COPIES: Final = NoCopies()


class AckPolicy:
    """The policy of one broker. `due` is asked once per read event, not once per message."""

    def __init__(self, environment: Environment, copies: Copies = NO_COPIES) -> None:
        self._environment, self.copies = environment, copies
        self._log, self._state = environment.store.log.tail, environment.store.state
        self._flushes = environment.store_options.flush_disk_type == "SYNC_FLUSH"
        self.promises = False
        """Whether acknowledgements promise flush or replication. Only then does the property WAIT=false make a difference."""
        self.waiting_bytes = 0
        """Bytes of all held responses, counted here by every server."""
        self._told = self._log.end
        """End of the log at the last call of `due`: what is behind it was appended since."""
        self.take_role()

    def take_role(self) -> None:
        """Promise what this broker's role says, from now on."""
        self.promises = self._flushes or self.copies.required

    def wait_for(self, copies: Copies) -> None:
        """Have acknowledgements wait for these replicas instead, from now on."""
        self.copies = copies
        self.take_role()

    def due(self) -> Due | None:
        """Return the condition for all that is in the log now; None: respond at once."""
        end = self._log.end
        begin, self._told = self._told, end
        if self.promises:
            flushed = end if self._flushes else 0
            if self.copies.required and not self.copies.available:
                # RocketMQ's master does not wait for a replica that is away or far behind: the message is stored, and told so.
                return Due(flushed, 0, promised=True, lack=Lack.NO_REPLICA)
            if not self.copies.required:
                return Due(flushed, 0, promised=True)
            return Due(flushed, end, promised=True, begin=begin)
        # Half of unflushedBytesMax: from all of it on, the appender refuses sends; producers should slow down before that.
        slack = self._environment.options.unflushed_bytes_max // 2
        if end - self._state.flushed > slack:
            return Due(end - slack, 0, promised=False)
        return None

    def covers(self, place: int) -> bool:
        """Return whether the flush and replication that acknowledgements promise are done for the record at this LogOffset."""
        if self._flushes and self._state.flushed <= place:
            return False
        # Without a replica to wait for, acknowledgements promise no copy.
        return not self.copies.required or self.copies.copied > place or not self.copies.available

    def lack(self, due: Due) -> Lack | None:
        """Return the part of the condition to be waited for, the disk first; None: all is met."""
        if self._state.flushed < due.flushed:
            return Lack.FLUSHED
        return Lack.COPIED if self.copies.copied < due.copied else None

    def shortfall(self, due: Due) -> Lack | None:
        """Return what an acknowledgement that is given now must say of its promise; None: it is kept."""
        if not due.promised:
            return None
        # A replica problem overwrites a disk problem, as in RocketMQ.
        if due.lack is not None:
            return due.lack
        if self.copies.copied < due.copied or (due.copied and self.copies.lacks(due.begin, due.copied)):
            return Lack.DOUBT if self.copies.in_doubt else Lack.COPIED
        return Lack.FLUSHED if self._state.flushed < due.flushed else None
