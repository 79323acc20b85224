"""The table of held pulls: who wakes whom, deadlines, bounds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from metaq.broker.log.long_polling import CHANNEL_HELD_MIN, HeldPull, HeldPulls
from metaq.clock import FakeClock
from metaq.store.reads.pull import READ_ALL
from tests.broker.support import FakeChannel


class Tail:
    """Of a queue whose messages have 10 bytes, with nothing else in the log."""

    topic, queue_id, watched, next_offset = b"orders", 0, False, 0

    @property
    def log_end(self):
        return 10 * self.next_offset

    def end_below(self, log_end):
        return min(self.next_offset, log_end // 10)

    def record_end(self, offset):
        return 10 * offset + 10 if offset < self.next_offset else -1


class Queue:
    def __init__(self) -> None:
        self.tail = Tail()


class Store:
    """Queues by (topic, queue id), as far as the table looks at them."""

    def __init__(self) -> None:
        self.queues = {}
        self.log_tail = SimpleNamespace(read_end=READ_ALL)

    def existing_queue(self, topic, queue_id):
        return self.queues.get((topic, queue_id))


KEY = ("orders", 0)


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def table(store, clock):
    return HeldPulls(store, clock, 100_000)


def pull(place=0, deadline=10.0, channel=None, key=KEY):
    return HeldPull(channel or FakeChannel(), key, place, deadline, None)


def test_a_queue_is_watched_while_somebody_waits(table, store):
    """The fast path reports growth of watched queues only. When nobody waits any more, one more growth is reported."""
    store.queues[KEY] = queue = Queue()
    one, two = pull(0), pull(1)
    table.hold(one)
    table.hold(two)
    assert queue.tail.watched
    queue.tail.next_offset = 1
    table.grew([store.queues[KEY].tail], 1, 1, 0, 1)
    assert table.ready() == [one]
    assert queue.tail.watched
    queue.tail.next_offset = 2
    table.grew([store.queues[KEY].tail], 1, 1, 0, 1)
    assert table.ready() == [two]
    table.grew([queue.tail], 1, 1, 1, 2)
    assert not queue.tail.watched
    assert not table.grown


def test_a_queue_made_later_is_watched_from_its_birth(table, store):
    """Who waits for a queue that does not exist yet is not forgotten when it is made."""
    table.hold(pull())
    store.queues[KEY] = queue = Queue()
    table.adopt(KEY)
    assert queue.tail.watched


def test_growth_is_looked_at_once(table, store):
    """ready() answers what grew since the last time, and nothing twice."""
    store.queues[KEY] = Queue()
    table.hold(pull(place=5))
    store.queues[KEY].tail.next_offset = 3
    table.grew([store.queues[KEY].tail], 1, 1, 0, 1)
    assert table.ready() == []
    assert table.ready() == []
    assert len(table) == 1


def test_deadlines_come_in_their_order(table, clock):
    """Each pull leaves at its own deadline, whatever the order of holding."""
    pulls = [pull(deadline=seconds) for seconds in (3.0, 1.0, 2.0)]
    for one in pulls:
        table.hold(one)
    clock.advance(1)
    assert table.overdue() == [pulls[1]]
    clock.advance(2)
    assert table.overdue() == [pulls[2], pulls[0]]
    assert len(table) == 0


def test_an_answered_pull_has_no_deadline(table, store, clock):
    """What was woken does not come again when its time is over."""
    store.queues[KEY] = Queue()
    table.hold(pull())
    store.queues[KEY].tail.next_offset = 1
    table.grew([store.queues[KEY].tail], 1, 1, 0, 1)
    assert len(table.ready()) == 1
    clock.advance(100)
    assert table.overdue() == []


def test_a_connections_pulls_go_with_it(table):
    """closed() forgets one connection's pulls and nobody else's."""
    channel = FakeChannel()
    for n in range(5):
        table.hold(pull(channel=channel if n % 2 else None, key=("orders", n)))
    table.closed(channel)
    assert len(table) == 3
    table.closed(channel)


def test_nobody_can_take_the_whole_table(store, clock):
    """One client holds a quarter of the table at most, over however many connections."""
    table = HeldPulls(store, clock, 8 * CHANNEL_HELD_MIN)
    greedy = [FakeChannel("10.0.0.1:1"), FakeChannel("10.0.0.1:2")]
    taken = sum(table.hold(pull(channel=greedy[n % 2], key=("orders", n))) for n in range(3 * CHANNEL_HELD_MIN))
    assert taken == 2 * CHANNEL_HELD_MIN
    assert table.hold(pull(channel=FakeChannel("10.0.0.2:1")))
    table.closed(greedy[0])
    assert table.hold(pull(channel=greedy[1]))
    table.closed(greedy[1])
    assert list(table._clients) == ["10.0.0.2"]


def test_a_busy_queues_past_does_not_pile_up(table, store):
    """Deadlines of pulls that were answered long before are dropped, not kept for their 15 seconds."""
    store.queues[KEY] = Queue()
    for n in range(20_000):
        table.hold(pull(place=n, deadline=15.0))
        store.queues[KEY].tail.next_offset = n + 1
        table.grew([store.queues[KEY].tail], 1, 1, 0, 1)
        assert len(table.ready()) == 1
    assert len(table._deadlines) <= 1025


def test_who_waits_longer_than_the_queue_is_there_hears_of_all_its_growth(table, store):
    """The first message tells that the queue was made; whose place it does not reach waits for the others."""
    table.hold(late := pull(place=1))
    store.queues[KEY] = queue = Queue()
    queue.tail.next_offset = 1
    table.grew([queue.tail], 1, 1, 0, 1)
    assert table.ready() == []
    assert queue.tail.watched
    queue.tail.next_offset = 2
    table.grew([queue.tail], 1, 1, 1, 2)
    assert table.ready() == [late]


def test_the_memory_of_held_pulls_is_counted_for_their_connection(table):
    """In steps; all of it is given up with the connection."""
    greedy, modest = FakeChannel(), FakeChannel()
    for number in range(500):
        table.hold(HeldPull(greedy, ("T", number), 0, 10.0, None, size=5000))
    table.hold(pull(channel=modest))
    assert 500 * 5000 <= greedy.kept < 510 * 5000
    before = modest.kept
    for _ in range(10):  # as a lone consumer does: nothing is told
        waiting = table.waiting(KEY)[0]
        table.remove(waiting)
        table.hold(waiting.renewed())
    assert 0 < modest.kept == before
    for number in range(400):
        table.remove(table.waiting(("T", number))[0])
    assert 100 * 5000 <= greedy.kept < 120 * 5000
    table.closed(greedy)
    table.closed(modest)
    assert (greedy.kept, modest.kept, len(table)) == (0, 0, 0)


def test_messages_that_clients_may_not_read_yet_wake_nobody(table, store):
    """They do when `read_end` has come so far: first those pulls whose message it is, and each growth once."""
    store.queues[KEY] = queue = Queue()
    store.log_tail.read_end = 0
    pulls = [pull(place) for place in range(3)]
    for one in pulls:
        table.hold(one)
    for end in (1, 2, 3):
        queue.tail.next_offset = end
        table.grew([queue.tail], 1, 10, 10 * end - 10, 10 * end)
    table.read_on()
    assert not table.grown
    store.log_tail.read_end = 19
    table.read_on()
    assert table.ready() == pulls[:1]
    table.read_on()
    assert not table.grown
    store.log_tail.read_end = 25
    table.read_on()
    assert table.ready() == pulls[1:2]
    store.log_tail.read_end = READ_ALL
    table.read_on()
    assert table.ready() == pulls[2:]
    table.read_on()
    assert not table.grown


def test_a_pull_that_comes_for_messages_it_may_not_read_yet_is_woken_too(table, store):
    """Nobody waited when the queue grew; a pull for what does not exist yet waits for growth alone."""
    store.queues[KEY] = queue = Queue()
    store.log_tail.read_end, queue.tail.next_offset = 10, 2
    early, late = pull(1), pull(2)
    table.hold(early)
    table.hold(late)
    store.log_tail.read_end = 20
    table.read_on()
    assert table.ready() == [early]
    table.read_on()
    assert not table.grown


def test_a_limit_that_goes_back_loses_no_growth(table, store):
    """A slave comes back between the growth and the look at it."""
    store.queues[KEY] = queue = Queue()
    waits = pull(0)
    table.hold(waits)
    queue.tail.next_offset = 1
    table.grew([queue.tail], 1, 10, 0, 10)
    store.log_tail.read_end = 0
    assert table.ready() == []
    store.log_tail.read_end = 10
    table.read_on()
    assert table.ready() == [waits]


def test_a_queue_whose_messages_wait_for_slaves_is_noted_once(table, store):
    """However often it grows, and however many pulls come: what is noted is bounded by the queues."""
    store.queues[KEY] = queue = Queue()
    store.log_tail.read_end = 0
    for end in range(1, 100):
        table.hold(pull(0))
        queue.tail.next_offset = end
        table.grew([queue.tail], 1, 10, 10 * end - 10, 10 * end)
    assert len(table._unread) == 1


def test_a_queue_that_was_made_anew_meanwhile_wakes_who_waits_at_it(table, store):
    """Its topic was deleted while its messages waited for slaves."""
    store.queues[KEY] = old = Queue()
    store.log_tail.read_end = 0
    waits = pull(0)
    table.hold(waits)
    old.tail.next_offset = 1
    table.grew([old.tail], 1, 10, 0, 10)
    old.tail.next_offset = 0
    store.queues[KEY] = queue = Queue()
    queue.tail.next_offset = 1
    table.grew([queue.tail], 1, 10, 10, 20)
    store.log_tail.read_end = READ_ALL
    table.read_on()
    assert table.ready() == [waits]
