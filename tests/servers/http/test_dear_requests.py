"""A dear request of one client does not keep the others waiting: it is done in turns."""

from __future__ import annotations

import asyncio
import json

from tests.servers.http.running import running
from tests.servers.http.support import dial, in_loop

ORDERS = "/topics/orders/messages"


async def is_overtaken(served, dear, statuses=(200,)):
    """Send a dear request, then a small one on another connection. Return whether the small one is answered first."""
    port = int(served.running.addresses["http"].rpartition(":")[2])
    one, other = await dial(port), await dial(port)
    order = list[str]()

    async def ask(name, connection, data):
        status, _, _ = await connection.ask(data)
        assert status in statuses, status
        order.append(name)

    first = asyncio.ensure_future(ask("dear", one, dear))
    await asyncio.sleep(0)
    await ask("small", other, b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    await first
    one.writer.close()
    other.writer.close()
    return order == ["small", "dear"]


def post(path, body, kind="application/json"):
    return (
        f"POST {path} HTTP/1.1\r\nHost: a\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )


@in_loop
async def test_thousands_of_messages_in_one_request(tmp_path):
    async with running(tmp_path) as served:
        messages = [{"body": "x", "queue": 0, "keys": [str(number)]} for number in range(10_000)]
        assert await is_overtaken(served, post(ORDERS, json.dumps({"messages": messages}).encode()))
        lines = "\n".join(map(json.dumps, messages)).encode()
        assert await is_overtaken(served, post(ORDERS, lines, "application/x-ndjson"))
        assert await is_overtaken(served, post(ORDERS, json.dumps({"messages": messages, "atomic": True}).encode()))
        assert len(served.messages("orders")) == 30_000


@in_loop
async def test_long_answers(tmp_path):
    async with running(tmp_path) as served:
        messages = [{"body": "x" * 4000, "queue": 0} for _ in range(1000)]
        for _ in range(2):
            assert (await served.client.post(ORDERS, json={"messages": messages})).status_code == 200
        pull = "/topics/orders/queues/0/messages?max=1000&body=base64"
        assert await is_overtaken(served, f"GET {pull} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        receive = "/groups/billing/topics/orders/messages?max=1000&start=earliest&body=base64"
        assert await is_overtaken(served, post(receive, b""))
    async with running(tmp_path) as served:  # what was there before the start comes from the disk, in threads
        assert await is_overtaken(served, f"GET {pull} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        told = (await served.client.get(pull)).json()
        assert len(told["messages"]) == 1000 and len(told["messages"][0]["bodyBase64"]) > 5000


@in_loop
async def test_bodies_that_would_be_dear_to_take_apart_are_refused(tmp_path):
    async with running(tmp_path) as served:
        for body in (b'{"messages": [' + b"{}," * 3_000_000 + b"{}]}", b'{"messages": [' + b"0," * 3_000_000 + b"0]}"):
            told = await served.client.post(ORDERS, content=body, headers={"content-type": "application/json"})
            assert told.status_code == 400 and "commas" in told.json()["detail"]
        blank = await served.client.post(
            ORDERS, content=b"\n" * 4_000_000, headers={"content-type": "application/x-ndjson"}
        )
        assert blank.status_code == 400 and "lines" in blank.json()["detail"]
