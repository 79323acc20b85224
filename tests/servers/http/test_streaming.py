"""Topics as server-sent events: each message once, also for who connects again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from metaq.clock import FakeClock
from metaq.servers.http.messages import feeds, streaming
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
    async with running(tmp_path, clock=FakeClock()) as served:
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


@asynccontextmanager
async def many(served, number) -> AsyncIterator[list[AsyncIterator[tuple[str, dict]]]]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=served.client.base_url, timeout=PATIENCE, limits=httpx.Limits(max_connections=None)
            )
        )
        streams = []
        for _ in range(number):
            answer = await stack.enter_async_context(client.stream("GET", EVENTS))
            streams.append(events(answer))
        yield streams


@in_loop
async def test_listeners_of_one_queue_share_a_pull_and_each_gets_all(tmp_path):
    async with running(tmp_path, clock=FakeClock()) as served:
        await put(served, b"before")
        async with many(served, 20) as streams:
            await eventually(lambda: len(served.broker.held_pulls) == 4)
            for number in range(30):
                await put(served, b"%d" % number, queue=number % 4)
            for stream in streams:
                found = await take(stream, 30)
                assert sorted(int(one["body"]) for _, one in found) == list(range(30))
                last = {part.split(":")[0]: int(part.split(":")[1]) for part in found[-1][0].split(",")}
                assert last == {"0": 9, "1": 8, "2": 7, "3": 7}
            assert len(served.broker.held_pulls) == 4
        await eventually(lambda: not len(served.broker.held_pulls))


@in_loop
async def test_who_reads_slowly_reads_by_itself_and_comes_back_to_the_others(tmp_path):
    async with running(tmp_path) as served:
        await put(served, b"before")
        async with listening(served) as slow, listening(served) as quick:
            await eventually(lambda: len(served.broker.held_pulls) == 4)
            body = b"x" * 60_000
            for number in range(200):  # far more than buffers of the system hold
                await put(served, b"%d " % number + body, queue=1)
                [(_, message)] = await take(quick, 1)
                assert message["body"].startswith(f"{number} ")
            found = await take(slow, 200)
            assert [int(one["body"].split()[0]) for _, one in found] == list(range(200))
            await put(served, b"last", queue=1)
            assert (await take(slow, 1))[0][1]["body"] == (await take(quick, 1))[0][1]["body"] == "last"
            assert len(served.broker.held_pulls) == 4


@in_loop
async def test_feeds_that_may_keep_nothing_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(feeds, "ALL_BYTES_MAX", 500)
    async with running(tmp_path) as served:
        await put(served, b"before")
        async with listening(served) as one, listening(served) as other:
            await eventually(lambda: len(served.broker.held_pulls) == 4)
            for number in range(20):
                await put(served, b"%d " % number + b"x" * (number * 50), queue=number % 2)
            for stream in (one, other):
                found = [int(message["body"].split()[0]) for _, message in await take(stream, 20)]
                assert sorted(found) == list(range(20))


@in_loop
async def test_a_topic_that_is_deleted_ends_its_streams_with_the_reason(tmp_path):
    clock = FakeClock()
    async with running(tmp_path, clock=clock) as served:
        await put(served, b"before")
        async with served.client.stream("GET", EVENTS) as answer:
            lines = answer.aiter_lines()
            await eventually(lambda: len(served.broker.held_pulls) == 4)
            served.broker.delete_topic("orders")
            await eventually(lambda: served.broker.topics.get("orders") is None)
            clock.advance(streaming.HOLD_MS / 1000)
            async with asyncio.timeout(PATIENCE):
                told = [line async for line in lines]
        assert "event: error" in told and "orders" in told[told.index("event: error") + 1]


@in_loop
async def test_a_silent_topic_sends_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "ALIVE_SECONDS", 0.0)
    async with running(tmp_path) as served:
        await put(served, b"before")
        async with served.client.stream("GET", EVENTS) as answer:
            lines = answer.aiter_lines()
            async with asyncio.timeout(PATIENCE):
                async for line in lines:
                    if line == ": alive":
                        break
