"""Protocol of a staged transaction across its brokers, with recovery from lost responses. No I/O.

    STAGE, SEAL        at every broker that has messages of it, side by side, each broker's in order
    DECIDE             at the coordinator: commit (or that it is prepared) with the manifest of all parts
    APPLY              at every broker where something remains, side by side

If all messages are for the coordinator, the last STAGE carries the decision: small transactions need one request.

Every request is idempotent, so it is repeated until the time is over. Only a decision in a broker's response counts:
after a lost response of DECIDE, the outcome is queried before DECIDE is repeated, and a transaction that cannot be
completed is rolled back by a decision too, to which the response may be that an earlier request has committed it. If the
outcome cannot be found out, `Ending` is UNKNOWN.

The conversations are generators. They yield an `Ask` (send in its outcome, or throw its MetaqError), a `Oneway` or a
`Sleep` (send in anything when it is done) or `SideBySide` (send in the result or the MetaqError of each).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct, structs

from metaq.client.conversation.call import FAULTS, Call
from metaq.client.conversation.retry import Patience, Purpose, judge
from metaq.client.conversation.staged.parts import Parts
from metaq.client.conversation.staged.staging import Apply, Decide, GetTransaction, SealPart, Stage
from metaq.errors import BadRequest, BrokerError, MetaqError, RequestTimeout
from metaq.model.transactions.staging import Chunk, DecisionOutcome, Phase, TransactionDecision, coordinator_of
from metaq.wire.staging import DecideBody

ROLLBACK_SECONDS: Final = 3.0
"""Time for rolling back a transaction that cannot be completed, s. Its parts expire in any case."""
DELIVERY_SECONDS: Final = 3.0
"""Time for brokers to apply a commit, s. They go on by themselves afterwards; it is committed in any case."""
NOTICE_SECONDS: Final = 1.0
"""Time for notifying a participant of a rollback, s. It asks the coordinator in any case."""
REMAINING_PAUSE: Final = 0.02
"""Pause between two APPLY requests to a broker that makes no progress, s."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Ask(Struct, Generic[T_co], frozen=True):
    """Step: send the call to the master of that name, with this time-out."""

    broker: str
    call: Call[T_co]
    seconds: float


class Oneway(Struct, frozen=True):
    """Step: send the call one-way to the master of that name; it may be lost."""

    broker: str
    call: Call[Any]


class Sleep(Struct, frozen=True):
    """Step: wait for some seconds."""

    seconds: float


class SideBySide(Struct, frozen=True):
    """A step: run all these at the same time. The conversation is sent, by the same names, what they returned or
    raised."""

    by_broker: Mapping[str, Steps[Any]]


Step = Ask[Any] | Oneway | Sleep | SideBySide
Steps = Generator[Step, Any, T]


class Standing(enum.Enum):
    """State of a transaction at the end of a conversation."""

    COMMITTED = "committed"
    PREPARED = "prepared"
    ROLLED_BACK = "rolled back"
    OPEN = "open"
    """No commit was sent, and the rollback is unconfirmed: nothing will be delivered."""
    UNKNOWN = "unknown"
    """A commit or prepare was sent, and its outcome is unknown."""


class Ending(Struct, frozen=True):
    """Result of a conversation about a transaction."""

    standing: Standing
    decision: TransactionDecision | None = None
    why: MetaqError | None = None
    """Error because of which the wanted outcome was not reached."""
    delivered: bool = False
    """Whether all brokers have reported that all messages are in their queues."""
    missing: tuple[str, ...] = ()
    """Parts that a broker has lost after it had acknowledged them."""


class Verdict(Struct, frozen=True):
    """Result of a DECIDE. `error` and the fields behind it are set only if there is no decision."""

    decision: TransactionDecision | None = None
    remaining: int = 0
    error: MetaqError | None = None
    refused: bool = False
    maybe_sent: bool = False


class AtomicSteps:
    """The conversations of one transaction. Run them one after the other, except for `overflow` at different brokers."""

    def __init__(
        self, transaction: str, parts: Parts, *, born_ms: Callable[[], int], expire_after: int, now: Callable[[], float]
    ) -> None:
        """
        Args:
            expire_after: whole seconds until brokers roll back what is undecided.
            now: a clock that runs evenly.
        """
        self.transaction, self.parts = transaction, parts
        self.coordinator = coordinator_of(transaction)
        self._born_ms, self._expire_after, self._now = born_ms, expire_after, now
        self._touched: set[str] = set()
        """Brokers that may have parts of it."""
        self._maybe_sent: set[DecisionOutcome] = set()
        """Decisions that may have reached the coordinator."""
        self._prepared = False

    # -------------------------------------------------------------- while the block runs

    def overflow(self, broker: str, seconds: float) -> Steps[None]:
        """Stage one request's worth of chunks at `broker`. Raises a final refusal, or the last error."""
        chunks = self.parts.take(broker)
        return self._staging(broker, [self._stage(chunks)], self._now() + seconds)

    def _stage(self, chunks: tuple[Chunk, ...], decide: DecideBody | None = None) -> Stage:
        return Stage(
            transaction=self.transaction,
            chunks=chunks,
            born_ms=self._born_ms(),
            expire_after=self._expire_after,
            decide=decide,
        )

    def _staging(self, broker: str, calls: Iterable[Call[Any]], until: float) -> Steps[None]:
        """Stage the requests of one broker one after the other."""
        # In order: a broker refuses a chunk that leaves a gap.
        for call in calls:
            patience = Patience(Purpose.STAGED, until - self._now(), self._now())
            while True:
                try:
                    yield in_time(broker, call, until - self._now())
                except FAULTS as error:
                    self._failed(broker, error)
                    yield Sleep(patience.pause(error, self._now()))
                else:
                    self._touched.add(broker)
                    break

    def _failed(self, broker: str, error: MetaqError) -> None:
        """Note whether parts may be stored at a broker although it answered with an error: of several chunks, a busy or
        full broker may have stored some."""
        if judge(error, Purpose.STAGED).maybe_done or (isinstance(error, BrokerError) and error.retriable):
            self._touched.add(broker)

    # -------------------------------------------------------------- the end

    def finish(self, outcome: DecisionOutcome, seconds: float) -> Steps[Ending]:
        """Commit or prepare: stage and seal the rest, decide, apply.

        The ending says what became of it; nothing that brokers answer is raised.
        """
        until = self._now() + seconds
        brokers = self.parts.brokers
        calls: dict[str, list[Call[Any]]] = {}
        for broker in brokers:
            stages = [self._stage(chunks) for chunks in self.parts.rest(broker)]
            seals = [SealPart(self.transaction, one.part, one.seal) for one in self.parts.unsealed(broker)]
            # Seals of parts whose last chunk has gone before; the others' seals are in `stages`.
            calls[broker] = [*seals, *stages]
        decide = DecideBody(outcome, self.parts.manifest())
        deciding: Stage | Decide = Decide(self.transaction, decide)
        own = calls.get(self.coordinator)
        # One broker has everything: the decision goes with the last chunks, in one request.
        if len(brokers) == 1 and own and isinstance(last := own[-1], Stage):
            own.pop()
            deciding = structs.replace(last, decide=decide)
        by_broker = {broker: self._staging(broker, some, until) for broker, some in calls.items() if some}
        answers = (yield SideBySide(by_broker)) if by_broker else {}
        for error in answers.values():
            if isinstance(error, MetaqError):
                return (yield from self.give_up(error))
        verdict = yield from self._deciding(deciding, until)
        if verdict.decision is not None:
            return (yield from self._decided(verdict.decision, verdict.remaining, until))
        assert verdict.error is not None
        # The commit may be stored: a rollback now could be too late, and would hide that.
        if outcome is DecisionOutcome.COMMIT and verdict.maybe_sent and not verdict.refused:
            return Ending(Standing.UNKNOWN, why=verdict.error)
        return (yield from self.give_up(verdict.error))

    def commit_prepared(self, seconds: float) -> Steps[Ending]:
        """Commit what `finish` has prepared."""
        until = self._now() + seconds
        verdict = yield from self._deciding(
            Decide(self.transaction, DecideBody(DecisionOutcome.COMMIT, self.parts.manifest())), until
        )
        if verdict.decision is not None:
            return (yield from self._decided(verdict.decision, verdict.remaining, until))
        # No rollback here: what is prepared waits for its decision.
        return Ending(Standing.UNKNOWN if verdict.maybe_sent else Standing.PREPARED, why=verdict.error)

    def roll_back(self, seconds: float) -> Steps[Ending]:
        """Roll back. No request is sent if no broker can have parts."""
        if not self._touched:
            return Ending(Standing.ROLLED_BACK)
        until = self._now() + seconds
        verdict = yield from self._deciding(Decide(self.transaction, DecideBody(DecisionOutcome.ROLLBACK)), until)
        if verdict.decision is not None:
            return (yield from self._decided(verdict.decision, verdict.remaining, until))
        # The coordinator was not reached. What we know depends on what it may have got before.
        standing = Standing.PREPARED if self._prepared else Standing.OPEN
        if DecisionOutcome.COMMIT in self._maybe_sent or (
            DecisionOutcome.PREPARED in self._maybe_sent and not self._prepared
        ):
            standing = Standing.UNKNOWN
        return Ending(standing, why=verdict.error)

    def give_up(self, error: MetaqError) -> Steps[Ending]:
        """Roll back a transaction that cannot be completed. The response may be that it was committed before."""
        ending = yield from self.roll_back(ROLLBACK_SECONDS)
        return ending if ending.standing is Standing.COMMITTED else structs.replace(ending, why=error)

    # -------------------------------------------------------------- the decision

    def _deciding(self, call: Stage | Decide, until: float) -> Steps[Verdict]:
        verdict = yield from decided_by(self.coordinator, self.transaction, call, until, self._now)
        if verdict.maybe_sent or verdict.decision is not None:
            assert call.decide is not None
            self._maybe_sent.add(call.decide.outcome)
            self._touched.add(self.coordinator)
        if verdict.error is not None and isinstance(call, Stage):
            self._failed(self.coordinator, verdict.error)
        return verdict

    def _decided(self, decision: TransactionDecision, remaining: int, until: float) -> Steps[Ending]:
        if decision.outcome is DecisionOutcome.PREPARED:
            self._prepared = True
            return Ending(Standing.PREPARED, decision)
        if decision.outcome is DecisionOutcome.ROLLBACK:
            yield from self._tell_rollback(decision)
            return Ending(Standing.ROLLED_BACK, decision)
        return (yield from delivering(decision, remaining, until, self._now))

    def _tell_rollback(self, decision: TransactionDecision) -> Steps[None]:
        """Notify participants of a rollback, so that they drop their parts at once instead of asking later."""

        def notify(broker: str) -> Steps[None]:
            yield in_time(broker, Apply(self.transaction, decision), NOTICE_SECONDS)

        # Not only brokers that have acknowledged chunks: a busy or full one may have stored some.
        by_broker = {broker: notify(broker) for broker in sorted(self._touched - {self.coordinator})}
        if by_broker:
            yield SideBySide(by_broker)


def delivering(decision: TransactionDecision, remaining: int, until: float, now: Callable[[], float]) -> Steps[Ending]:
    """Have all brokers apply a commit, and report those that have to the coordinator.

    For at most DELIVERY_SECONDS. `remaining`: what the coordinator said with the decision.
    """
    transaction, coordinator = decision.transaction, coordinator_of(decision.transaction)
    until = min(until, now() + DELIVERY_SECONDS)
    by_broker = {
        broker: _applying(broker, decision, until, now)
        for broker in dict.fromkeys(part.broker for part in decision.parts)
        # The coordinator applies what it can with its decision; often nothing remains.
        if broker != coordinator or remaining
    }
    answers = (yield SideBySide(by_broker)) if by_broker else {}
    confirmed = tuple(broker for broker, answer in answers.items() if answer == () and broker != coordinator)
    if confirmed:  # Else the coordinator asks them, later.
        yield Oneway(coordinator, Apply(transaction, None, coordinator, confirmed))
    missing = tuple(part for answer in answers.values() if isinstance(answer, tuple) for part in answer)
    delivered = not missing and all(isinstance(answer, tuple) for answer in answers.values())
    return Ending(Standing.COMMITTED, decision, delivered=delivered, missing=missing)


def _applying(
    broker: str, decision: TransactionDecision, until: float, now: Callable[[], float]
) -> Steps[tuple[str, ...]]:
    """Apply the decision at `broker` until nothing remains. Returns the parts that it misses.

    Raises the last fault when the time is over.
    """
    own = broker == coordinator_of(decision.transaction)
    # The coordinator has the decision in its log.
    call = Apply(decision.transaction, None if own else decision)
    patience = Patience(Purpose.STAGED, until - now(), now())
    remaining = -1
    while True:
        try:
            state = yield in_time(broker, call, until - now())
        except FAULTS as error:
            yield Sleep(patience.pause(error, now()))
            continue
        if state.missing or not state.remaining:
            return tuple(state.missing)
        # No progress: asking at once would only keep the broker busy.
        if state.remaining == remaining:
            yield Sleep(REMAINING_PAUSE)
        remaining = state.remaining


def in_time(broker: str, call: Call[T], left: float) -> Ask[T]:
    """Make an `Ask` with the call's time-out, `left` seconds at most. Raises RequestTimeout, `sent` False: no time is left."""
    if left <= 0:
        late = RequestTimeout(f"the time given was over before broker {broker} was asked to {call.action}")
        late.sent = False
        raise late
    return Ask(broker, structs.replace(call, broker=broker), min(left, call.seconds))


def decided_by(
    coordinator: str,
    transaction: str,
    call: Stage | Decide,
    until: float,
    now: Callable[[], float],
) -> Steps[Verdict]:
    """Ask for a decision until there is one, the coordinator refuses, or the time is over. After a lost answer the
    outcome is looked up; the request is repeated only while there is none."""
    wanted = call.decide
    assert wanted is not None
    failed, maybe_sent = 0, False
    while True:
        try:
            if maybe_sent:
                # A look-up before the request is repeated: the answer with the decision may be the one that was lost.
                state = yield in_time(coordinator, GetTransaction(transaction), until - now())
                if (found := state.decision) is not None and found.outcome in {
                    DecisionOutcome.COMMIT, DecisionOutcome.ROLLBACK, wanted.outcome,
                }:  # fmt: skip
                    return Verdict(found, state.remaining)
            answer = yield in_time(coordinator, call, until - now())
            if answer.decision is None:
                raise BadRequest(f"broker {coordinator} answered without a decision on transaction {transaction}")
            return Verdict(answer.decision, answer.remaining)
        except FAULTS as error:
            failed += 1
            judgement = judge(error, Purpose.STAGED, failed)
            maybe_sent = maybe_sent or judgement.maybe_done
            if not judgement.again:
                return Verdict(error=error, refused=True, maybe_sent=maybe_sent)
            if now() + judgement.pause > until:
                return Verdict(error=error, maybe_sent=maybe_sent)
        yield Sleep(judgement.pause)


def settled(transaction: str, *, commit: bool, seconds: float, now: Callable[[], float]) -> Steps[Ending]:
    """Decide a transaction by its id: to commit it, it must be prepared. The first decision stands, and is the ending's.

    Raises: the coordinator's refusal; the last fault, when the time is over.
    """
    outcome = DecisionOutcome.COMMIT if commit else DecisionOutcome.ROLLBACK
    verdict = yield from decided_by(
        coordinator_of(transaction), transaction, Decide(transaction, DecideBody(outcome)), now() + seconds, now
    )
    if verdict.decision is None:
        assert verdict.error is not None
        raise verdict.error
    ended = Standing.COMMITTED if verdict.decision.outcome is DecisionOutcome.COMMIT else Standing.ROLLED_BACK
    return Ending(ended, verdict.decision)


def outcome_of(transaction: str, seconds: float, now: Callable[[], float]) -> Steps[Phase]:
    """Ask the coordinator for a transaction's state. Raises the last error."""
    until = now() + seconds
    patience = Patience(Purpose.LOOK_UP, seconds, now())
    while True:
        call = GetTransaction(transaction)
        try:
            state = yield in_time(coordinator_of(transaction), call, until - now())
        except FAULTS as error:
            yield Sleep(patience.pause(error, now()))
        else:
            phase: Phase = state.phase
            return phase
