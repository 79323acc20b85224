"""What a redrive is told: values that fit each other, lists of SQL, times, and how fast it may go. Without Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.pipelines.configuration import configure
from metaq.pipelines.redrive.job import STEP_SECONDS, Pace
from metaq.pipelines.redrive.options import moment, split_expressions

GOOD = {"group": "billing", "folder": "out"}


def test_a_group_stands_for_its_dead_letters():
    """Any topic may be named instead."""
    assert configure("redrive", GOOD).options.source == "%DLQ%billing"
    assert configure("redrive", {"topic": "orders", "to": "other", "folder": "out"}).options.source == "orders"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"folder": ""}, "folder is missing"),
        ({"group": ""}, "name either group, whose dead letters are redriven, or topic"),
        ({"topic": "orders"}, "name either group"),
        ({"group": "a b"}, "group: "),
        ({"to": "no/topic"}, "topic or to|group: "),
        ({"group": "", "topic": "orders"}, "to is missing: messages of orders name no topic"),
        ({"to": "%RETRY%billing"}, "only brokers put messages into retry"),
        ({"group": "", "topic": "orders", "to": "orders"}, "where the messages are taken from"),
        ({"onlyGroup": True, "to": "orders"}, "onlyGroup .* neither with topic nor with to"),
        ({"onlyGroup": True, "group": "", "topic": "%DLQ%billing"}, "onlyGroup .* goes with group"),
        ({"cap": 0}, "cap=0: the smallest allowed value is 1"),
        ({"rate": 0}, "rate=0: nothing would be sent"),
        ({"rate": -1.5}, "rate=-1.5: nothing would be sent"),
        ({"decode": "xml"}, "decode=xml: allowed are none, utf8, json, avro, protobuf"),
        ({"decode": "json"}, "schema is missing: decode=json needs it"),
        ({"decode": "protobuf", "schema": "a.desc"}, "message is missing"),
        ({"schema": "id int"}, "schema says nothing to decode=none"),
        ({"select": "upper(tag as tag"}, r"select: \( is not closed"),
        ({"starting": "yesterday"}, "starting='yesterday': need a time such as"),
        ({"starting": "2026-03-01", "ending": "2026-03-01T00:00:00Z"}, "ending is not behind starting"),
        ({"onCorrupt": "ignore"}, "onCorrupt=ignore: allowed are skip, fail"),
    ],
)
def test_what_does_not_fit_is_refused(changes, why):
    """With what to do."""
    with pytest.raises(ConfigError, match=why):
        configure("redrive", {**GOOD, **changes})


def test_times():
    """UTC where no zone is said."""
    assert moment("starting", None) is None
    assert moment("starting", "1772366400000") == 1772366400000
    assert moment("starting", "2026-03-01T12:00:00") == moment("starting", "2026-03-01T13:00:00+01:00") == 1772366400000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, []),
        ("  ", []),
        ("a", ["a"]),
        ("upper(text) as body, 'a,b' as tag", ["upper(text) as body", "'a,b' as tag"]),
        ("f(a, (b, c)), d[1, 2], `x,y`", ["f(a, (b, c))", "d[1, 2]", "`x,y`"]),
        (r"'it\'s, so', b", [r"'it\'s, so'", "b"]),
        (r"r'\', b", [r"r'\'", "b"]),
        ('"a, b", c', ['"a, b"', "c"]),
        ("a -- one, two\n, b /* three, ( */", ["a -- one, two", "b /* three, ( */"]),
        ("a - b, c / d", ["a - b", "c / d"]),
    ],
)
def test_lists_of_expressions_are_cut_at_their_own_commas(text, found):
    """Not at those in quotes, brackets and comments."""
    assert split_expressions(text, "select") == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("f(a", r"\( is not closed"),
        ("f(a]", "] closes nothing"),
        ("a)", r"\) closes nothing"),
        ("'a", 'what begins at "\'a" does not end'),
        ("a, , b", "nothing lies between two commas"),
        ("a,", "nothing lies between two commas"),
        ("a /* b", "what begins at .* does not end"),
    ],
)
def test_lists_that_are_none_are_refused(text, why):
    """With the place."""
    with pytest.raises(ConfigError, match=f"^select: {why}"):
        split_expressions(text, "select")


PIECES = st.sampled_from(["a", "f(x, 'y)')", "'p, q'", '"r"', "`s, t`", "[1, [2]]", "u /* , ( */", "1 - 2", "r'\\'"])


@given(st.lists(PIECES, min_size=1))
def test_what_is_joined_with_commas_is_cut_into_the_same(pieces):
    """Whatever the expressions hold."""
    assert split_expressions(" ,\n".join(pieces), "select") == pieces


def test_no_rate_is_no_limit():
    """Everything at once."""
    pace = Pace(None)
    pace.sent(10**9, 5.0)
    assert (pace.step(10_000), pace.pause(5.0)) == (10_000, 0.0)


@given(
    st.floats(0.01, 10_000),
    st.lists(st.tuples(st.integers(1, 100_000), st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=20),
)
def test_no_stretch_of_time_gets_more_than_its_share_and_one_step(rate, steps):
    """However long sends take, and whatever was waited for in between: nothing is made up for."""
    pace, now, sent = Pace(rate), 0.0, []
    for wanted, idle, took in steps:
        now += idle
        now += pace.pause(now)
        assert pace.pause(now) <= 1e-6
        messages = pace.step(wanted)
        assert 1 <= messages <= max(1, rate * STEP_SECONDS)
        sent.append((now, messages))
        pace.sent(messages, now)
        now += took
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            span = sent[last][0] - sent[first][0]
            assert sum(count for _, count in sent[first:last]) <= rate * span * 1.000001 + 1e-3
