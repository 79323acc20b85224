"""When an administrator is told of a change of tables: when all of the in-sync set have asked for what is behind it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from metaq.broker.failover.table_acks import WAITING_MAX, TableAcks
from metaq.errors import Refused
from metaq.model.failover import Place
from metaq.saved import Pending
from tests.broker.failover.test_in_sync import ONE, THREE, TWO, Leader, a_state

FEED = 7


class Tables:
    """The changes of a leader's tables, whose number the test says."""

    def __init__(self) -> None:
        self.mark, self.at_first = (FEED, 0), 0


class Changing:
    def __init__(self) -> None:
        self.leader, self.tables = Leader(), Tables()
        environment = SimpleNamespace(options=SimpleNamespace(slave_timeout=3000), clock=self.leader.clock)
        self.acks = TableAcks(environment, self.leader.set, self.tables)

    def change(self) -> Pending:
        self.tables.mark = self.tables.mark[0], self.tables.mark[1] + 1
        return self.acks.wait()

    def later(self, seconds: float) -> None:
        self.leader.clock.advance(seconds)
        self.acks.tick()


@pytest.fixture
def at() -> Changing:
    changing = Changing()
    changing.leader.begin(ONE, TWO, THREE)
    return changing


def test_a_change_is_told_when_all_members_have_asked_for_what_is_behind_it(at):
    first, second = at.change(), at.change()
    at.acks.taken(TWO, FEED, 2)
    assert not first.done
    at.acks.taken(THREE, FEED, 1)
    assert first.done and first.error is None
    assert not second.done
    at.acks.taken(THREE, FEED, 2)
    assert second.done and second.error is None
    assert at.acks.wait().done  # nothing has changed since


def test_alone_in_the_set_nobody_is_waited_for(at):
    at.leader.set.settle(a_state(ONE))
    assert at.change().done


def test_others_than_members_do_not_count(at):
    change = at.change()
    for place in (Place(2, "another"), Place(4, "store4")):
        at.acks.taken(place, FEED, 5)
    at.acks.taken(TWO, FEED, 5)
    assert not change.done


def test_a_follower_comes_into_the_set_with_the_tables_that_there_were(at):
    """What was answered without it, such as a topic, it must have before it can lead: its log does not say that."""
    leader = at.leader
    leader.set.settle(a_state(ONE))
    assert at.change().done
    leader.append(100)
    leader.set.alive({1, 2})
    leader.connect(TWO, 100)
    at.acks.taken(TWO, FEED, 1)  # it is nobody's business yet: it is not noted
    leader.set.tick()
    assert leader.set.required_places == {TWO}
    assert leader.set.wanted() is None
    at.acks.taken(TWO, FEED, 0)
    assert leader.set.wanted() is None
    at.acks.taken(TWO, FEED, 1)
    assert leader.set.wanted() == a_state(ONE, TWO)
    change = at.change()  # meanwhile, and behind it
    assert not change.done
    at.acks.taken(TWO, FEED, 2)
    assert change.done


def test_a_follower_that_comes_first_gets_a_feed_that_begins_with_it(at):
    leader = at.leader
    leader.set.settle(a_state(ONE))
    at.tables.mark = 0, 0
    leader.set.alive({1, 2})
    leader.connect(TWO, 0)
    leader.set.tick()
    assert leader.set.wanted() is None
    at.tables.mark, at.tables.at_first = (9, 12), 10
    at.acks.taken(TWO, 9, 9)
    assert leader.set.wanted() is None
    at.acks.taken(TWO, 9, 10)
    assert leader.set.wanted() == a_state(ONE, TWO)


def test_a_position_of_another_feed_says_nothing(at):
    change = at.change()
    for place in (TWO, THREE):
        at.acks.taken(place, FEED + 1, 100)
    assert not change.done


def test_a_feed_that_begins_behind_the_change_has_it_among_all_that_it_begins_with(at):
    at.tables.mark = 0, 0
    change = at.acks.wait()
    at.tables.mark, at.tables.at_first = (9, 12), 10
    for place in (TWO, THREE):
        at.acks.taken(place, 9, 9)
    assert not change.done
    for place in (TWO, THREE):
        at.acks.taken(place, 9, 10)
    assert change.done and change.error is None


def test_what_is_not_taken_in_time_is_told_to_be_uncertain(at):
    change = at.change()
    at.acks.taken(TWO, FEED, 1)
    at.later(2.9)
    assert not change.done
    at.later(0.2)
    assert "the change is made here, and is not known to be at the other brokers of the in-sync set" in str(
        change.error
    )
    assert str(change.error).endswith("Make it once more")
    assert change.error.retriable


def test_a_member_that_leaves_the_set_is_waited_for_no_longer(at):
    change = at.change()
    at.acks.taken(TWO, FEED, 1)
    at.leader.set.settle(a_state(ONE, TWO))
    at.later(0.1)
    assert change.done and change.error is None


def test_a_leader_that_was_replaced_tells_nobody_that_a_change_is_safe(at):
    """It may have been saved here just when another one began to lead."""
    change = at.change()
    at.leader.set.end()
    with pytest.raises(Refused, match="is not known to be at the other brokers"):
        at.acks.wait()
    for place in (TWO, THREE):
        at.acks.taken(place, FEED, 5)
    at.later(0.1)
    assert not change.done
    at.later(3)
    assert change.error is not None


def test_so_many_may_wait(at):
    for _ in range(WAITING_MAX):
        at.acks.wait()
    with pytest.raises(Refused, match=f"{WAITING_MAX} changes wait for followers"):
        at.acks.wait()
