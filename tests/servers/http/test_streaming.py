"""Topics as server-sent events: each message once, also for who connects again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.servers.http.running import running
from tests.servers.http.support import eventually, in_loop
from tests.support import PATIENCE

EVENTS = "/topics/orders/events"


async def put(served, *bodies, queue=0):
    for body in bodies:
        headers = {"metaq-queue": str(queue), "content-type": "text/plain"}
        assert (await served.client.post("/topics/orders/messages", content=body, headers=headers)).status_code == 200


@asynccontextmanager
async def listening(served, last=None, **query) -> AsyncIterator[AsyncIterator[tuple[str, dict]]]:
    headers = {} if last is None else {"last-event-id": last}
    async with served.client.stream("GET", EVENTS, params=query, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer)


async def events(answer) -> AsyncIterator[tuple[str, dict]]:
    place = ""
    async for line in answer.aiter_lines():
        if line.startswith("id: "):
            place = line[4:]
        elif line.startswith("data: "):
            yield place, json.loads(line[6:])


async def take(stream, number):
    async with asyncio.timeout(PATIENCE):
        return [await anext(stream) for _ in range(number)]


@in_loop
async def test_messages_come_as_they_are_stored(tmp_path):
    async with running(tmp_path) as served:
        await put(served, b"before")
        async with listening(served) as stream:
            await eventually(lambda: len(served.broker.held_pulls) == 4)
            await put(served, b"a")
            await put(served, b"b\nc", queue=3)
            found = await take(stream, 2)
            assert [one["body"] for _, one in found] == ["a", "b\nc"]
        await eventually(lambda: not len(served.broker.held_pulls))


@in_loop
async def test_who_connects_again_misses_nothing_and_gets_nothing_twice(tmp_path):
    async with running(tmp_path) as served:
        for number in range(40):
            await put(served, b"%d" % number, queue=number % 4)
        last, seen = None, list[str]()
        while len(seen) < 40:
            async with listening(served, last, start="earliest") as stream:
                for place, message in await take(stream, min(7, 40 - len(seen))):
                    last = place
                    seen.append(message["body"])
        assert sorted(seen, key=int) == [str(number) for number in range(40)]
        for queue in range(4):  # each queue in its order
            mine = [int(one) for one in seen if int(one) % 4 == queue]
            assert mine == sorted(mine)


@in_loop
async def test_a_filter_and_what_is_no_stream(tmp_path):
    async with running(tmp_path) as served:
        await put(served, b"a")
        headers = {"metaq-queue": "1", "metaq-tag": "paid"}
        await served.client.post("/topics/orders/messages", content=b"p", headers=headers)
        async with listening(served, start="earliest", filter="paid") as stream:
            [(_, message)] = await take(stream, 1)
            assert (message["body"], message["tag"]) == ("p", "paid")
        get = served.client.get
        assert (await get("/topics/nobody/events")).status_code == 404
        assert (await get(EVENTS, params={"start": "now"})).status_code == 400
        assert (await get(EVENTS, params={"filter": "a AND", "filterType": "SQL92"})).status_code == 400
        assert (await get(EVENTS, headers={"last-event-id": "0:x"})).status_code == 400


@in_loop
async def test_who_does_not_read_makes_the_broker_keep_little(tmp_path):
    async with running(tmp_path) as served:
        body = b"x" * 100_000
        await put(served, *[body] * 200)
        async with listening(served, start="earliest") as stream:
            await take(stream, 1)
            held = served.running._serving
            assert held is not None
            # 20 MB are there; what is read ahead is an answer of each queue and what the connection's buffers take.
            await put(served, b"end", queue=2)
        await eventually(lambda: not len(served.broker.held_pulls))
