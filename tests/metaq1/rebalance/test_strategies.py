"""Shares of partitions: those of Java's classes, and that they are a partition of the partitions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.metaq1.rebalance.strategies import consecutive, consistent, in_java_order, strategy_of
from tests.metaq1.rebalance import shares

names = st.lists(st.text(min_size=1, max_size=12), unique=True, min_size=1, max_size=12).map(in_java_order)
counts = st.integers(0, 60)


def texts(count: int, broker: int = 0) -> list[str]:
    return sorted(f"{broker}-{number}" for number in range(count))


@pytest.mark.parametrize("line", shares.RECORDED.read_text("utf-8").splitlines(), ids=itertools.count())
def test_shares_are_those_of_javas_classes(line):
    """Recorded from MetaQ 1.4.6.2 (tests/interop/test_metaq1_shares.py)."""
    assert shares.share(line) == line


def test_the_example_of_the_reference():
    """Ten partitions, three consumers; partitions are in the order of texts."""
    consumers = ["g_a", "g_b", "g_c"]
    found = {me: consistent("t", me, consumers, texts(10)) for me in consumers}
    assert found == {
        "g_a": ["0-1", "0-2", "0-3", "0-6"],
        "g_b": ["0-0", "0-4", "0-9"],
        "g_c": ["0-5", "0-7", "0-8"],
    }
    assert [len(consecutive("t", me, consumers, texts(10))) for me in consumers] == [4, 3, 3]
    assert consecutive("t", "g_a", consumers, texts(11)) == ["0-0", "0-1", "0-10", "0-2"]


@given(consumers=names, count=counts, name=st.sampled_from(shares.STRATEGIES))
def test_each_partition_has_exactly_one_owner(consumers, count, name):
    """Whoever is in the group, and one who is not has nothing."""
    strategy = strategy_of(name)
    owned = [one for me in consumers for one in strategy("t", me, consumers, texts(count))]
    assert sorted(owned) == texts(count)
    assert strategy("t", "".join(consumers) + "?", consumers, texts(count)) == []


@given(consumers=names, count=counts)
def test_consecutive_shares_are_as_even_as_can_be(consumers, count):
    sizes = [len(consecutive("t", me, consumers, texts(count))) for me in consumers]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(consumers=names.filter(lambda found: len(found) > 1), count=counts)
def test_when_a_consumer_leaves_only_its_partitions_move(consumers, count):
    """With consistent hashing, except where two consumers have one point, which 32 bits make rare."""
    left = consumers[1:]
    for me in left:
        before = set(consistent("t", me, consumers, texts(count)))
        assert before <= set(consistent("t", me, left, texts(count)))


def test_nobody_has_anything_of_an_empty_group():
    assert consecutive("t", "g_a", [], texts(3)) == []
    assert consistent("t", "g_a", [], texts(3)) == []


def test_a_function_of_the_users_is_taken_as_it_is():
    def last(topic, me, consumers, partitions):
        return partitions[-1:]

    assert strategy_of(last) is last
