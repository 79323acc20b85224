"""Factories whose local files are a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from metaq.metaq1 import ConsumerConfig, MessageProducer, MetaClientConfig, MetaMessageSessionFactory
from metaq.metaq1.consuming import rejecting
from tests.interop.metaq1 import OurServer


@pytest.fixture
def config(server: OurServer, tmp_path: Path) -> MetaClientConfig:
    return MetaClientConfig(
        server_url=f"meta://{server.text}",
        recover_path=str(tmp_path / "recover"),
        offsets_path=str(tmp_path / "offsets"),
        recover_message_interval=0.05,
    )


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected messages are tried again at once."""
    monkeypatch.setattr(rejecting, "FIRST_SECONDS", 0.01)


@pytest.fixture
def producer(factory: MetaMessageSessionFactory, topic: str) -> Iterator[MessageProducer]:
    """One that has published the test's topic."""
    with factory.create_producer() as made:
        made.publish(topic)
        yield made


def quick(group: str = "g", **values: object) -> ConsumerConfig:
    """Settings with short pauses, which are not what a test is about."""
    return msgspec.structs.replace(
        ConsumerConfig(group, max_delay_fetch_time=0.05, commit_offset_period=0.05), **values
    )
