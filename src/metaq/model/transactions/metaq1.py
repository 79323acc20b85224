"""Transactions of MetaQ 1.x clients: their keys (`TX:session:number`, `XID:format:global:branch:qualifier`), phases and
faults.

A *local transaction* belongs to one connection. An *XA branch* is a broker's share of a transaction that a transaction
manager runs over several systems; it outlives connections, and restarts once it is prepared.
"""

from __future__ import annotations

import enum
import re
from typing import Final, TypeAlias

from msgspec import Struct

from metaq.errors import BadRequest, Reason, Refused

_NUMBER = re.compile(r"-?[0-9]{1,10}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
LOCAL, BRANCH = "TX", "XID"


class LocalKey(Struct, frozen=True):
    """Key of a local transaction, the `number`th of a producer. It belongs to one connection."""

    session_id: str
    number: int

    def __str__(self) -> str:
        return f"{LOCAL}:{self.session_id}:{self.number}"


class BranchKey(Struct, frozen=True):
    """Key of a branch of an XA transaction, named by its transaction manager. It belongs to the broker."""

    format_id: int
    global_id: bytes
    branch_id: bytes
    qualifier: str
    """Qualifier of the transaction manager, which recovers the branches of its own."""

    def __str__(self) -> str:
        return f"{BRANCH}:{self.format_id}:{self.global_id.hex()}:{self.branch_id.hex()}:{self.qualifier}"


TransactionKey: TypeAlias = LocalKey | BranchKey


def transaction_key(text: str) -> TransactionKey:
    """Parse a key; `str` writes it. Raises BadRequest: no key."""
    fields = text.split(":")
    if fields[0] == LOCAL and len(fields) == 3 and _is_int(fields[2]):
        return LocalKey(fields[1], int(fields[2]))
    if fields[0] == BRANCH and len(fields) == 5 and fields[4] and _is_int(fields[1]):
        _, number, global_id, branch_id, qualifier = fields
        if _HEX.fullmatch(global_id) and _HEX.fullmatch(branch_id):
            return BranchKey(int(number), bytes.fromhex(global_id), bytes.fromhex(branch_id), qualifier)
    raise BadRequest(
        f"{text[:200]!r} names no transaction: TX:session:number or XID:format:hex:hex:qualifier, without further colons"
    )


def _is_int(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and _INT_MIN <= int(text) <= _INT_MAX


KEY_CHARS_MAX: Final = 1024
"""Most characters of a key. The two ids of X/Open have at most 64 bytes each, hence 256 characters."""


class Vote(enum.Enum):
    """Vote of a branch on PREPARE."""

    PREPARED = "it can be committed, whatever happens"
    READ_ONLY = "there are no messages in it, and it is over"


class Ended(Struct, frozen=True):
    """Outcome of a step."""

    stored: bool
    """The step is in the log: the answer may have to wait for the disk (`Metaq1Transactions.due`)."""
    vote: Vote = Vote.PREPARED


class Fault(enum.Enum):
    """Why a step of a transaction manager fails, in XA's terms."""

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
    """A step of a transaction manager has failed."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(_REASONS.get(fault, Reason.INVALID), text)
        self.fault = fault


class BranchPhase(enum.Enum):
    """Phase of a transaction of a 1.x client."""

    OPEN = "open"
    """Begun, and not prepared."""
    PREPARED = "prepared"
    """Prepared: it waits for the decision, without a limit."""
    COMMITTED_BY_HAND = "committed by hand"
    """Ended by an operator; remembered until its transaction manager, or the operator, forgets it (XA: heuristic
    outcome)."""
    ROLLED_BACK_BY_HAND = "rolled back by hand"
    """Likewise."""


class BranchState(Struct, frozen=True):
    """A transaction of a 1.x client, as operators see it."""

    key: str
    """`TX:session:number` of a local transaction, `XID:format:global:branch:qualifier` of an XA branch."""
    phase: BranchPhase
    """Its phase."""
    transaction: str
    """Id of its staged transaction."""
    client: str = ""
    """`ip:port` of the connection that began it; empty if that is not known any more."""
    since_ms: int = 0
    """When it began, ms since 1970."""
    messages: int = 0
    """How many messages it has."""
    bytes: int = 0
    """Bytes of bodies and properties."""
