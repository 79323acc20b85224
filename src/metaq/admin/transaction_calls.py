"""The part of `Admin` that lists and ends transactions: staged ones, and those of MetaQ 1.x clients."""

from __future__ import annotations

from metaq.admin import branches, transactions
from metaq.admin.parts import AdminPart
from metaq.model.transactions.staging import DecisionOutcome, TransactionRow


class TransactionCalls(AdminPart):
    """List, show, end and forget transactions."""

    def list_transactions(self, *, broker: str | None = None, limit: int = 1000) -> transactions.TransactionList:
        """Return `transactions`, those staged at one broker or at all, by id; `complete`: these are all; `unreached`: broker → reason.

        Listed are undecided, prepared and incompletely delivered ones, and ended ones until brokers forget them. Raises also BrokerNotFound.
        """
        return self._run(transactions.listing(self._open, broker=broker, limit=limit))

    def show_transaction(self, transaction: str) -> tuple[transactions.StagedTransaction, dict[str, str]]:
        """Return a staged transaction as all brokers know it, and broker → reason for those that could not be asked.

        Raises also TransactionNotFound; ConfigError: not the id of a transaction.
        """
        return self._run(transactions.show(self._open, transaction))

    def transaction_row(self, key: str) -> tuple[dict[str, TransactionRow], dict[str, str]]:
        """Return broker → last transaction of a numbered writer, with `sequence` and `phase`; and broker → reason of those not asked.

        Raises also TransactionNotFound; ConfigError: no key of a row.
        """
        return self._run(transactions.row(self._open, key))

    def list_transaction_rows(
        self, *, broker: str | None = None, limit: int = 1000
    ) -> tuple[dict[str, list[TransactionRow]], dict[str, str]]:
        """Return broker → its first `limit` writers' rows, and broker → reason for those that could not be asked.

        Raises also BrokerNotFound.
        """
        return self._run(transactions.rows(self._open, broker=broker, limit=limit))

    def list_branches(self, *, broker: str | None = None, limit: int = 1000) -> branches.BranchList:
        """Return the transactions of MetaQ 1.x clients, local and XA, of one broker (a name, or `host:port`), or of all.

        Returns: `branches`, by broker; `now_ms`; `unreached`: broker → why it could not be asked. Raises also BrokerNotFound.
        """
        return self._run(branches.listing(self._open, broker=broker, limit=limit))

    def end_branch(self, key: str, action: str, *, broker: str | None = None, dry_run: bool = False) -> list[str]:
        """End an XA branch by hand. Returns the names of the brokers that had it.

        Args:
            key: `XID:...`, as `list_branches` has it.
            action: `commit` or `rollback` one that is prepared; its transaction manager is told so when it comes;
                `forget` one that was ended so.
            broker: only there; None: at all.
            dry_run: only say which brokers have it.
        Raises also TransactionNotFound, BrokerNotFound.
        """
        return self._run(branches.end(self._open, key, action, broker=broker, dry_run=dry_run))

    def end_transaction(self, transaction: str, *, commit: bool) -> transactions.EndedTransaction:
        """Commit a prepared transaction, or roll back one that is not committed, and have every broker apply the decision.

        The first decision stands: if there is one already, that is applied and returned. Returns: the `decision`;
        `first`, whether it is this one; `remaining`, broker → why it has not applied all. Raises as `check_end`.
        """
        return self._run(transactions.decide(self._open, transaction, _outcome(commit)))

    def check_end(self, transaction: str, *, commit: bool) -> None:
        """Check whether there is a transaction that could be committed, or a broker that would roll it back. Nothing is changed.

        Raises also BrokerNotFound: the broker that decides it is not there; TransactionNotFound: it knows none to commit; ConfigError: not
        the id of a transaction.
        """
        self._run(transactions.check_end(self._open, transaction, _outcome(commit)))

    def forget_transaction(
        self, subject: str, *, row: bool = False, broker: str | None = None, dry_run: bool = False
    ) -> list[str]:
        """Remove a transaction's state from brokers, or with `row` a writer's row. Returns the brokers that had it.

        With `dry_run` it is only looked for, and stays.

        Raises also TransactionNotFound, BrokerNotFound; ConfigError: not the id of a transaction, or no key of a row.
        """
        return self._run(transactions.forget(self._open, subject, row=row, broker=broker, dry_run=dry_run))


def _outcome(commit: bool) -> DecisionOutcome:
    return DecisionOutcome.COMMIT if commit else DecisionOutcome.ROLLBACK
