"""What `deletePolicy` says."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.model.retention import DeletePolicy, is_carried, parse_policy

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("delete,168", DeletePolicy(168 * HOUR_MS)),
        (" delete , 168 ", DeletePolicy(168 * HOUR_MS)),
        ("Delete,10s", DeletePolicy(10_000)),
        ("delete,5m", DeletePolicy(300_000)),
        ("delete,2H", DeletePolicy(2 * HOUR_MS)),
        ("archive,72", DeletePolicy(72 * HOUR_MS, archive=True)),
        ("archive,72,false", DeletePolicy(72 * HOUR_MS, archive=True)),
        ("archive,72,true", DeletePolicy(72 * HOUR_MS, archive=True, compress=True)),
    ],
)
def test_policy_is_read(text, policy):
    """A bare number means hours."""
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begins with delete or archive"),
        ("167,archive,true", "write archive,167,true"),
        ("keep,3", "begins with delete or archive"),
        ("delete", "how long"),
        ("delete,", "how long"),
        ("delete,-1", "how long"),
        ("delete,1d", "how long"),
        ("delete,99999999999", "how long"),
        ("delete,1,true", "only archive has a third word"),
        ("archive,1,yes", "only archive has a third word"),
        ("archive,1,true,1", "only archive has a third word"),
    ],
)
def test_wrong_policy_is_refused_with_what_it_should_be(text, why):
    """One whose words are swapped, with the right order."""
    with pytest.raises(ConfigError, match=why):
        parse_policy(text)


def test_topics_that_the_broker_carries_forward_have_no_rule():
    """Delayed messages, half messages, everything of ours."""
    assert is_carried("SCHEDULE_TOPIC_XXXX")
    assert is_carried("rmq_sys_METAQ_POSITIONS")
    assert not is_carried("%RETRY%g")
    assert not is_carried("test")
