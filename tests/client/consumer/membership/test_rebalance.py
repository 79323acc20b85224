"""Allocation strategies: the vectors of the requirements, and that shares are a partition."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.consumer.membership.rebalance import (
    STRATEGIES,
    average,
    checked_share,
    circle,
    fixed,
    machine_room,
    machine_room_nearby,
    strategy_of,
)
from metaq.errors import ConfigError
from metaq.model import MessageQueue
from tests.client.consumer.membership import shares


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


@pytest.mark.parametrize("line", shares.RECORDED.read_text("utf-8").splitlines())
def test_shares_are_those_that_rocketmqs_classes_gave(line):
    """Recorded from rocketmq-client 4.9.8, over shuffled lists; tests/interop/test_shares.py has Java say it again."""
    assert shares.share(line) == line


def test_machine_rooms_that_cannot_be_told_are_an_error():
    """No rooms at all, or a room of a queue that its function does not know."""
    with pytest.raises(ConfigError, match="machine-room names"):
        machine_room("r1")
    with pytest.raises(ConfigError, match="machine room of queue t@b:0 is None"):
        machine_room_nearby(lambda _queue: None, lambda member: member)(queues(1), ["a"], "a")


def test_what_is_not_rightly_a_members_is_left_out():
    """Unknown queues, queues twice, queues of another member: each is named, the rest stays."""
    known, stranger = queues(4), MessageQueue("other", "b", 0)

    def greedy(all_queues, members, me):
        return [*all_queues[:2], all_queues[0], stranger]

    first = checked_share(greedy, known, ["a", "b"], "a")
    assert first.queues == known[:2]
    assert "1 queues that are not among those to be shared (other@b:0) and 1 queues twice (t@b:0)" in first.wrong
    second = checked_share(greedy, known, ["a", "b"], "b")
    assert second.queues == [], "a queue that two members claim is that of the first of them"
    assert "2 queues that it gives to another member as well (t@b:0, t@b:1)" in second.wrong


def test_fixed_list_is_not_asked_for_other_members():
    """It is the same whoever asks, so that the members' lists seem to overlap."""
    assert checked_share(fixed(queues(2)), queues(4), ["a", "b"], "b").queues == queues(2)
    assert checked_share(fixed(queues(2)), queues(4), ["a", "b"], "b").wrong == ""


@pytest.mark.parametrize("returned", [None, [("t", "b", 0)], "t@b:0"])
def test_strategy_that_returns_no_queues_raises(returned):
    """Nothing of it can be used."""
    with pytest.raises(TypeError):
        checked_share(lambda *_: returned, queues(2), ["a"], "a")


def test_endless_strategy_ends():
    """A generator without end is not read to it."""
    share = checked_share(lambda all_queues, *_: itertools.cycle(all_queues), queues(3), ["a"], "a")
    assert share.queues == queues(3)
    assert "twice" in share.wrong


@given(st.integers(0, 30), st.integers(1, 8), st.randoms(use_true_random=False))
def test_no_queue_has_two_owners_whatever_a_strategy_returns(queue_count, member_count, chance):
    """Members that see the same lists and ask the same strategy never take a queue twice."""
    members = [f"m{number}" for number in range(member_count)]
    answers = {me: chance.choices(queues(queue_count + 2), k=chance.randint(0, 20)) for me in members}
    owned = [
        queue
        for me in members
        for queue in checked_share(lambda _queues, _members, who: answers[who], queues(queue_count), members, me).queues
    ]
    assert len(owned) == len(set(owned))
    assert set(owned) == {queue for answer in answers.values() for queue in answer} & set(queues(queue_count))


def test_a_queue_behind_many_repeated_ones_counts():
    """What a strategy returns is read far enough to find it."""
    first, second = queues(2)
    share = checked_share(lambda *_: [first] * 50 + [second], [first, second], ["a"], "a")
    assert share.queues == [first, second]
