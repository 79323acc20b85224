"""A name server and a broker with HTTP, in the test's loop, and a workload that has every metric of theirs counted."""

from __future__ import annotations

import asyncio
import pathlib
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import metaq
from metaq.app.up import RunningUp, start_up
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from tests.support import PATIENCE, ROOT

GROUP = "billing"
OPEN_METRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


class Cluster:
    """`client`: of HTTP at the broker. `namesrv`: at the name server."""

    def __init__(self, up: RunningUp, client: httpx.AsyncClient, namesrv: httpx.AsyncClient) -> None:
        self.up, self.client, self.namesrv = up, client, namesrv
        self.broker = up.broker._broker

    async def text(self) -> str:
        """Return what a scrape of the broker gets."""
        return (await self.client.get("/metrics", headers=OPEN_METRICS)).text

    async def namesrv_text(self) -> str:
        return (await self.namesrv.get("/metrics", headers=OPEN_METRICS)).text


def samples_of(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return (name, values of the labels in the order of their names) → value."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def families_of(text: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(text)}


@asynccontextmanager
async def cluster(folder: pathlib.Path, **options: object) -> AsyncIterator[Cluster]:
    broker = BrokerOptions(
        listen_port=0, ha_listen_port=0, http_port=0, broker_name="broker-a", filter_predicates="large=tests.broker.pulls.support:large",
        filter_predicate_path=str(ROOT), transaction_time_out=1, transaction_check_interval=1000, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    store = StoreOptions(
        store_path_root_dir=str(folder / "store"), mapped_file_size_commit_log=4 << 20, disk_max_used_space_ratio=95,
        message_delay_level="1s 1h",
    )  # fmt: skip
    namesrv = NamesrvOptions(listen_port=0, http_port=0, kv_config_path=str(folder / "kv.json"))
    up = await start_up(broker, store, namesrv)
    try:
        async with (
            httpx.AsyncClient(base_url=f"http://{up.addresses['broker http']}", timeout=PATIENCE) as client,
            httpx.AsyncClient(base_url=f"http://{up.addresses['namesrv http']}", timeout=PATIENCE) as of_namesrv,
        ):
            yield Cluster(up, client, of_namesrv)
    finally:
        await up.close()


class Workload:
    """Producers and consumers of every kind, until `stop`, in a thread of their own; and a slave that copies nothing."""

    def __init__(self, running: Cluster) -> None:
        self._running, self._stopping = running, threading.Event()
        self.failed: BaseException | None = None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work until the end of the block."""
        up = self._running.up
        host, port = up.addresses["broker replication"].rsplit(":", 1)
        _, slave = await asyncio.open_connection(host, int(port))
        slave.write(struct.pack(">q", 0))
        thread = threading.Thread(target=self._run, args=(up.namesrv.address,))
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            await asyncio.to_thread(thread.join)
            slave.close()
        if self.failed is not None:
            raise self.failed

    async def http(self) -> None:
        """Ask what fails and what does not."""
        client = self._running.client
        assert (await client.post("/topics/by-http/messages", content=b"a")).status_code == 200
        assert (await client.get("/topics/nowhere/queues/0/messages")).status_code == 404

    def _run(self, namesrv: str) -> None:
        try:
            self._work(namesrv)
        except BaseException as error:
            self.failed = error

    def _work(self, namesrv: str) -> None:
        with (
            metaq.Producer(namesrv, timeout=PATIENCE) as producer,
            metaq.TransactionProducer(
                namesrv, group="payments", check=lambda _message: True, timeout=PATIENCE
            ) as transactions,
        ):
            producer.send("orders", b"first")
            with (
                metaq.Consumer(namesrv, group=GROUP, topics="orders", start="earliest") as consumer,
                metaq.Consumer(namesrv, group="chosen", topics={"orders": metaq.Predicate("large")}, start="earliest") as chosen,
            ):  # fmt: skip
                number = 0
                while not self._stopping.is_set():
                    number += 1
                    producer.send("orders", b"x" * 40)
                    producer.send(metaq.Message("orders", b"late", delay_level=1 + number % 2))
                    with transactions.transaction("orders", b"paid"):
                        pass
                    if number == 1:
                        transactions.transaction("orders", b"unknown").begin().unknown()
                    for one in (consumer, chosen):
                        message = one.receive(0.05)
                        if message is not None:
                            with message:
                                if number % 5 == 1:
                                    raise metaq.Later
