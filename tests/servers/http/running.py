"""A broker with its HTTP server, in the test's own loop, and an HTTP client."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from metaq.app.broker import RunningBroker, start_broker
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import SYSTEM, Clock
from metaq.options import BrokerOptions, StoreOptions
from tests.support import PATIENCE


class Running:
    """`client`: of its HTTP server. `broker`: its services."""

    def __init__(self, running: RunningBroker, client: httpx.AsyncClient) -> None:
        self.running, self.client = running, client
        self.broker = running._broker

    def bodies(self, topic: str) -> list[bytes]:
        """Return the bodies of a topic's messages, queue by queue."""
        return [message.body for message in self.messages(topic)]

    def messages(self, topic: str) -> list[Any]:
        from metaq.wire.record import decode_record

        store, found = self.broker.store, []
        config = self.broker.topics.get(topic)
        for queue_id in range(config.write_queues if config else 0):
            queue = store.reader.existing_queue(topic, queue_id)
            for offset in range(queue.min_offset, queue.max_offset) if queue else ():
                unit = queue.unit(offset)
                found.append(decode_record(store.reader.record_at(unit.log_offset)))
        return found


@asynccontextmanager
async def running(
    folder: pathlib.Path,
    flush: str = "ASYNC_FLUSH",
    metaq1: Metaq1Settings | None = None,
    clock: Clock = SYSTEM,
    **options: Any,
) -> AsyncIterator[Running]:
    broker_options = BrokerOptions(listen_port=0, ha_listen_port=0, http_port=0, **options)
    store_options = StoreOptions(
        store_path_root_dir=str(folder / "store"),
        mapped_file_size_commit_log=4 << 20,
        disk_max_used_space_ratio=95,
        flush_disk_type=flush,
    )
    broker = await start_broker(broker_options, store_options, clock, metaq1=metaq1)
    try:
        base = f"http://{broker.addresses['http']}"
        async with httpx.AsyncClient(base_url=base, timeout=PATIENCE) as client:
            yield Running(broker, client)
    finally:
        await broker.close()
