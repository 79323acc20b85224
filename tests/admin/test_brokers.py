"""What is told of brokers: how far slaves are behind."""

from __future__ import annotations

import pytest

from metaq.admin.brokers import BrokerStatus, behind


def status(broker: str, broker_id: int, log_end: object = None) -> BrokerStatus:
    runtime = {} if log_end is None else {"commitLogMaxOffset": str(log_end)}
    return BrokerStatus("C", broker, broker_id, f"{broker}:{broker_id}", "", runtime)


@pytest.mark.parametrize(
    ("slave", "lag"),
    [
        (status("a", 1, 900), 100),
        (status("a", 2, 1000), 0),
        (status("a", 1, 1010), 0),
        (status("a", 1), None),
        (status("b", 1, 5), None),
        (status("c", 1, 5), None),
    ],
)
def test_a_slave_is_behind_by_what_its_own_master_has_more(slave, lag):
    """0 for one that was asked a moment later; nothing where one of the two does not say, or is not there."""
    brokers = [status("a", 0, 1000), status("b", 0), slave]
    assert behind(brokers, slave) == lag


def test_a_master_is_behind_nobody():
    brokers = [status("a", 0, 1000), status("a", 1, 900)]
    assert behind(brokers, brokers[0]) is None
