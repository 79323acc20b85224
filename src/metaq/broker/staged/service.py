"""Staged transactions: atomic writes of many messages to many queues and brokers (docs/formats/staging.md).

Chunks of messages are staged in the log, invisible to consumers. A single decision record, at the coordinator (the
broker named in the transaction's id), commits or rolls back; the first one stands, and later requests get it as their
response. Commits are applied at once if they are small, else in bounded steps. Other brokers with parts
(participants) learn the decision from the client, from the coordinator, or by asking.

All state is derived from the log (`metaq.broker.staged.recovery`).
"""

from __future__ import annotations

import logging
from typing import Final

from msgspec import structs

from metaq.broker.channel import Channel
from metaq.broker.environment import Environment, ReadCold, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.admit import GateTable
from metaq.broker.log.appender import Appender
from metaq.broker.part import BrokerPart
from metaq.broker.requests import Apply, Decide, SealPart, Stage
from metaq.broker.staged.admission import AtOnce, ChunkAdmission, check_settling
from metaq.broker.staged.apply import AT_ONCE_BYTES, Applier, ChunkReader, DoneMarks
from metaq.broker.staged.decisions import (
    ENDS,
    PHASES,
    Decisions,
    Ends,
    StagedViews,
    check_coordinator,
    check_manifest,
    check_named,
    contradiction,
    decision_for,
    missing_parts,
    stale,
    state_of,
    unfinished,
)
from metaq.broker.staged.parts import Staged as StagedTable
from metaq.broker.staged.parts import Transaction, check_seal
from metaq.broker.staged.peers import ALONE, PeerRequests, Peers
from metaq.broker.staged.records import (
    SEAL,
    ChunkName,
    Names,
    decide_record,
    forget_record,
    life_text,
    stage_record,
)
from metaq.broker.staged.recovery import Recovery
from metaq.broker.staged.retention import Retention
from metaq.broker.transactions.checks import TURN_SECONDS
from metaq.errors import Reason, Refused
from metaq.log import RateLimitedLog
from metaq.model.access import Action, Caller
from metaq.model.transactions.staging import (
    Chunk,
    Decided,
    DecisionOutcome,
    PartLifetime,
    Phase,
    Staged,
    TransactionDecision,
    TransactionState,
    check_part,
    check_row,
    coordinator_of,
)

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.1


class StagingService(BrokerPart):
    """The staged transactions of one broker."""

    what = "staged transactions"

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        appender: Appender,
        gates: GateTable,
        read_cold: ReadCold,
        peers: Peers = ALONE,
        *,
        gatekeeper: Gatekeeper,
    ) -> None:
        self._environment, self._store, self._clock = environment, environment.store, environment.clock
        self._appender, self._gatekeeper, self._name = appender, gatekeeper, environment.name
        self._table = StagedTable(environment.options)
        self._decisions = Decisions(environment)
        views = StagedViews(self._table, self._decisions)
        self.row, self.rows, self.listing, self.labelled = views.row, views.rows, views.listing, views.labelled
        self.stopwatch = environment.clock.monotonic
        """Clock that measures turns, s."""
        self._done = DoneMarks(environment, appender, self._is_done)
        self._ends = Ends(environment.clock, self._table, self._end)
        self._log = RateLimitedLog(log, environment.clock)
        chunks = ChunkReader(environment, read_cold)
        self._applier = Applier(environment, tables.topics, appender, gates, chunks, self._done.add)
        self._admission = ChunkAdmission(environment, tables, appender, self._table, gatekeeper)
        self._peer_requests = PeerRequests(
            environment.clock, peers, self._table, self.learn, self._done.add, appender.is_kept
        )
        self._retention = Retention(
            environment, appender, self._table, self._decisions, self._applier, chunks, self._done.write
        )
        self._at_once = AtOnce(environment, appender, gates, self._admission, self._table, self._retention.added)

    def open(self) -> None:
        """Recover transactions that are not over, and go on with them."""
        recovery = Recovery(self._store, self._name, self._table, self._decisions)
        recovery.run()
        for transaction in recovery.commits:
            # Before any send is served: half-applied queues are closed in `add_first`.
            self._applier.add_first(transaction)
            if not transaction.remaining:
                self._done.add(transaction)
        for transaction in self._table:
            if transaction.final:
                self._peer_requests.remind(transaction, 0.0)
                continue
            if transaction.coordinator != self._name:
                self._peer_requests.follow(transaction, 0.0)
            if transaction.decision is None and transaction.lifetime is PartLifetime.CONNECTION:
                # Their connections ended with the previous process.
                self._ends.soon(transaction)
            self._ends.watch(transaction)
        if count := len(self._table.table):
            log.info("%d staged transactions with %d bytes in %d parts go on", count, *reversed(self.held))
        self._retention.open()
        self._store.keeper.owes(self)

    # ------------------------------------------------------------------ staging

    def stage(self, stage: Stage, caller: Caller, channel: Channel | None = None) -> Staged:
        """Store chunks, and decide if the request says so. Chunks that are stored already are skipped.

        A decided transaction takes no more chunks: the response has its decision. `channel`: the connection with which a
        transaction with Lifetime.CONNECTION ends.

        Raises Refused: INVALID (ids, chunk numbers, other content, seals, queues), NO_TOPIC, NO_PERMISSION, ILLEGAL_MESSAGE,
        BUSY (a limit), or as `Appender.put`. None or only some of the chunks are stored then; the same request can be repeated.
        Saving: topics are being created or deleted.
        """
        name = stage.transaction
        coordinator = coordinator_of(name)
        if stage.decide is not None and stage.decide.transaction != name:
            raise Refused(
                Reason.INVALID, f"a request for transaction {name} decides {stage.decide.transaction[:230]!r}"
            )
        transaction = self._table.get(name)
        decision = transaction.decision if transaction is not None else self._decisions.recent(name)
        if decision is not None and decision.outcome is not DecisionOutcome.PREPARED:
            # A repeated request whose response was lost, or a late one: answered with the decision, nothing is stored.
            return Staged(decision, first=False, remaining=transaction.remaining if transaction else 0)
        peer = caller.client
        if decision is None and transaction is None and stage.decide is not None and coordinator == self._name:
            made = self._stage_at_once(stage, stage.decide, caller, peer, channel)
            if made is not None:
                return made
        fresh = self._admission.admit(stage, transaction, caller, peer)
        if fresh:
            if decision is not None:
                raise Refused(Reason.INVALID, f"the transaction {name} is prepared: it takes no more chunks")
            if transaction is None:
                transaction = self._new(stage, coordinator, peer, channel)
            self._admission.store(stage, transaction, fresh, self._added)
        self._seal_repeated(stage, caller)
        if stage.decide is None:
            return Staged()
        decided = self.decide(stage.decide, caller)
        return Staged(decided.decision, decided.first, decided.remaining)

    def _stage_at_once(
        self, stage: Stage, decide: Decide, caller: Caller, peer: str, channel: Channel | None
    ) -> Staged | None:
        """Stage, commit and apply a transaction that comes as one request, if possible; None: take the general path."""
        # Commits that wait come first in their queues, so this one cannot be applied at once.
        if self._applier.waits:
            return None
        facts = self._at_once.judge(stage, decide, caller)
        if facts is None or self._decisions.find(stage.transaction) is not None:
            return None
        transaction = self._new(stage, self._name, peer, channel)
        try:
            self._at_once.run(stage, transaction, facts)
        finally:
            # Also after an error: what is stored has to be ended, or applied.
            if transaction.decision is None:
                if transaction.parts:
                    self._ends.watch(transaction)
            elif transaction.remaining:
                self._applier.add(transaction)
                self._applier.run(transaction, AT_ONCE_BYTES)
            else:
                self._done.add(transaction)
        return Staged(transaction.decision, first=True, remaining=transaction.remaining)

    def _new(self, stage: Stage, coordinator: str, peer: str, channel: Channel | None) -> Transaction:
        """Make a transaction for its first chunk. It is counted once that is stored."""
        seconds_max, seconds = self._environment.options.staged_seconds_max, stage.seconds
        return Transaction(
            stage.transaction,
            coordinator,
            lifetime=stage.lifetime,
            seconds=min(seconds, seconds_max) if seconds > 0 else seconds_max,
            since_ms=self._clock.now_ms(),
            peer=peer,
            channel=channel if stage.lifetime is PartLifetime.CONNECTION else None,
        )

    def _added(self, transaction: Transaction, place: int) -> None:
        """Register a transaction whose chunk was stored at this LogOffset."""
        if self._table.get(transaction.id) is None:
            self._retention.added(place, transaction.id)
            self._table.add(transaction)
            self._ends.watch(transaction)
            if transaction.coordinator != self._name:
                self._peer_requests.follow(transaction)
        elif not transaction.parts:  # its earlier parts were damaged and dropped
            self._retention.added(place, transaction.id)

    def _seal_repeated(self, stage: Stage, caller: Caller) -> None:
        """Store seals that came with chunks which were stored before without them."""
        transaction = self._table.get(stage.transaction)
        for chunk in stage.chunks:
            part = transaction.parts.get(chunk.part) if transaction else None
            if chunk.seal is not None and part is not None and part.seal != chunk.seal:
                self.seal(SealPart(transaction=stage.transaction, part=chunk.part, seal=chunk.seal), caller)

    def check(self, chunk: Chunk) -> None:
        """Check a chunk's messages alone. Raises Refused ILLEGAL_MESSAGE: they could never be staged."""
        self._admission.check(chunk)

    def seal(self, seal: SealPart, caller: Caller) -> None:
        """Seal a part. Nothing is done if the transaction is decided, or the part has this seal.

        Raises Refused: NOT_FOUND (no such part), INVALID (it holds something else), or as `Appender.put`.
        """
        coordinator_of(seal.transaction)
        check_part(seal.part)
        transaction = self._table.get(seal.transaction)
        if (transaction is not None and transaction.final) or (
            transaction is None and self._decisions.recent(seal.transaction) is not None
        ):
            return
        part = transaction.parts.get(seal.part) if transaction is not None else None
        if transaction is None or part is None:
            text = f"there is no part {seal.part} of transaction {seal.transaction} at this broker"
            raise Refused(Reason.NOT_FOUND, text)
        self._gatekeeper.check(caller, Action.PUBLISH, part.topic)
        check_seal(seal.part, seal.seal, part.holds)
        if part.seal == seal.seal:
            return
        life = life_text(transaction.lifetime, transaction.seconds)
        name = ChunkName(transaction.id, part.part, part.chunks - 1, part.counts[-1], part.topic, part.queue_id, life)
        record = stage_record(SEAL, name, seal.seal, b"{}", self._clock.now_ms(), self._environment.store_host)
        self._appender.put([record])
        part.seal = seal.seal

    # ------------------------------------------------------------------ deciding

    def decide(self, decide: Decide, caller: Caller | None) -> Decided:
        """Commit, roll back or prepare a transaction of which this broker is the coordinator. The first outcome stands.

        Args: caller: None for the broker itself: permissions were checked when the chunks were staged.

        Raises Refused: INVALID (not the coordinator, or a wrong manifest), NOT_FOUND (a part of the manifest is not here), STALE
        (the row has a higher sequence number), BUSY (the row's last transaction is not finished everywhere), NO_PERMISSION, or as
        `Appender.put`. Nothing has changed then.
        """
        name = decide.transaction
        check_coordinator(name, self._name)
        transaction = self._table.get(name)
        made = self._made(name, transaction)
        over = made is not None and made.outcome is not DecisionOutcome.PREPARED
        if made is not None and over and (made.outcome is DecisionOutcome.COMMIT or not decide.row):
            return Decided(made, first=False, remaining=transaction.remaining if transaction else 0)
        wanted = decision_for(decide, None if over else made, self._clock.now_ms())
        if caller is not None:
            self._authorise_all(caller, wanted, transaction)
        if wanted.row and (stands := self._row_stands(wanted, transaction, made)) is not None:
            return stands
        if made is not None and over:
            return Decided(made, first=False)
        if wanted.outcome is not DecisionOutcome.ROLLBACK:
            # Everything named must be here before the decision: after it, missing parts would be lost messages.
            check_manifest(wanted, self._name, transaction)
        if made is not None and wanted.outcome is DecisionOutcome.PREPARED:
            return Decided(made, first=False)
        if wanted.outcome is not DecisionOutcome.ROLLBACK:
            self._table.check_named(wanted, transaction)
            if transaction is None:
                self._table.check_count()
        return self._decide(wanted, transaction)

    def _made(self, name: str, transaction: Transaction | None) -> TransactionDecision | None:
        """Return an existing decision; of a transaction that is over, as long as the log holds it."""
        if transaction is not None and transaction.decision is not None:
            return transaction.decision
        found = self._decisions.find(name)
        if found is not None and transaction is not None:
            self._drop_late(transaction)
        return found[0] if found else None

    def _drop_late(self, transaction: Transaction) -> None:
        """Drop chunks that arrived after the transaction's end, by a late repeated request."""
        self._table.drop(transaction)
        self._ends.over(transaction)

    def _authorise_all(self, caller: Caller, wanted: TransactionDecision, transaction: Transaction | None) -> None:
        if not self._gatekeeper.trusts(caller):
            parts = [*wanted.parts, *(transaction.parts.values() if transaction else ())]
            for topic in sorted({part.topic for part in parts}):
                self._gatekeeper.check(caller, Action.PUBLISH, topic)

    def _row_stands(
        self, wanted: TransactionDecision, transaction: Transaction | None, made: TransactionDecision | None
    ) -> Decided | None:
        """Return the decision that has moved the row to this sequence number already; None: none has.

        So a writer that repeats its transaction after a crash does not write twice. Raises Refused: STALE, BUSY, INVALID.
        """
        row = self._decisions.rows.get(wanted.row)
        if row is None:
            self._decisions.check_row(wanted.row)
            return None
        last = self._table.get(row.transaction)
        if wanted.sequence == row.sequence:
            if last is not None:
                self._applier.run(last, AT_ONCE_BYTES)
            decision = last.decision if last is not None else self._decisions.at(row.place)
            if decision is None:
                decision = TransactionDecision(row.transaction, DecisionOutcome.COMMIT, (), row.key, row.sequence)
            if row.transaction == wanted.transaction:  # its own decision, which has left index and memory
                if transaction is not None:
                    self._drop_late(transaction)
            elif made is None or made.outcome is DecisionOutcome.PREPARED:  # its parts are not needed
                self._decide(
                    TransactionDecision(wanted.transaction, DecisionOutcome.ROLLBACK, decided_ms=wanted.decided_ms),
                    transaction,
                )
            return Decided(decision, first=False, remaining=last.remaining if last is not None else 0)
        if made is not None and made.outcome is DecisionOutcome.ROLLBACK:
            return None
        if wanted.sequence < row.sequence:
            raise stale(wanted, row)
        if last is not None and (last.remaining or last.unconfirmed):
            self._applier.run(last, AT_ONCE_BYTES)
            if last.remaining or last.unconfirmed:
                raise unfinished(wanted.row, last)
        return None

    def _decide(
        self, decision: TransactionDecision, transaction: Transaction | None, *, learned: bool = False
    ) -> Decided:
        """Store a decision, then act on it. Raises Refused: nothing has changed."""
        missing = missing_parts(decision, self._name, transaction) if decision.outcome is DecisionOutcome.COMMIT else ()
        now_ms, host = self._clock.now_ms(), self._environment.store_host
        # The record first, then memory and queues: whatever is done after it, a start does again from the record.
        record = decide_record(decision, now_ms, host, learned=learned, missing=missing)
        place = self._appender.put([record]).log_offset
        if decision.outcome is not DecisionOutcome.ROLLBACK:
            # A rollback is needed by nobody once it is in the log.
            self._retention.added(place, decision.transaction)
        if transaction is None:
            transaction = Transaction(decision.transaction, coordinator_of(decision.transaction))
            if decision.outcome is not DecisionOutcome.ROLLBACK:
                self._table.add(transaction)
        self._table.decided(transaction, decision, place)
        transaction.missing = missing
        if decision.outcome is DecisionOutcome.COMMIT:
            self._commit(transaction, decision, learned=learned)
        elif decision.outcome is DecisionOutcome.ROLLBACK:
            self._over(transaction)
        return Decided(decision, first=True, remaining=transaction.remaining)

    def _commit(self, transaction: Transaction, decision: TransactionDecision, *, learned: bool) -> None:
        # Parts that the manifest does not name, of reruns or given-up attempts, are dropped, not applied.
        named = {part.part: part for part in decision.parts if part.broker == self._name}
        for part_id, part in list(transaction.parts.items()):
            if part_id not in named or not part.fits(named[part_id]):
                self._table.drop_part(transaction, part_id)
        if transaction.missing:
            log.error(
                "transaction %s is committed, and its parts %s are not here: they were never staged, or are lost",
                transaction.id,
                ", ".join(transaction.missing),
            )
        if not learned:
            transaction.unconfirmed = tuple(sorted({part.broker for part in decision.parts} - {self._name}))
            self._decisions.move_row(decision, transaction.place)
            if decision.row:
                self._retention.added(transaction.place, decision.row)
            self._peer_requests.remind(transaction)
        if not transaction.parts:
            self._done.add(transaction)
        self._applier.add(transaction)
        if transaction.bytes <= AT_ONCE_BYTES:
            # Small ones in this request, so that the client's next read sees them.
            self._applier.run(transaction, AT_ONCE_BYTES)

    def _over(self, transaction: Transaction) -> None:
        """Drop a transaction that is over, and remember its outcome for repeated requests."""
        self._table.drop(transaction)
        self._ends.over(transaction)
        if transaction.place >= 0:
            self._decisions.ended(transaction.id, transaction.place)

    # ------------------------------------------------------------------ applying

    def apply(self, apply: Apply, caller: Caller) -> TransactionState:
        """Apply a commit for a bounded time, and return what remains.

        A participant gets the coordinator's decision with the request, and stores it first.

        Raises Refused: INVALID (another decision is known here), NO_PERMISSION, or as `Appender.put`.
        """
        name, decision = apply.transaction, apply.decision
        own = coordinator_of(name) == self._name
        transaction = self._table.get(name)
        if decision is not None:
            # The client brings the coordinator's decision; its permission is checked for the parts here.
            self._check_brought(name, decision, transaction, caller)
            if not own and transaction is not None and not transaction.final:
                self.learn(decision)
            elif not own and transaction is None and self._decisions.find(name) is None:
                return self._absent(decision)
        made = self._made(name, transaction)
        if decision is not None and made is not None and {made.outcome, decision.outcome} == ENDS:
            raise contradiction(name, decision, made)
        if transaction is not None and transaction.committed:
            if own and apply.confirmed and transaction.decision is not None:
                self._authorise_all(caller, transaction.decision, transaction)
                for broker in apply.confirmed:
                    self._peer_requests.confirmed(transaction, broker, ())
            self._applier.run(transaction, AT_ONCE_BYTES)
        return self.state(name)

    def _check_brought(
        self, name: str, decision: TransactionDecision, transaction: Transaction | None, caller: Caller
    ) -> None:
        check_named(name, decision)
        here = tuple(part for part in decision.parts if part.broker == self._name)
        for part in here:  # only these need permission: those of other brokers are checked there
            check_part(part.part)
        self._authorise_all(caller, structs.replace(decision, parts=here), transaction)

    def _absent(self, decision: TransactionDecision) -> TransactionState:
        """Return the state of a transaction of which this participant has no part."""
        here = tuple(part.part for part in decision.parts if part.broker == self._name)
        if decision.outcome is not DecisionOutcome.COMMIT:
            here = ()
        elif here:
            self._log.error(
                ("missing", decision.transaction), "transaction %s is committed, and its parts %s are not here: they were never "
                "staged, or are lost", decision.transaction, ", ".join(here),
            )  # fmt: skip
        return TransactionState(decision.transaction, PHASES[decision.outcome], decision, missing=here)

    def learn(self, decision: TransactionDecision) -> None:
        """Store the coordinator's decision, and act on it. Raises Refused: it cannot be stored now."""
        transaction = self._table.get(decision.transaction)
        if transaction is None or transaction.final or transaction.coordinator == self._name:
            return
        if self._decisions.find(decision.transaction) is not None:
            self._drop_late(transaction)
            return
        if decision.outcome is DecisionOutcome.PREPARED and transaction.decision is not None:
            return
        self._decide(decision, transaction, learned=True)

    def _is_done(self, transaction: Transaction) -> None:
        """Note a stored DONE record. If all participants have confirmed, the transaction is over."""
        transaction.applied = True
        if not transaction.unconfirmed:
            self._over(transaction)
            return
        for part in list(transaction.parts):
            # Applied: only the decision is needed, for participants that have not confirmed.
            self._table.drop_part(transaction, part)

    # ------------------------------------------------------------------ ends that nobody asks for

    def settle(self, name: str, caller: Caller | None = None) -> Decided:
        """Roll back a transaction unless it is decided or prepared: on behalf of participants, and after it has expired.

        Args: caller: None for the broker itself. Raises Refused: INVALID (not the coordinator), or as `check_settling`, `Appender.put`.
        """
        check_coordinator(name, self._name)
        transaction = self._table.get(name)
        check_settling(self._gatekeeper, caller, transaction)
        made = self._made(name, transaction)
        if made is not None:
            return Decided(made, first=False, remaining=transaction.remaining if transaction else 0)
        # Also for an unknown id: the stored rollback makes sure that no late commit of it succeeds.
        return self._decide(
            TransactionDecision(name, DecisionOutcome.ROLLBACK, decided_ms=self._clock.now_ms()), transaction
        )

    def _end(self, transaction: Transaction) -> None:
        """Roll back a transaction, or ask its coordinator to."""
        if transaction.coordinator == self._name:
            self.settle(transaction.id)
        else:
            self._peer_requests.settle(transaction)

    def closed(self, channel: Channel) -> None:
        """Roll back the transactions that were to end with this connection."""
        self._ends.closed(channel)

    # ------------------------------------------------------------------ questions

    def state(self, name: str) -> TransactionState:
        """Return what is known of a transaction. Raises Refused INVALID: malformed id."""
        coordinator_of(name)
        transaction = self._table.get(name)
        if transaction is None or transaction.decision is None:
            found = self._decisions.find(name)
            if found is None:
                return TransactionState(name, Phase.UNKNOWN) if transaction is None else state_of(transaction)
            if transaction is not None:
                self._drop_late(transaction)
            decision, place = found
            return TransactionState(name, PHASES[decision.outcome], decision, missing=self._decisions.missing_at(place))
        return state_of(transaction)

    @property
    def held(self) -> tuple[int, int]:
        """(parts, bytes) of transactions that are not over."""
        return self._table.parts, self._table.bytes

    def forget(self, name: str) -> None:
        """Drop a row (by its key), or what this broker has of a transaction (by its id), for an administrator.

        Raises Refused: NOT_FOUND, INVALID (committed messages of it are not applied yet), or as `Appender.put`.
        """
        # Ids of transactions contain @ and the coordinator's name; rows do not.
        if "@" not in name:
            if check_row(name) not in self._decisions.rows:
                raise Refused(Reason.NOT_FOUND, f"there is no row {name}")
            self._appender.put([forget_record(Names(row=name), self._clock.now_ms(), self._environment.store_host)])
            del self._decisions.rows[name]
            return
        transaction = self._table.get(name)
        if transaction is None:
            raise Refused(Reason.NOT_FOUND, f"there is nothing of transaction {name[:230]} that could be forgotten")
        if transaction.remaining:
            text = f"transaction {name} is committed, and {transaction.remaining} chunks of it remain to be applied"
            raise Refused(Reason.INVALID, text)
        self._appender.put([forget_record(Names(transaction=name), self._clock.now_ms(), self._environment.store_host)])
        self._done.drop(name)
        log.warning("an administrator has dropped what was staged of transaction %s: %d bytes", name, transaction.bytes)
        transaction.unconfirmed = ()
        if not transaction.final:
            transaction.place = -1
        self._over(transaction)

    # ------------------------------------------------------------------ what is owed

    def oldest(self) -> int | None:
        """Return the LogOffset of the oldest record that is needed, which retention must keep; None: none. From any thread."""
        return self._retention.oldest()

    def carry(self, before: int) -> None:
        """Have needed records below this LogOffset rewritten, so that retention can delete the file. From any thread."""
        self._retention.carry(before)

    # ------------------------------------------------------------------ time

    def step(self) -> float:
        """Apply and rewrite for at most TURN_SECONDS. Returns the seconds until the next call; 0: soon."""
        stop = self.stopwatch() + TURN_SECONDS

        def more_time() -> bool:
            return self.stopwatch() < stop

        done = self._applier.step(more_time) if self._applier.waits else False
        done = self._retention.step(more_time) or done
        return 0.0 if done else PAUSE_SECONDS

    def tick(self) -> None:
        """Write DONE records, roll back what has expired, ask peers, and write checkpoints."""
        self._done.tick()
        self._ends.tick()
        self._peer_requests.tick()
        self._retention.tick()
        self._applier.tick()
        self._log.tick()

    def checkpoint_within(self, seconds: float) -> None:
        """Shorten the interval of checkpoints to `seconds` (MetaQ 1.x's checkpointInterval)."""
        self._retention.checkpoint_within(seconds)

    def close(self) -> None:
        """Write DONE records and a checkpoint, so that a start has little to read."""
        self._done.write()
        if self._retention.changed:
            try:
                self._retention.checkpoint()
            except Refused as error:
                log.warning("no checkpoint of staged transactions: %s; the next start reads more of the log", error)
