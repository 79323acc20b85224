"""Messages that leave the log under a Spark query, by our retention and by RocketMQ's: their number is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaq import Producer
from metaq.errors import MessagesLost
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import client_of
from metaq.spark.source.fetch import read_slice
from metaq.spark.source.plan import Planner
from metaq.spark.source.settings import SourceOptions
from tests.interop.conftest import PEERS
from tests.interop.servers import Server
from tests.support import PATIENCE, eventually

TOPIC = "spark_retention"
MESSAGES = 1500
AT_ONCE = [
    "mappedFileSizeCommitLog=1048576", "fileReservedTime=0", "cleanResourceInterval=500",
    "deleteWhen=" + ";".join(f"{hour:02d}" for hour in range(24)), "cleanFileForciblyEnable=false",
]  # fmt: skip
"""Every log file but the newest goes as soon as it is looked at."""


@pytest.fixture(params=["metaq", pytest.param("rocketmq", marks=pytest.mark.all)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = PEERS[request.param](tmp_path_factory.mktemp(request.param), options=AT_ONCE)
    running.start()
    yield running
    running.stop()
    client_of.cache_clear()


def test_what_retention_takes_is_counted(server: Server) -> None:
    """By the plan of a stream and by a task; without failOnDataLoss the query goes on at what is kept."""
    with Producer(server.namesrv, timeout=PATIENCE) as producer:
        queue = producer.send(TOPIC, b"0").queue
        futures = [producer.submit(TOPIC, b"x" * 3000, queue=queue) for _ in range(MESSAGES - 1)]
        end = max(future.result(PATIENCE).offset for future in futures) + 1
    pairs = {"nameServers": server.namesrv, "subscribe": TOPIC}
    strict, careless = (Planner(SourceOptions.of(pairs | {"failOnDataLoss": one})) for one in ("true", "false"))

    def kept() -> int:
        return strict.client.starts([queue])[queue]

    first = eventually(lambda: kept() > 300 and kept(), PATIENCE, what="messages are gone")
    begin: dict[MessageQueue, int] = strict.client.starts(strict.queues()) | {queue: 5}
    text = rf"{first - 5} messages of {queue} are gone: offsets \[5, {first}\)"
    with pytest.raises(MessagesLost, match=text):
        strict.advance(begin, None)
    assert careless.advance(begin, None)[queue] == end
    settings = SourceOptions.of(pairs).fetch
    with pytest.raises(MessagesLost, match=text):
        list(read_slice(strict.client, Slice(queue, 5, end), settings))
    careless_settings = SourceOptions.of(pairs | {"failOnDataLoss": "false"}).fetch
    found = [
        int(offset)
        for decoded in read_slice(careless.client, Slice(queue, 5, end), careless_settings)
        for offset in decoded.queue_offsets
    ]
    assert found == list(range(first, end))
