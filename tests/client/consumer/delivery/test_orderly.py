"""Orderly consumption, the decisions: one hand per queue, nothing overtakes a failed message, a lost lock counts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metaq import Later, Pause, Reject
from metaq.client.consumer.delivery.orderly import Again, DeadLetter, Lease, OrderedQueue, Run, judge
from metaq.client.consumer.delivery.window import Shut, Window
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.clock import FakeClock
from metaq.model import MessageQueue
from tests.effort import repeats

QUEUE = MessageQueue("t", "b", 0)


def messages(*offsets: int) -> list[ReceivedMessage]:
    return [ReceivedMessage(topic="t", body=b"x", queue_offset=offset) for offset in offsets]


class Effects:
    def __init__(self) -> None:
        self.offered = 0
        self.fallen: list[tuple[Run, ReceivedMessage, BaseException]] = []

    def offer(self, queue: OrderedQueue) -> None:
        assert self.offered == 0, "offered twice"
        self.offered += 1

    def failed(self, run: Run, message: ReceivedMessage, verdict: BaseException) -> None:
        self.fallen.append((run, message, verdict))

    def left(self, queue: OrderedQueue) -> None:
        """There may be room."""


class Harness:
    """An ordered queue with its effects written down."""

    def __init__(self, until: float = 30.0) -> None:
        self.clock, self.window, self.lease = FakeClock(), Window(QUEUE, 0), Lease(until)
        self.effects = Effects()
        self.queue = OrderedQueue(self.window, self.lease, self.clock.monotonic, self.effects)

    @property
    def offered(self) -> int:
        return self.effects.offered

    @property
    def failed(self) -> list[tuple[Run, ReceivedMessage, BaseException]]:
        return self.effects.fallen

    def pull(self, *offsets: int, end: int | None = None) -> None:
        chunk = self.window.add(messages(*offsets), offsets[-1] + 1 if end is None else end)
        run = self.queue.arrive(chunk)
        for message in run.messages:
            message._chunk = run
        self.queue.offer()

    def take(self, limit: int | None = None):
        """What a taker iterates over."""
        assert self.offered == 1, "nothing is offered"
        self.effects.offered = 0
        return self.queue.each() if limit is None else self.queue.batches(limit)

    def let_again(self, *, counts: bool = True) -> ReceivedMessage:
        """The pause of the failed message is over."""
        run, message, _ = self.failed.pop(0)
        again = self.queue.again(run, message, counts=counts)
        again._chunk = run
        self.queue.unblock()
        return again


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_the_next_message_comes_when_the_one_before_is_finished(harness):
    """One run to one taker; each ack moves the progress by its own message alone."""
    harness.pull(0, 1, 4, end=6)
    seen = []
    for message in harness.take():
        seen.append(message.queue_offset)
        assert harness.window.finished_offset() == message.queue_offset
        message.ack()
    assert seen == [0, 1, 4]
    assert harness.window.finished_offset() == 6
    assert not harness.offered


def test_one_taker_has_one_run_and_the_queue_goes_behind_others(harness):
    """So that a thread that consumes eight queues does not starve seven."""
    harness.pull(0, 1)
    harness.pull(2)
    for message in harness.take():
        message.ack()
    assert harness.window.finished_offset() == 2
    assert [message.queue_offset for message in harness.take()] == [2]


def test_a_message_in_hand_holds_its_queue_until_somebody_settles_it(harness):
    """A taker that asks for the next one leaves the queue; the ack, from wherever, offers it anew."""
    harness.pull(0, 1)
    [first] = list(harness.take())
    assert not harness.offered
    assert harness.queue.busy
    first.ack()
    assert harness.offered
    assert [message.queue_offset for message in harness.take()] == [1]


def test_a_taker_that_breaks_off_leaves_the_rest_in_order(harness):
    """`break` after the ack: the next taker goes on behind it."""
    harness.pull(0, 1, 2)
    taking = harness.take()
    next(taking).ack()
    second = next(taking)
    taking.close()
    assert not harness.offered, "the second is in hand"
    second.ack()
    assert [message.queue_offset for message in harness.take()] == [2]


def test_a_failed_message_comes_again_before_those_behind_it(harness):
    """As another object: what its first holder still says counts no more."""
    harness.pull(0, 1, 2)
    taking = harness.take()
    next(taking).ack()
    failed = next(taking)
    failed.retry()
    failed.ack()
    assert list(taking) == []
    assert not harness.offered
    assert harness.window.finished_offset() == 1
    harness.let_again()
    taking = harness.take()
    again = next(taking)
    assert (again.queue_offset, again.reconsume_times, failed.reconsume_times) == (1, 1, 0)
    assert harness.window.finished_offset() == 1
    again.ack()
    assert [message.queue_offset for message in taking] == [2]


def test_a_pause_spends_no_retry(harness):
    """B11: the database was down, the message is not to blame."""
    harness.pull(0)
    next(harness.take()).pause(5)
    assert judge(0, harness.failed[0][2], 0) == Again(5.0, counts=False)
    assert harness.let_again(counts=False).reconsume_times == 0


def test_pauses_grow_up_to_thirty_seconds():
    """Later and exceptions alike; a limit of 2 retries makes the third failure a dead letter, as in Java."""
    seconds = [judge(times, ValueError(), None).seconds for times in range(7)]
    assert seconds == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert judge(0, Later(18), None) == Again(1.0, counts=True)
    assert judge(10**9, Later(), None) == Again(30.0, counts=True), "without limit"
    assert judge(1, Later(), 2) == Again(2.0, counts=True)
    assert judge(2, Later(), 2) == DeadLetter(exhausted=True)
    assert judge(0, ValueError(), 0) == DeadLetter(exhausted=True)
    assert judge(0, Reject(), None) == DeadLetter(exhausted=False)


def test_a_lease_that_is_over_ends_the_handing_out(harness):
    """Also in the middle of a run; a renewal lets it go on."""
    harness.pull(0, 1)
    taking = harness.take()
    next(taking).ack()
    harness.clock.advance(30)
    assert list(taking) == []
    assert not harness.offered
    harness.lease.until = 60.0
    harness.queue.offer()
    assert [message.queue_offset for message in harness.take()] == [1]


def test_a_lost_lock_makes_the_ack_of_the_message_in_hand_void(harness, caplog):
    """It says so, and the message knows."""
    harness.pull(0, 1)
    taking = harness.take()
    message = next(taking)
    assert not message.lost
    harness.queue.lose()
    finished = harness.window.finished_offset()
    assert message.lost
    message.ack()
    assert finished == 0
    assert "what was said of offset 0 of t@b:0 is ignored" in caplog.text
    assert list(taking) == []
    assert not harness.queue.busy
    assert not harness.offered


def test_a_suspended_queue_stops_after_the_message_in_hand(harness):
    """It is offered, and waits where nobody takes."""
    harness.pull(0, 1)
    taking = harness.take()
    next(taking).ack()
    harness.window.close(Shut.SUSPENDED)
    assert list(taking) == []
    harness.window.open(Shut.SUSPENDED)
    assert [message.queue_offset for message in harness.take()] == [1]


def test_a_batch_is_one_hand(harness):
    """The next comes when all are settled; those that failed come again first, together."""
    harness.pull(*range(7))
    taking = harness.take(limit=3)
    first = next(taking)
    assert [message.queue_offset for message in first] == [0, 1, 2]
    first[1].ack()
    first[0].retry()
    assert harness.queue.busy
    first[2].retry()
    assert not harness.queue.busy
    assert list(taking) == []
    harness.let_again()
    assert not harness.offered, "the pause of the other is not over"
    harness.let_again()
    taking = harness.take(limit=3)
    got = [[message.queue_offset for message in batch if message.ack() is None] for batch in taking]
    assert got == [[0], [2, 3, 4], [5, 6]]


def test_a_batch_that_failed_in_part_goes_on_one_by_one(harness):
    """What of it was finished does not come again."""
    harness.pull(*range(4))
    batch = next(harness.take(limit=3))
    batch[1].ack()
    batch[0].retry()
    batch[2].retry()
    harness.let_again()
    harness.let_again()
    assert [message.queue_offset for message in harness.take() if message.ack() is None] == [0, 2, 3]


class Model(RuleBasedStateMachine):
    """Takers, holders, failures, pauses, lost locks and suspensions in any order, against what order means."""

    @initialize()
    def start(self) -> None:
        self.harness = Harness()
        self.taker = None
        self.hand: list[ReceivedMessage] = []
        self.finished: set[int] = set()
        self.end = 0
        self.offsets: list[int] = []
        self.lost = False

    @rule(gaps=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def pull(self, gaps: list[int]) -> None:
        if self.lost:
            return
        offsets = []
        for gap in gaps:
            offsets.append(self.end + gap)
            self.end += gap + 1
        self.offsets += offsets
        self.harness.pull(*offsets)

    def unfinished(self) -> list[int]:
        return [offset for offset in self.offsets if offset not in self.finished]

    @rule(batch=st.sampled_from([None, 1, 2, 5]))
    @precondition(lambda self: self.taker is None and self.harness.offered)
    def take(self, batch: int | None) -> None:
        self.taker = self.harness.take(batch)
        self.ask_for_the_next()  # As takers do: what was never begun cannot be broken off.

    @rule()
    @precondition(lambda self: self.taker is not None)
    def ask_for_the_next(self) -> None:
        got = next(self.taker, None)
        if got is None:
            self.taker = None
            return
        assert not self.hand, "two hands at a time"
        assert not self.lost, "a lost queue"
        assert not self.harness.window.shut
        assert self.harness.clock.monotonic() < self.harness.lease.until
        assert not self.harness.failed, "something is handed out while a failed message blocks the queue"
        self.hand = [got] if isinstance(got, ReceivedMessage) else got
        offsets = [message.queue_offset for message in self.hand]
        assert offsets == self.unfinished()[: len(offsets)], "out of order"

    @rule()
    @precondition(lambda self: self.taker is not None)
    def break_off(self) -> None:
        self.taker.close()
        self.taker = None

    def pick(self, data) -> ReceivedMessage:
        message = data.draw(st.sampled_from(self.hand))
        self.hand = [one for one in self.hand if one is not message]
        return message

    @rule(data=st.data())
    @precondition(lambda self: self.hand)
    def finish(self, data) -> None:
        before = self.harness.window.finished_offset()
        message = self.pick(data)
        message.ack()
        message.retry()  # Said too late.
        if not self.lost:
            self.finished.add(message.queue_offset)
            after = self.harness.window.finished_offset()
            assert after >= before

    @rule(data=st.data(), verdict=st.sampled_from([Later(3), ValueError("x"), Pause(1), Reject()]))
    @precondition(lambda self: self.hand)
    def fail(self, data, verdict) -> None:
        message = self.pick(data)
        message.settle(verdict)
        message.ack()  # Said too late.

    @rule()
    @precondition(lambda self: self.harness.failed)
    def pause_ends(self) -> None:
        run, message, verdict = self.harness.failed[0]
        if isinstance(verdict, Reject):  # It is with the dead letters now.
            self.harness.failed.pop(0)
            run.marks[message.queue_offset - run.base] = 1
            self.finished.add(message.queue_offset)
            self.harness.queue.unblock()
        else:
            self.harness.let_again()

    @rule(seconds=st.integers(1, 40))
    def time_goes_by(self, seconds: int) -> None:
        self.harness.clock.advance(seconds)

    @rule()
    def renew(self) -> None:
        if not self.lost:
            self.harness.lease.until = self.harness.clock.monotonic() + 30
            self.harness.queue.offer()

    @rule()
    def suspend(self) -> None:
        self.harness.window.close(Shut.SUSPENDED)

    @rule()
    def resume(self) -> None:
        self.harness.window.open(Shut.SUSPENDED)

    @rule()
    def lose(self) -> None:
        self.lost = True
        self.harness.queue.lose()

    @invariant()
    def progress_is_what_is_finished(self) -> None:
        if hasattr(self, "harness") and not self.lost:
            left = self.unfinished()
            assert self.harness.window.finished_offset() == (left[0] if left else self.end)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """What can go on is offered, or with a taker."""
        if not hasattr(self, "harness"):
            return
        harness = self.harness
        assert harness.queue.busy == bool(self.hand)
        may = (
            not self.lost and not self.hand and not harness.failed and self.unfinished()
            and harness.clock.monotonic() < harness.lease.until
        )  # fmt: skip
        if may:
            assert harness.offered or self.taker is not None


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=repeats(150), stateful_step_count=40, deadline=None)
