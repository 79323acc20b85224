"""RocketMQ's broker at our name server, and our broker at RocketMQ's."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.interop.driver import ForeignClient
from tests.interop.servers import CLUSTER, MetaqNamesrv, MetaqServer, RocketmqServer, Server, mqadmin

pytestmark = pytest.mark.interop


@contextmanager
def _rocketmq_broker_at_ours(folder: Path) -> Iterator[Server]:
    namesrv = MetaqNamesrv(folder)
    namesrv.start()
    with ExitStack() as ends:
        ends.callback(namesrv.stop)
        broker = RocketmqServer(folder, namesrv=namesrv.address)
        broker.start()
        ends.callback(broker.kill)
        yield broker


@contextmanager
def _our_broker_at_rocketmq(folder: Path) -> Iterator[Server]:
    (folder / "foreign").mkdir()
    foreign = RocketmqServer(folder / "foreign")
    foreign.start_namesrv()
    with ExitStack() as ends:
        ends.callback(foreign.kill)
        broker = MetaqServer(folder, namesrv=foreign.namesrv)
        broker.start()
        ends.callback(broker.stop)
        yield broker


@pytest.mark.parametrize("running", [_rocketmq_broker_at_ours, _our_broker_at_rocketmq])
def test_they_work_together(running, java: ForeignClient, tmp_path: Path) -> None:
    """The broker registers, a topic made later is in the route, and the Java client sends and consumes."""
    with running(tmp_path) as server:
        java.producer("p", server.namesrv)
        java.call("create_topic", producer="p", cluster=CLUSTER, topic="mixed", queues=3)
        assert len(java.call("queues", producer="p", topic="mixed")) == 3
        java.send("p", "mixed", [f"m{i}" for i in range(6)])
        java.consumer("c", server.namesrv, "mixed-group", {"mixed": "*"})
        assert sorted(event["body"] for event in java.wait("c", 6)) == [f"m{i}" for i in range(6)]
        assert server.broker in mqadmin(tmp_path, server, "clusterList")
        java.shutdown_all()
