"""What was decided: rows of writers, and transactions that are over.

A transaction that is over is known by its decision's record. The newest of them are remembered by its place; older ones are
found in the index, as long as the log holds the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from metaq.broker.environment import Environment
from metaq.broker.staged.records import MISSING, read_decision
from metaq.errors import Reason, Refused, RemoteProtocolError
from metaq.model import properties as props
from metaq.model.topics.system import TXN_TOPIC
from metaq.model.transactions.staging import Decision, Outcome
from metaq.wire.record import decode_record

ENDED_MAX: Final = 20_000
"""Transactions that are over, and known without a look at the index."""
_FOREVER_MS: Final = 1 << 62


class Row(Struct, eq=False):
    """What is remembered of a writer."""

    key: str
    sequence: int
    transaction: str
    place: int
    """LogOffset of the decision that moved it."""


class Decisions:
    """Rows, and what is over."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self._store = environment, environment.store
        self.rows: dict[str, Row] = {}
        self._ended: dict[str, int] = {}

    # ------------------------------------------------------------------ rows

    def check_row(self, key: str) -> None:
        """Raises Refused: one row more is too many."""
        limit = self._environment.options.transaction_rows_max
        if key not in self.rows and len(self.rows) >= limit:
            raise Refused(
                Reason.INVALID,
                f"the row {key} would be one too many: {len(self.rows)} writers are remembered, the limit is {limit} "
                "(transactionRowsMax); forget some that write no more (metaq transaction forget)",
            )

    def move_row(self, decision: Decision, place: int) -> None:
        """A commit was stored that moves a row on."""
        if decision.row and decision.outcome is Outcome.COMMIT:
            before = self.rows.get(decision.row)
            if before is None or before.sequence < decision.sequence:
                self.rows[decision.row] = Row(decision.row, decision.sequence, decision.transaction, place)

    def moved(self, decision: Decision, place: int) -> None:
        """The decision's record was written anew."""
        row = self.rows.get(decision.row) if decision.row else None
        if row is not None and row.transaction == decision.transaction:
            row.place = place
        if decision.transaction in self._ended:
            self._ended[decision.transaction] = place

    # ------------------------------------------------------------------ what is over

    def ended(self, transaction: str, place: int) -> None:
        """Nothing is left to do for it. `place`: LogOffset of its decision's record."""
        self._ended.pop(transaction, None)
        self._ended[transaction] = place
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def recent(self, transaction: str) -> Decision | None:
        """The decision of a transaction that is over, if it is one of the newest."""
        place = self._ended.get(transaction)
        return self.at(place) if place is not None else None

    def find(self, transaction: str) -> tuple[Decision, int] | None:
        """The commit or rollback of a transaction that is over, and its record's LogOffset; None: nothing is known."""
        place = self._ended.get(transaction)
        if place is not None and (decision := self.at(place)) is not None and decision.transaction == transaction:
            return decision, place
        return next(
            ((made, where) for made, where in self._by_key(transaction) if made.outcome is not Outcome.PREPARED), None
        )

    def missing_at(self, place: int) -> tuple[str, ...]:
        """The parts that were missing when the decision at a LogOffset was learned."""
        record = self._store.outline_at(place)
        pairs = props.parse(record.properties.decode("utf-8", "replace")) if record is not None else {}
        return tuple(pairs.get(MISSING, "").split())

    def at(self, place: int) -> Decision | None:
        """The decision whose record begins at a LogOffset; None: there is none, or no more."""
        data = self._store.record_at(place) if place >= self._store.min_log else None
        try:
            record = decode_record(data) if data is not None else None
        except RemoteProtocolError:
            return None
        return read_decision(record.body) if record is not None and record.topic == TXN_TOPIC else None

    def _by_key(self, transaction: str) -> Iterator[tuple[Decision, int]]:
        for data in self._store.query(
            TXN_TOPIC, transaction, self._environment.store_options.max_msgs_num_batch, 0, _FOREVER_MS
        ):
            record = decode_record(data)
            decision = read_decision(record.body)
            if decision is not None and decision.transaction == transaction:
                yield decision, record.log_offset
