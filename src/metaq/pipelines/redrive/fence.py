"""Fencing: finds out whether a planned step was sent, and prevents it from being sent later.

A step is one numbered transaction, and the coordinator remembers the last number. So a new run commits an empty transaction of
the same number: if the step's own was committed before, that one counts and the answer names it; if not, the empty one has the
number now, and a commit that a process taken for dead may still try is dropped.
"""

from __future__ import annotations

from typing import Final

from metaq.client.conversation.staged import numbered
from metaq.clock import SYSTEM
from metaq.errors import ConfigError, StaleBatch
from metaq.model.transactions.staging import TransactionRow, transaction_id
from metaq.pipelines.redrive.ledger import Head, Ledger
from metaq.spark.cluster.courier import Courier

_EMPTY: Final = "redrive-void-"
"""Prefix of ids of empty transactions, also of earlier runs'."""


class Fence:
    """Asks the coordinator of a redrive's transactions. Raises, from every method: ConnectionFailed and others if it is away."""

    def __init__(self, courier: Courier, seconds: float) -> None:
        """
        Args:
            courier: connections.
            seconds: time to wait for a broker that is away.
        """
        self._courier, self._seconds = courier, seconds

    def new_head(self, topic: str) -> Head:
        """Return the head of a new folder. Raises NotSupported: a broker has no such transactions (a RocketMQ)."""
        ledger = f"redrive-{SYSTEM.token()[:16]}"
        brokers = self._courier.brokers()
        row = row_of(ledger)
        # Asked of all brokers: it raises if one of them has no such transactions.
        self._courier.drive(numbered.find_row(row, brokers, self._seconds, self._courier.now))
        return Head(ledger=ledger, topic=topic, coordinator=numbered.choose_coordinator(row, brokers))

    def settle(self, ledger: Ledger) -> bool | None:
        """Record in the ledger how its last step ended. Returns whether it was sent; None: no step was open.

        Raises ConfigError: broker and folder contradict each other, so what was sent is not known.
        """
        head, planned = ledger.head, ledger.planned
        assert head is not None
        found = self._row(head)
        if found is None and ledger.number == 0:
            # The row is made before the first step, so that its absence later means that the broker has forgotten.
            self._commit_empty(head, 0)
            return None
        # The open step may not have been decided.
        lowest = ledger.number - 1 if planned is not None else ledger.number
        if found is None or found.sequence < lowest:
            known = "nothing" if found is None else f"{found.sequence} transactions"
            raise ConfigError(
                f"the broker {head.coordinator} remembers {known} of this redrive ({row_of(head.ledger)}), and {ledger.place} "
                f"has {ledger.number}: what was sent is not known. Begin in a new folder with checkTarget"
            )
        if found.sequence > ledger.number:
            raise ConfigError(self._old(ledger, found.sequence))
        if planned is None:
            return None
        try:
            done = self._commit_empty(head, planned.number)
        except StaleBatch:
            raise ConfigError(self._old(ledger, planned.number + 1)) from None
        sent = not done.decision.transaction.startswith(_EMPTY)
        ledger.end(sent=sent)
        return sent

    def _row(self, head: Head) -> TransactionRow | None:
        steps = numbered.row_of(row_of(head.ledger), head.coordinator, self._seconds, self._courier.now)
        return self._courier.drive(steps)

    def _commit_empty(self, head: Head, number: int) -> numbered.Committed:
        transaction = transaction_id(f"{_EMPTY}{SYSTEM.token()}", head.coordinator)
        return self._courier.drive(
            numbered.commit(transaction, (), row_of(head.ledger), number, self._seconds, self._courier.now)
        )

    def _old(self, ledger: Ledger, number: int) -> str:
        return (
            f"{ledger.place} is an older copy: it has {ledger.number} steps, and the broker has seen at least {number}. Going on "
            "would send messages twice; use the newest folder, or a new one with checkTarget"
        )


def row_of(ledger: str) -> str:
    """Return the name of the coordinator's row, the same as of the sink's batch writes with this `txnAppId`."""
    return f"app:{ledger}:0"
