"""The clusters of `conf/`: files that start as they stand, and what `make cluster` shows of them."""

from __future__ import annotations

import pytest
from demo import cluster

from metaq.app.configuration import load
from metaq.app.role.configured import check_role

FILES = sorted(cluster.CONF.rglob("*.properties"))


def test_each_set_up_has_its_brokers():
    """As RocketMQ's distribution calls them."""
    found = {path.relative_to(cluster.CONF).with_suffix("").as_posix() for path in FILES}
    assert found == {
        *(f"2m-noslave/broker-{one}" for one in "ab"),
        *(f"2m-2s-{kind}/broker-{one}" for kind in ("async", "sync") for one in ("a", "a-s", "b", "b-s")),
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_a_broker_can_have_the_role_of_its_file(path):
    """A slave has its master's name and a number of its own."""
    options = load(str(path), environment={}).broker.replace(namesrv_addr="127.0.0.1:1")
    check_role(options, None)
    is_slave = path.stem.endswith("-s")
    role = "SLAVE" if is_slave else "SYNC_MASTER" if path.parent.name == "2m-2s-sync" else "ASYNC_MASTER"
    assert (options.broker_name, options.broker_id, options.broker_role) == (path.stem[:8], int(is_slave), role)


@pytest.mark.all
@pytest.mark.long
@pytest.mark.parametrize("set_up", cluster.SET_UPS)
def test_a_cluster_keeps_what_it_promises_through_the_kill_of_a_master(tmp_path, set_up):
    """Every message that was answered with SEND_OK is read: from the slave where there is one."""
    figures = cluster.run(set_up, tmp_path, 1.5)
    assert figures["broken"] == 0
    assert int(figures["acknowledged"].replace(",", "")) > 100
