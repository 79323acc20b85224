"""What checkers find, and what they are told of the promises."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

ALL_STATUSES: Final = frozenset({"SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"})


class Promises(Struct, frozen=True):
    """What the brokers of a run have promised, as options and faults decide it."""

    kept_statuses: frozenset[str] = ALL_STATUSES
    """Statuses of an acknowledgement after which a message may not be lost."""
    reads_stay: bool = True
    """Whether what was read once may not vanish."""
    groups: tuple[str, ...] = ()
    """Groups that consumed from the first message on until nothing was left: each must have seen everything."""


class Violation(Struct, frozen=True):
    """A promise that was not kept."""

    check: str
    """Name of the check that found it."""
    text: str
    """What was found, in words."""
    at: float
    """Time of the event that shows it, s."""
    keys: tuple[str, ...] = ()
    """Keys of the messages that it is about."""
    queues: tuple[str, ...] = ()
    """Queues that it is about, `topic@broker:queue id`."""
