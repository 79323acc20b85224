"""Foreign clients against our broker; in `make test-all` also against RocketMQ's own, to prove the tests themselves."""

from collections.abc import Iterator

import pytest

from tests.interop.driver import ForeignClient, java_client
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
