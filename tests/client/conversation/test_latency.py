"""Which brokers a producer avoids: the table of RocketMQ's sendLatencyFaultEnable, with times that the test gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.conversation.latency import BrokerLatencies, avoided_seconds


@pytest.mark.parametrize(
    ("latency_ms", "avoided"),
    [
        (0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 30), (999, 30), (1000, 60), (1999, 60), (2000, 120),
        (2999, 120), (3000, 180), (14_999, 180), (15_000, 600), (60_000, 600),
    ],
)  # fmt: skip
def test_the_table_is_rocketmqs(latency_ms, avoided):
    """The largest threshold that the latency reaches counts."""
    assert avoided_seconds(latency_ms / 1000) == avoided


def test_a_slow_broker_is_avoided_for_its_time_and_a_quick_answer_ends_it():
    """To the second."""
    seen = BrokerLatencies()
    assert seen.available("a", 0.0)
    seen.answered("a", 0.6, 10.0)
    assert not seen.available("a", 39.9)
    assert seen.available("a", 40.0)
    seen.answered("a", 0.6, 50.0)
    seen.answered("a", 0.01, 51.0)
    assert seen.available("a", 51.0)


def test_a_failure_counts_as_half_a_minute():
    """However soon it came: ten minutes."""
    seen = BrokerLatencies()
    seen.failed("a", 0.001, 0.0)
    assert not seen.available("a", 599.9)
    assert seen.available("a", 600.0)


def test_of_avoided_brokers_one_of_the_better_half_is_picked_in_turn():
    """Quickest first, then those that are free soonest; one alone is picked always."""
    seen = BrokerLatencies()
    for broker, latency in (("a", 3.0), ("b", 0.6), ("c", 2.0), ("d", 1.0)):
        seen.answered(broker, latency, 0.0)
    assert {seen.pick("abcd") for _ in range(4)} == {"b", "d"}
    assert seen.pick(["a"]) == "a"
    seen.answered("e", 0.6, 5.0)
    assert seen.pick(["e", "b", "a"]) == "b"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40), st.booleans(), st.floats(0, 700)), max_size=30))
def test_every_broker_is_available_again(steps):
    """Ten minutes after the last request at the latest, and whoever is picked is one of those offered."""
    seen, now = BrokerLatencies(), 0.0
    for broker, latency, failed, pause in steps:
        (seen.failed if failed else seen.answered)(broker, latency, now)
        now += pause
    assert all(seen.available(broker, now + 600) for broker in "abc")
    avoided = [broker for broker in "abc" if not seen.available(broker, now)]
    if avoided:
        assert seen.pick(avoided) in avoided
