"""Locks as a member knows them, and members that come and go: one queue never has two at work."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metaq import Later, Pause
from metaq.client.consumer.delivery.leases import LEASE_SECONDS, Leases
from metaq.client.consumer.delivery.orderly import Again, OrderedQueue, judge
from metaq.client.consumer.delivery.window import Window
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.clock import FakeClock
from metaq.model import MessageQueue
from tests.effort import repeats

QUEUE, OTHER = MessageQueue("t", "b", 0), MessageQueue("t", "c", 0)
BROKER_SECONDS = 60.0
LEAVE_SECONDS = 20.0


def test_locks_are_renewed_every_twenty_seconds_by_broker():
    """Counted from the asking, not from the answer."""
    leases = Leases()
    leases.grant(QUEUE, 100.0)
    leases.grant(OTHER, 105.0)
    assert leases.due(119.9) == {}
    assert leases.due(120.0) == {"b": [QUEUE]}
    assert leases.due(130.0) == {"b": [QUEUE], "c": [OTHER]}
    assert leases.answered([QUEUE], {QUEUE}, 120.0) == []
    assert leases.due(130.0) == {"c": [OTHER]}


def test_a_lease_ends_thirty_seconds_after_it_was_last_asked_for():
    """And the taker sees it without being told."""
    leases = Leases()
    lease = leases.grant(QUEUE, 100.0)
    assert lease.until == 130.0
    leases.grant(QUEUE, 110.0)
    assert lease.until == 140.0, "the same one, which its queue looks at"
    assert leases.over(139.9) == []
    assert leases.over(140.0) == [QUEUE]
    assert leases.queues == []
    assert leases.due(1000.0) == {}


def test_what_was_not_granted_again_is_lost_and_what_was_given_up_meanwhile_is_not():
    """An answer may come late."""
    leases = Leases()
    leases.grant(QUEUE, 100.0)
    leases.grant(OTHER, 100.0)
    leases.drop(OTHER)
    assert leases.answered([QUEUE, OTHER], set(), 120.0) == [QUEUE]
    assert leases.queues == []


def test_a_broker_in_doubt_is_asked_at_once():
    """It may have restarted, and know nothing of our locks."""
    leases = Leases()
    leases.grant(QUEUE, 100.0)
    leases.grant(OTHER, 100.0)
    leases.doubt("b")
    assert leases.due(100.0) == {"b": [QUEUE]}
    assert leases.over(101.0) == [], "the lease goes on meanwhile"


class Broker:
    """One queue's lock and progress, and the messages are endless."""

    def __init__(self) -> None:
        self.owner, self.renewed, self.committed = "", -BROKER_SECONDS, 0

    def lock(self, who: str, now: float) -> bool:
        if self.owner in {"", who} or now - self.renewed >= BROKER_SECONDS:
            self.owner, self.renewed = who, now
            return True
        return False

    def unlock(self, who: str) -> None:
        if self.owner == who:
            self.owner = ""


class Member:
    """What OrderedDelivery does for one queue, without its tasks."""

    def __init__(self, name: str, broker: Broker, clock: FakeClock) -> None:
        self.name, self.broker, self.clock = name, broker, clock
        self.leases, self.linked, self.reached = Leases(), True, range(0)
        self.kept = 0
        self.queue: OrderedQueue | None = None
        self.old: list[OrderedQueue] = []
        self.leaving_since: float | None = None
        self.offered = False
        self.taker = None
        self.hand: ReceivedMessage | None = None
        self.failed = []

    def join(self) -> None:
        """The queue is its own by the group's sharing: lock it, begin."""
        if self.queue is not None or any(queue.busy for queue in self.old) or not self.linked:
            return
        now = self.clock.monotonic()
        if self.broker.lock(self.name, now):
            lease = self.leases.grant(QUEUE, now)
            self.kept = committed = self.broker.committed
            start = self.reached.stop if committed in self.reached else committed
            self.reached = range(0)
            self.queue = OrderedQueue(Window(QUEUE, start), lease, self.clock.monotonic, _Effects(self))
            self.pull()

    def pull(self) -> None:
        window = self.queue.window
        start = window.next_offset
        chunk = window.add(
            [ReceivedMessage(topic="t", body=b"x", queue_offset=offset) for offset in range(start, start + 3)],
            start + 3,
        )
        run = self.queue.arrive(chunk)
        for message in run.messages:
            message._chunk = run
        self.queue.offer()

    def look(self) -> None:
        """Every second."""
        now = self.clock.monotonic()
        if self.leases.over(now):
            if self.queue is not None and self.leaving_since is None:
                self.reached = range(self.kept, self.queue.window.finished_offset())
            self.drop()
        if self.linked and self.leases.due(now):
            granted = {QUEUE} if self.broker.lock(self.name, now) else set()
            if self.leases.answered([QUEUE], granted, now):
                self.reached = range(0)
                self.drop()
        if (
            self.queue is not None
            and self.leaving_since is not None
            and (not self.queue.busy or now - self.leaving_since >= LEAVE_SECONDS)
        ):
            finished = self.queue.window.finished_offset()
            self.drop()
            self.leases.drop(QUEUE)
            if self.linked:
                self.commit(finished)
                self.broker.unlock(self.name)

    def leave(self) -> None:
        if self.queue is not None and self.leaving_since is None:
            self.queue.window.dropped = True
            self.leaving_since = self.clock.monotonic()

    def drop(self) -> None:
        if self.queue is not None:
            self.queue.lose()
            self.old.append(self.queue)
        self.queue, self.leaving_since = None, None
        self.failed.clear()
        self.offered = False

    def commit(self, offset: int) -> None:
        assert offset >= self.broker.committed, "the group's progress went back"
        self.broker.committed = self.kept = offset


class _Effects:
    def __init__(self, member: Member) -> None:
        self.member = member

    def offer(self, queue: OrderedQueue) -> None:
        if queue is self.member.queue or self.member.queue is None:
            self.member.offered = True

    def failed(self, run, message, verdict) -> None:
        self.member.failed.append((run, message, verdict))

    def left(self, queue: OrderedQueue) -> None:
        """There may be room."""


class Group(RuleBasedStateMachine):
    """Two members, one queue: sharing changes, links break, time goes by, handlers succeed, fail and hang."""

    @initialize()
    def start(self) -> None:
        self.clock, self.broker = FakeClock(), Broker()
        self.members = [Member(name, self.broker, self.clock) for name in "ab"]
        self.done = 0
        """All below it has been finished by somebody."""

    member = st.integers(0, 1)

    @rule(who=member)
    def join(self, who: int) -> None:
        """It is said to be this member's: the others give it up as they hear of it."""
        self.members[who].join()

    @rule(who=member)
    def leave(self, who: int) -> None:
        self.members[who].leave()
        self.members[who].look()

    @rule(who=member)
    def link_changes(self, who: int) -> None:
        self.members[who].linked = not self.members[who].linked

    @rule(who=member)
    def is_killed(self, who: int) -> None:
        """Its lock stays; another process comes in its place, with another client id."""
        old = self.members[who]
        self.members[who] = Member(old.name + "'", self.broker, self.clock)

    @rule(seconds=st.sampled_from([1, 5, 21, 31, 61]))
    def time_goes_by(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            for one in self.members:
                one.look()

    @rule(who=member)
    def commits(self, who: int) -> None:
        one = self.members[who]
        if one.queue is not None and one.linked and one.leaving_since is None:
            one.commit(one.queue.window.finished_offset())

    @rule(who=member)
    def takes(self, who: int) -> None:
        one = self.members[who]
        if one.taker is None and one.queue is not None and one.offered:
            one.offered, one.taker = False, one.queue.each()
        if one.taker is None:
            return
        if one.hand is not None:
            return
        message = next(one.taker, None)
        if message is None:
            one.taker = None
            if one.queue is not None and not one.queue.window.dropped and one.queue.window.unfinished == 0:
                one.pull()
            return
        assert message.queue_offset <= self.done, "a gap"
        assert self.clock.monotonic() < message._chunk.queue.lease.until
        one.hand = message

    def settled(self, one: Member) -> ReceivedMessage:
        message, one.hand = one.hand, None
        return message

    @rule(who=member)
    @precondition(lambda self: any(one.hand for one in self.members))
    def finishes(self, who: int) -> None:
        one = self.members[who]
        if one.hand is not None:
            message = self.settled(one)
            if not message.lost:
                self.done = max(self.done, message.queue_offset + 1)
            message.ack()

    @rule(who=member, verdict=st.sampled_from([Later(), ValueError(), Pause(3)]))
    @precondition(lambda self: any(one.hand for one in self.members))
    def fails(self, who: int, verdict: Exception) -> None:
        one = self.members[who]
        if one.hand is not None:
            self.settled(one).settle(verdict)

    @rule(who=member)
    def pause_ends(self, who: int) -> None:
        one = self.members[who]
        if one.failed:
            run, message, verdict = one.failed.pop(0)
            decision = judge(message.reconsume_times, verdict, None)
            assert isinstance(decision, Again)
            again = run.queue.again(run, message, counts=decision.counts)
            again._chunk = run
            run.queue.unblock()

    @invariant()
    def one_at_work(self) -> None:
        if not hasattr(self, "members"):
            return
        at_work = [one.name for one in self.members if one.hand is not None and not one.hand.lost]
        assert len(at_work) <= 1, at_work
        now = self.clock.monotonic()
        may = [one.name for one in self.members if one.queue is not None and now < one.queue.lease.until]
        assert len(may) <= 1, may


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=repeats(200), stateful_step_count=50, deadline=None)


def test_a_lease_is_over_long_before_the_brokers_lock():
    """So that a member that is cut off has stopped when another may begin."""
    assert LEASE_SECONDS <= BROKER_SECONDS / 2
