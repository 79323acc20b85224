"""The grammar of rules: what it takes, how it spells it, where it says that something is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.pipelines.metrics.figures import LABELS, METRIC_OF
from metaq.pipelines.metrics.rules import FOR_MAX, OPERATORS, Label, Rule, parse_rules


@st.composite
def rules(draw):
    column = draw(st.sampled_from(sorted(METRIC_OF)))
    names = LABELS[METRIC_OF[column]]
    value = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    labels = st.builds(Label, st.sampled_from(names), st.sampled_from(["=", "!=", "~", "!~"]), value)
    return Rule(
        column,
        tuple(draw(st.lists(labels, max_size=3))),
        draw(st.sampled_from(sorted(OPERATORS))),
        draw(st.floats(allow_nan=False, allow_infinity=False)),
        draw(st.integers(1, FOR_MAX)),
    )


@given(st.lists(rules(), max_size=4))
def test_what_a_rule_spells_reads_as_the_same_rule(found):
    """Whatever is in its labels."""
    assert parse_rules("; ".join(map(str, found))) == tuple(found)


@given(st.text(st.sampled_from(' lag_seconds{}group="a\\",;<>=!~60for3\n')))
def test_any_text_is_rules_or_a_sentence_with_a_place(text):
    """Nothing else is raised, and the place is in the text or just behind it."""
    try:
        parse_rules(text)
    except ConfigError as fault:
        assert 1 <= int(str(fault).split("character ")[1].split()[0]) <= len(text) + 1


def test_a_rule_of_every_part():
    """Also without blanks, and with `;` at the end."""
    (rule,) = parse_rules('lag_seconds{group=billing,topic~"orders-*",broker!=b}>60 for 3;')
    assert (rule.column, rule.metric, rule.comparison, rule.threshold, rule.windows) == (
        "lag_seconds", "groups", ">", 60.0, 3,
    )  # fmt: skip
    assert rule.fits({"group": "billing", "topic": "orders-1", "broker": "a"})
    assert not rule.fits({"group": "billing", "topic": "payments", "broker": "a"})
    assert not rule.fits({"group": "billing", "topic": "orders-1", "broker": "b"})
    assert rule.holds(60.5)
    assert not rule.holds(60.0)
    assert not rule.holds(None)
    assert parse_rules(" ; ") == ()


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("lag_second > 60", 1, "no figure lag_second; the nearest is lag_seconds"),
        ("lag_seconds", 12, "need one of .*, but the text ends here"),
        ("lag_seconds = 60", 13, "need one of .* here, not ="),
        ("lag_seconds > soon", 15, "'soon' is no number"),
        ("lag_seconds > inf", 15, "'inf' is no number"),
        ("lag_seconds > 60 for", 21, "need a number of windows after `for`"),
        ("lag_seconds > 60 for 0", 22, "from 1 to 1000, not '0'"),
        ("lag_seconds > 60 or 3", 18, "need `;` between two rules"),
        ("lag_seconds{queue=1} > 60", 13, "groups has no label queue; it has topic, group, broker"),
        ("messages{group=a} > 60", 10, "messages has no label group"),
        ("lag_seconds{group} > 60", 18, "need one of = != ~ !~|here, not }"),
        ("lag_seconds{group>1} > 60", 18, "need one of .* here, not >"),
        ("lag_seconds{group=a topic=b} > 60", 21, "need `,` or `}` behind a label"),
        ("lag_seconds{group=} > 60", 19, "need a value"),
        ('lag_seconds{group="a > 60', 19, "the text in quotes does not end"),
        ("lag_seconds > 60; !", 19, "means nothing here"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text, place, why):
    """Counted from 1, and with what would be right."""
    with pytest.raises(ConfigError, match=why) as caught:
        parse_rules(text)
    assert f"character {place} (" in str(caught.value)
