"""Options of a broker whose group has failover: what cannot be is refused before anything is opened."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from metaq.app.role.configured import check_role
from metaq.errors import ConfigError, MetaqError
from metaq.options import BrokerOptions

GOOD = {"failover": "zookeeper", "failover_zookeeper": "zk1:2181,zk2:2181/metaq", "broker_id": 1}


def refusal(**options: Any) -> str:
    with pytest.raises(MetaqError) as error:
        check_role(BrokerOptions(**{**GOOD, **options}), None)
    assert isinstance(error.value, ConfigError) or "broker_id" in options or "min" in str(options)
    return str(error.value)


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"])
@pytest.mark.parametrize("number", [1, 64])
def test_a_member_has_any_role_and_a_number_of_its_own(role, number):
    """The role is looked at before there is a group alone."""
    check_role(BrokerOptions(**{**GOOD, "broker_role": role, "broker_id": number}), None)


@pytest.mark.parametrize("number", [0, 65, 1000])
def test_numbers_that_no_member_has(number):
    assert refusal(broker_id=number) == (
        f"brokerId={number} with failover=zookeeper: give each broker of the group a number of its own, 1 to 64, for ever; who leads is 0 "
        "to clients"
    )


@pytest.mark.parametrize("value", ["raft", "on", "ZooKeeper", ""])
def test_another_kind_of_failover(value):
    assert refusal(failover=value) == f"failover={value}: it is off or zookeeper"


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_place_to_agree(value):
    assert refusal(failover_zookeeper=value) == (
        "failover=zookeeper: set failoverZookeeper, where the brokers of the group agree, host:port,host:port/path"
    )


def test_without_kazoo(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "kazoo" else found(name, *rest))
    assert refusal() == "failover=zookeeper needs kazoo; install pymetaq[zookeeper]"
