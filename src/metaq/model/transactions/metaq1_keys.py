"""The names of transactions of MetaQ 1.x: `TX:session:number` and `XID:format:global:branch:qualifier`."""

from __future__ import annotations

import re
from typing import TypeAlias

from msgspec import Struct

from metaq.errors import BadRequest

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
