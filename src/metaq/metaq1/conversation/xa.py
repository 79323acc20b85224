"""XA in the words of MetaQ 1.x: names of branches, answers to the steps of a transaction manager, and their errors.

An error of XA is a result 500 with `XAException:code=C,msg=TEXT`. What is no such text is XAER_RMERR, as in Java's client; no
connection is XAER_RMFAIL, no answer in time XA_RBTIMEOUT.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from msgspec import Struct

from metaq.errors import (
    BadRequest,
    BrokerError,
    ConfigError,
    ConnectionFailed,
    MetaqError,
    RemoteProtocolError,
    RequestTimeout,
    XaError,
)
from metaq.metaq1.conversation.answers import Reply, result_of
from metaq.model.transactions.metaq1 import BranchKey, transaction_key


class XaCode(enum.IntEnum):
    """Codes of XA's errors, as JTA has them."""

    XA_HEURMIX = 5
    XA_HEURRB = 6
    XA_HEURCOM = 7
    XA_HEURHAZ = 8
    XA_RETRY = 4
    XA_RDONLY = 3
    XA_NOMIGRATE = 9
    XA_RBROLLBACK = 100
    XA_RBCOMMFAIL = 101
    XA_RBDEADLOCK = 102
    XA_RBINTEGRITY = 103
    XA_RBOTHER = 104
    XA_RBPROTO = 105
    XA_RBTIMEOUT = 106
    XA_RBTRANSIENT = 107
    XAER_ASYNC = -2
    XAER_RMERR = -3
    XAER_NOTA = -4
    XAER_INVAL = -5
    XAER_PROTO = -6
    XAER_RMFAIL = -7
    XAER_DUPID = -8
    XAER_OUTSIDE = -9


class Vote(enum.IntEnum):
    """What a server says to PREPARE."""

    OK = 0
    """It is prepared, and waits for its end."""
    READ_ONLY = 3
    """There is no message in it, and it is over."""


_ERROR: Final = re.compile(r"XAException:code=(-?[0-9]{1,9}),msg=(.*)", re.DOTALL)
_ID_BYTES_MAX: Final = 64
_FORBIDDEN: Final = re.compile(r"[ \t\r\n:]")
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


class Xid(Struct, frozen=True):
    """Name of a branch, as its transaction manager gives it.

    Raises TypeError; ConfigError: an id is longer than 64 bytes, or `format_id` has more than 32 bits.
    """

    format_id: int
    global_id: bytes
    """Of the transaction, 64 bytes at most."""
    branch_id: bytes = b""
    """Of the branch within it, 64 bytes at most."""

    def __post_init__(self) -> None:
        if not isinstance(self.format_id, int) or isinstance(self.format_id, bool):
            raise TypeError(f"format_id is {self.format_id!r}: pass a number")
        if not _INT_MIN <= self.format_id <= _INT_MAX:
            raise ConfigError(f"format_id={self.format_id}: need a number of 32 bits")
        for name in ("global_id", "branch_id"):
            value = getattr(self, name)
            if not isinstance(value, bytes):
                raise TypeError(f"{name} is {value!r:.100}: pass bytes")
            if len(value) > _ID_BYTES_MAX:
                raise ConfigError(f"{name} has {len(value)} bytes: XA allows {_ID_BYTES_MAX}")

    def __str__(self) -> str:
        return f"{self.format_id}:{self.global_id.hex()}:{self.branch_id.hex()}"

    def key(self, qualifier: str) -> BranchKey:
        """Return its name at the server."""
        return BranchKey(self.format_id, self.global_id, self.branch_id, qualifier)


def check_qualifier(qualifier: object) -> str:
    """Return a unique qualifier that the protocol can carry. Raises TypeError, ConfigError."""
    if not isinstance(qualifier, str):
        raise TypeError(f"unique_qualifier is {qualifier!r}: pass text")
    if not qualifier or not qualifier.isascii() or not qualifier.isprintable() or _FORBIDDEN.search(qualifier):
        raise ConfigError(f"unique_qualifier={qualifier!r}: need ASCII characters, without blanks and colons")
    if qualifier.isdigit():
        raise ConfigError(f"unique_qualifier={qualifier!r}: a server would take a number for a time-out; add a letter")
    return qualifier


def voted(answer: Reply, address: str, action: str) -> Vote:
    """Return the answer to PREPARE. Raises as `answers.result_of`."""
    body = result_of(answer, address, action)
    if body not in {b"0", b"3"}:
        raise RemoteProtocolError(f"{address} answers a command to {action} with {body[:40]!r} in place of a vote")
    return Vote(int(body))


def recovered(answer: Reply, address: str, action: str) -> list[BranchKey]:
    """Return the branches in the answer to RECOVER. Raises as `answers.result_of`."""
    found = []
    for line in result_of(answer, address, action).decode("utf-8", "replace").splitlines():
        try:
            key = transaction_key(line)
        except BadRequest as error:
            raise RemoteProtocolError(
                f"{address} answers a command to {action} with a line that is none: {error}"
            ) from None
        # The original lists keys of its own alone; a local one could not be prepared.
        if isinstance(key, BranchKey):
            found.append(key)
    return found


def xa_error(code: int, text: str, *, in_doubt: bool = False) -> XaError:
    """Return an error with this code, of JTA or not."""
    try:
        name = XaCode(code).name
    except ValueError:
        name = "an XA error"
    return XaError(text, code, name, in_doubt=in_doubt)


def as_xa_error(error: MetaqError) -> XaError:
    """Return what a failed command is in XA's terms."""
    match error:
        case XaError():
            return error
        case BrokerError():
            found = _ERROR.match(error.remark)
            if found is None:
                return xa_error(XaCode.XAER_RMERR, str(error))
            return xa_error(int(found[1]), f"from {error.address} to {error.action}: {found[2]}")
        case RequestTimeout():
            return xa_error(XaCode.XA_RBTIMEOUT, str(error), in_doubt=error.sent)
        case ConnectionFailed():
            return xa_error(XaCode.XAER_RMFAIL, str(error), in_doubt=error.sent)
        case _:
            return xa_error(XaCode.XAER_RMERR, str(error))
