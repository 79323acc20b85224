"""Per-topic settings of MetaQ 1.x as values: delete policies, wildcards, what a reload has changed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metaq.errors import ConfigError
from metaq.model.metaq1.settings import DeletePolicy, Expired, PartitionRules, PartitionSettings
from metaq.options import Metaq1Options

DEFAULT = PartitionSettings.of(Metaq1Options())
HOUR = 3600


@pytest.mark.parametrize(
    ("text", "policy", "shown"),
    [
        ("delete,168", DeletePolicy(Expired.DELETE, 168 * HOUR), "delete,168"),
        ("delete, 7h", DeletePolicy(Expired.DELETE, 7 * HOUR), "delete,7"),
        ("delete,90s", DeletePolicy(Expired.DELETE, 90), "delete,90s"),
        ("delete,30m", DeletePolicy(Expired.DELETE, 1800), "delete,30m"),
        ("archive,72", DeletePolicy(Expired.ARCHIVE, 72 * HOUR), "archive,72"),
        ("archive,72,true", DeletePolicy(Expired.ARCHIVE, 72 * HOUR, compress=True), "archive,72,true"),
        ("archive,72,false", DeletePolicy(Expired.ARCHIVE, 72 * HOUR), "archive,72"),
    ],
)
def test_policy_is_read_and_shown(text, policy, shown):
    """A bare number means hours; what is shown is read as the same policy again."""
    assert DeletePolicy.parse(text) == policy
    assert str(policy) == shown
    assert DeletePolicy.parse(shown) == policy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("167,archive,true", "perhaps archive,167,true is meant"),
        ("24,delete", "perhaps delete,24 is meant"),
        ("delete", "need delete,168"),
        ("delete,-1", "need delete,168"),
        ("delete,7d", "need delete,168"),
        ("delete,168,true", "need delete,168"),
        ("archive,72,yes", "need delete,168"),
        ("archive,72,true,true", "need delete,168"),
        ("delete,9999999999", "need delete,168"),
        ("keep,3", "need delete,168"),
    ],
)
def test_policy_that_cannot_be_read_is_refused_with_what_may_stand_there(text, says):
    """The form of old documents, with the number first, gets a hint."""
    with pytest.raises(ConfigError, match=says):
        DeletePolicy.parse(text)


@given(st.text("ab*", max_size=6).filter(lambda name: "*" in name), st.text("ab\n", max_size=8))
def test_a_star_stands_for_anything(wildcard, topic):
    """As the same pattern of a regular expression says, which takes its time over long names."""
    pattern = ".*".join(map(re.escape, wildcard.split("*")))
    expected = re.fullmatch(pattern, topic, re.DOTALL) is not None
    assert PartitionRules(DEFAULT, wildcards=(wildcard,), sections=True).accepts(topic) is expected


def test_a_name_of_128_kib_is_judged_at_once():
    """By a regular expression this would take 10 000 000 000 steps, and every client may send such a name."""
    assert not PartitionRules(DEFAULT, wildcards=("*a*a*b",), sections=True).accepts("a" * 128 * 1024)


def test_wildcards_admit_whole_names_and_give_them_the_defaults():
    """A dot is a dot, and what else the wildcard's section says is not for the topics it admits."""
    own = replace(DEFAULT, num_partitions=4)
    rules = PartitionRules(DEFAULT, {"orders": own}, ("log-*", "a.b*c"), sections=True)
    assert [rules.accepts(name) for name in ("orders", "log-", "log-x\ny", "a.b12c", "a.bc")] == [True] * 5
    assert not any(rules.accepts(name) for name in ("order", "orders2", "xlog-1", "axbc", "a.bcd"))
    assert rules.settings("orders") is own
    assert rules.settings("log-1") is DEFAULT


def test_without_sections_every_topic_may_be_asked_for():
    """Whether it is made then is the broker's autoCreateTopicEnable's to say."""
    assert PartitionRules(DEFAULT).accepts("anything")
    assert not PartitionRules(DEFAULT, sections=True).accepts("anything")


def test_changes_name_topics_that_are_new_gone_or_different():
    """A reload tells these, and no others."""
    before = PartitionRules(DEFAULT, {"same": DEFAULT, "more": DEFAULT, "gone": DEFAULT}, sections=True)
    after = PartitionRules(
        DEFAULT, {"same": DEFAULT, "more": replace(DEFAULT, num_partitions=2), "new": DEFAULT}, sections=True
    )
    assert after.changed(before) == {"more", "gone", "new"}
