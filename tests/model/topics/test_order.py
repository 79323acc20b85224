"""Layouts of ordered topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.model import BrokerData, MessageQueue, QueueData, Route
from metaq.model.topics.route import OrderLayout

VECTOR = "broker-b:2;broker-a:1"
"""As mqadmin updateOrderConf writes it."""


def test_a_layout_is_read_and_written_as_name_servers_keep_it():
    """The order of the brokers is part of it: keys are hashed over the list that it makes."""
    layout = OrderLayout.of(VECTOR)
    assert layout.parts == (("broker-b", 2), ("broker-a", 1))
    assert str(layout) == VECTOR
    assert layout.queues("T") == [
        MessageQueue("T", "broker-b", 0), MessageQueue("T", "broker-b", 1), MessageQueue("T", "broker-a", 0),
    ]  # fmt: skip
    assert OrderLayout.of(" broker-b:2 ;;broker-a:1; ") == layout
    assert str(OrderLayout.from_counts([("b", 2), ("a", 1), ("c", 0)])) == "a:1;b:2"


@pytest.mark.parametrize(
    "text", ["", ";", "a", "a:", ":4", "a:x", "a:0", "a:-1", "a:70000", "a:1;a:2", "a:²", "a:1,b:2", "a:99999999999999"]
)
def test_what_is_no_layout_is_refused_with_the_form(text):
    """Whoever wrote it: an administrator or a name server."""
    with pytest.raises(ConfigError, match="order configuration"):
        OrderLayout.of(text)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters=";:,", exclude_categories=["Z", "C"]), min_size=1),
        st.integers(1, 65536), min_size=1, max_size=8,
    )
)  # fmt: skip
def test_layouts_round_trip(parts):
    """Whatever brokers are called."""
    layout = OrderLayout(tuple(parts.items()))
    assert OrderLayout.of(str(layout)) == layout


def test_a_routes_writable_queues_are_those_of_the_layout_that_are_up():
    """In the layout's order; without one, all, sorted."""
    queues = tuple(QueueData(name, 4, 4, 6) for name in "abc")
    brokers = tuple(BrokerData("C", name, {0: f"{name}:1"}) for name in "ab")
    assert len(Route("T", queues, brokers).writable()) == 8
    ordered = Route("T", queues, brokers, "c:2;b:1;a:9").writable()
    assert ordered == [MessageQueue("T", "b", 0), *(MessageQueue("T", "a", number) for number in range(4))]
