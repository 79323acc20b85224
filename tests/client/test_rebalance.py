"""Allocation strategies: the vectors of the requirements, and that shares are a partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.rebalance import STRATEGIES, average, circle, fixed, strategy_of
from metaq.errors import ConfigError
from metaq.model import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", "b", number) for number in range(count)]


@pytest.mark.parametrize(
    ("queue_count", "member_count", "shares"),
    [(5, 2, [3, 2]), (6, 3, [2, 2, 2]), (10, 20, [1] * 10 + [0] * 10), (20, 6, [4, 4, 3, 3, 3, 3])],
)
@pytest.mark.parametrize("name", ["average", "circle"])
def test_shares_are_as_even_as_can_be(name, queue_count, member_count, shares):
    """The first members get one more; surplus members idle."""
    members = [f"m{number:02}" for number in range(member_count)]
    assert [len(STRATEGIES[name](queues(queue_count), members, me)) for me in members] == shares


def test_average_gives_neighbours_and_circle_deals():
    """AVG: 0 1 2 / 3 4; AVG_BY_CIRCLE: 0 2 4 / 1 3."""
    assert [queue.queue_id for queue in average(queues(5), ["a", "b"], "b")] == [3, 4]
    assert [queue.queue_id for queue in circle(queues(5), ["a", "b"], "b")] == [1, 3]


@given(
    st.integers(0, 40),
    st.sets(st.text("abcdef0123456789@#", min_size=1, max_size=8), min_size=1, max_size=12),
    st.sampled_from(sorted(STRATEGIES)),
)
def test_every_queue_has_exactly_one_owner(queue_count, members, name):
    """Whatever the numbers, the shares of all members are all queues, each once."""
    ordered = sorted(members)
    owned = [queue for me in ordered for queue in STRATEGIES[name](queues(queue_count), ordered, me)]
    assert sorted(owned) == queues(queue_count)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_member_that_is_not_listed_owns_nothing(name):
    """It has just joined, or its lease has ended."""
    assert STRATEGIES[name](queues(4), ["a", "b"], "c") == []


def test_consistent_hash_moves_few_queues():
    """When one of ten members leaves, only its queues move."""
    strategy, members = STRATEGIES["consistent_hash"], [f"m{number}" for number in range(10)]
    before = {queue: me for me in members for queue in strategy(queues(100), members, me)}
    left = members[:-1]
    after = {queue: me for me in left for queue in strategy(queues(100), left, me)}
    assert all(after[queue] == me for queue, me in before.items() if me != members[-1])


def test_names_and_callables():
    """A strategy is given by name or as a callable; a wrong name lists the right ones."""
    mine = queues(2)
    assert strategy_of("average") is average
    assert strategy_of(fixed(mine))(queues(4), ["a"], "a") == mine
    with pytest.raises(ConfigError, match="average, circle, consistent_hash"):
        strategy_of("best")
