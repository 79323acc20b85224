"""Delayed delivery in a running broker: the turns of the event loop, and the thread that reads old records."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

import metaq
from metaq.app.up import start_up
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

COUNT = 3000


def options(tmp_path, **store):
    small = {
        "mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000,
        "message_delay_level": "1s 2s 3s",
    }  # fmt: skip
    return (
        BrokerOptions(listen_port=0, broker_name="b"),
        StoreOptions(store_path_root_dir=str(tmp_path / "data"), **{**small, **store}),
        NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv.json")),
    )


@pytest.mark.parametrize("hot_bytes", [1 << 30, 64 << 10], ids=["from memory", "from disk"])
def test_a_flood_is_delivered_beside_other_work(tmp_path, hot_bytes):
    """Every delayed message of three levels comes out once, and the connections are served meanwhile."""

    def use(namesrv):
        with metaq.Producer(namesrv, timeout=PATIENCE) as producer:
            futures = [producer.submit(metaq.Message("orders", b"%d" % n, delay_level=1 + n % 3)) for n in range(COUNT)]
            for future in futures:
                future.result(PATIENCE)

            def found():
                producer.send("beside", b"x" * 100)
                with metaq.Reader(namesrv, "orders", start="earliest", stop_at_end=True) as reader:
                    bodies = Counter(message.body for message in reader)
                return bodies if len(bodies) == COUNT else None

            assert set(eventually(found).values()) == {1}

    async def main():
        service = await start_up(*options(tmp_path, hot_bytes=hot_bytes))
        try:
            await asyncio.to_thread(use, service.namesrv.address)
        finally:
            await service.close()

    asyncio.run(main())


def test_a_fault_in_a_turn_does_not_end_delivery(tmp_path, caplog):
    """An error nobody thought of is logged, and the next look delivers."""

    async def main():
        service = await start_up(*options(tmp_path))
        schedule, calls = service.broker._broker.schedule, []
        deliver, enough = schedule.step, asyncio.Event()

        def fails():
            calls.append(1)
            if len(calls) < 3:
                raise RuntimeError("nobody thought of this")
            if len(calls) == 5:
                enough.set()
            return deliver()

        schedule.step = fails
        try:
            with caplog.at_level(logging.ERROR):
                await asyncio.wait_for(enough.wait(), PATIENCE)
        finally:
            await service.close()

    asyncio.run(main())
    assert "nobody thought of this" in caplog.text
