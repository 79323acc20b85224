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
    """Codes of XA's errors, as `javax.transaction.xa.XAException` of JTA has them."""

    XA_HEURMIX = 5
    """The branch was ended by hand, partly committed and partly rolled back."""
    XA_HEURRB = 6
    """The branch was rolled back by hand."""
    XA_HEURCOM = 7
    """The branch was committed by hand."""
    XA_HEURHAZ = 8
    """The branch may have been ended by hand; how is not known."""
    XA_RETRY = 4
    """The step could not be done now: try it again."""
    XA_RDONLY = 3
    """There was nothing to commit in the branch, and it is over."""
    XA_NOMIGRATE = 9
    """The branch must be resumed where it was suspended."""
    XA_RBROLLBACK = 100
    """The branch is rolled back, for a reason that is not told."""
    XA_RBCOMMFAIL = 101
    """The branch is rolled back: a connection failed."""
    XA_RBDEADLOCK = 102
    """The branch is rolled back: a deadlock."""
    XA_RBINTEGRITY = 103
    """The branch is rolled back: its content is not allowed as it is."""
    XA_RBOTHER = 104
    """The branch is rolled back: another reason."""
    XA_RBPROTO = 105
    """The branch is rolled back: an error within the server."""
    XA_RBTIMEOUT = 106
    """The branch is rolled back, or the server did not answer in time."""
    XA_RBTRANSIENT = 107
    """The branch is rolled back: a passing fault, a new one may succeed."""
    XAER_ASYNC = -2
    """An asynchronous step is under way already."""
    XAER_RMERR = -3
    """The server failed at the step."""
    XAER_NOTA = -4
    """The server knows no such branch."""
    XAER_INVAL = -5
    """The arguments are wrong."""
    XAER_PROTO = -6
    """The step is not allowed at this point of the branch."""
    XAER_RMFAIL = -7
    """The server cannot be reached."""
    XAER_DUPID = -8
    """There is a branch of this name already."""
    XAER_OUTSIDE = -9
    """The server does work outside of the transaction."""


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
    """Number that says by whose rules the ids are made, 32 bits with a sign."""
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


def branch_key(xid: Xid, qualifier: str) -> BranchKey:
    """Return the name at the server of a branch of a producer with this `unique_qualifier`."""
    return BranchKey(xid.format_id, xid.global_id, xid.branch_id, qualifier)


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
