"""Up to where clients read the log of a master whose sends wait for slaves."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from metaq.broker.replication.read_limit import ReadLimit
from metaq.clock import FakeClock
from metaq.options import BrokerOptions
from metaq.store.reads.pull import READ_ALL


class Limit:
    """A limit, what it is told, and the time."""

    def __init__(self, **options: object) -> None:
        self.clock = FakeClock()
        self.limit = ReadLimit(SimpleNamespace(options=BrokerOptions(slave_timeout=3000, **options), clock=self.clock))

    def at(self, copied: int, log_end: int, *, waited_for: bool = True, later: float = 0.0) -> int:
        """Returns the end some seconds later."""
        self.clock.advance(later)
        before = self.limit.end
        assert self.limit.look(waited_for=waited_for, copied=copied, log_end=log_end) == (self.limit.end != before)
        return self.limit.end


@pytest.fixture
def limit():
    return Limit()


def test_without_slaves_to_wait_for_everything_is_read(limit):
    """An ASYNC_MASTER, a slave, and a SYNC_MASTER whose slaves are away or far behind."""
    assert limit.at(0, 100, waited_for=False) == READ_ALL


def test_what_slaves_have_is_read(limit):
    """And it is so before there is more: what comes next is not read for a moment first."""
    assert [limit.at(100, 100), limit.at(100, 200), limit.at(150, 200), limit.at(200, 200)] == [100, 100, 150, 200]


def test_a_slave_that_stalls_does_not_hold_up_readers_for_ever(limit, caplog):
    """As long as it holds up a send; with its next report it is waited for again. The log says so, once in a while."""
    with caplog.at_level(logging.WARNING):
        assert [limit.at(100, 200), limit.at(100, 300, later=2.9), limit.at(100, 400, later=0.2)] == [
            100,
            100,
            READ_ALL,
        ]
        assert "up to 100, of 400" in caplog.text
        assert limit.at(100, 500, later=60.0) == READ_ALL
        assert len(caplog.records) == 1
    assert [limit.at(300, 500), limit.at(300, 600, later=2.9)] == [300, 300]


def test_a_slave_that_goes_on_is_waited_for_however_far_it_is(limit):
    """The time counts from its last step, not from the oldest message that it lacks."""
    assert [limit.at(copied, 1000, later=2.0) for copied in (100, 200, 300, 400)] == [100, 200, 300, 400]


def test_time_without_messages_does_not_count(limit):
    """A slave has nothing to report then."""
    assert [limit.at(100, 100), limit.at(100, 200, later=60.0), limit.at(100, 200, later=2.9)] == [100] * 3


def test_slaves_that_leave_let_everything_be_read(limit):
    """And those that come back set the limit again, with time of their own."""
    assert [limit.at(100, 200), limit.at(100, 200, waited_for=False, later=2.0)] == [100, READ_ALL]
    assert [limit.at(150, 200, later=2.0), limit.at(150, 200, later=2.9)] == [150, 150]
