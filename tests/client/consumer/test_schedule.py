"""Which queue is due when: one call per queue at a time, new queues at once, lost ones never."""

from __future__ import annotations

import math

import pytest

from metaq.client.consumer.schedule import PAUSE_AFTER_ERROR, USUAL_PAUSE, Schedule, pause_of
from metaq.model import MessageQueue

A, B = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def test_new_queues_are_due_at_once_and_again_when_told():
    """take, done, and the pause until then."""
    schedule = Schedule()
    assert schedule.take(0.0) is None
    assert schedule.pause(0.0) is None
    schedule.set([A], 1.0)
    assert schedule.take(1.0) == A
    assert schedule.take(1.0) is None, "it is busy"
    schedule.done(A, 3.0)
    assert schedule.pause(1.0) == 2.0
    assert schedule.take(2.9) is None
    assert schedule.take(3.0) == A


def test_the_one_that_is_due_longest_comes_first():
    """By time, whatever the order of the queues."""
    schedule = Schedule()
    schedule.set([A, B], 0.0)
    for queue, due in ((schedule.take(0.0), 5.0), (schedule.take(0.0), 2.0)):
        schedule.done(queue, due)
    assert schedule.take(9.0) == B


def test_a_lost_queue_is_not_called_any_more():
    """Neither one that waits nor one that is busy."""
    schedule = Schedule()
    schedule.set([A, B], 0.0)
    busy = schedule.take(0.0)
    schedule.set([], 0.0)
    assert schedule.take(9.0) is None
    schedule.done(busy, 0.0)
    assert schedule.take(9.0) is None


def test_a_queue_that_is_lost_and_back_while_it_is_busy_is_not_called_twice_at_a_time():
    """The call in hand has to end first."""
    schedule = Schedule()
    schedule.set([A], 0.0)
    schedule.take(0.0)
    schedule.set([], 1.0)
    schedule.set([A], 2.0)
    assert schedule.take(2.0) is None
    schedule.done(A, 3.0)
    assert schedule.take(3.0) == A
    assert schedule.take(3.0) is None


@pytest.mark.parametrize(
    ("returned", "pause"),
    [(None, USUAL_PAUSE), (0, 0.0), (2.5, 2.5), (-1, PAUSE_AFTER_ERROR), ("1", PAUSE_AFTER_ERROR),
     (True, PAUSE_AFTER_ERROR), (math.nan, PAUSE_AFTER_ERROR), (math.inf, PAUSE_AFTER_ERROR)],
)  # fmt: skip
def test_what_a_function_returns_is_its_pause(returned, pause):
    """Seconds; anything else is logged and costs a second."""
    assert pause_of(returned, A) == pause
