"""What becomes of transactions of MetaQ 1.x clients (`metaq.model.transactions.metaq1_keys`), and why a step of one fails.

A *local transaction* belongs to one connection. An *XA branch* is a broker's share of a transaction that a transaction manager
runs over several systems; it outlives connections, and restarts once it is prepared.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

from metaq.errors import Reason, Refused

KEY_CHARS_MAX: Final = 1024
"""Of a key's text. Ids of X/Open have at most 64 bytes twice, hence 256 characters."""


class Vote(enum.Enum):
    """What a branch says when it is to prepare."""

    PREPARED = "it can be committed, whatever happens"
    READ_ONLY = "there are no messages in it, and it is over"


class Ended(Struct, frozen=True):
    """What became of a step."""

    stored: bool
    """It is in the log, and the answer may have to wait for the disk (`Metaq1Transactions.due`)."""
    vote: Vote = Vote.PREPARED


class Fault(enum.Enum):
    """Why a step of a transaction manager fails, as XA knows it."""

    NOT_KNOWN = "there is no such branch"
    PROTOCOL = "the branch is in a state that does not allow the step"
    INVALID = "the key cannot be one of a branch"
    CANNOT = "that cannot be done with what the key names"
    ROLLED_BACK = "it failed, and the branch is rolled back"
    RETRY = "nothing has changed, and the same may be done later"
    UNAVAILABLE = "it cannot be done now"
    COMMITTED_BY_HAND = "an operator has committed it"
    ROLLED_BACK_BY_HAND = "an operator has rolled it back"


_REASONS: Final = {
    Fault.NOT_KNOWN: Reason.NOT_FOUND,
    Fault.ROLLED_BACK: Reason.NOT_STORED,
    Fault.RETRY: Reason.BUSY,
    Fault.UNAVAILABLE: Reason.UNAVAILABLE,
}


class BranchRefused(Refused):
    """A step of a transaction manager fails."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(_REASONS.get(fault, Reason.INVALID), text)
        self.fault = fault


class BranchPhase(enum.Enum):
    """How far a transaction of a 1.x client has come."""

    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED_BY_HAND = "committed by hand"
    """An operator has done so; remembered until its transaction manager, or the operator, forgets it."""
    ROLLED_BACK_BY_HAND = "rolled back by hand"


class BranchState(Struct, frozen=True):
    """What an operator sees of a transaction."""

    key: str
    phase: BranchPhase
    transaction: str
    """Its id among the staged transactions."""
    client: str = ""
    """`ip:port` of the connection that began it; empty if that is not known any more."""
    since_ms: int = 0
    messages: int = 0
    bytes: int = 0
    """Of bodies and properties."""
