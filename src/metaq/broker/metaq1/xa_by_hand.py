"""XA branches that an operator has ended: remembered until their transaction manager has been told, and forgets them.

Each is kept by a staged transaction of its own, a preparation without parts, whose label says key and outcome. It comes before the
end itself: a start that finds both the memory and the branch does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from metaq.broker.requests import Decide
from metaq.broker.staged.service import StagingService
from metaq.model.transactions.metaq1 import BranchPhase, BranchRefused, BranchState, Fault, TransactionKey
from metaq.model.transactions.staging import Decision, Outcome, TransactionState

PHASE_BY_HAND: Final = {
    Outcome.COMMIT: BranchPhase.COMMITTED_BY_HAND,
    Outcome.ROLLBACK: BranchPhase.ROLLED_BACK_BY_HAND,
}
FAULT_BY_HAND: Final = {Outcome.COMMIT: Fault.COMMITTED_BY_HAND, Outcome.ROLLBACK: Fault.ROLLED_BACK_BY_HAND}


def ended_by_hand(key: TransactionKey, outcome: Outcome) -> BranchRefused:
    """What is said of a branch that an operator has ended."""
    return BranchRefused(FAULT_BY_HAND[outcome], f"XA transaction '{key}' was {PHASE_BY_HAND[outcome].value}.")


def prepared_state(key: str, phase: BranchPhase, state: TransactionState) -> BranchState:
    """How tools see a branch that is kept by a staged transaction, in this state."""
    return BranchState(
        key,
        phase,
        state.transaction,
        "",
        state.decision.decided_ms if state.decision is not None else 0,
        sum(part.rows for part in state.parts),
        sum(part.bytes for part in state.parts),
    )


class EndedByHand:
    """What is remembered. `new_id`: makes ids of staged transactions."""

    def __init__(self, staging: StagingService, new_id: Callable[[str], str]) -> None:
        self._staging, self._new_id = staging, new_id
        self._table: dict[TransactionKey, tuple[Outcome, str]] = {}

    def __contains__(self, key: TransactionKey) -> bool:
        return key in self._table

    def __iter__(self) -> Iterator[TransactionKey]:
        return iter(self._table)

    def items(self) -> Iterator[tuple[TransactionKey, Outcome, str]]:
        """Key, outcome, and the id of the staged transaction that remembers it."""
        for key, (outcome, name) in self._table.items():
            yield key, outcome, name

    def found(self, key: TransactionKey, outcome: str, decision: Decision) -> None:
        """The log has one."""
        self._table[key] = Outcome(outcome), decision.transaction

    def check(self, key: TransactionKey) -> None:
        """Raises BranchRefused: an operator has ended the branch."""
        if key in self._table:
            raise ended_by_hand(key, self._table[key][0])

    def remember(self, key: TransactionKey, outcome: Outcome) -> None:
        """Raises Refused, as `Appender.put`: nothing has changed."""
        name = self._new_id("hand")
        label = f"{outcome.value} {key}"
        self._staging.decide(Decide(transaction=name, outcome=Outcome.PREPARED, parts=(), label=label), None)
        self._table[key] = outcome, name

    def forget(self, key: TransactionKey) -> None:
        """Raises Refused, as `Appender.put`: nothing has changed."""
        _, name = self._table[key]
        self._staging.decide(Decide(transaction=name, outcome=Outcome.ROLLBACK), None)
        del self._table[key]

    def keep_only(self, names: Collection[str]) -> None:
        """Drop what was ended as a staged transaction, behind our back."""
        self._table = {key: kept for key, kept in self._table.items() if kept[1] in names}
