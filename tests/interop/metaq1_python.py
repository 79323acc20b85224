"""Fixtures of the tests of our Python client of MetaQ 1.x: the original server and ours, one of each for a module.

A module calls `server_fixture` and `topic_fixture`, and imports `root` and `config`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from metaq.metaq1 import Message, MetaClientConfig, MetaMessageSessionFactory, ZKConfig
from metaq.metaq1.shared.links import ConnectionPace
from tests.interop.metaq1 import OriginalServer, OurServer, TextServer, Zookeeper
from tests.support import PATIENCE, eventually

SERVERS: dict[str, type[TextServer]] = {"original": OriginalServer, "ours": OurServer}
PACE = ConnectionPace(reconnect_pause=0.2)


def server_fixture(name: str, topics: Sequence[str], partitions: int) -> Any:
    """Return a fixture: each server in turn, under a root of its own that begins with `/NAME-`."""

    @pytest.fixture(scope="module", params=SERVERS)
    def server(
        request: pytest.FixtureRequest, zookeeper: Zookeeper, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[TextServer]:
        sections = {topic: {"numPartitions": partitions} for topic in topics}
        registry = {"zk.zkRoot": f"/{name}-{request.param}"}
        folder = tmp_path_factory.mktemp(request.param)
        with SERVERS[request.param](folder, zookeeper, sections, registry=registry) as made:
            yield made

    return server


def topic_fixture(topics: Sequence[str]) -> Any:
    """Return a fixture: one topic after the other."""
    names = itertools.cycle(topics)

    @pytest.fixture
    def topic() -> str:
        return next(names)

    return topic


@pytest.fixture
def root(server: TextServer) -> str:
    return str(server.registry["zk.zkRoot"])


@pytest.fixture
def config(zookeeper: Zookeeper, root: str, tmp_path: Path) -> MetaClientConfig:
    return config_of(zookeeper, root, tmp_path)


def config_of(zookeeper: Zookeeper, root: str, folder: Path, **more: Any) -> MetaClientConfig:
    """A client's, whose files are in a folder of the test."""
    return MetaClientConfig(
        zk_config=ZKConfig(zk_connect=zookeeper.address, zk_root=root, zk_sync_time=0.2),
        recover_path=str(folder / "recover"),
        offsets_path=str(folder / "offsets"),
        **more,
    )


def until_registered(factory: MetaMessageSessionFactory, topic: str, partitions: int) -> None:
    eventually(lambda: len(factory.get_partitions(topic)) == partitions, what="the server is registered")


def sent(config: MetaClientConfig, topic: str, partitions: int, texts: Sequence[bytes]) -> None:
    """Send into one partition after the other, and wait for each: the original stores what is under way at once in any order."""
    with MetaMessageSessionFactory(config, pace=PACE) as factory, factory.create_producer() as producer:
        until_registered(factory, topic, partitions)
        producer.publish(topic)
        for text in texts:
            producer.send_message(Message(topic, text), timeout=PATIENCE)
