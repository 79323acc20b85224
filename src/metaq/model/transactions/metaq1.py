"""Transactions of MetaQ 1.x clients: their keys (`TX:session:number`, `XID:format:global:branch:qualifier`), phases and faults.

A *local transaction* belongs to one connection. An *XA branch* is a broker's share of a transaction that a transaction manager
runs over several systems; it outlives connections, and restarts once it is prepared.
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
    """A local transaction: the `number`th of a producer. It lives in one connection."""

    session_id: str
    number: int

    def __str__(self) -> str:
        return f"{LOCAL}:{self.session_id}:{self.number}"


class BranchKey(Struct, frozen=True):
    """A branch of an XA transaction, as its transaction manager named it. It lives in the broker."""

    format_id: int
    global_id: bytes
    branch_id: bytes
    qualifier: str
    """Whose branch it is: a transaction manager recovers those of its own qualifier."""

    def __str__(self) -> str:
        return f"{BRANCH}:{self.format_id}:{self.global_id.hex()}:{self.branch_id.hex()}:{self.qualifier}"


TransactionKey: TypeAlias = LocalKey | BranchKey


def transaction_key(text: str) -> TransactionKey:
    """The key that `str` made `text` of. Raises BadRequest: no key is written so."""
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
