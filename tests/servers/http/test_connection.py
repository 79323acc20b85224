"""HTTP over our listener: what uvicorn parses, and the limits that it has not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metaq.clock import SYSTEM, FakeClock
from metaq.net.budget import ListenLimits
from metaq.net.listener import listen
from metaq.servers.http.connection import LINGER_BYTES, HttpConnection, HttpSpace, RequestLimits
from tests.servers.http.support import Dialed, dial, eventually, in_loop

FORM = b"HTTP/1.1\r\nHost: here\r\n"


class Echo:
    """An application that tells what it got, once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.may.set()
        self.begun = self.disconnected = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        assert isinstance(scope["state"]["connection"], HttpConnection)
        if scope["path"] == "/refuse":
            await answer(send, 413, b"too long", close=True)
            return
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        else:
            self.disconnected += 1
            return
        await self.may.wait()
        if scope["path"] == "/long":
            body = b"x" * 4_000_000
        if scope["path"] == "/endless":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not scope["state"]["connection"].cycle.disconnected:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await answer(send, 200, body or f"{scope['method']} {scope['path']} {scope['scheme']}".encode())


async def answer(send: Any, status: int, body: bytes, *, close: bool = False) -> None:
    headers = [(b"content-length", b"%d" % len(body)), *([(b"connection", b"close")] if close else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Served:
    def __init__(self, app: Echo, space: HttpSpace, port: int) -> None:
        self.app, self.space, self.port = app, space, port

    async def dial(self) -> Dialed:
        return await dial(self.port)


@asynccontextmanager
async def serving(
    limits: RequestLimits | None = None, clock: Any = SYSTEM, of_all: ListenLimits | None = None
) -> AsyncIterator[Served]:
    app = Echo()
    space = HttpSpace(app, clock, limits)
    listener = await listen("127.0.0.1", 0, lambda peer: HttpConnection(peer, space), of_all)
    try:
        yield Served(app, space, listener.port)
    finally:
        await listener.close()


@in_loop
async def test_requests_of_one_connection_are_answered_in_order():
    async with serving() as served:
        one = await served.dial()
        assert await one.ask(b"GET /a " + FORM + b"\r\n") == (200, {"content-length": "11"}, b"GET /a http")
        body = b"POST /b " + FORM + b"Content-Length: 5\r\n\r\nhello"
        assert (await one.ask(*[body[i : i + 1] for i in range(len(body))]))[2] == b"hello"
        chunked = b"POST /b " + FORM + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        assert (await one.ask(chunked))[2] == b"abcde"
        many = 5000
        one.writer.write(b"".join(b"GET /%d " % number + FORM + b"\r\n" for number in range(many)))
        assert [(await one.answer())[2] for _ in range(many)] == [b"GET /%d http" % number for number in range(many)]


@in_loop
async def test_few_requests_that_are_sent_ahead_are_begun():
    async with serving() as served:
        served.app.may.clear()
        one = await served.dial()
        one.writer.write(b"".join(b"GET /%d " % number + FORM + b"\r\n" for number in range(5000)))
        (connection,) = await eventually(lambda: list(served.space.state.connections), lambda found: len(found) == 1)
        await eventually(lambda: len(connection.pipeline), lambda waiting: waiting > 0)
        assert len(connection.pipeline) < 200
        served.app.may.set()
        assert [(await one.answer())[0] for _ in range(5000)] == [200] * 5000


@in_loop
async def test_a_long_body_waits_until_the_application_reads_it():
    async with serving() as served:
        one = await served.dial()
        body = b"b" * 3_000_000
        status, _, echoed = await one.ask(b"PUT /b " + FORM + b"Content-Length: %d\r\n\r\n" % len(body), body)
        assert (status, echoed == body) == (200, True)


@in_loop
async def test_an_answer_that_is_not_read_stops_the_application_and_nobody_else():
    of_all = ListenLimits(send_buffer=16 * 1024)
    async with serving(of_all=of_all) as served:
        slow, other = await served.dial(), await served.dial()
        slow.writer.write(b"GET /endless " + FORM + b"\r\n")
        (await other.ask(b"GET /a " + FORM + b"\r\n"))
        (connection,) = [one for one in served.space.state.connections if one.cycle and not one.cycle.response_complete]
        await eventually(lambda: connection.flow.write_paused)
        assert (await other.ask(b"GET /a " + FORM + b"\r\n"))[0] == 200
        slow.writer.transport.abort()
        await eventually(lambda: served.space.state.connections, lambda left: len(left) == 1)
        await eventually(lambda: served.space.state.tasks, lambda left: not left)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01", 400),  # a TLS hello
        (b"GET\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 40_000, 431),
        (b"GET /" + b"u" * 40_000, 431),
    ],
)
@in_loop
async def test_what_is_no_request_is_answered_as_a_problem_and_ends_the_connection(request_bytes, status):
    async with serving() as served:
        one, other = await served.dial(), await served.dial()
        found, fields, body = await one.ask(request_bytes)
        assert found == status and fields["content-type"] == "application/problem+json"
        assert json.loads(body)["status"] == status and json.loads(body)["title"]
        assert await one.is_closed()
        assert (await other.ask(b"GET /a " + FORM + b"\r\n"))[0] == 200


@in_loop
async def test_a_head_that_trickles_is_refused_in_time():
    clock = FakeClock()
    async with serving(clock=clock) as served:
        one, other = await served.dial(), await served.dial()
        await other.ask(b"GET /a " + FORM + b"\r\n")
        one.writer.write(b"GET / HTTP/1.1\r\nA")
        await eventually(lambda: [c for c in served.space.state.connections if c._in_head])
        clock.advance(9)
        served.space.tick()
        one.writer.write(b"b")
        clock.advance(1)
        served.space.tick()
        assert (await one.answer())[0] == 408
        assert await one.is_closed()
        assert (await other.ask(b"GET /a " + FORM + b"\r\n"))[0] == 200


@in_loop
async def test_a_body_that_trickles_is_refused_and_one_that_the_application_does_not_read_is_not():
    clock = FakeClock()
    async with serving(clock=clock) as served:
        slow, unread = await served.dial(), await served.dial()
        slow.writer.write(b"POST /b " + FORM + b"Content-Length: 100000\r\n\r\nab")
        await eventually(lambda: served.app.begun, lambda begun: begun == 1)
        await eventually(lambda: [c for c in served.space.state.connections if c._body_bytes])
        clock.advance(20)
        served.space.tick()
        assert (await slow.answer())[0] == 408
        assert await slow.is_closed()
        assert served.app.disconnected == 1
        unread.writer.close()


@in_loop
async def test_a_body_that_never_begins_is_refused_and_one_that_is_refused_unread_ends_in_time():
    clock = FakeClock()
    async with serving(clock=clock) as served:
        silent, refused = await served.dial(), await served.dial()
        silent.writer.write(b"POST /b " + FORM + b"Content-Length: 100000\r\n\r\n")
        refused.writer.write(b"POST /refuse " + FORM + b"Content-Length: 100000\r\n\r\n")
        assert (await refused.answer())[0] == 413
        await eventually(lambda: served.app.begun, lambda begun: begun == 2)
        clock.advance(20)
        served.space.tick()
        assert (await silent.answer())[0] == 408
        assert await silent.is_closed()
        assert await refused.is_closed()


@in_loop
async def test_a_request_that_is_refused_before_its_body_has_come_reads_its_answer():
    async with serving() as served:
        one = await served.dial()
        one.writer.write(b"POST /refuse " + FORM + b"Content-Length: 900000\r\n\r\n")
        assert (await one.answer())[0] == 413
        one.writer.write(b"b" * 900_000)  # it is read, so that no reset takes the answer away
        assert await one.is_closed()
        greedy = await served.dial()
        greedy.writer.write(b"POST /refuse " + FORM + b"Content-Length: 9000000000\r\n\r\n")
        assert (await greedy.answer())[0] == 413
        greedy.writer.write(b"b" * (2 * LINGER_BYTES + 1))
        assert await greedy.is_closed()


@in_loop
async def test_an_upgrade_is_passed_over_and_the_connection_ends():
    async with serving() as served:
        one = await served.dial()
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
        assert (await one.ask(b"GET /a " + FORM + upgrade))[2] == b"GET /a http"
        assert await one.is_closed()


@in_loop
async def test_a_client_that_sends_no_more_gets_its_answer():
    async with serving() as served:
        served.app.may.clear()
        one = await served.dial()
        one.writer.write(b"GET /a " + FORM + b"\r\n")
        one.writer.write_eof()
        await eventually(lambda: served.app.begun)
        served.app.may.set()
        assert (await one.answer())[2] == b"GET /a http"
        assert await one.is_closed()
