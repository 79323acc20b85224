"""Slices of time for the slow requests of a connection: what it has left of them waits for its turn."""

from __future__ import annotations

import pytest

from metaq.servers.slices import FIRST_SECONDS, SLICE_SECONDS, WINDOW_SECONDS, Slices, SlowWork
from tests.servers.support import FakePeer


class Time:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Asker:
    """A connection whose requests each take so many seconds, as its session handles them."""

    def __init__(self, work, time, costs):
        self.peer, self.time, self.costs, self.served = FakePeer(), time, list(costs), 0
        self.peer.present = self.read
        self.slices = Slices(self.peer, work)

    def read(self):
        """A read event with all that is left."""
        while self.costs and not self.slices.waits and self.slices.may_go_on():
            self.time.now += self.costs.pop(0)
            self.served += 1
        if self.slices.began:
            self.slices.end()

    def turn(self):
        self.served = 0
        return self.peer.jobs.popleft()()


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def work(time):
    return SlowWork(time)


def test_many_requests_of_a_read_event_are_cut_into_slices(work, time):
    """Each turn is one slice, and counts for its time; behind the last one the connection reads on."""
    asker = Asker(work, time, [SLICE_SECONDS / 4] * 10)
    asker.read()
    assert (asker.served, asker.peer.paused) == (4, True)
    cost = asker.turn()
    assert asker.served == 4
    assert cost == pytest.approx(SLICE_SECONDS * 1024**3, rel=0.01)
    asker.turn()
    assert (asker.served, asker.peer.paused, len(asker.peer.jobs)) == (2, False, 0)


def test_one_request_that_takes_longer_is_handled_all_the_same(work, time):
    """It is the only one of its slice."""
    asker = Asker(work, time, [1.0, 1.0])
    asker.read()
    assert asker.served == 1
    asker.turn()
    assert (asker.served, asker.peer.paused) == (1, False)


def test_first_slices_of_many_connections_get_half_of_the_time(work, time):
    """The others wait for a turn from the beginning; in the next window they need none."""
    askers = [Asker(work, time, [SLICE_SECONDS * 1.01]) for _ in range(8)]
    for asker in askers:
        asker.read()
    assert FIRST_SECONDS / SLICE_SECONDS == 5
    assert [asker.served for asker in askers] == [1, 1, 1, 1, 1, 0, 0, 0]
    for asker in askers[5:]:
        asker.turn()
    assert not any(asker.costs for asker in askers)
    time.now += WINDOW_SECONDS
    late = Asker(work, time, [SLICE_SECONDS])
    late.read()
    assert late.served == 1


def test_short_read_events_count_for_nothing(work, time):
    """Thousands of clients with a request each would otherwise wait for turns, which cost more than the requests."""
    for _ in range(1000):
        asker = Asker(work, time, [0.000_02])
        asker.read()
        assert asker.served == 1


def pieces(time, count, done):
    """Work of so many pieces of half a slice each."""
    for _ in range(count):
        time.now += SLICE_SECONDS / 2
        yield
    done.append(count)


def test_work_in_pieces_runs_in_turns_while_the_connection_reads_nothing(work, time):
    """Two pieces a slice. What was resumed meanwhile comes behind it."""
    asker, done = Asker(work, time, []), []
    asker.slices.run(pieces(time, 5, done))
    asker.slices.run(pieces(time, 1, done))
    assert asker.peer.paused
    assert (done, len(asker.peer.jobs)) == ([], 1)
    for count in (0, 1, 2):
        assert (asker.peer.paused, len(done)) == (True, max(0, count - 1))
        asker.turn()
    assert (done, asker.peer.paused) == ([5, 1], False)


def test_short_work_is_done_at_once(work, time):
    asker, done = Asker(work, time, []), []
    asker.slices.run(pieces(time, 1, done))
    assert (done, asker.peer.paused) == ([1], False)


def test_work_for_a_connection_that_has_closed_is_dropped(work, time):
    """Nobody would read the answer."""
    asker, done = Asker(work, time, []), []
    asker.slices.run(pieces(time, 50, done))
    asker.peer.closed = True
    assert asker.turn() == 0
    assert (done, len(asker.peer.jobs)) == ([], 0)
