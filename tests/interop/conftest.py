"""Foreign clients against our broker; in `make test-all` also against RocketMQ's own, to prove the tests themselves."""

from collections.abc import Iterator

import pytest

from tests.interop.driver import ForeignClient, java_client
from tests.interop.metaq1 import Metaq1Client, Zookeeper, metaq1_client
from tests.interop.servers import MetaqServer, RocketmqServer, Server

PEERS = {"metaq": MetaqServer, "rocketmq": RocketmqServer}


@pytest.fixture(scope="module", params=["metaq", pytest.param("rocketmq", marks=pytest.mark.all)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running name server and broker, one pair for all tests of a module."""
    running: Server = PEERS[request.param](tmp_path_factory.mktemp(request.param))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignClient]:
    client = java_client(tmp_path_factory.mktemp("jvm"))
    yield client
    client.close()


@pytest.fixture
def java(jvm: ForeignClient) -> Iterator[ForeignClient]:
    """The Java client, with what a test started in it shut down behind the test."""
    yield jvm
    jvm.shutdown_all()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zookeeper]:
    """A ZooKeeper that keeps running: what stops or clears one starts its own. Use roots (`zk.zkRoot`) of your own."""
    with Zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="session")
def metaq1_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metaq1Client]:
    client = metaq1_client(tmp_path_factory.mktemp("metaq1-jvm"))
    yield client
    client.close()


@pytest.fixture
def java1(metaq1_jvm: Metaq1Client) -> Iterator[Metaq1Client]:
    """MetaQ's Java client 1.4.6.2, with what a test started in it shut down behind the test."""
    yield metaq1_jvm
    metaq1_jvm.shutdown_all()
