"""Plans of a rebalance: what is released, claimed and fetched, by what ZooKeeper says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.metaq1 import Partition
from metaq.metaq1.rebalance.fetching import Held
from metaq.metaq1.rebalance.plan import Plan, Rules, Seen, Standing, make_plan
from metaq.metaq1.rebalance.strategies import consecutive, consistent
from metaq.registry.zookeeper.layout import BrokerPlace

MASTER, SLAVE, SLAVE2 = BrokerPlace(0), BrokerPlace(0, 0), BrokerPlace(0, 1)
ADDRESSES = {MASTER: "m:1", SLAVE: "s:1", SLAVE2: "s:2"}


def rules(me="g_a", topics=("t",), strategy=consecutive, read_from="master_first", choose=min) -> Rules:
    return Rules(me, tuple(topics), strategy, read_from, choose)


def seen(*members: str, places=None, addresses=None) -> Seen:
    places = {MASTER: 4} if places is None else places
    return Seen(dict.fromkeys(members, ("t",)), {"t": places}, ADDRESSES if addresses is None else addresses)


def held(*numbers: int, topic="t", broker=0) -> tuple[Held, ...]:
    return tuple(Held(topic, Partition(broker, number)) for number in numbers)


def done(plan: Plan, before: Standing) -> Standing:
    """What a consumer has when all of a plan went well."""
    return Standing((before.owned | set(plan.claim)) - set(plan.release), plan.shares, plan.servers)


def test_a_consumer_alone_claims_all():
    plan = make_plan(rules(), seen("g_a"), Standing())
    assert (plan.release, plan.claim) == ((), held(0, 1, 2, 3))
    assert plan.servers == dict.fromkeys(held(0, 1, 2, 3), "m:1")


def test_what_is_another_consumers_now_is_released():
    first = done(make_plan(rules(), seen("g_a"), Standing()), Standing())
    plan = make_plan(rules(), seen("g_a", "g_b"), first)
    assert (plan.release, plan.claim) == (held(2, 3), ())
    assert set(plan.servers) == set(held(0, 1))


def test_nothing_is_done_twice():
    standing = done(make_plan(rules(), seen("g_a", "g_b"), Standing()), Standing())
    plan = make_plan(rules(), seen("g_a", "g_b"), standing)
    assert (plan.release, plan.claim, plan.servers) == ((), (), standing.servers)


def test_topics_without_partitions_or_without_this_consumer_are_given_back():
    standing = done(make_plan(rules(), seen("g_a"), Standing()), Standing())
    assert make_plan(rules(), seen("g_a", places={}), standing).release == held(0, 1, 2, 3)
    assert make_plan(rules(), seen("g_b"), standing).release == held(0, 1, 2, 3)


def test_members_of_other_topics_have_no_share():
    view = Seen({"g_a": ("t",), "g_b": ("u",)}, {"t": {MASTER: 2}}, ADDRESSES)
    assert make_plan(rules(), view, Standing()).claim == held(0, 1)


def test_partitions_of_several_brokers_are_in_the_order_of_texts():
    """A master and its slaves count once."""
    places = {BrokerPlace(2): 1, BrokerPlace(10): 2, BrokerPlace(10, 1): 3}
    view = seen("g_a", "g_b", places=places, addresses=dict.fromkeys(places, "x:1"))
    assert make_plan(rules(), view, Standing()).claim == held(0, 1, broker=10)
    assert make_plan(rules("g_b"), view, Standing()).claim == (*held(0, broker=2), *held(2, broker=10))


@pytest.mark.parametrize(
    ("read_from", "there", "server"),
    [
        ("master_first", {MASTER, SLAVE}, "m:1"),
        ("master_first", {SLAVE2}, "s:2"),
        ("slave_first", {MASTER, SLAVE2}, "s:2"),
        ("slave_first", {MASTER}, "m:1"),
        ("random", {MASTER, SLAVE}, "m:1"),
        ("random", {SLAVE}, "s:1"),
        ("random", set(), None),
        ("master_first", set(), None),
    ],
)
def test_where_to_fetch_from(read_from, there, server):
    """`min` is the chance of these tests. Of servers that serve the topic, only those that are there count."""
    view = seen("g_a", places={MASTER: 1, SLAVE: 1, SLAVE2: 1}, addresses={place: ADDRESSES[place] for place in there})
    plan = make_plan(rules(read_from=read_from), view, Standing())
    assert plan.claim == held(0)
    assert plan.servers == ({} if server is None else {held(0)[0]: server})
    assert plan.homeless == (held(0) if server is None else ())


def test_a_server_that_has_less_partitions_than_another_is_not_asked_for_the_rest():
    plan = make_plan(rules(), seen("g_a", places={MASTER: 1, SLAVE: 2}), Standing())
    assert plan.servers == dict(zip(held(0, 1), ["m:1", "s:1"], strict=True))


def test_a_server_chosen_by_chance_stays():
    view = seen("g_a", places={SLAVE: 1, SLAVE2: 1})
    standing = done(make_plan(rules(choose=max), view, Standing()), Standing())
    assert set(standing.servers.values()) == {"s:2"}
    assert make_plan(rules(choose=min), view, standing).servers == standing.servers


def test_a_strategy_of_the_users():
    """Asked once for the same lists; its faults have a text."""
    asked = []

    def odd(topic, me, members, partitions):
        asked.append((topic, me, members, partitions))
        return [text for text in partitions if text.endswith(("1", "3"))]

    standing = done(make_plan(rules(strategy=odd), seen("g_a", "g_b"), Standing()), Standing())
    assert standing.owned == set(held(1, 3))
    assert asked == [("t", "g_a", ("g_a", "g_b"), ("0-0", "0-1", "0-2", "0-3"))]
    make_plan(rules(strategy=odd), seen("g_a", "g_b"), standing)
    assert len(asked) == 1
    with pytest.raises(ConfigError, match="strategy returns '9-9' for topic t, which is none of its 4 partitions"):
        make_plan(rules(strategy=lambda *_: ["9-9"]), seen("g_a"), Standing())
    with pytest.raises(ConfigError, match="strategy fails for topic t: ZeroDivisionError"):
        make_plan(rules(strategy=lambda *_: 1 // 0), seen("g_a"), Standing())


groups = st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=6)


@given(
    history=groups,
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    strategy=st.sampled_from([consecutive, consistent]),
)
def test_each_partition_is_owned_once_whoever_comes_and_goes(history, sizes, strategy):
    """Every member plans for itself; what it released or claimed is what the next plan begins with."""
    places = {BrokerPlace(number): size for number, size in enumerate(sizes)}
    everything = {Held("t", Partition(number, part)) for number, size in enumerate(sizes) for part in range(size)}
    addresses = {place: f"m:{place.broker_id}" for place in places}
    standings: dict[str, Standing] = {}
    for letters in history:
        members = [f"g_{letter}" for letter in sorted(letters)]
        view = seen(*members, places=places, addresses=addresses)
        standings = {me: standings.get(me, Standing()) for me in members}
        for me, before in standings.items():
            plan = make_plan(rules(me, strategy=strategy), view, before)
            assert before.owned.isdisjoint(plan.claim)
            assert before.owned.issuperset(plan.release)
            standings[me] = done(plan, before)
        owned = [one for standing in standings.values() for one in standing.owned]
        assert len(owned) == len(everything)
        assert set(owned) == everything
        assert all(set(standing.servers) == standing.owned for standing in standings.values())
        for me, standing in standings.items():
            again = make_plan(rules(me, strategy=strategy), view, standing)
            assert (again.release, again.claim) == ((), ())
