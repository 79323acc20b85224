"""The unchanged Java client and mqadmin 4.9.8 over IPv6, against a name server and a broker on `::1`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.testing import EmbeddedBroker
from tests.interop.driver import ForeignClient
from tests.interop.servers import mqadmin

pytestmark = pytest.mark.interop


@pytest.fixture
def ipv6() -> Iterator[EmbeddedBroker]:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback address: {error}")
    with EmbeddedBroker(
        options={"broker.bindAddress": "::1", "namesrv.bindAddress": "::1", "brokerClusterName": "C"}
    ) as broker:
        yield broker


def test_java_client_and_mqadmin_work_over_ipv6(java: ForeignClient, ipv6: EmbeddedBroker, tmp_path: Path) -> None:
    """They find the broker by `[::1]:port` in the route, and read records whose hosts are 16 bytes."""
    assert ipv6.namesrv.startswith("[::1]:")
    java.producer("p6", ipv6.namesrv, "producers")
    java.call("create_topic", producer="p6", cluster="C", topic="orders", queues=4)
    java.consumer("c6", ipv6.namesrv, "readers", {"orders": "*"})
    bodies = [f"m{number}" for number in range(10)]
    assert {receipt["status"] for receipt in java.send("p6", "orders", bodies)} == {"SEND_OK"}
    events = java.wait("c6", 10)
    assert sorted(event["body"] for event in events) == bodies
    assert ipv6.broker in mqadmin(tmp_path, ipv6, "clusterList")
    assert "Diff Total" in mqadmin(tmp_path, ipv6, "consumerProgress", "-g", "readers")
