"""Which topics have rules of retention."""

from __future__ import annotations

from metaq.model.cron import parse_cron
from metaq.model.metaq1.settings import DeletePolicy
from metaq.model.retention import FixedRetentions, TopicRetention, is_carried


def test_topics_that_the_broker_carries_forward_have_no_rule():
    """Delayed messages, half messages, everything of ours."""
    assert is_carried("SCHEDULE_TOPIC_XXXX")
    assert is_carried("rmq_sys_METAQ_POSITIONS")
    assert not is_carried("%RETRY%g")
    assert not is_carried("test")


def test_topic_without_a_rule_has_the_common_one():
    """And one that has its own has that."""
    when = parse_cron("0 0 6,18 * * ?")
    common, own = (TopicRetention(DeletePolicy.parse(text), when) for text in ("delete,168", "delete,1"))
    rules = FixedRetentions(common, {"test": own})
    assert (rules.of("test"), rules.of("other")) == (own, common)
