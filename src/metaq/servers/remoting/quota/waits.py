"""Quotas in the words of remoting: requests that are never refused, and the wait that answers tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from metaq.errors import BadRequest, Refused, RemoteProtocolError
from metaq.model.access import Caller
from metaq.servers.metering import REFUSED_MAX, Metering, account_of
from metaq.wire.codes import RequestCode
from metaq.wire.command import LENGTH_BYTES, ONEWAY_FLAG, RESPONSE_FLAG, Command, decode, encode, frame_bytes
from metaq.wire.extensions import WAIT_FIELD
from metaq.wire.hot import FrameTable

OUR_LANGUAGE: Final = "PYTHON"
"""Language in the requests of our clients. Another client that says so gets a field that it does not know, and its connection is
not read until its quota has paid, like any other."""
ALWAYS_TAKEN: Final = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.REGISTER_BROKER})
"""Charged, but never refused: a group would rebalance, or a broker vanish from routes, because a member sends too much."""


def telling_the_wait(frames: bytes, wait_ms: int) -> bytes:
    """Return whole frames of answers of which the last has the field `metaqWaitMs`."""
    start, size = 0, frame_bytes(frames, 0, len(frames))
    while start + size < len(frames):
        start += size
        size = frame_bytes(frames, start, len(frames))
    last = decode(frames[start + LENGTH_BYTES :])
    if not last.is_response:
        return frames
    last.ext = {**last.ext, WAIT_FIELD: str(wait_ms)}
    return frames[:start] + encode(last)


class JudgedSession(Protocol):
    """The connection of a table of requests."""

    metering: Metering
    hears_waits: bool | None

    def note_language(self, command: Command) -> None: ...


def judge_rows(session: JudgedSession, table: FrameTable, rows: int) -> int:
    """Judge the rows of a table by a connection's quotas. Return how many of them are taken; 0: the next are to be refused."""
    if session.hears_waits is None:
        try:
            session.note_language(decode(table.frame(0)))
        except (BadRequest, RemoteProtocolError, MemoryError):
            session.hears_waits = False  # whatever it is, it is no client of ours
    sizes = [LENGTH_BYTES + len(table.frame(row)) for row in range(rows)]
    return session.metering.judge(rows, sum(sizes), sizes.__getitem__)


def charge_account(
    metering: Metering,
    caller: Caller,
    table: FrameTable,
    row: int,
    fail: Callable[[int, tuple[int, bool], Exception], None],
) -> bool:
    """Charge the account of rows from now on. Return False if it is above its quota: then the first row is refused.

    Args: fail: answers a row of a code with an error.
    """
    if (account := account_of(caller)) != metering.account:
        try:
            metering.proven(account, LENGTH_BYTES + len(table.frame(row)), refuse=True)
        except Refused as refused:
            if not table.flag(row) & ONEWAY_FLAG:
                fail(table.code(row), (table.opaque(row), table.binary(row)), refused)
            return False
    return True


def refuse_rows(
    table: FrameTable,
    rows: int,
    refusal: Refused,
    handle: Callable[[int], None],
    fail: Callable[[int, tuple[int, bool], Exception], None],
) -> int:
    """Refuse the first rows of a table. Return how many; the others come again when the connection has waited.

    Args: handle: handles a row that is taken all the same. fail: answers one of a code with an error.
    """
    rows = min(rows, REFUSED_MAX)
    for row in range(rows):
        code, flag = table.code(row), table.flag(row)
        if flag & RESPONSE_FLAG or code in ALWAYS_TAKEN:
            handle(row)
        elif not flag & ONEWAY_FLAG:
            fail(code, (table.opaque(row), table.binary(row)), refusal)
    return rows
