"""Connections: dialled once, shared, replaced when they break, and closed to a server that talks nonsense."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from metaq.client.shared.transport import ClientSession, Transport
from metaq.errors import ClientClosed, ConnectionFailed, LocalProtocolError, RequestTimeout
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import encode, reply, request
from tests.client.cluster import FakeCluster, swallow
from tests.support import PATIENCE

CODE = RequestCode.GET_BROKER_RUNTIME_INFO


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        running.script[CODE] = lambda session, command: reply(command, body=command.body)
        yield running


def with_transport(cluster: FakeCluster, work) -> None:
    """Run `work(transport, address)` in a loop of its own."""

    async def main() -> None:
        transport = Transport(lambda address, command: None, lambda address: None, lambda address: None)
        try:
            await work(transport, f"127.0.0.1:{cluster.ports[0]}")
        finally:
            await transport.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_many_callers_share_one_dial(cluster):
    """A hundred requests at once make one connection, and each gets its own answer."""

    async def work(transport: Transport, address: str) -> None:
        answers = await asyncio.gather(
            *(transport.call(address, request(CODE, body=b"%d" % number), 5.0) for number in range(100))
        )
        assert [answer.body for answer in answers] == [b"%d" % number for number in range(100)]
        assert cluster.accepted == 1

    with_transport(cluster, work)


def test_answers_may_come_in_any_order(cluster):
    """The opaque pairs them."""
    kept = []

    def backwards(session, command):
        kept.append(command)
        if len(kept) == 3:
            session.peer.write(b"".join(encode(reply(one, body=one.body)) for one in reversed(kept)))

    cluster.script[CODE] = backwards

    async def work(transport: Transport, address: str) -> None:
        answers = await asyncio.gather(
            *(transport.call(address, request(CODE, body=b"%d" % number), 5.0) for number in range(3))
        )
        assert [answer.body for answer in answers] == [b"0", b"1", b"2"]

    with_transport(cluster, work)


def test_late_answer_is_dropped(cluster):
    """A request that timed out leaves nothing behind; the connection serves the next."""
    late = []

    def hold_first(session, command):
        if not late:
            late.append(command)
            return None
        session.peer.write(encode(reply(late[0], body=b"late")))
        return reply(command, body=b"right")

    cluster.script[CODE] = hold_first

    async def work(transport: Transport, address: str) -> None:
        with pytest.raises(RequestTimeout, match="28 GET_BROKER_RUNTIME_INFO"):
            await transport.call(address, request(CODE), 0.05)
        assert (await transport.call(address, request(CODE), 5.0)).body == b"right"
        assert cluster.accepted == 1

    with_transport(cluster, work)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff" * 64,
        (40).to_bytes(4, "big") + b"\x00\x00\x00\x20" + b"{" * 36,
        (8).to_bytes(4, "big") + b"\x07\x00\x00\x04" + b"abcd",
        (2).to_bytes(4, "big") + b"\x00\x00",
    ],
    ids=["http", "huge", "no json", "serialize type", "short"],
)
def test_garbage_closes_the_connection_and_the_next_request_dials_again(cluster, garbage):
    """The request outstanding fails as a broken connection, and says why; nothing else is harmed."""
    spoken = []

    def speak_nonsense_once(session, command):
        if spoken:
            return reply(command, body=b"fine")
        spoken.append(command)
        session.peer.write(garbage)
        return None

    cluster.script[CODE] = speak_nonsense_once

    async def work(transport: Transport, address: str) -> None:
        with pytest.raises(ConnectionFailed, match=address):
            await transport.call(address, request(CODE), 5.0)
        assert (await transport.call(address, request(CODE), 5.0)).body == b"fine"
        assert cluster.accepted == 2

    with_transport(cluster, work)


def test_broken_connection_fails_what_is_outstanding_at_once(cluster):
    """Nobody waits for a time-out when the peer is gone."""
    cluster.script[CODE] = swallow

    async def work(transport: Transport, address: str) -> None:
        calls = [asyncio.create_task(transport.call(address, request(CODE), 15.0)) for _ in range(5)]
        while cluster.count(CODE) < 5:
            await asyncio.sleep(0.005)
        cluster.drop_connections()
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
        assert all(isinstance(outcome, ConnectionFailed) for outcome in outcomes)

    with_transport(cluster, work)


@pytest.mark.parametrize("name", ["request", "send_oneway"])
def test_a_lost_connection_refuses_requests_at_once(name):
    """Who waited for its dial may run on when it is lost already, and would wait for the time of the request."""

    async def main() -> None:
        transport = Transport(lambda address, command: None, lambda _: None, lambda address: None)
        written: list[bytes] = []
        session = ClientSession(transport, "10.0.0.1:10911", SimpleNamespace(write=written.append, plain=True))
        session.connection_lost("reset by the peer")
        with pytest.raises(ConnectionFailed, match="10911 broke before it answered anything: reset") as caught:
            getattr(session, name)(request(CODE))
        assert not caught.value.sent
        assert not written

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_caller_that_is_cancelled_while_its_dial_ends_is_cancelled(cluster, turns):
    """At whichever turn of the loop: its owner waits for it."""
    cluster.script[CODE] = swallow

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def cancel(left: int) -> None:
            if left:
                loop.call_soon(cancel, left - 1)
            else:
                task.cancel()

        transport = Transport(lambda address, command: None, lambda _: cancel(turns), lambda address: None)
        task = loop.create_task(transport.call(f"127.0.0.1:{cluster.ports[0]}", request(CODE), 5.0))
        with pytest.raises(asyncio.CancelledError):
            await task
        await transport.close()

    asyncio.run(main())


def test_connections_that_no_route_needs_are_closed_unless_in_use(cluster):
    """`keep_only` spares a connection on which somebody waits."""
    gate = []
    cluster.script[CODE] = lambda session, command: reply(command) if gate else None

    async def work(transport: Transport, address: str) -> None:
        call = asyncio.create_task(transport.call(address, request(CODE), 0.5))
        while not cluster.count(CODE):
            await asyncio.sleep(0.005)
        transport.keep_only(set())
        assert transport.addresses == [address]
        with pytest.raises(RequestTimeout):
            await call
        transport.keep_only(set())
        while transport.addresses:
            await asyncio.sleep(0.005)

    with_transport(cluster, work)


def test_command_that_no_frame_carries_leaves_nobody_waiting(cluster):
    """It raises, and the connection is as free as before."""

    async def work(transport: Transport, address: str) -> None:
        await transport.call(address, request(CODE), 5.0)
        wrong = request(CODE)
        wrong.ext = {"text": "\ud800"}
        with pytest.raises(LocalProtocolError):
            await transport.call(address, wrong, 5.0)
        transport.keep_only(set())
        while transport.addresses:
            await asyncio.sleep(0.005)

    with_transport(cluster, work)


def test_nobody_listens_and_closed_transports_say_so(cluster):
    """ConnectionFailed with the address; ClientClosed after close."""

    async def work(transport: Transport, address: str) -> None:
        for failing in (
            transport.call("127.0.0.1:1", request(CODE), 1.0),
            transport.send_oneway("127.0.0.1:1", request(CODE)),
        ):
            with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1") as raised:
                await failing
            assert not raised.value.sent
        await transport.close()
        with pytest.raises(ClientClosed):
            await transport.call(address, request(CODE), 1.0)

    with_transport(cluster, work)


def test_error_answers_are_answers(cluster):
    """The transport judges no code."""
    cluster.script[CODE] = lambda session, command: reply(command, ResponseCode.SYSTEM_ERROR, remark="no")

    async def work(transport: Transport, address: str) -> None:
        answer = await transport.call(address, request(CODE), 5.0)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no")

    with_transport(cluster, work)
