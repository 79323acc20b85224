"""Pulls by HTTP: at once, by long polling, filtered; and those that nobody waits for any more."""

from __future__ import annotations

import asyncio

import pytest

from metaq.clock import FakeClock
from tests.servers.http.running import running
from tests.servers.http.support import dial, eventually, in_loop

QUEUE = "/topics/orders/queues/0/messages"


async def put(served, *bodies, **fields):
    for body in bodies:
        headers = {"metaq-queue": "0", "content-type": "application/octet-stream", **fields}
        assert (await served.client.post("/topics/orders/messages", content=body, headers=headers)).status_code == 200


@in_loop
async def test_messages_are_returned_from_an_offset_on(tmp_path):
    async with running(tmp_path) as served:
        await put(served, b"a", b"b")
        await put(served, b"\xff", **{"metaq-tag": "x", "metaq-keys": "k1 k2", "metaq-property-shop": "8"})
        told = (await served.client.get(QUEUE, params={"offset": 1})).json()
        assert (told["outcome"], told["next"], told["min"], told["end"]) == ("found", 3, 0, 3)
        first, second = told["messages"]
        assert (first["body"], first["offset"], first["queue"], first["topic"]) == ("b", 1, 0, "orders")
        assert (second["bodyBase64"], second["tag"], second["keys"]) == ("/w==", "x", ["k1", "k2"])
        assert second["properties"]["shop"] == "8"
        told = (await served.client.get(QUEUE, params={"max": 1, "body": "base64"})).json()
        assert [one["bodyBase64"] for one in told["messages"]] == ["YQ=="]
        told = (await served.client.get(QUEUE, params={"filter": "x"})).json()
        assert [one["offset"] for one in told["messages"]] == [2]


@in_loop
async def test_a_pull_waits_for_a_message(tmp_path):
    async with running(tmp_path) as served:
        await put(served, b"a")
        waiting = asyncio.ensure_future(served.client.get(QUEUE, params={"offset": 1, "wait": 60}))
        await eventually(lambda: len(served.broker.held_pulls))
        await put(served, b"b")
        assert [one["body"] for one in (await waiting).json()["messages"]] == ["b"]
        told = (await served.client.get(QUEUE, params={"offset": 2, "wait": 0.05})).json()
        assert (told["outcome"], told["messages"], told["next"]) == ("nothing-new", [], 2)
        told = (await served.client.get(QUEUE, params={"offset": 99})).json()
        assert (told["outcome"], told["next"]) == ("out-of-range", 2)


@in_loop
async def test_who_goes_away_waits_no_more(tmp_path):
    """What looks like the end of a client's sending is the end of one that waits."""
    async with running(tmp_path, clock=FakeClock()) as served:
        await put(served, b"a")
        one = await dial(int(served.running.addresses["http"].rpartition(":")[2]))
        one.writer.write(f"GET {QUEUE}?offset=1&wait=60 HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        await eventually(lambda: len(served.broker.held_pulls))
        one.writer.transport.abort()
        await eventually(lambda: not len(served.broker.held_pulls))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (QUEUE + "?offset=x", 400), (QUEUE + "?wait=-1", 400), (QUEUE + "?wait=nan", 400), (QUEUE + "?ofset=1", 400),
        ("/topics/orders/queues/9/messages", 400), ("/topics/nobody/queues/0/messages", 404),
        ("/topics/orders/queues/x/messages", 404), (QUEUE + "?filter=a%20AND&filterType=SQL92", 400),
    ],
)  # fmt: skip
@in_loop
async def test_what_cannot_be_pulled_is_told(tmp_path, path, status):
    async with running(tmp_path) as served:
        await put(served, b"a")
        told = await served.client.get(path)
        assert (told.status_code, told.headers["content-type"]) == (status, "application/problem+json"), told.text
        assert told.json()["status"] == status


@in_loop
async def test_old_messages_come_from_the_disk(tmp_path):
    async with running(tmp_path) as served:
        await put(served, b"a", b"b")
    async with running(tmp_path) as served:  # what was there before the start is read by pread
        told = (await served.client.get(QUEUE)).json()
        assert [one["body"] for one in told["messages"]] == ["a", "b"]
