"""Which queue goes where: decided once, one to one unless it is allowed otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.model import MessageQueue
from metaq.pipelines.mirror.queue_map import extended, from_rows, spread, to_rows


def queues(topic: str, **brokers: int) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for broker, count in brokers.items() for number in range(count)]


LAYOUTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5), min_size=1)


@given(LAYOUTS, LAYOUTS)
def test_a_map_does_not_change_when_queues_are_added(before, after):
    """What a queue was given stays, whatever else comes."""
    first = queues("orders", **before)
    grown = sorted({*first, *queues("orders", **after)})
    target = queues("orders", x=len(grown))
    mapped = extended({}, first, target, merge=False)
    more = extended(mapped, grown, target, merge=False)
    assert {queue: more[queue] for queue in first} == mapped
    assert len(set(more.values())) == len(more) == len(grown)


@given(LAYOUTS, st.sampled_from("xyz"))
def test_queue_i_goes_to_queue_i(layout, broker):
    """In the order in which producers choose among them, so a key keeps its queue."""
    source, target = queues("orders", **layout), queues("orders", **{broker: sum(layout.values())})
    mapped = extended({}, source, target, merge=False)
    assert [mapped[queue] for queue in sorted(source)] == sorted(target)


@given(LAYOUTS, LAYOUTS)
def test_too_few_queues_are_refused_or_shared(source, target):
    """With the count that is needed; shared ones all have somebody."""
    mine, places = queues("orders", **source), queues("other", **target)
    if len(mine) <= len(places):
        assert len(set(extended({}, mine, places, merge=False).values())) == len(mine)
        return
    with pytest.raises(ConfigError, match=rf"has {len(places)} there, and {len(mine)} are needed.*mergeQueues=true"):
        extended({}, mine, places, merge=False)
    shared = extended({}, mine, places, merge=True)
    assert set(shared) == set(mine)
    assert set(shared.values()) == set(places)


@given(st.integers(1, 40), st.sets(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6))
def test_a_new_topic_has_as_many_queues_as_the_source(count, brokers):
    """Spread evenly."""
    found = spread(count, sorted(brokers))
    assert sum(found.values()) == count
    assert max(found.values()) - min(found.values()) <= 1
    assert len(found) == min(count, len(brokers))


@given(LAYOUTS)
def test_a_map_is_read_as_it_was_written(layout):
    """JSON has no tuples."""
    mapped = extended({}, queues("orders", **layout), queues("there", x=20), merge=False)
    assert from_rows(to_rows(mapped)) == mapped
