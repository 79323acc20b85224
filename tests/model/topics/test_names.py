"""Names of topics and groups."""

from __future__ import annotations

import pytest

from metaq.errors import Refused
from metaq.model.topics.topic import check_consumer_group, check_group, check_topic


@pytest.mark.parametrize(("check", "what"), [(check_topic, "topic"), (check_group, "group")])
def test_a_name_with_dots_is_refused_with_two_that_are_not(check, what):
    with pytest.raises(Refused) as caught:
        check("orders.eu.paid")
    text = str(caught.value)
    assert f"the {what} name 'orders.eu.paid' has characters outside [%|a-zA-Z0-9_-]" in text
    assert text.endswith(": use 'orders-eu-paid' or 'orders_eu_paid'")
    assert check("orders-eu-paid") and check("orders_eu_paid")


@pytest.mark.parametrize("name", ["orders/eu", "../orders", "or ders", "заказы.eu"])
def test_others_have_no_such_proposal(name):
    with pytest.raises(Refused) as caught:
        check_topic(name)
    assert "use" not in str(caught.value)


def test_a_consumer_groups_name_leaves_room_for_its_retry_topics():
    assert check_topic("%RETRY%" + check_consumer_group("g" * 120))
    with pytest.raises(Refused, match="has 121 characters, the limit is 120"):
        check_consumer_group("g" * 121)
    assert check_group("g" * 121), "of producers"
