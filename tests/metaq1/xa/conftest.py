"""A server of these tests' own: some leave branches at it, and others look whether there are transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.metaq1 import OurServer
from tests.metaq1.conftest import PARTITIONS, TOPICS


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    topics = {topic: {"numPartitions": PARTITIONS} for topic in TOPICS}
    with OurServer(tmp_path_factory.mktemp("metaq1-xa"), None, topics) as running:
        yield running
