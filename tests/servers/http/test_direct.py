"""Sends that are answered without the application: the same answers, and the limits of all requests."""

from __future__ import annotations

import json

import pytest

from metaq.clock import FakeClock
from metaq.net.listener import listen
from metaq.servers.http.connection import DIRECT_BYTES_MAX, HttpConnection, HttpSpace
from metaq.servers.http.messages.sending import Sending
from tests.servers.http.running import Running, running
from tests.servers.http.support import Dialed, dial, eventually, in_loop
from tests.servers.http.test_connection import Echo

JSON_TYPE = "content-type: application/json"


def request(url: str, body: bytes, *fields: str, chunked: bool = False) -> bytes:
    """Return a send. `chunked`: without a length, which the application alone takes."""
    head = [f"POST {url} HTTP/1.1", "host: here", *fields]
    if chunked:
        head.append("transfer-encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    else:
        head.append(f"content-length: {len(body)}")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def dialed(served: Running) -> Dialed:
    return await dial(int(served.running.addresses["http"].rpartition(":")[2]))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows by each request that was to be answered so: whether it was."""
    found, answer = list[bool](), Sending.answer

    def noting(self: Sending, *args: object) -> bytes | None:
        told = answer(self, *args)  # type: ignore[arg-type]
        found.append(told is not None)
        return told

    monkeypatch.setattr(Sending, "answer", noting)
    return found


SENDS = [
    (b"abc", ()),
    (b"abc", ("metaq-tag: paid", "metaq-keys: a b", "metaq-queue: 1", "metaq-property-shop: 8", "metaq-flag: 3")),
    (b'{"body": {"id": 42}, "tag": "paid", "queue": 2}', (JSON_TYPE,)),
    (b"abc", ("ce-specversion: 1.0", "ce-id: 9", "ce-source: /s%20hop", "ce-type: t", "content-type: text/plain")),
    (b"a later one", ("metaq-delay-level: 3",)),
    (b"x" * DIRECT_BYTES_MAX, ()),
]


@pytest.mark.parametrize(("body", "fields"), SENDS)
@in_loop
async def test_a_short_send_is_answered_at_once_as_the_application_answers(body, fields, tmp_path, monkeypatch):
    direct = counted(monkeypatch)
    async with running(tmp_path) as served:
        one = await dialed(served)
        await one.ask(request("/topics/orders/messages", b"makes the topic", "metaq-queue: 0", chunked=True))
        answers = [
            await one.ask(request("/topics/orders/messages", body, *fields, chunked=chunked))
            for chunked in (False, True)
        ]
        assert direct == [True]
        (status, head, told), (other_status, other_head, other) = answers
        assert (status, head["content-type"], set(head)) == (other_status, other_head["content-type"], set(other_head))
        first, second = json.loads(told), json.loads(other)
        assert [first.pop("messageId") < second.pop("messageId")] == [True]
        if "queue" not in b"".join([body, *map(str.encode, fields)]).decode():
            first["queue"] = second["queue"]  # it is the broker's choice
        first["offset"] = second["offset"]
        assert first == second
        stored = [one for one in served.messages("orders") if one.body != b"makes the topic"]
        if "metaq-delay-level: 3" not in fields:
            left, right = stored
            assert (left.body, left.tag, left.flag) == (right.body, right.tag, right.flag)
            assert left.properties == right.properties


REFUSED = [
    ("/topics/orders/messages", b"", ()),
    ("/topics/orders/messages", b"{", (JSON_TYPE,)),
    ("/topics/orders/messages", b"abc", ("metaq-queue: 99",)),
    ("/topics/orders/messages", b"abc", ("metaq-nothing: 1",)),
    ("/topics/orders/messages", b"abc", ("content-type: application/cloudevents+xml",)),
    ("/topics/a%2Fb/messages", b"abc", ()),
    ("/topics/a b/messages".replace(" ", "%20"), b"abc", ()),
    ("/topics/SCHEDULE_TOPIC_XXXX/messages", b"abc", ()),
    ("/topics/orders/messages?queue=1", b"abc", ()),
    ("/topics//messages", b"abc", ()),
    ("/topics/" + "t" * 300 + "/messages", b"abc", ()),
]


@pytest.mark.parametrize(("url", "body", "fields"), REFUSED)
@in_loop
async def test_what_cannot_be_stored_is_told_by_the_application(url, body, fields, tmp_path):
    async with running(tmp_path) as served:
        one = await dialed(served)
        told = await one.ask(request(url, body, *fields))
        assert told == await one.ask(request(url, body, *fields, chunked=True))
        assert told[0] >= 400 and json.loads(told[2])["title"]
        assert (await one.ask(request("/topics/orders/messages", b"good")))[0] == 200


@in_loop
async def test_what_has_to_be_waited_for_is_the_applications(tmp_path, monkeypatch):
    direct = counted(monkeypatch)
    async with running(tmp_path, flush="SYNC_FLUSH") as served:
        one = await dialed(served)
        told = json.loads((await one.ask(request("/topics/orders/messages", b"abc")))[2])
        assert (told["warning"], direct) == ("", [False])
        assert served.broker.store.state.flushed >= served.broker.store.log.end


@in_loop
async def test_a_request_in_pieces_and_those_behind_it_are_answered_in_order(tmp_path, monkeypatch):
    direct = counted(monkeypatch)
    async with running(tmp_path) as served:
        one = await dialed(served)
        await one.ask(request("/topics/orders/messages", b"makes the topic", "metaq-queue: 1", chunked=True))
        whole = request("/topics/orders/messages", b"in pieces", "metaq-queue: 0")
        assert json.loads((await one.ask(*[whole[i : i + 1] for i in range(len(whole))]))[2])["offset"] == 0
        live = b"GET /health/live HTTP/1.1\r\nhost: here\r\n\r\n"
        one.writer.write(
            b"".join(request("/topics/orders/messages", b"%d" % i, "metaq-queue: 0") + live for i in range(50))
        )
        for number in range(50):
            assert json.loads((await one.answer())[2])["offset"] == number + 1
            assert json.loads((await one.answer())[2])["status"] == "ok"
        # Behind an answer of the application that is still under way, a send is the application's too: order before speed.
        assert direct[0] is True
        assert served.bodies("orders")[1:51] == [b"%d" % i for i in range(50)]


@in_loop
async def test_a_body_that_does_not_come_stores_nothing(tmp_path):
    async with running(tmp_path) as served:
        one, other = await dialed(served), await dialed(served)
        await other.ask(request("/topics/orders/messages", b"makes the topic"))
        one.writer.write(request("/topics/orders/messages", b"cut short")[:-1])
        one.writer.write_eof()
        assert await one.is_closed()
        assert (await other.ask(request("/topics/orders/messages", b"good")))[0] == 200
        assert sorted(served.bodies("orders")) == [b"good", b"makes the topic"]


class _Yes:
    """Wants all requests, and answers them."""

    def wants(self, _url: bytes) -> bool:
        return True

    def answer(self, _connection: HttpConnection, _url: bytes, _head: list[tuple[bytes, bytes]], body: bytes) -> bytes:
        return body


@in_loop
async def test_a_short_body_that_trickles_is_refused_in_time():
    clock = FakeClock()
    space = HttpSpace(Echo(), clock, direct=_Yes())
    listener = await listen("127.0.0.1", 0, lambda peer: HttpConnection(peer, space))
    try:
        one, other = await dial(listener.port), await dial(listener.port)
        assert (await other.ask(request("/a", b"abc")))[2] == b"abc"
        one.writer.write(request("/a", b"abc")[:-1])
        (slow,) = await eventually(lambda: [c for c in space.state.connections if c._body_bytes == 2])
        clock.advance(20)
        space.tick()
        assert (await one.answer())[0] == 408
        assert await one.is_closed()
        # A connection that is silent behind such an answer ends as any other.
        (silent,) = [c for c in space.state.connections if c is not slow]
        assert silent.timeout_keep_alive_task is not None
        silent.timeout_keep_alive_handler()
        assert await other.is_closed()
    finally:
        await listener.close()


@in_loop
async def test_a_client_that_does_not_read_is_not_answered_for_ever(tmp_path):
    async with running(tmp_path) as served:
        one, other = await dialed(served), await dialed(served)
        await other.ask(request("/topics/orders/messages", b"makes the topic"))
        whole, before = request("/topics/orders/messages", b"x"), served.broker.store.log.end
        sent = 0
        while sent < 400 and not one.writer.transport.get_write_buffer_size():
            one.writer.write(whole * 500)
            sent += 1
            assert (await other.ask(request("/topics/orders/messages", b"other")))[0] == 200
        assert one.writer.transport.get_write_buffer_size(), "the broker reads all of it, whoever reads its answers"
        assert served.broker.store.log.end > before
        one.writer.transport.abort()
