"""MetaQ 1.x transactions, local and XA, on top of staged transactions (docs/formats/staging.md); there is no second store.

Messages are buffered in memory and in staged chunks, invisible to consumers. A one-phase commit stages the rest and
decides in one request. PREPARE stages everything and decides PREPARED, labelled with the XA key; from then on the branch
is in the log alone and waits for its transaction manager without limit. A *branch* here is a transaction of either kind.

A step that fails before the preparation ends the transaction: the client gets the error, and it is rolled back.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Final

from metaq.broker.channel import Channel
from metaq.broker.environment import Environment
from metaq.broker.log.acks import AckPolicy, Due, later
from metaq.broker.metaq1.branch_staging import BranchStaging
from metaq.broker.metaq1.gathering import Branch, Counts, Entries, GatheredPart, Memory, entry_of
from metaq.broker.metaq1.leading import Leading
from metaq.broker.metaq1.pair.branches import BranchCopies
from metaq.broker.metaq1.pair.commits import WholeCommits
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.metaq1.xa_by_hand import PHASE_BY_HAND, EndedByHand, ended_by_hand, named_key, prepared_state
from metaq.broker.part import BrokerPart
from metaq.broker.requests import Decide
from metaq.broker.staged.service import StagingService
from metaq.errors import BadRequest, Reason, Refused
from metaq.log import RateLimitedLog
from metaq.model.metaq1.pair import PartitionSync, SyncMessage
from metaq.model.metaq1.partition import ANY_PARTITION, PartitionPut, PartitionStored
from metaq.model.transactions.metaq1 import (
    KEY_CHARS_MAX,
    BranchKey,
    BranchPhase,
    BranchRefused,
    BranchState,
    Ended,
    Fault,
    LocalKey,
    TransactionKey,
    Vote,
    transaction_key,
)
from metaq.model.transactions.staging import Chunk, DecisionOutcome, Phase, TransactionDecision, transaction_id
from metaq.saved import Pending, Saving

log = logging.getLogger(__name__)

PENDING_POSITION: Final = -1
"""Position in the response to a put in a transaction, as in the original."""
FLUSH_SECONDS: Final = 1.0
LISTED_MAX: Final = 1000
_RETRIABLE: Final = {Reason.BUSY, Reason.THROTTLED, Reason.NOT_LEADING, Reason.NOT_STORED, Reason.UNAVAILABLE}

Delivered = Callable[[str, int, int, int], None]
"""Callback (topic, partition, end LogOffset, messages) for committed messages: `PartitionAcks.stored`."""


class Metaq1Transactions(BrokerPart):
    """The MetaQ 1.x transactions of one broker, local and XA."""

    def __init__(
        self,
        environment: Environment,
        staging: StagingService,
        acks: AckPolicy,
        entries: Entries,
        delivered: Delivered,
        settings: Metaq1Settings,
        leading: Leading,
    ) -> None:
        self._environment, self._store, self._clock = environment, environment.store, environment.clock
        self._staging, self._acks, self._options = staging, acks, settings.options
        self._entries, self._delivered, self._leading = entries, delivered, leading
        self._local: dict[Channel, dict[TransactionKey, Branch]] = {}
        self._open: dict[TransactionKey, Branch] = {}
        """XA branches before PREPARE."""
        self._prepared: dict[TransactionKey, str] = {}
        """XA key of a prepared branch → id of its staged transaction."""
        self._by_hand = EndedByHand(staging, self._new_id)
        self._due: dict[str, DecisionOutcome] = {}
        """Staged transactions to be ended, which could not be written yet → outcome; retried with every tick."""
        self._memory = Memory(lambda: environment.options.peer_bytes_max)
        self._branch_staging = BranchStaging(staging, self._memory, environment.clock, environment.name)
        self._counts, self._timed = Counts(), 0
        self._timers: list[tuple[float, int, Branch]] = []
        self._numbers = itertools.count()
        self._run = f"{environment.clock.now_ms():x}-{environment.clock.token()[:8]}"
        """Part of the ids of this run's staged transactions: clients use a key again after its transaction's end."""
        self._flush_at, self._decided_end = 0.0, 0
        self._log = RateLimitedLog(log, environment.clock)
        self.whole: WholeCommits | None = None
        """Set at the master of a pair."""
        self.copies: BranchCopies | None = None
        """Set at the master of a pair: the slave's copies of XA branches."""
        self.begun = self.begun_xa = self.committed = self.rolled_back = 0
        """Counters for `stats`."""

    def open(self) -> None:
        """Recover prepared branches, and those ended by hand, from the staged transactions."""
        for decision in self._staging.labelled():
            label = str(decision.label)
            ended, _, text = label.rpartition(" ")
            try:
                key = transaction_key(text)
            except BadRequest:
                continue  # a preparation of another kind of client
            if ended:
                self._by_hand.found(key, ended, decision)
            else:
                self._prepared[key] = decision.transaction
        for key, outcome, _ in self._by_hand.items():
            if (name := self._prepared.pop(key, None)) is not None:  # a crash came between the two records
                self._due[name] = outcome
        if self._prepared:
            log.info("%d XA branches are prepared and wait for their transaction managers", len(self._prepared))

    # ------------------------------------------------------------------ beginning

    def begin(self, key: TransactionKey | None, seconds: int, channel: Channel) -> None:
        """Begin a transaction. One that is open or prepared stays as it is: the original answers a repeated BEGIN with 200.

        Args:
            seconds: time until rollback, unless it is prepared, s. 0 or less: a local one ends with its connection, an XA branch
                after `stagedSecondsMax`.

        Raises Refused: INVALID, BUSY (too many are open).
        """
        key = self._checked(key)
        local = isinstance(key, LocalKey)
        if self._find_open(key, channel) is not None or key in self._prepared:
            return
        self._by_hand.check(key)
        limit = self._environment.options.staged_parts_max
        self._counts.check_transactions(limit, channel, local=local)
        timed = seconds > 0
        # Only those with a time-out count: the limit is one of timers.
        if timed and self._timed >= self._options.max_tx_timeout_timer_capacity:
            raise Refused(
                Reason.BUSY,
                f"{self._timed} transactions with a time-out are open, the limit is "
                f"{self._options.max_tx_timeout_timer_capacity} (maxTxTimeoutTimerCapacity)",
            )
        if timed:
            seconds = min(seconds, self._options.max_tx_timeout_in_seconds)
        elif not local:
            seconds = self._environment.options.staged_seconds_max
        branch = Branch(key, self._new_id("tx" if local else "xa"), channel, local, self._clock.now_ms(), timed=timed)
        if seconds > 0:
            branch.deadline = self._clock.monotonic() + seconds
            # The number breaks ties: branches cannot be compared.
            heapq.heappush(self._timers, (branch.deadline, next(self._numbers), branch))
        table = self._local.setdefault(channel, {}) if local else self._open
        table[key] = branch
        self._counts.add(branch, 1, 0)
        self._timed += timed
        if local:
            self.begun += 1
        else:
            self.begun_xa += 1

    def _checked(self, key: TransactionKey | None) -> TransactionKey:
        self._leading.check(key)
        if key is None:
            raise Refused(Reason.NOT_FOUND, "Local transaction 'null' has not been started.")
        if len(text := str(key)) > KEY_CHARS_MAX:
            what = f"the key of a transaction has {len(text)} characters, the limit is {KEY_CHARS_MAX}: {text[:60]}..."
            raise BranchRefused(Fault.INVALID, what)
        return key

    def _new_id(self, kind: str) -> str:
        return transaction_id(f"{kind}-{self._run}-{next(self._numbers)}", self._environment.name)

    def _find_open(self, key: TransactionKey, channel: Channel) -> Branch | None:
        if isinstance(key, LocalKey):
            return self._local.get(channel, {}).get(key)
        return self._open.get(key)

    def _must_be_open(self, key: TransactionKey, channel: Channel) -> Branch:
        branch = self._find_open(key, channel)
        if branch is not None:
            return branch
        if isinstance(key, LocalKey):
            raise Refused(Reason.NOT_FOUND, f"Local transaction '{key}' has not been started.")
        self._by_hand.check(key)
        if key in self._prepared:
            raise BranchRefused(Fault.PROTOCOL, f"XA transaction '{key}' is prepared: it takes no more messages.")
        raise BranchRefused(Fault.NOT_KNOWN, f"XA transaction '{key}' has not been started.")

    # ------------------------------------------------------------------ putting

    def put(self, key: TransactionKey | None, put: PartitionPut | PartitionSync, channel: Channel) -> PartitionStored:
        """Put a message into a transaction. The response has its id, and no position yet.

        Raises Refused: no such transaction, partition -1, or as a put without a transaction; Saving. The transaction is unchanged
        then.
        """
        branch = self._must_be_open(self._checked(key), channel)
        if put.partition == ANY_PARTITION:
            raise Refused(Reason.INVALID, f"Invalid partition for transaction command:{ANY_PARTITION}")
        entry = self._entries.entry(put, channel.caller)
        data = entry_of(entry, self._environment.options.broker_cluster_name)
        place = entry.topic, entry.queue_id
        known = branch.parts.get(place)
        part = known or GatheredPart(f"p{len(branch.parts)}", *place)
        self._staging.check(
            # Now, and not at the commit: a message that can never be staged must fail its own put, not the transaction.
            Chunk(part=part.part, number=0, topic=part.topic, queue_id=part.queue_id, body=data, of_partition=True)
        )
        if known is None:
            self._counts.check_parts(self._environment.options.staged_parts_max, branch)
        # One BORNHOST for the whole transaction: its chunks are staged together.
        branch.born_host = branch.born_host or put.born_host
        self._branch_staging.make_room(branch, part, len(data), self._local.get(branch.channel, {}).values())
        if known is None:
            branch.parts[place] = part
            self._counts.add(branch, 0, 1)
        part.data += data
        part.data_rows += 1
        self._memory.add(branch, len(data))
        if self.copies is not None and not branch.local:
            message = SyncMessage(put.topic, entry.queue_id, put.flag, entry.message_id, put.body, put.checksum)
            self.copies.put(str(branch.key), message)
        return PartitionStored(entry.message_id, entry.queue_id, PENDING_POSITION, self._store.log.end)

    # ------------------------------------------------------------------ deciding

    def _decide(self, branch: Branch, outcome: DecisionOutcome) -> None:
        """Stage the rest, seal the parts, and decide. Raises Refused; Saving: it can be repeated."""
        decision = self._branch_staging.decide(branch, outcome)
        if outcome is DecisionOutcome.COMMIT:
            self._are_delivered(decision)
        self._is_stored()

    def _are_delivered(self, decision: TransactionDecision) -> None:
        """Count the messages as puts, so that the response waits for the flush as theirs would (unflushThreshold)."""
        for part in decision.parts:
            self._delivered(part.topic, part.queue_id, self._store.log.end, part.seal.rows)

    # ------------------------------------------------------------------ preparing

    def is_prepared(self, key: TransactionKey) -> bool:
        """Return whether a branch is prepared, and not ended."""
        return key in self._prepared

    def prepare(self, key: TransactionKey | None, channel: Channel) -> Ended:
        """Prepare a branch (XA phase 1): all of it is in the log, and survives a restart. Without messages it ends (XA_RDONLY).

        Raises BranchRefused: CANNOT (local transaction), NOT_KNOWN, PROTOCOL, ROLLED_BACK; Saving.
        """
        key = self._checked(key)
        if isinstance(key, LocalKey):
            raise BranchRefused(Fault.CANNOT, "Prepare not implemented on Local Transactions.")
        if key in self._prepared:
            raise BranchRefused(Fault.PROTOCOL, "Cannot call prepare now.")
        branch = self._must_be_open(key, channel)
        if not branch.parts:
            self._forget_open(branch)
            return Ended(stored=False, vote=Vote.READ_ONLY)
        copy = self.copies.prepare(str(key)) if self.copies is not None else None
        if copy is not None:
            raise Saving(copy, then=lambda: self._prepare(key, channel, copy.why))
        return self._prepare(key, channel)

    def _prepare(self, key: TransactionKey, channel: Channel, why: str = "") -> Ended:
        """Prepare a branch here, once the slave of a pair has. Args: why: it has not."""
        branch = self._must_be_open(key, channel)
        if why:
            self._roll_back_open(branch)
            raise BranchRefused(Fault.ROLLED_BACK, f"XA transaction '{key}' is rolled back: {why}")
        try:
            self._decide(branch, DecisionOutcome.PREPARED)
        except Refused as error:
            self._roll_back_open(branch)
            raise BranchRefused(Fault.ROLLED_BACK, f"XA transaction '{key}' is rolled back: {error}") from error
        self._forget_open(branch)
        self._prepared[key] = branch.id
        return Ended(stored=True)

    # ------------------------------------------------------------------ committing

    def commit(self, key: TransactionKey | None, channel: Channel, *, one_phase: bool) -> Ended:
        """Commit: an open transaction in one phase, a prepared branch in its second.

        Raises Refused; of a branch BranchRefused: NOT_KNOWN, PROTOCOL, ROLLED_BACK, RETRY, COMMITTED_BY_HAND,
        ROLLED_BACK_BY_HAND; Saving.
        """
        key = self._checked(key)
        if key in self._prepared:
            return self._end_prepared(key, DecisionOutcome.COMMIT)
        branch = self._must_be_open(key, channel)
        if not (branch.local or one_phase):
            raise BranchRefused(Fault.PROTOCOL, "Cannot do 2 phase commit if the transaction has not been prepared.")
        if not branch.parts:
            self._forget_open(branch)
            self.committed += 1
            return Ended(stored=False)
        try:
            self._decide(branch, DecisionOutcome.COMMIT)
        except Refused as error:
            self._roll_back_open(branch)
            if branch.local:
                raise Refused(error.reason, f"Local transaction '{key}' is rolled back: {error}") from error
            raise BranchRefused(Fault.ROLLED_BACK, f"XA transaction '{key}' is rolled back: {error}") from error
        self._forget_open(branch)
        self.committed += 1
        return self._committed(key, branch.id)

    def _committed(self, key: TransactionKey, name: str) -> Ended:
        ended = Ended(stored=True)
        pending = self._when_whole(key, name)
        if pending is not None:
            raise Saving(pending, then=lambda: ended)
        return ended

    def _when_whole(self, key: TransactionKey, name: str) -> Pending | None:
        """End the copy of a committed branch when all of its messages are there. Returns what ends then; None: they are."""
        if self.whole is None:
            return None
        return self.whole.when_whole(name, lambda: self._copy_ends(key, DecisionOutcome.COMMIT))

    def _end_prepared(self, key: TransactionKey, outcome: DecisionOutcome) -> Ended:
        """End a prepared branch (XA phase 2)."""
        name = self._prepared[key]
        phase = self._staging.state(name).phase
        if phase is Phase.UNKNOWN:  # an operator has forgotten it, as a staged transaction
            del self._prepared[key]
            # Not an error of ours: tools for staged transactions can drop any of them.
            raise BranchRefused(Fault.NOT_KNOWN, f"XA transaction '{key}' has not been started.")
        try:
            decided = self._staging.decide(Decide(transaction=name, outcome=outcome), None)
        except Refused as error:
            # RETRY (XA_RETRY): the transaction manager commits again later.
            fault = (
                Fault.RETRY if outcome is DecisionOutcome.COMMIT and error.reason in _RETRIABLE else Fault.UNAVAILABLE
            )
            raise BranchRefused(fault, f"XA transaction '{key}' stays prepared: {error}") from error
        del self._prepared[key]
        self._is_stored()
        if decided.decision.outcome is DecisionOutcome.ROLLBACK:
            self._copy_ends(key, DecisionOutcome.ROLLBACK)
        if decided.decision.outcome is not outcome:  # an operator has ended it, as a staged transaction
            raise ended_by_hand(key, decided.decision.outcome)
        if outcome is DecisionOutcome.COMMIT:
            self._are_delivered(decided.decision)
        self._counted(outcome)
        return self._committed(key, name) if outcome is DecisionOutcome.COMMIT else Ended(stored=True)

    def _copy_ends(self, key: TransactionKey, outcome: DecisionOutcome) -> None:
        if self.copies is not None and not isinstance(key, LocalKey):
            self.copies.ended(str(key), committed=outcome is DecisionOutcome.COMMIT)

    def _counted(self, outcome: DecisionOutcome) -> None:
        if outcome is DecisionOutcome.COMMIT:
            self.committed += 1
        else:
            self.rolled_back += 1

    # ------------------------------------------------------------------ rolling back

    def rollback(self, key: TransactionKey | None, channel: Channel) -> Ended:
        """Roll back an open transaction or a prepared branch.

        Raises Refused; of a branch BranchRefused: NOT_KNOWN, UNAVAILABLE, COMMITTED_BY_HAND, ROLLED_BACK_BY_HAND.
        """
        key = self._checked(key)
        if key in self._prepared:
            return self._end_prepared(key, DecisionOutcome.ROLLBACK)
        return Ended(stored=self._roll_back_open(self._must_be_open(key, channel)))

    def _roll_back_open(self, branch: Branch) -> bool:
        """Roll back. Returns whether the rollback is in the log; without that, a restart rolls back what it finds."""
        self._forget_open(branch)
        self.rolled_back += 1
        self._copy_ends(branch.key, DecisionOutcome.ROLLBACK)
        if not branch.staged:
            # Nothing of it is in the log.
            return False
        self._due[branch.id] = DecisionOutcome.ROLLBACK
        self._end_due()
        return branch.id not in self._due

    def _forget_open(self, branch: Branch) -> None:
        table = self._local.get(branch.channel, {}) if branch.local else self._open
        del table[branch.key]
        if branch.local and not table:
            del self._local[branch.channel]
        self._gone(branch)

    def _gone(self, branch: Branch) -> None:
        self._counts.add(branch, -1, -len(branch.parts))
        self._timed -= branch.timed
        # Its timer stays in the heap and is passed over by this.
        branch.deadline = None
        self._memory.add(branch, -branch.held)

    def _end_due(self) -> None:
        for name, outcome in list(self._due.items()):
            try:
                if self._staging.state(name).phase is not Phase.UNKNOWN:
                    self._staging.decide(Decide(transaction=name, outcome=outcome), None)
                    self._is_stored()
            except Refused as error:
                self._log.warning("due", "transactions of 1.x clients are to be ended: %s", error)
                return
            del self._due[name]

    def closed(self, channel: Channel) -> None:
        """Roll back the local transactions of a closed connection. The staging service does so with their staged chunks."""
        for branch in self._local.pop(channel, {}).values():
            self._gone(branch)
            self.rolled_back += 1

    # ------------------------------------------------------------------ recovery

    def recover(self, qualifier: str | None) -> list[BranchKey]:
        """Return the keys of branches that a transaction manager has to end or forget (RECOVER); `qualifier` None: all."""
        self._look_after()
        keys = (key for key in (*self._prepared, *self._by_hand) if isinstance(key, BranchKey))
        return [key for key in keys if qualifier is None or key.qualifier == qualifier]

    def _look_after(self) -> None:
        """Drop branches whose staged transaction was ended with the tools for staged transactions. Raises Refused: a slave has none."""
        self._leading.check()
        there = {decision.transaction for decision in self._staging.labelled()}
        for key, name in list(self._prepared.items()):
            if name not in there:
                del self._prepared[key]
        self._by_hand.keep_only(there)

    def forget(self, key: TransactionKey | None) -> Ended:
        """Forget a branch's heuristic outcome (FORGET). An unknown key is answered with success, as by the original.

        Raises BranchRefused: NOT_KNOWN (not an XA key), UNAVAILABLE.
        """
        self._leading.check(key)
        if not isinstance(key, BranchKey):
            raise BranchRefused(Fault.NOT_KNOWN, f"{key or 'null'} is not a valid xid")
        if key not in self._by_hand:
            return Ended(stored=False)
        try:
            self._by_hand.forget(key)
        except Refused as error:
            raise BranchRefused(Fault.UNAVAILABLE, f"XA transaction '{key}' is not forgotten: {error}") from error
        self._is_stored()
        return Ended(stored=True)

    # ------------------------------------------------------------------ by hand

    def end_by_hand(self, text: str, outcome: DecisionOutcome) -> None:
        """Commit or roll back a prepared branch for an operator. The outcome is kept until FORGET.

        Raises Refused: INVALID (no key), NOT_FOUND (no such branch is prepared), or as `Appender.put`.
        """
        key = named_key(text)
        self._look_after()
        self._by_hand.check(key)
        name = self._prepared.get(key)
        if name is None:
            raise Refused(Reason.NOT_FOUND, f"no XA transaction {text[:200]} is prepared (metaq meta1 tx list)")
        # The outcome first, then the end: after a crash in between, the start ends the branch. The other way round
        # the transaction manager would get "unknown" for a branch that was committed by hand.
        self._by_hand.remember(key, outcome)
        del self._prepared[key]
        self._due[name] = outcome
        self._is_stored()
        log.warning(
            "an operator has %s the XA transaction %s",
            "committed" if outcome is DecisionOutcome.COMMIT else "rolled back",
            key,
        )
        self._counted(outcome)
        self._end_due()
        if outcome is DecisionOutcome.COMMIT:
            self._when_whole(key, name)
        else:
            self._copy_ends(key, outcome)

    def forget_by_hand(self, text: str) -> None:
        """Forget a branch that was ended by hand, for an operator. Raises Refused: INVALID, NOT_FOUND, UNAVAILABLE."""
        key = named_key(text)
        if key not in self._by_hand:
            raise Refused(Reason.NOT_FOUND, f"no XA transaction {text[:200]} was ended by hand (metaq meta1 tx list)")
        self.forget(key)

    def listing(self, after: str = "", count: int = LISTED_MAX) -> list[BranchState]:
        """Return open transactions and prepared branches by staged transaction id, behind `after`."""
        self._look_after()
        found: dict[str, Branch | tuple[TransactionKey, BranchPhase]] = {
            branch.id: branch for branch in self._all_open()
        }
        found.update((name, (key, BranchPhase.PREPARED)) for key, name in self._prepared.items())
        found.update((name, (key, PHASE_BY_HAND[outcome])) for key, outcome, name in self._by_hand.items())
        names = heapq.nsmallest(min(count, LISTED_MAX), (name for name in found if name > after))
        return [self._state(name, found[name]) for name in names]

    def _state(self, name: str, what: Branch | tuple[TransactionKey, BranchPhase]) -> BranchState:
        if isinstance(what, Branch):
            return what.state
        key, phase = what
        return prepared_state(str(key), phase, self._staging.state(name))

    def _all_open(self) -> Iterator[Branch]:
        for table in self._local.values():
            yield from table.values()
        yield from self._open.values()

    # ------------------------------------------------------------------ what answers wait for

    def due(self) -> Due | None:
        """Return the condition for responses to stored steps (flushTxLogAtCommit); None: respond at once."""
        due = self._acks.due()
        if self._options.flush_tx_log_at_commit == 1 and self._store.state.flushed < self._decided_end:
            return later(due, Due(self._decided_end, 0, promised=True))
        return due

    def _is_stored(self) -> None:
        self._decided_end = self._store.log.end

    # ------------------------------------------------------------------ time

    def tick(self) -> None:
        """Roll back what has timed out, retry ends, and flush once a second with flushTxLogAtCommit=2."""
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, branch = heapq.heappop(self._timers)
            if branch.deadline is not None:
                log.info("the transaction %s has taken too long: it is rolled back", branch.key)
                self._roll_back_open(branch)
        if len(self._timers) > 2 * self._counts.all.transactions + 1000:  # most have ended before their timers
            self._timers = [timer for timer in self._timers if timer[2].deadline is not None]
            heapq.heapify(self._timers)
        self._end_due()
        if self.whole is not None:
            self.whole.tick()
        # Called with every tick, because a reload may change checkpointInterval.
        self._staging.checkpoint_within(self._options.checkpoint_interval / 1000)
        if self._options.flush_tx_log_at_commit == 2 and now >= self._flush_at:
            self._flush_at = now + FLUSH_SECONDS
            if self._decided_end:
                # No response waits, and the store logs a failed flush.
                self._store.flusher.when_flushed(self._decided_end, lambda _good: None)
                self._decided_end = 0
        self._log.tick()
