"""What a request to decide is for, and whether it may be: of what is staged here, and in words for its answer."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from metaq.broker.requests import Decide
from metaq.broker.staged.parts import Transaction
from metaq.errors import Reason, Refused
from metaq.model.transactions.staging import Decision, Lifetime, Outcome, Phase, TransactionState, check_part, check_row

ENDS: Final = {Outcome.COMMIT, Outcome.ROLLBACK}
PHASES: Final = {
    Outcome.PREPARED: Phase.PREPARED,
    Outcome.COMMIT: Phase.COMMITTED,
    Outcome.ROLLBACK: Phase.ROLLED_BACK,
}
"""Of a transaction of which nothing remains to be done."""


def decision_for(decide: Decide, prepared: Decision | None, now_ms: int) -> Decision:
    """The decision that a request is for. `prepared`: the preparation, if there was one. Raises Refused INVALID."""
    name, parts = decide.transaction, decide.parts
    if parts is None and prepared is not None:
        parts = prepared.parts
    elif parts is None and decide.outcome is not Outcome.ROLLBACK:
        raise Refused(
            Reason.INVALID, f"the transaction {name} is not prepared: a {decide.outcome.value} has to name its parts"
        )
    elif prepared is not None and decide.outcome is not Outcome.ROLLBACK and parts != prepared.parts:
        raise Refused(Reason.INVALID, f"the transaction {name} is prepared with other parts than those of the request")
    parts = parts or ()
    if len({(part.broker, part.part) for part in parts}) != len(parts):
        raise Refused(Reason.INVALID, f"the manifest of transaction {name} names a part twice")
    for part in parts:
        check_part(part.part)
    if decide.outcome is Outcome.ROLLBACK:
        return Decision(name, decide.outcome, parts, decided_ms=now_ms)
    row, sequence = decide.row, decide.sequence
    if prepared is not None and not row:
        row, sequence = prepared.row, prepared.sequence
    if row and check_row(row) and sequence < 0:
        raise Refused(Reason.INVALID, f"the row {row} of transaction {name} needs a sequence number, not {sequence}")
    label = decide.label or (prepared.label if prepared is not None else "") or UNSET
    return Decision(name, decide.outcome, parts, row, sequence, now_ms, label)


def check_manifest(made: Decision, broker: str, transaction: Transaction | None) -> None:
    """Raises Refused NOT_FOUND, INVALID: a part of this broker is not as the manifest says."""
    for named in made.parts:
        if named.broker != broker:
            continue
        part = transaction.parts.get(named.part) if transaction is not None else None
        if part is not None and part.seal is not None and part.fits(named):
            continue
        where = f"part {named.part} for queue {named.queue_id} of topic {named.topic[:127]}"
        if part is None:
            raise Refused(
                Reason.NOT_FOUND,
                f"the manifest of transaction {made.transaction} names {where}, which is not staged here: nothing was decided",
            )
        if part.seal is None:
            raise Refused(
                Reason.INVALID, f"{where} of transaction {made.transaction} is not sealed: nothing was decided"
            )
        raise Refused(
            Reason.INVALID,
            f"{where} of transaction {made.transaction} is not what the manifest says ({named.seal}): it is for queue "
            f"{part.queue_id} of topic {part.topic} and holds {part.holds}; nothing was decided",
        )


def state_of(transaction: Transaction) -> TransactionState:
    """What is known of a transaction that is not over."""
    decision, remaining = transaction.decision, transaction.remaining
    if decision is None:
        phase = Phase.OPEN
    elif decision.outcome is Outcome.COMMIT and (remaining or transaction.unconfirmed):
        phase = Phase.COMMITTING
    else:
        phase = PHASES[decision.outcome]
    lifetime = Lifetime.PREPARED if phase is Phase.PREPARED else transaction.lifetime
    return TransactionState(
        transaction.id,
        phase,
        decision,
        tuple(part.state(lifetime) for part in transaction.parts.values()),
        remaining,
        transaction.missing,
        transaction.unconfirmed,
    )
