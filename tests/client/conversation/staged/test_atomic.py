"""A transaction on its way through its brokers: whatever is lost, what the client says of it at the end is true."""

from __future__ import annotations

import enum
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from metaq.client.conversation.staged.atomic import (
    ROLLBACK_SECONDS,
    Ask,
    AtomicSteps,
    Ending,
    Oneway,
    SideBySide,
    Sleep,
    Standing,
    outcome_of,
    settled,
)
from metaq.client.conversation.staged.parts import Parts
from metaq.client.conversation.staged.staging import Apply, Decide, GetTransaction, SealPart, Stage
from metaq.errors import BrokerError, ConnectionFailed, MetaqError, NoRoute, RequestTimeout
from metaq.model import MessageQueue
from metaq.model.transactions.staging import (
    Decided,
    DecisionOutcome,
    PartSeal,
    Phase,
    Staged,
    TransactionDecision,
    TransactionState,
    chunk_crc,
    part_crc,
)
from metaq.wire.codes import ResponseCode
from metaq.wire.record import decode_batch
from tests.effort import repeats

T = "4711@a"
SECONDS = 3
"""Of the world's time, which tests own."""
COMMIT, ROLLBACK, PREPARED = DecisionOutcome.COMMIT, DecisionOutcome.ROLLBACK, DecisionOutcome.PREPARED


def refused(code: int = ResponseCode.NO_PERMISSION) -> BrokerError:
    return BrokerError(code, "no", "peer", "try")


class ModelBroker:
    """What docs/formats/staging.md says that a broker does with these requests, without a log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parts: dict[str, tuple[list, PartSeal | None]] = {}
        self.decision: TransactionDecision | None = None
        self.applied: list[str] = []
        self.owes = 0

    @property
    def decided(self) -> bool:
        return self.decision is not None and self.decision.outcome is not PREPARED

    def answer(self, call):
        """The outcome of a call. Raises BrokerError."""
        assert call.broker == self.name
        if isinstance(call, Stage):
            return self.stage(call)
        if isinstance(call, SealPart):
            return self.seal(call.part, call.seal)
        if isinstance(call, Decide):
            return self.decide(call.decide)
        if isinstance(call, Apply):
            return self.apply(call.decision)
        assert isinstance(call, GetTransaction)
        return self.state()

    def stage(self, call: Stage) -> Staged:
        if self.decided:
            return Staged(self.decision, False, self.owes)
        for chunk in call.chunks:
            kept, _ = self.parts.setdefault(chunk.part, ([], None))
            if chunk.number > len(kept) or (chunk.number < len(kept) and kept[chunk.number] != chunk.body):
                raise refused(ResponseCode.MESSAGE_ILLEGAL)
            if chunk.number == len(kept):
                kept.append(chunk.body)
            if chunk.seal is not None:
                self.seal(chunk.part, chunk.seal)
        if call.decide is None:
            return Staged()
        decided = self.decide(call.decide)
        return Staged(decided.decision, decided.first, decided.remaining)

    def seal(self, part: str, seal: PartSeal) -> None:
        if self.decided:
            return
        kept, _ = self.parts.get(part, ([], None))
        crc = 0
        for body in kept:
            crc = part_crc(crc, chunk_crc(body))
        found = PartSeal(len(kept), sum(len(decode_batch(body)) for body in kept), sum(map(len, kept)), crc)
        if found != seal:
            raise refused(ResponseCode.MESSAGE_ILLEGAL)
        self.parts[part] = kept, seal

    def decide(self, wanted) -> Decided:
        if self.decided:
            return Decided(self.decision, False, self.owes)
        parts = wanted.parts
        if parts is None:
            parts = self.decision.parts if self.decision is not None else ()
            if wanted.outcome is not ROLLBACK and self.decision is None:
                raise refused(ResponseCode.MESSAGE_ILLEGAL)
        self.check(parts, wanted.outcome)
        self.decision = TransactionDecision(T, wanted.outcome, parts)
        self.owes = 2 if wanted.outcome is COMMIT and len(self.parts) > 1 else 0
        self.expand()
        return Decided(self.decision, True, self.owes)

    def check(self, parts, outcome) -> None:
        for part in parts:
            if (
                part.broker == self.name
                and outcome is not ROLLBACK
                and self.parts.get(part.part, ((), None))[1] != part.seal
            ):
                raise refused(ResponseCode.MESSAGE_ILLEGAL)

    def apply(self, decision: TransactionDecision | None) -> TransactionState:
        if decision is not None and not self.decided:
            self.check(decision.parts, decision.outcome)
            self.decision, self.owes = decision, 1
        if self.owes:
            self.owes -= 1
        self.expand()
        return self.state()

    def expand(self) -> None:
        if self.decided and not self.owes:
            self.applied = sorted(self.parts) if self.decision.outcome is COMMIT else []

    def state(self) -> TransactionState:
        if self.decision is None:
            return TransactionState(T, Phase.OPEN if self.parts else Phase.UNKNOWN)
        phase = {
            COMMIT: Phase.COMMITTING if self.owes else Phase.COMMITTED, ROLLBACK: Phase.ROLLED_BACK, PREPARED: Phase.PREPARED,
        }[self.decision.outcome]  # fmt: skip
        return TransactionState(T, phase, self.decision, remaining=self.owes)


class Fate(enum.Enum):
    """Of one request."""

    ANSWERED = enum.auto()
    NOT_SENT = enum.auto()
    LOST = enum.auto()
    ANSWER_LOST = enum.auto()
    LATE = enum.auto()
    """It arrives when everybody has given it up."""
    BUSY = enum.auto()
    PROMISE_MISSED = enum.auto()
    FAILED = enum.auto()
    """Done, and answered with a general error."""
    REFUSED = enum.auto()
    DIED = enum.auto()
    """Nothing gets there any more."""


class Settling(Struct, frozen=True):
    """Before that request, somebody else decides."""

    outcome: DecisionOutcome


class World:
    """Brokers, the ways to them, and the time."""

    def __init__(self, brokers: str = "abc", fates=()) -> None:
        self.brokers = {name: ModelBroker(name) for name in brokers}
        self.now = 100.0
        self.asked: list = []
        self.told: list = []
        self.fates = iter(fates)
        self.late: list = []
        self.dead: set[str] = set()
        self.lost_commits = 0

    def answer(self, ask: Ask):
        self.asked.append((ask.broker, type(ask.call).__name__))
        broker = self.brokers[ask.broker]
        self.now += 0.001
        fate = next(self.fates, Fate.ANSWERED)
        if isinstance(fate, Settling):
            coordinator = self.brokers[T[-1]]
            if not coordinator.decided:
                coordinator.decision = TransactionDecision(
                    T, fate.outcome, () if coordinator.decision is None else coordinator.decision.parts
                )
            fate = Fate.ANSWERED
        if fate is Fate.DIED:
            self.dead.add(ask.broker)
        if ask.broker in self.dead:
            raise NoRoute("no master is up")
        if fate is Fate.BUSY:
            raise refused(ResponseCode.SYSTEM_BUSY)
        if fate is Fate.REFUSED:
            raise refused()
        if fate is Fate.NOT_SENT:
            error = ConnectionFailed("nobody listens")
            error.sent = False
            raise error
        if fate in {Fate.LATE, Fate.LOST}:
            self.now += ask.seconds
            if fate is Fate.LATE:
                self.late.append((broker, ask.call))
            raise RequestTimeout("no answer")
        value = broker.answer(ask.call)
        if fate is Fate.ANSWER_LOST:
            raise ConnectionFailed("broke")
        if fate is Fate.PROMISE_MISSED:
            raise refused(ResponseCode.FLUSH_DISK_TIMEOUT)
        if fate is Fate.FAILED:
            raise refused(ResponseCode.SYSTEM_ERROR)
        return value

    def drive(self, steps, choose=lambda names: names[0]):
        """The result of a conversation. Raises what it raises."""
        value, error = None, None
        while True:
            try:
                step = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration as end:
                return end.value
            value, error = None, None
            if isinstance(step, Oneway):
                self.told.append((step.broker, step.call.confirmed))
            elif isinstance(step, Sleep):
                self.now += step.seconds
            elif isinstance(step, SideBySide):
                value = self.together(dict(step.by_broker), choose)
            else:
                try:
                    value = self.answer(step)
                except MetaqError as fault:
                    error = fault

    def together(self, by_broker, choose):
        """Their steps in any order."""
        results, under_way = {}, {name: self.one_by_one(one) for name, one in by_broker.items()}
        while under_way:
            name = choose(sorted(under_way))
            try:
                next(under_way[name])
            except StopIteration as end:
                results[name] = end.value
                del under_way[name]
            except MetaqError as error:
                results[name] = error
                del under_way[name]
        return results

    def one_by_one(self, one):
        value, error = None, None
        while True:
            try:
                step = one.throw(error) if error is not None else one.send(value)
            except StopIteration as end:
                return end.value
            value, error = None, None
            assert not isinstance(step, SideBySide)
            if isinstance(step, Sleep):
                self.now += step.seconds
            else:
                try:
                    value = self.answer(step)
                except MetaqError as fault:
                    error = fault
            yield

    def arrive_late(self) -> None:
        for broker, call in self.late:
            try:
                broker.answer(call)
            except BrokerError:
                continue


def steps_of(world: World, messages, chunk_bytes: int = 300) -> AtomicSteps:
    count = itertools.count()
    parts = Parts(lambda: b"%028X" % next(count), chunk_bytes)
    for broker, queue in messages:
        parts.add(MessageQueue("orders", broker, queue), 0, b"x" * 50, b"")
    return AtomicSteps(T, parts, born_ms=lambda: 1700, expire_after=60, now=lambda: world.now)


# -------------------------------------------------------------- nothing is lost


def test_a_small_transaction_of_one_broker_is_one_request():
    """Chunks, seals and the decision together; nothing remains, so nothing more is asked."""
    world = World()
    ending = world.drive(steps_of(world, [("a", 0), ("a", 0)]).finish(COMMIT, 10))
    assert (ending.standing, ending.delivered, ending.why, ending.missing) == (Standing.COMMITTED, True, None, ())
    assert world.asked == [("a", "Stage")]
    assert world.brokers["a"].applied == ["p0"]


def test_what_remains_after_the_decision_is_applied_until_nothing_does():
    world = World()
    ending = world.drive(steps_of(world, [("a", 0), ("a", 1)]).finish(COMMIT, 10))
    assert (ending.standing, ending.delivered) == (Standing.COMMITTED, True)
    assert world.asked == [("a", "Stage"), ("a", "Apply"), ("a", "Apply")]


def test_several_brokers_stage_then_the_coordinator_decides_then_all_apply():
    """The coordinator has no part of it here: it decides all the same."""
    world = World()
    ending = world.drive(steps_of(world, [("b", 0), ("c", 0)]).finish(COMMIT, 10))
    assert (ending.standing, ending.delivered) == (Standing.COMMITTED, True)
    assert world.asked == [("b", "Stage"), ("c", "Stage"), ("a", "Decide"), ("b", "Apply"), ("c", "Apply")]
    assert [world.brokers[name].applied for name in "bc"] == [["p0"], ["p1"]]
    assert world.told == [("a", ("b", "c"))], "the coordinator need not ask them"


def test_what_overflowed_is_sealed_at_the_end():
    """A part whose last chunk went out without a seal gets it in a request of its own, and all of it is in the manifest."""
    world = World()
    steps = steps_of(world, [("a", 0)] * 5)
    world.drive(steps.overflow("a", 10))
    assert world.drive(steps.finish(COMMIT, 10)).standing is Standing.COMMITTED
    assert world.asked == [("a", "Stage"), ("a", "SealPart"), ("a", "Decide")]
    [part] = world.brokers["a"].decision.parts
    assert (part.seal.rows, part.seal.chunks) == (5, 3)


def test_prepared_then_committed():
    world = World()
    steps = steps_of(world, [("a", 0), ("b", 0)])
    assert world.drive(steps.finish(PREPARED, 10)).standing is Standing.PREPARED
    assert world.asked == [("a", "Stage"), ("b", "Stage"), ("a", "Decide")]
    assert world.drive(outcome_of(T, 3, lambda: world.now)) is Phase.PREPARED
    ending = world.drive(steps.commit_prepared(10))
    assert (ending.standing, ending.delivered) == (Standing.COMMITTED, True)
    assert world.asked[4:] == [("a", "Decide"), ("b", "Apply")]


@pytest.mark.parametrize("commit", [True, False])
def test_prepared_is_settled_by_its_id(commit):
    """By anybody, without the manifest; and the first decision stands."""
    world = World()
    world.drive(steps_of(world, [("a", 0), ("b", 0)]).finish(PREPARED, 10))
    wanted = Standing.COMMITTED if commit else Standing.ROLLED_BACK
    for again in (commit, not commit):
        ending = world.drive(settled(T, commit=again, seconds=SECONDS, now=lambda: world.now))
        assert ending.standing is wanted


def test_what_is_not_prepared_is_not_committed_by_its_id():
    """Its coordinator does not know what it is made of."""
    world = World()
    world.drive(steps_of(world, [("a", 0)] * 9).overflow("a", 3))
    with pytest.raises(BrokerError):
        world.drive(settled(T, commit=True, seconds=SECONDS, now=lambda: world.now))
    assert (
        world.drive(settled(T, commit=False, seconds=SECONDS, now=lambda: world.now)).standing is Standing.ROLLED_BACK
    )
    assert world.drive(outcome_of(T, 3, lambda: world.now)) is Phase.ROLLED_BACK


def test_rolling_back_asks_only_those_who_may_know_of_it():
    """Nobody, before anything was staged; then the coordinator, and participants hear of it."""
    world = World()
    steps = steps_of(world, [("b", 0)] * 5)
    assert world.drive(steps.roll_back(3)) == Ending(Standing.ROLLED_BACK)
    assert world.asked == []
    world.drive(steps.overflow("b", 3))
    assert world.drive(steps.roll_back(3)).standing is Standing.ROLLED_BACK
    assert world.asked == [("b", "Stage"), ("a", "Decide"), ("b", "Apply")]
    assert world.brokers["b"].decision.outcome is ROLLBACK


# -------------------------------------------------------------- answers are lost


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.PROMISE_MISSED])
def test_after_a_lost_answer_of_the_decision_the_outcome_is_asked_for(fate):
    """And is found: the decision is not sent again."""
    world = World(fates=[fate])
    ending = world.drive(steps_of(world, [("a", 0)]).finish(COMMIT, 10))
    assert (ending.standing, ending.delivered) == (Standing.COMMITTED, True)
    assert world.asked == [("a", "Stage"), ("a", "GetTransaction")]


def test_a_decision_that_did_not_arrive_is_sent_again():
    world = World(fates=[Fate.LOST])
    ending = world.drive(steps_of(world, [("a", 0)]).finish(COMMIT, 30))
    assert ending.standing is Standing.COMMITTED
    assert world.asked == [("a", "Stage"), ("a", "GetTransaction"), ("a", "Stage")]


def test_a_commit_whose_fate_nobody_can_tell_is_unknown():
    """It may have been decided; the error of the last try is kept."""
    world = World(fates=[Fate.LATE, *[Fate.NOT_SENT] * 99])
    ending = world.drive(steps_of(world, [("a", 0)]).finish(COMMIT, 30))
    assert (ending.standing, ending.decision) == (Standing.UNKNOWN, None)
    assert isinstance(ending.why, ConnectionFailed)
    world.arrive_late()
    world.fates = iter(())
    assert world.drive(settled(T, commit=False, seconds=SECONDS, now=lambda: world.now)).standing is Standing.COMMITTED


def test_a_commit_that_never_left_is_open_and_cannot_be_committed_any_more():
    world = World(fates=[Fate.NOT_SENT] * 99)
    steps = steps_of(world, [("a", 0)])
    assert world.drive(steps.finish(COMMIT, 10)).standing is Standing.ROLLED_BACK, "nobody has anything of it"
    world = World(fates=[Fate.ANSWERED, Fate.ANSWERED, *[Fate.NOT_SENT] * 99])
    ending = world.drive(steps_of(world, [("a", 0), ("b", 0)]).finish(COMMIT, 10))
    assert ending.standing is Standing.OPEN
    assert isinstance(ending.why, ConnectionFailed)


def test_a_preparation_whose_answer_is_lost_for_good_is_rolled_back_or_unknown():
    """It would wait for ever: who has asked for it is told what is known."""
    world = World(fates=[Fate.ANSWER_LOST, *[Fate.NOT_SENT] * 9])
    steps = steps_of(world, [("a", 0)])
    assert world.drive(steps.finish(PREPARED, 1)).standing is Standing.ROLLED_BACK
    world = World(fates=[Fate.ANSWER_LOST, *[Fate.NOT_SENT] * 99])
    steps = steps_of(world, [("a", 0)])
    ending = world.drive(steps.finish(PREPARED, 1))
    assert (ending.standing, type(ending.why)) == (Standing.UNKNOWN, ConnectionFailed)
    world.fates = iter(())
    assert world.drive(outcome_of(T, 3, lambda: world.now)) is Phase.PREPARED


def test_a_refused_part_rolls_everything_back():
    """And the reason is told."""
    world = World(fates=[Fate.ANSWERED, Fate.REFUSED])
    ending = world.drive(steps_of(world, [("a", 0), ("b", 0)]).finish(COMMIT, 10))
    assert ending.standing is Standing.ROLLED_BACK
    assert isinstance(ending.why, BrokerError)
    assert world.asked[2:] == [("a", "Decide")]
    assert world.brokers["a"].decision.outcome is ROLLBACK


def test_a_refused_single_request_leaves_nothing_behind():
    """Not even a rollback: nobody has heard of the transaction."""
    world = World(fates=[Fate.REFUSED])
    assert world.drive(steps_of(world, [("a", 0)]).finish(COMMIT, 10)).standing is Standing.ROLLED_BACK
    assert world.asked == [("a", "Stage")]


def test_a_rollback_that_comes_too_late_finds_the_commit():
    """The first request was done and answered as a failure: the transaction is committed, and that is said."""
    world = World(fates=[Fate.FAILED])
    ending = world.drive(steps_of(world, [("a", 0)]).finish(COMMIT, 10))
    assert (ending.standing, ending.delivered) == (Standing.COMMITTED, True)
    assert world.asked == [("a", "Stage"), ("a", "Decide")]


def test_a_failed_commit_whose_rollback_nobody_answers_is_unknown():
    """It may have been decided before it failed."""
    world = World(fates=[Fate.FAILED, *[Fate.NOT_SENT] * 99])
    assert world.drive(steps_of(world, [("a", 0)]).finish(COMMIT, 10)).standing is Standing.UNKNOWN
    assert world.brokers["a"].decision.outcome is COMMIT


def test_what_may_have_been_staged_is_rolled_back():
    """The answer was lost, and the repetition refused: the broker may keep the chunk."""
    world = World(fates=[Fate.ANSWER_LOST, Fate.REFUSED])
    steps = steps_of(world, [("b", 0)] * 5)
    with pytest.raises(BrokerError):
        world.drive(steps.overflow("b", 5))
    assert world.drive(steps.roll_back(3)).standing is Standing.ROLLED_BACK
    assert world.asked[2:] == [("a", "Decide"), ("b", "Apply")]


def test_a_participant_that_is_away_does_not_hold_the_commit_up():
    """It is committed, and not delivered yet."""
    world = World(fates=[*[Fate.ANSWERED] * 3, Fate.DIED])
    ending = world.drive(steps_of(world, [("b", 0), ("c", 0)]).finish(COMMIT, 10))
    assert (ending.standing, ending.delivered) == (Standing.COMMITTED, False)
    assert [bool(world.brokers[name].applied) for name in "bc"] == [False, True]
    assert world.told == [("a", ("c",))]


def test_expired_before_the_commit_is_rolled_back():
    world = World(fates=[Fate.ANSWERED, Settling(ROLLBACK)])
    ending = world.drive(steps_of(world, [("b", 0)]).finish(COMMIT, 10))
    assert (ending.standing, ending.decision.outcome) == (Standing.ROLLED_BACK, ROLLBACK)


FATES = st.lists(
    st.one_of(
        st.just(Fate.ANSWERED),
        st.just(Fate.ANSWERED),
        st.sampled_from(Fate),
        st.builds(Settling, st.just(ROLLBACK)),
    ),
    max_size=25,
)


@settings(max_examples=repeats(400), deadline=None)
@given(
    st.data(),
    FATES,
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), min_size=1, max_size=12),
    st.booleans(),
)
def test_what_is_said_at_the_end_is_true(data, fates, messages, prepares):
    """Whatever becomes of each request, in whatever order, and though some arrive when everybody has given up."""
    world = World(fates=fates)
    steps = steps_of(world, messages)
    manifest_rows = len(messages)

    def choose(names):
        return data.draw(st.sampled_from(names))

    ending = None
    for _ in range(data.draw(st.integers(0, 2))):
        if steps.parts.waits:
            try:
                world.drive(steps.overflow(steps.parts.fullest(), 5), choose)
            except MetaqError:
                ending = world.drive(steps.roll_back(ROLLBACK_SECONDS), choose)
                break
    if ending is None and prepares:
        ending = world.drive(steps.finish(PREPARED, 10), choose)
        if ending.standing is Standing.PREPARED:
            ending = world.drive(steps.commit_prepared(10), choose)
    elif ending is None:
        ending = world.drive(steps.finish(COMMIT, 10), choose)
    before = world.brokers["a"].decision
    world.arrive_late()
    world.dead.clear()
    decision = world.brokers["a"].decision
    outcome = decision.outcome if decision is not None else None
    if ending.standing is Standing.COMMITTED:
        assert before.outcome is COMMIT
        assert ending.decision == before
    elif ending.standing in {Standing.ROLLED_BACK, Standing.OPEN}:
        assert outcome in {None, ROLLBACK} | ({PREPARED} if prepares else set())
        assert not any(broker.applied for broker in world.brokers.values())
        if ending.decision is not None:
            assert outcome is ROLLBACK
    elif ending.standing is Standing.PREPARED:
        assert outcome in {None, PREPARED, ROLLBACK}
    if outcome is COMMIT:
        assert sum(part.seal.rows for part in decision.parts) == manifest_rows
        for part in decision.parts:
            assert world.brokers[part.broker].parts[part.part][1] == part.seal
    if ending.delivered:
        applied = {(name, part) for name, broker in world.brokers.items() for part in broker.applied}
        assert applied == {(part.broker, part.part) for part in decision.parts}
    world.fates = iter(())
    sure = world.drive(settled(T, commit=False, seconds=SECONDS, now=lambda: world.now))
    assert (sure.standing is Standing.COMMITTED) == (outcome is COMMIT)
