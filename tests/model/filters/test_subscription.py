"""Tag expressions: what RocketMQ makes of them, and which of them a user of ours cannot have meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError, LocalProtocolError
from metaq.model.filters.subscription import checked_expression, subscribe
from metaq.model.message import check_tag


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a,b", "'a || b'"),
        ("a, b", "'a || b'"),
        ("a;b", "'a || b'"),
        ("a|b", "'a || b'"),
        ("a ||| b", "'a || b'"),
        ("a b", "'a || b'"),
        ("a OR b", "'a || b'"),
        ("a or b or c", "'a || b || c'"),
        ("a || b,c", "'a || b || c'"),
        ("'a' || 'b'", "'a || b'"),
        ("(a || b)", "'a || b'"),
        ("'a'", "'a'"),
        ("a || *", "'*'"),
    ],
)
def test_list_in_a_wrong_spelling_is_refused_with_the_right_one(written, meant):
    """The error names the topic, what was written, and what to write."""
    with pytest.raises(ConfigError) as caught:
        checked_expression("orders", written)
    assert repr(written) in str(caught.value)
    assert "orders" in str(caught.value)
    assert f"write {meant}" in str(caught.value)


@pytest.mark.parametrize(
    "written",
    ["a > 5", "a = 5", "a=5", "color <> 'red'", "a AND b", "a && b", "NOT a", "!a", "a*", "a || b*", "TAGS IS NOT NULL",
     "a in (1, 2)", "x BETWEEN 1 AND 2", "a\x01b", "a\nb > 3"],
)  # fmt: skip
def test_condition_is_refused_as_no_list_of_tags(written):
    """A tag is equal or it is not: there is no spelling that says more."""
    with pytest.raises(ConfigError, match="orders") as caught:
        checked_expression("orders", written)
    assert "||" in str(caught.value)


@pytest.mark.parametrize("written", [None, "", " ", "*", " * "])
def test_nothing_and_star_are_all(written):
    """As RocketMQ has it."""
    assert checked_expression("orders", written) == "*"


@pytest.mark.parametrize(
    "written", ["paid", " paid||refunded ", "a || b ||", "v1.2:x/y@z#-_%", "größe || 红", "OR", "not"]
)
def test_right_spelling_stays_as_it_is(written):
    """What matches is not touched: other members of the group, in Java, say it in the same words."""
    assert checked_expression("orders", written) == written


def test_bars_alone_are_refused():
    """Nothing is between them."""
    with pytest.raises(ConfigError, match="no tag"):
        checked_expression("orders", " || ")


def test_list_of_tags_is_taken_literally():
    """For tags of other producers that no expression of ours may spell, such as one with a comma."""
    assert checked_expression("orders", ["a,b", "c d"]) == "a,b || c d"
    assert checked_expression("orders", ("paid",)) == "paid"
    for wrong in (["a|b"], ["*"], [""], []):
        with pytest.raises(ConfigError, match="orders"):
            checked_expression("orders", wrong)
    for wrong in (5, [5], b"paid", {"paid": 1}):
        with pytest.raises(TypeError, match="orders"):
            checked_expression("orders", wrong)


def test_peers_may_say_what_they_like():
    """Through foreign clients an expression means what RocketMQ makes of it, be it nothing."""
    assert subscribe("orders", "a,b").tags == {"a,b"}
    assert subscribe("orders", "a > 5").tags == {"a > 5"}
    assert subscribe("orders", "a OR b").tags == {"a OR b"}


@given(st.text(max_size=20))
def test_what_is_taken_can_match(text):
    """Every tag of an accepted expression is one that a producer of ours may send."""
    try:
        expression = checked_expression("orders", text)
    except ConfigError:
        return
    for tag in subscribe("orders", expression).tags:
        assert check_tag(tag) == tag


@given(st.lists(st.text(min_size=1, max_size=10), min_size=1, max_size=5))
def test_any_tag_that_can_be_sent_can_be_named(tags):
    """As a list, whatever characters it has."""
    try:
        for tag in tags:
            check_tag(tag)
    except LocalProtocolError:
        return
    assert subscribe("orders", checked_expression("orders", tags)).tags == set(tags)
