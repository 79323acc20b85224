"""XA branches that an operator has committed or rolled back (heuristic outcomes).

They are kept until the transaction manager sends FORGET.

Each is stored as a staged transaction of its own, a preparation without parts, whose label has outcome and key. It is written
before the branch ends: a start that finds both ends the branch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from metaq.broker.requests import Decide
from metaq.broker.staged.service import StagingService
from metaq.errors import BadRequest, Reason, Refused
from metaq.model.transactions.metaq1 import (
    BranchPhase,
    BranchRefused,
    BranchState,
    Fault,
    TransactionKey,
    transaction_key,
)
from metaq.model.transactions.staging import DecisionOutcome, TransactionDecision, TransactionState

PHASE_BY_HAND: Final = {
    DecisionOutcome.COMMIT: BranchPhase.COMMITTED_BY_HAND,
    DecisionOutcome.ROLLBACK: BranchPhase.ROLLED_BACK_BY_HAND,
}
FAULT_BY_HAND: Final = {
    DecisionOutcome.COMMIT: Fault.COMMITTED_BY_HAND,
    DecisionOutcome.ROLLBACK: Fault.ROLLED_BACK_BY_HAND,
}


def ended_by_hand(key: TransactionKey, outcome: DecisionOutcome) -> BranchRefused:
    """Return the XA error for a branch that an operator has ended (XA_HEURCOM, XA_HEURRB)."""
    return BranchRefused(FAULT_BY_HAND[outcome], f"XA transaction '{key}' was {PHASE_BY_HAND[outcome].value}.")


def prepared_state(key: str, phase: BranchPhase, state: TransactionState) -> BranchState:
    """Return the view for tools of a branch that is stored as a staged transaction."""
    return BranchState(
        key,
        phase,
        state.transaction,
        "",
        state.decision.decided_ms if state.decision is not None else 0,
        sum(part.rows for part in state.parts),
        sum(part.bytes for part in state.parts),
    )


def named_key(text: str) -> TransactionKey:
    """Return the key that an operator names. Raises Refused INVALID."""
    try:
        return transaction_key(text)
    except BadRequest as error:
        raise Refused(Reason.INVALID, str(error)) from error


class EndedByHand:
    """The heuristically ended branches of one broker. `new_id`: makes ids of staged transactions."""

    def __init__(self, staging: StagingService, new_id: Callable[[str], str]) -> None:
        self._staging, self._new_id = staging, new_id
        self._table: dict[TransactionKey, tuple[DecisionOutcome, str]] = {}

    def __contains__(self, key: TransactionKey) -> bool:
        return key in self._table

    def __iter__(self) -> Iterator[TransactionKey]:
        return iter(self._table)

    def items(self) -> Iterator[tuple[TransactionKey, DecisionOutcome, str]]:
        """Return key, outcome and staged transaction id of each."""
        for key, (outcome, name) in self._table.items():
            yield key, outcome, name

    def found(self, key: TransactionKey, outcome: str, decision: TransactionDecision) -> None:
        """Add one found in the log."""
        self._table[key] = DecisionOutcome(outcome), decision.transaction

    def check(self, key: TransactionKey) -> None:
        """Return unless an operator has ended the branch. Raises BranchRefused with the heuristic outcome."""
        if key in self._table:
            raise ended_by_hand(key, self._table[key][0])

    def remember(self, key: TransactionKey, outcome: DecisionOutcome) -> None:
        """Store an outcome. Raises Refused, as `Appender.put`: nothing has changed."""
        name = self._new_id("hand")
        label = f"{outcome.value} {key}"
        # In the log before it is in the table: a restart must know of it.
        self._staging.decide(Decide(transaction=name, outcome=DecisionOutcome.PREPARED, parts=(), label=label), None)
        self._table[key] = outcome, name

    def forget(self, key: TransactionKey) -> None:
        """Drop an outcome (FORGET). Raises Refused, as `Appender.put`: nothing has changed."""
        _, name = self._table[key]
        # The preparation has no parts, so a rollback only ends it.
        self._staging.decide(Decide(transaction=name, outcome=DecisionOutcome.ROLLBACK), None)
        del self._table[key]

    def keep_only(self, names: Collection[str]) -> None:
        """Drop those whose staged transaction an operator has ended with the tools for staged transactions."""
        self._table = {key: kept for key, kept in self._table.items() if kept[1] in names}
