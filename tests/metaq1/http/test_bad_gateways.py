"""What comes of gateways that answer late, wrongly or not at all, and what balances load before them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

import pytest

from metaq.errors import BrokerError, ConnectionFailed, RemoteProtocolError, RequestTimeout
from metaq.metaq1 import ConsumerConfig, Message, Partition
from metaq.metaq1.conversation.pipeline import ANSWER_BYTES_MAX
from metaq.metaq1.http import HttpClientConfig, aio
from metaq.testing import free_port
from tests.certificates import Authority
from tests.metaq1.http.stub import StubGateway, answered
from tests.servers.http.support import in_loop
from tests.support import PATIENCE

SHORT = 0.05
X = Message("test", b"x")


def says(answer: bytes) -> Callable[..., object]:
    async def write(stub, path, body, writer):
        writer.write(answer)

    return write


def config(url: str, **options: object) -> HttpClientConfig:
    return HttpClientConfig(server_url=url, **options)


@in_loop
async def test_the_broker_id_and_all_parameters_go_along():
    async with StubGateway(says(answered(200, b"17 3 0"))) as stub:
        account = {"access_key": "writer", "secret_key": "12345678"}
        async with aio.HttpMessageSessionFactory(config(f"{stub.url}/meta/q/", **account)) as factory:
            stored = await factory.create_producer().send_message(Message("test", b"hello", "a"), "7-3")
            assert (stored.message_id, stored.partition, stored.offset) == (17, Partition(7, 3), 0)
            assert stub.requests == [
                "POST /meta/q/put/7?topic=test&partition=3&flag=1&length=10&checksum=1986522790 HTTP/1.1"
            ]
            assert stub.fields[0]["authorization"] == "Basic d3JpdGVyOjEyMzQ1Njc4"
            stub.answering = says(answered(404, b"nothing"))
            assert await factory.create_consumer().get("test", "8-0", 5, 100) is None
            assert (
                stub.requests[1]
                == "GET /meta/q/get/8?topic=test&partition=0&offset=5&group=httpgroup&maxsize=100 HTTP/1.1"
            )
            assert stub.connections == 1, "it is kept"


@in_loop
async def test_who_shows_no_certificate_of_ours_gets_nothing(tmp_path):
    authority = Authority(tmp_path)
    issued = authority.issue("gateway")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert, issued.key)
    async with StubGateway(says(answered(200, b"17 3 0")), context) as stub:
        async with aio.HttpMessageSessionFactory(config(stub.url, ca_file=str(authority.cert))) as factory:
            assert (await factory.create_producer().send_message(X)).message_id == 17
        async with aio.HttpMessageSessionFactory(config(stub.url)) as factory:
            with pytest.raises(ConnectionFailed, match="certificate") as caught:
                await factory.create_producer().send_message(X)
            assert caught.value.sent is False
        assert len(stub.requests) == 1


@in_loop
async def test_so_many_connections_and_no_more():
    waiting = asyncio.Semaphore(0)

    async def late(stub, path, body, writer):
        if stub.open_max == 20:
            waiting.release()
        await waiting.acquire()
        waiting.release()
        writer.write(answered(200, b"1 0 0"))

    async with StubGateway(late) as stub, aio.HttpMessageSessionFactory(config(stub.url)) as factory:
        producer = factory.create_producer()
        await asyncio.gather(*(producer.send_message(X, timeout=PATIENCE) for _ in range(100)))
        assert (stub.open_max, len(stub.requests)) == (20, 100)


@in_loop
async def test_who_is_not_there_has_not_got_it():
    async with aio.HttpMessageSessionFactory(config(f"http://127.0.0.1:{free_port()}")) as factory:
        with pytest.raises(ConnectionFailed) as caught:
            await factory.create_producer().send_message(X)
        assert caught.value.sent is False


@in_loop
async def test_who_answers_late_or_ends_may_have_it():
    async def never(stub, path, body, writer):
        await asyncio.Event().wait()

    async def ends(stub, path, body, writer):
        raise ConnectionResetError

    async with StubGateway(never) as stub, aio.HttpMessageSessionFactory(config(stub.url)) as factory:
        producer = factory.create_producer()
        with pytest.raises(RequestTimeout) as caught:
            await producer.send_message(X, timeout=SHORT)
        assert caught.value.sent is True
        for bad in (ends, says(b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n1 0 0")):
            stub.answering = bad
            with pytest.raises((ConnectionFailed, RequestTimeout)) as caught:
                await producer.send_message(X, timeout=1.0)
            assert caught.value.sent is True
        stub.answering = says(answered(200, b"1 0 0"))
        await producer.send_message(X)


@in_loop
async def test_who_waits_for_a_connection_in_vain_has_sent_nothing():
    held = asyncio.Event()

    async def never(stub, path, body, writer):
        held.set()
        await asyncio.Event().wait()

    async with (
        StubGateway(never) as stub,
        aio.HttpMessageSessionFactory(config(stub.url, max_connections=1)) as factory,
    ):
        producer = factory.create_producer()
        first = asyncio.ensure_future(producer.send_message(X, timeout=10 * SHORT))
        await held.wait()
        with pytest.raises(RequestTimeout) as caught:
            await producer.send_message(X, timeout=SHORT)
        assert caught.value.sent is False
        with contextlib.suppress(RequestTimeout):
            await first


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (answered(200, b"hello"), RemoteProtocolError),
        (answered(200, b"<html>Welcome</html>"), RemoteProtocolError),
        (answered(204, b""), BrokerError),
        (answered(301, b"<a>Moved</a>", "Location: https://elsewhere/\r\n"), BrokerError),
        (answered(401, b"who are you"), BrokerError),
        (answered(502, b"<h1>Bad Gateway</h1>"), BrokerError),
        (answered(503, b""), BrokerError),
        (b"HTTP/1.1 200 X\r\n\r\n" + b"x" * (ANSWER_BYTES_MAX + 1), RemoteProtocolError),
        (b"nonsense\r\n\r\n", ConnectionFailed),
        (b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ConnectionFailed),
    ],
    ids=range(10),
)
@in_loop
async def test_what_is_no_answer_of_a_gateway_is_told(answer, error):
    async with StubGateway(says(answer)) as stub, aio.HttpMessageSessionFactory(config(stub.url)) as factory:
        with pytest.raises(error) as caught:
            await factory.create_producer().send_message(X, timeout=PATIENCE)
        assert len(str(caught.value)) < 1500
        assert len(stub.requests) == 1, "nothing is repeated, and nobody follows elsewhere"


@in_loop
async def test_a_get_that_is_moved_by_something_else_than_a_gateway_is_told():
    moved = answered(301, b"<a>Moved</a>", "Location: https://elsewhere/\r\n")
    async with StubGateway(says(moved)) as stub, aio.HttpMessageSessionFactory(config(stub.url)) as factory:
        with pytest.raises(RemoteProtocolError, match="in place of an offset"):
            await factory.create_consumer().get("test", "0-0", 0)


@in_loop
async def test_a_consumer_goes_on_where_a_301_says_and_asks_where_a_damaged_frame_ends(tmp_path):
    """0 is moved to 40; the frame there is damaged, and /offset says 80; there is nothing yet."""
    asked = asyncio.Event()

    async def answer(stub, path, body, writer):
        if "offset=0&" in path:
            writer.write(answered(301, b"40"))
        elif path.startswith("/get") and "offset=40&" in path:
            writer.write(answered(200, b"\0\0\0\1" + b"y" * 17))
        elif path.startswith("/offset"):
            assert "offset=40" in path and "group=g" in path
            writer.write(answered(200, b"80"))
        else:
            assert "offset=80&" in path
            asked.set()
            writer.write(answered(404, b"nothing"))

    async with StubGateway(answer) as stub:
        offsets = {"offsets_path": str(tmp_path / "offsets"), "recover_path": str(tmp_path / "recover")}
        async with aio.HttpMessageSessionFactory(config(stub.url, **offsets)) as factory:
            consumer = factory.create_consumer(ConsumerConfig("g", max_delay_fetch_time=SHORT))
            consumer.subscribe("test", 100, print, partitions=["5-0"])
            await consumer.complete_subscribe()
            async with asyncio.timeout(PATIENCE):
                await asked.wait()
    assert all(" /get/5?" in line or " /offset/5?" in line for line in stub.requests)
