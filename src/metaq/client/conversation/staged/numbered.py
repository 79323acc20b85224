"""Numbered transactions of a writer, each committed once however often it is tried: for Spark's sink.

The coordinator keeps a *row* of the writer: the last number, and the transaction that had it. All of a writer's transactions
must be decided by the broker that has its row: `find_row` looks for it, and `choose_coordinator` says which broker is to
have it as long as none has. `commit` decides the transaction of a number; if one of that number was committed before, that
one counts, is finished, and the new one's parts are dropped.

The steps are those of `metaq.client.conversation.staged.atomic`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection

from msgspec import Struct

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.retry import Patience, Purpose
from metaq.client.conversation.staged.atomic import Ask, SideBySide, Sleep, Steps, decided_by, delivering, in_time
from metaq.client.conversation.staged.staging import Decide, GetRow
from metaq.errors import BrokerError, MetaqError, NotSupported, StaleBatch, TransactionFailed
from metaq.model.transactions.staging import (
    DecisionOutcome,
    ManifestPart,
    TransactionDecision,
    TransactionRow,
    coordinator_of,
)
from metaq.wire.codes import ResponseCode
from metaq.wire.staging import DecideBody

ROLLBACK_SECONDS = 3.0
"""Time for rolling back a transaction that is no longer wanted, s. Its parts expire in any case."""


class Committed(Struct, frozen=True):
    """The outcome of a numbered transaction."""

    decision: TransactionDecision
    """The decision that counts: of this transaction, or of an earlier one with the same number."""
    again: bool
    """Whether it is an earlier transaction's."""
    delivered: bool
    """Whether all brokers have reported that all messages are in their queues. Those that were away deliver when they
    are back."""
    missing: tuple[str, ...] = ()
    """Parts that a broker has lost after it had acknowledged them."""


def choose_coordinator(row: str, brokers: Collection[str]) -> str:
    """Choose the broker of a new row by highest random weight, so that a changed set of brokers seldom changes the choice."""
    # Sorted, so that all writers decide alike between equal weights.
    return max(sorted(brokers), key=lambda broker: zlib.crc32(f"{row}@{broker}".encode()))


def find_row(
    row: str, brokers: Collection[str], seconds: float, now: Callable[[], float]
) -> Steps[dict[str, TransactionRow]]:
    """Ask all brokers for the row. Returns the rows found, by broker name.

    Raises NotSupported: a broker knows no staged transactions; the last fault of a broker that could not be asked, if no other
    one has the row: it may.
    """
    until = now() + seconds
    answers = yield SideBySide({broker: _row_at(broker, row, until, now) for broker in sorted(brokers)})
    found = {broker: answer for broker, answer in answers.items() if isinstance(answer, TransactionRow)}
    faults = [answer for answer in answers.values() if isinstance(answer, MetaqError)]
    unable = [fault for fault in faults if isinstance(fault, NotSupported)]
    # A row that was found counts although other brokers are down. If none was, it may be at one of those.
    if unable or (faults and not found):
        raise (unable or faults)[0]
    return found


def _row_at(broker: str, row: str, until: float, now: Callable[[], float]) -> Steps[TransactionRow | None]:
    patience = Patience(Purpose.LOOK_UP, until - now(), now())
    call = GetRow(row)
    while True:
        try:
            state: TransactionRow | None = yield in_time(broker, call, until - now())
        except FAULTS as error:
            if isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotSupported(
                    f"broker {broker} has no transactions of several messages: it is a RocketMQ, or an older MetaQ"
                ) from None
            yield Sleep(patience.pause(error, now()))
        else:
            return state


def commit(
    transaction: str,
    parts: tuple[ManifestPart, ...],
    row: str,
    sequence: int,
    seconds: float,
    now: Callable[[], float],
) -> Steps[Committed]:
    """Commit everything that `parts` names, as number `sequence` of `row`, and deliver it. `row` may be empty: no number.

    Raises StaleBatch: the row is past that number. TransactionFailed: it was rolled back before, or the outcome is unknown
    in `seconds`: the same may be asked again. The coordinator's refusal: nothing of it is or will be committed.
    """
    until = now() + seconds
    coordinator = coordinator_of(transaction)
    call = Decide(transaction, DecideBody(DecisionOutcome.COMMIT, parts, row, sequence if row else -1))
    verdict = yield from decided_by(coordinator, transaction, call, until, now)
    decision, error = verdict.decision, verdict.error
    if decision is None:
        assert error is not None
        if isinstance(error, BrokerError) and error.code == ResponseCode.STALE_SEQUENCE:
            yield from roll_back(transaction)
            raise StaleBatch(f"number {sequence} of {row} is older than what was written last: {error.remark}")
        # Only if no commit can be stored: a rollback would come too late, and the same may be asked again.
        if verdict.refused and not verdict.maybe_sent:
            yield from roll_back(transaction)
        raise error
    if decision.outcome is not DecisionOutcome.COMMIT:
        raise TransactionFailed(
            f"the transaction {transaction} was rolled back before it was committed: its parts were kept no longer, or "
            "somebody has decided so",
            transaction,
            "rolled back",
        )
    ending = yield from delivering(decision, verdict.remaining, until, now)
    return Committed(decision, decision.transaction != transaction, ending.delivered, ending.missing)


def roll_back(transaction: str) -> Steps[None]:
    """Roll back, for ROLLBACK_SECONDS at most. Errors are ignored: the parts expire."""
    coordinator = coordinator_of(transaction)
    call = Decide(transaction, DecideBody(DecisionOutcome.ROLLBACK))
    try:
        yield Ask(coordinator, call, min(ROLLBACK_SECONDS, call.seconds))
    except FAULTS:
        return


def row_of(row: str, coordinator: str, seconds: float, now: Callable[[], float]) -> Steps[TransactionRow | None]:
    """Ask the coordinator for a row. Raises the last error."""
    return (yield from _row_at(coordinator, row, now() + seconds, now))
