"""Quotas and the audit log hold for HTTP as for the other protocols."""

from __future__ import annotations

import asyncio

from metaq.model.quota import QuotaKind, QuotaLimits
from metaq.wire.audit import audit_record_of
from tests.servers.http.running import running
from tests.servers.http.support import eventually, in_loop

HERE = QuotaKind.ADDRESS, "127.0.0.1"


def limit(served, **limits):
    """Set a quota of this address; return the waits, which end at once."""
    waits = list[float]()

    def later(seconds, act):
        waits.append(seconds)
        asyncio.get_running_loop().call_soon(act)

    served.broker.quotas.later = later
    served.broker.quotas.set(HERE, QuotaLimits(**limits))
    return waits


async def limited(served, **limits):
    waits = limit(served, **limits)
    await eventually(lambda: served.broker.quotas.active)
    return waits


@in_loop
async def test_who_asks_too_often_waits_and_then_is_told_when_to_come_again(tmp_path):
    async with running(tmp_path) as served:
        waits = await limited(served, requests_per_second=2)
        told = [await served.client.get("/topics/orders/queues/0/messages") for _ in range(12)]
        statuses = [one.status_code for one in told]
        assert statuses[:2] == [404, 404] and statuses[-1] == 429, "2 at once, and 2 s of waiting"
        assert waits and waits == sorted(waits)
        last = told[-1]
        assert last.headers["content-type"] == "application/problem+json"
        assert last.json()["reason"] == "throttled" and "127.0.0.1" in last.json()["detail"]
        assert 1 <= int(last.headers["retry-after"]) <= 3
        assert (await served.client.get("/health")).status_code == 200
        [use] = [use for use in served.broker.quotas.show() if use.name == HERE[1]]
        assert use.refused >= 1 and use.delayed >= 1 and use.connections == 1


@in_loop
async def test_bytes_in_and_out_are_charged(tmp_path):
    async with running(tmp_path) as served:
        await limited(served, bytes_in_per_second=1_000_000_000, bytes_out_per_second=1_000_000_000)

        async def parts():
            yield b"x" * 5000
            yield b"y" * 5000

        for content in (b"x" * 10_000, parts()):
            assert (await served.client.post("/topics/orders/messages", content=content)).status_code == 200
        await served.client.get("/openapi.json")
        [use] = [use for use in served.broker.quotas.show() if use.name == HERE[1]]
        assert 20_000 < use.bytes_in < 22_000
        assert use.bytes_out > 5000


@in_loop
async def test_a_pull_that_waits_counts_as_held(tmp_path):
    async with running(tmp_path) as served:
        await served.client.post("/topics/orders/messages", json={"body": "a", "queue": 0})
        await limited(served, held_pulls=1)
        meter = served.broker.quotas.meter(*HERE)
        path = "/topics/orders/queues/0/messages?offset=1&wait=60"
        waiting = asyncio.ensure_future(served.client.get(path))
        await eventually(lambda: meter.held_pulls == 1)
        waiting.cancel()
        await eventually(lambda: meter.held_pulls == 0)


@in_loop
async def test_what_is_refused_is_in_the_audit_log(tmp_path):
    async with running(tmp_path) as served:
        await served.client.post("/topics/orders/messages", content=b"a")
        await served.client.get("/topics/orders/queues/99/messages?group=billing")
        path = tmp_path / "store" / "audit" / "refused.log"
        await eventually(lambda: path.exists() and path.read_bytes().endswith(b"\n"))
        record = audit_record_of(path.read_bytes().splitlines()[0])
        assert (record.protocol, record.request, record.topic, record.reason) == ("http", "pull", "orders", "INVALID")
        assert record.address.startswith("127.0.0.1:")
