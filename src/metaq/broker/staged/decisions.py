"""Decisions of staged transactions: checks, writer rows, transactions that are over, and automatic rollbacks.

The outcome of a transaction that is over is read from its decision's record. For the newest ones its place is kept in
memory; older ones are found in the index, as long as the log holds the record.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import UNSET, Struct

from metaq.broker.channel import Channel
from metaq.broker.environment import Environment
from metaq.broker.requests import Decide
from metaq.broker.staged.parts import Staged, Transaction
from metaq.broker.staged.records import MISSING, read_decision
from metaq.clock import Clock, SteadyTime
from metaq.errors import Reason, Refused, RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.model import properties as props
from metaq.model.topics.system import TXN_TOPIC
from metaq.model.transactions.staging import (
    DecisionOutcome,
    PartLifetime,
    Phase,
    TransactionDecision,
    TransactionRow,
    TransactionState,
    check_part,
    check_row,
    coordinator_of,
)
from metaq.wire.record import decode_record

log = logging.getLogger(__name__)

ENDED_MAX: Final = 20_000
"""Transactions that are over and kept in memory, so that no index query is needed."""
_FOREVER_MS: Final = 1 << 62
ENDED_PER_TICK: Final = 100
EXPIRY_SLACK: Final = 1000
"""Dead entries allowed in the heap before it is rebuilt."""

LISTED_MAX: Final = 1000
LISTED_PARTS_MAX: Final = 10_000
"""Parts (held here, or named by a decision) of the transactions in one response."""
ENDS: Final = {DecisionOutcome.COMMIT, DecisionOutcome.ROLLBACK}
PHASES: Final = {
    DecisionOutcome.PREPARED: Phase.PREPARED,
    DecisionOutcome.COMMIT: Phase.COMMITTED,
    DecisionOutcome.ROLLBACK: Phase.ROLLED_BACK,
}
"""Outcome → phase, of a transaction that is over or prepared."""


def decision_for(decide: Decide, prepared: TransactionDecision | None, now_ms: int) -> TransactionDecision:
    """Make the decision of a request. `prepared`: the preparation, if there was one. Raises Refused INVALID."""
    name, parts = decide.transaction, decide.parts
    if parts is None and prepared is not None:
        parts = prepared.parts
    elif parts is None and decide.outcome is not DecisionOutcome.ROLLBACK:
        raise Refused(
            Reason.INVALID, f"the transaction {name} is not prepared: a {decide.outcome.value} has to name its parts"
        )
    elif prepared is not None and decide.outcome is not DecisionOutcome.ROLLBACK and parts != prepared.parts:
        raise Refused(Reason.INVALID, f"the transaction {name} is prepared with other parts than those of the request")
    parts = parts or ()
    if len({(part.broker, part.part) for part in parts}) != len(parts):
        raise Refused(Reason.INVALID, f"the manifest of transaction {name} names a part twice")
    for part in parts:
        check_part(part.part)
    if decide.outcome is DecisionOutcome.ROLLBACK:
        # A rollback needs no matching parts and no row: it must always be possible.
        return TransactionDecision(name, decide.outcome, parts, decided_ms=now_ms)
    row, sequence = decide.row, decide.sequence
    if prepared is not None and not row:
        row, sequence = prepared.row, prepared.sequence
    if row and check_row(row) and sequence < 0:
        raise Refused(Reason.INVALID, f"the row {row} of transaction {name} needs a sequence number, not {sequence}")
    label = decide.label or (prepared.label if prepared is not None else "") or UNSET
    return TransactionDecision(name, decide.outcome, parts, row, sequence, now_ms, label)


def check_manifest(made: TransactionDecision, broker: str, transaction: Transaction | None) -> None:
    """Check this broker's parts against the manifest. Raises Refused NOT_FOUND, INVALID."""
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


def check_coordinator(transaction: str, broker: str) -> None:
    """Check that this broker is the coordinator. Raises Refused INVALID."""
    if (coordinator := coordinator_of(transaction)) != broker:
        raise Refused(
            Reason.INVALID,
            f"the transaction {transaction} is decided by the broker {coordinator}, this one is {broker}",
        )


def missing_parts(decision: TransactionDecision, broker: str, transaction: Transaction | None) -> tuple[str, ...]:
    """Return parts that the manifest names at a broker and that are missing there, or differ."""
    parts = transaction.parts if transaction is not None else {}
    here = (part for part in decision.parts if part.broker == broker)
    return tuple(named.part for named in here if (part := parts.get(named.part)) is None or not part.fits(named))


def state_of(transaction: Transaction) -> TransactionState:
    """Return the state of a transaction that is not over."""
    decision, remaining = transaction.decision, transaction.remaining
    if decision is None:
        phase = Phase.OPEN
    elif decision.outcome is DecisionOutcome.COMMIT and (remaining or transaction.unconfirmed):
        phase = Phase.COMMITTING
    else:
        phase = PHASES[decision.outcome]
    lifetime = PartLifetime.PREPARED if phase is Phase.PREPARED else transaction.lifetime
    return TransactionState(
        transaction.id,
        phase,
        decision,
        tuple(part.state(lifetime) for part in transaction.parts.values()),
        remaining,
        transaction.missing,
        transaction.unconfirmed,
    )


class Row(Struct, eq=False):
    """Last commit of a writer, as for Kafka's idempotent producers: a repeated or older one is recognised."""

    key: str
    sequence: int
    transaction: str
    place: int
    """LogOffset of that commit's decision."""


def check_named(name: str, decision: TransactionDecision) -> None:
    """Return if a request for a transaction brings its own decision. Raises Refused INVALID."""
    if decision.transaction != name:
        text = f"a request for transaction {name} brings the decision of {decision.transaction[:230]!r}"
        raise Refused(Reason.INVALID, text)


def contradiction(name: str, brought: TransactionDecision, made: TransactionDecision) -> Refused:
    """Return the refusal of a decision whose opposite is stored here."""
    return Refused(
        Reason.INVALID,
        f"the request says that transaction {name} ended with {brought.outcome.value}, and here it ended with "
        f"{made.outcome.value}: ask its coordinator",
    )


def stale(wanted: TransactionDecision, row: Row) -> Refused:
    """Return the refusal of a commit whose writer is behind its row: a second writer has taken its name over."""
    return Refused(
        Reason.STALE,
        f"the row {wanted.row} is at {row.sequence}, and transaction {wanted.transaction} is for {wanted.sequence}: "
        "another writer of the same name has gone on; roll it back",
    )


def unfinished(row: str, last: Transaction) -> Refused:
    """Return the refusal of a commit before its row's last one is delivered everywhere: the order of commits would be lost."""
    return Refused(
        Reason.BUSY,
        f"the row {row} goes on once its transaction {last.id} is finished: {last.remaining} chunks "
        f"remain here, unconfirmed: {', '.join(last.unconfirmed) or 'none'}; apply it, and try again",
    )


class Decisions:
    """Writer rows, and outcomes of transactions that are over."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self._store = environment, environment.store
        self.rows: dict[str, Row] = {}
        self._ended: dict[str, int] = {}

    # ------------------------------------------------------------------ rows

    def check_row(self, key: str) -> None:
        """Return if there is room for one more row. Raises Refused INVALID."""
        limit = self._environment.options.transaction_rows_max
        if key not in self.rows and len(self.rows) >= limit:
            raise Refused(
                Reason.INVALID,
                f"the row {key} would be one too many: {len(self.rows)} writers are remembered, the limit is {limit} "
                "(transactionRowsMax); forget some that write no more (metaq transaction forget)",
            )

    def move_row(self, decision: TransactionDecision, place: int) -> None:
        """Move a row to the sequence number of a stored commit."""
        if decision.row and decision.outcome is DecisionOutcome.COMMIT:
            before = self.rows.get(decision.row)
            # Recovery may see an older decision after a newer one, if that was rewritten.
            if before is None or before.sequence < decision.sequence:
                self.rows[decision.row] = Row(decision.row, decision.sequence, decision.transaction, place)

    def moved(self, decision: TransactionDecision, place: int) -> None:
        """Note the new place of a rewritten decision record."""
        row = self.rows.get(decision.row) if decision.row else None
        if row is not None and row.transaction == decision.transaction:
            row.place = place
        if decision.transaction in self._ended:
            self._ended[decision.transaction] = place

    # ------------------------------------------------------------------ what is over

    def ended(self, transaction: str, place: int) -> None:
        """Add a transaction that is over. `place`: LogOffset of its decision's record."""
        # Moved to the end: the oldest is dropped first.
        self._ended.pop(transaction, None)
        self._ended[transaction] = place
        if len(self._ended) > ENDED_MAX:
            # The oldest one; the index still has it.
            del self._ended[next(iter(self._ended))]

    def recent(self, transaction: str) -> TransactionDecision | None:
        """Return the decision of a transaction that is over, if it is in memory."""
        place = self._ended.get(transaction)
        return self.at(place) if place is not None else None

    def find(self, transaction: str) -> tuple[TransactionDecision, int] | None:
        """Return (commit or rollback, LogOffset of its record) of a transaction that is over; None: unknown."""
        place = self._ended.get(transaction)
        # The record may have left the log; then the index does not have it either.
        if place is not None and (decision := self.at(place)) is not None and decision.transaction == transaction:
            return decision, place
        return next(
            (
                (made, where)
                for made, where in self._by_key(transaction)
                if made.outcome is not DecisionOutcome.PREPARED
            ),
            None,
        )

    def missing_at(self, place: int) -> tuple[str, ...]:
        """Return the parts that were missing when the decision at a LogOffset was stored."""
        record = self._store.reader.outline_at(place)
        pairs = props.parse(record.properties.decode("utf-8", "replace")) if record is not None else {}
        return tuple(pairs.get(MISSING, "").split())

    def at(self, place: int) -> TransactionDecision | None:
        """Return the decision whose record begins at a LogOffset; None: there is none, or it has left the log."""
        data = self._store.reader.record_at(place) if place >= self._store.log.min else None
        try:
            record = decode_record(data) if data is not None else None
        except RemoteProtocolError:
            return None
        return read_decision(record.body) if record is not None and record.topic == TXN_TOPIC else None

    def _by_key(self, transaction: str) -> Iterator[tuple[TransactionDecision, int]]:
        for data in self._store.reader.query(
            TXN_TOPIC, transaction, self._environment.store_options.max_msgs_num_batch, 0, _FOREVER_MS
        ):
            record = decode_record(data)
            decision = read_decision(record.body)
            if decision is not None and decision.transaction == transaction:
                yield decision, record.log_offset


class Ends:
    """Automatic rollback of transactions that expire, or whose connection ends. `settle` rolls back; raises Refused: not now."""

    def __init__(self, clock: Clock, table: Staged, settle: Callable[[Transaction], None]) -> None:
        self._table, self._settle = table, settle
        self._steady = SteadyTime(clock)
        self._expiry: list[tuple[int, str]] = []
        self._due: dict[str, None] = {}
        """Transactions to be rolled back; an ordered set. Those that cannot be now are retried with the next tick."""
        self._by_channel: dict[Channel, set[str]] = {}
        self._log = RateLimitedLog(log, clock)

    def watch(self, transaction: Transaction) -> None:
        """Schedule a transaction's automatic rollback."""
        # Staged under a clock that was ahead, it would not expire for as long.
        transaction.since_ms = min(transaction.since_ms, self._steady.now_ms())
        if (expires_ms := transaction.expires_ms) is not None:
            heapq.heappush(self._expiry, (expires_ms, transaction.id))
            if len(self._expiry) > 2 * len(self._table.table) + EXPIRY_SLACK:  # most end early
                self._expiry = [(due, tx.id) for tx in self._table if (due := tx.expires_ms) is not None]
                heapq.heapify(self._expiry)
        if transaction.channel is not None:
            self._by_channel.setdefault(transaction.channel, set()).add(transaction.id)

    def soon(self, transaction: Transaction) -> None:
        """Have a transaction rolled back with the next tick."""
        self._due[transaction.id] = None

    def over(self, transaction: Transaction) -> None:
        """Drop a transaction that is over."""
        self._due.pop(transaction.id, None)
        if transaction.channel is not None and (names := self._by_channel.get(transaction.channel)) is not None:
            names.discard(transaction.id)
            if not names:
                del self._by_channel[transaction.channel]

    def closed(self, channel: Channel) -> None:
        """Roll back the transactions that were to end with this connection."""
        for name in self._by_channel.pop(channel, ()):
            self._due[name] = None
        self._end_some()

    def tick(self) -> None:
        """Roll back what has expired."""
        self._expire()
        self._end_some()
        self._log.tick()

    def _end_some(self) -> None:
        # Bounded, because a connection may end with thousands, and each rollback is a record.
        for name in list(self._due)[:ENDED_PER_TICK]:
            transaction = self._table.get(name)
            if transaction is not None and transaction.decision is None:
                try:
                    self._settle(transaction)
                except Refused as error:
                    self._log.warning("end", "staged transactions are to be rolled back: %s", error)
                    return
            self._due.pop(name, None)

    def _expire(self) -> None:
        now_ms = self._steady.now_ms()
        while self._expiry and self._expiry[0][0] <= now_ms:
            _, name = heapq.heappop(self._expiry)
            transaction = self._table.get(name)
            expires_ms = transaction.expires_ms if transaction is not None else None
            if transaction is None or expires_ms is None:
                continue
            if expires_ms > now_ms:  # a later transaction of the same id
                heapq.heappush(self._expiry, (expires_ms, name))
                continue
            self._log.warning(
                "expired", "transaction %s has staged %d bytes here, and nobody has decided it for %d s: it is rolled back",
                name, transaction.bytes, transaction.seconds,
            )  # fmt: skip
            self._due[name] = None


class StagedViews:
    """Views for tools of transactions and rows."""

    def __init__(self, table: Staged, decisions: Decisions) -> None:
        self._table, self._decisions = table, decisions

    def listing(self, after: str, count: int) -> list[TransactionState]:
        """Return transactions that are not over by id, behind `after`.

        Fewer than `count` if they have many parts. Empty: there are no more.
        """
        names = heapq.nsmallest(min(count, LISTED_MAX), (name for name in self._table.table if name > after))
        states, parts = list[TransactionState](), 0
        for name in names:
            transaction = self._table.table[name]
            parts += len(transaction.parts) + (len(transaction.decision.parts) if transaction.decision else 0)
            if states and parts > LISTED_PARTS_MAX:
                break
            states.append(state_of(transaction))
        return states

    def labelled(self) -> Iterator[TransactionDecision]:
        """Return prepared transactions with a label, such as XA branches."""
        for transaction in self._table:
            decision = transaction.decision
            if decision is not None and decision.outcome is DecisionOutcome.PREPARED and decision.label:
                yield decision

    def row(self, key: str) -> TransactionRow | None:
        """Return a writer's row; None: unknown."""
        row = self._decisions.rows.get(key)
        if row is None:
            return None
        transaction = self._table.get(row.transaction)
        # Not in the table any more: it is committed, for only commits move rows.
        phase = state_of(transaction).phase if transaction is not None else Phase.COMMITTED
        return TransactionRow(row.key, row.sequence, row.transaction, phase)

    def rows(self, after: str, count: int) -> list[TransactionRow]:
        """Return rows by key, behind `after`."""
        keys = heapq.nsmallest(min(count, LISTED_MAX), (key for key in self._decisions.rows if key > after))
        return [row for key in keys if (row := self.row(key)) is not None]
