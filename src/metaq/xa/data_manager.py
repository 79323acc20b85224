"""A data manager for the `transaction` package (Zope's): its transactions carry ours.

That package asks all data managers in turn and keeps no log; ours has one. So all systems that must agree belong into one data
manager; others in the same transaction are asked beside it.
"""

from __future__ import annotations

from typing import Any

from metaq.xa.coordinator import OPEN, PREPARED, Coordinator, GlobalTransaction


class DataManager:
    """Joins a transaction of the `transaction` package with one of a coordinator. Made by `join`.

    `global_transaction` is the coordinator's, `transaction_manager` that of the package, which calls the methods.
    """

    def __init__(self, transaction: GlobalTransaction, manager: Any, key: str) -> None:
        self.global_transaction, self.transaction_manager, self._key = transaction, manager, key

    def abort(self, transaction: object) -> None:  # noqa: ARG002
        """Roll back: the transaction is given up before its commit."""
        self.global_transaction.rollback()

    def tpc_begin(self, transaction: object) -> None:
        """Take note that a commit begins: nothing is to be done."""

    def commit(self, transaction: object) -> None:
        """The work is ready to be prepared: that waits until all data managers have come so far."""

    def tpc_vote(self, transaction: object) -> None:  # noqa: ARG002
        """Prepare all branches. Raises TransactionFailed."""
        self.global_transaction.prepare()

    def tpc_finish(self, transaction: object) -> None:  # noqa: ARG002
        """Decide, and commit all branches. Raises TransactionFailed: the decision could not be written."""
        self.global_transaction.commit()

    def tpc_abort(self, transaction: object) -> None:  # noqa: ARG002
        """Roll back, because some data manager cannot commit; past the decision nothing can be taken back."""
        # Past its decision nothing can be taken back: whoever else has failed is at odds with it.
        if self.global_transaction.state in {OPEN, PREPARED}:
            self.global_transaction.rollback()

    def sortKey(self) -> str:  # noqa: N802  the package's name
        """Return a key that sorts first: what decides durably finishes before what does not."""
        return self._key


def join(coordinator: Coordinator, manager: Any = None) -> GlobalTransaction:
    """Return the coordinator's transaction within the present one of the `transaction` package, to enlist resources in.

    Args: manager: a transaction manager; None: `transaction.manager`, the thread's.
    Raises as `Coordinator.transaction`; ImportError: the package is not installed.
    """
    if manager is None:
        import transaction  # the extra xa

        manager = transaction.manager
    present = manager.get()
    found = present.data(coordinator) if _has_data(present, coordinator) else None
    if found is not None and found.state == OPEN:
        return found  # type: ignore[no-any-return]
    made = coordinator.transaction()
    present.join(DataManager(made, manager, f"!metaq.xa:{coordinator.id}"))
    present.set_data(coordinator, made)
    return made


def _has_data(present: Any, key: object) -> bool:
    try:
        present.data(key)
    except KeyError:
        return False
    return True
