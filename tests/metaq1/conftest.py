"""One broker of this clone with a MetaQ 1.x server, and a factory of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaq.metaq1 import MessageProducer, MetaClientConfig, MetaMessageSessionFactory, Partition, aio
from metaq.metaq1.producing import transactions
from metaq.metaq1.xa import branch
from tests.interop.metaq1 import OurServer

PARTITIONS = 3
TOPICS = [f"t{number}" for number in range(200)]
_names = iter(TOPICS)


@pytest.fixture(scope="session", autouse=True)
def patient_senders() -> Iterator[None]:
    """As in tests/conftest.py: a minute where a test says nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for producer in (MessageProducer, aio.MessageProducer):
            for call in (producer.send_message, producer.submit):
                patch.setitem(call.__kwdefaults__, "timeout", 60.0)
        for steps in (transactions, branch):
            patch.setattr(steps, "STEP_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    """Tests that stop or kill one start their own."""
    topics = {topic: {"numPartitions": PARTITIONS} for topic in TOPICS}
    with OurServer(tmp_path_factory.mktemp("metaq1"), None, topics) as running:
        yield running


@pytest.fixture
def config(server: OurServer) -> MetaClientConfig:
    return MetaClientConfig(server_url=f"meta://{server.text}")


@pytest.fixture
def factory(config: MetaClientConfig) -> Iterator[MetaMessageSessionFactory]:
    with MetaMessageSessionFactory(config) as made:
        yield made


@pytest.fixture
def topic() -> str:
    """One that no other test of this worker has, with three partitions."""
    return next(_names)


def at(number: int):
    """A selector that sends everything to one partition of the fixed server."""
    return lambda topic, partitions, message: Partition(-1, number)
