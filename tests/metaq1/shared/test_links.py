"""Connections of a factory: one for each server, counted, kept alive, made anew, and what becomes of commands meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from metaq.errors import ClientClosed, ConnectionFailed, MetaqError, RemoteProtocolError, RequestTimeout
from metaq.metaq1.shared.links import ConnectionPace, Links
from metaq.testing import free_port
from metaq.wire.metaq1.commands import GetLine, ResultLine, VersionLine
from tests.metaq1.stub import Stub, nothing, versions
from tests.support import PATIENCE

QUICK = ConnectionPace(idle=0.02, heartbeat=0.05, reconnect_pause=0.05)
CALM = ConnectionPace(idle=PATIENCE)


def run(main) -> None:
    async def bounded():
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())


def get(opaque: int) -> GetLine:
    return GetLine("t", "g", 0, 0, 100, opaque)


def test_users_share_one_connection_and_the_last_one_closes_it():
    async def main():
        async with Stub() as stub:
            links = Links(CALM)
            first, second = links.acquire(stub.address), links.acquire(stub.address)
            assert first is second
            await first.connected(PATIENCE)
            await first.ask(VersionLine, "tell its version", PATIENCE)
            links.release(first)
            await second.ask(VersionLine, "tell its version", PATIENCE)
            assert len(stub.connections) == 1
            links.release(second)
            assert len(links) == 0
            with pytest.raises(ClientClosed):
                await second.ask(VersionLine, "tell its version", PATIENCE)
            await links.close()

    run(main)


def test_commands_are_pipelined_and_answers_come_in_any_order():
    """Nothing is answered until all have come; then the last one first."""

    def answering(connection, line):
        if len(connection.lines) == 100:
            for one in reversed(connection.lines):
                connection.answer(404, b"%d" % one.opaque, one.opaque)

    async def main():
        async with Stub(answering) as stub:
            links = Links(CALM)
            link = links.acquire(stub.address)
            found = await asyncio.gather(*(link.ask(get, "get", PATIENCE) for _ in range(100)))
            assert [int(one.body) for one in found] == [one.opaque for one in stub.lines]
            assert len({one.opaque for one in stub.lines}) == 100
            await links.close()

    run(main)


def test_an_idle_connection_is_asked_for_its_version():
    """And one that is in use is not."""

    async def main():
        async with Stub() as stub:
            links = Links(QUICK)
            links.acquire(stub.address)
            await stub.until(lambda: len(stub.lines) >= 5)
            assert all(isinstance(line, VersionLine) for line in stub.lines)
            assert len(stub.connections) == 1, "answers keep it"
            await links.close()

    run(main)


@pytest.mark.parametrize("answering", [nothing, lambda connection, line: connection.answer(500, b"", line.opaque)])
def test_three_heartbeats_without_a_good_answer_end_a_connection(answering):
    """The next one is good."""

    async def main():
        async with Stub(answering) as stub:
            links = Links(QUICK)
            link = links.acquire(stub.address)
            await stub.until(lambda: len(stub.connections) == 2)
            stub.answering = versions
            assert len(stub.connections[0].lines) == 3
            await stub.until(lambda: len(stub.connections[-1].lines) >= 5)
            assert link.connection is not None
            await links.close()

    run(main)


def test_a_broken_connection_fails_what_is_under_way_and_comes_back():
    """`sent` says that the server may have the command; what comes behind is sent over the next connection."""

    async def main():
        async with Stub(nothing) as stub:
            links = Links(CALM)
            link = links.acquire(stub.address)
            waiting = asyncio.create_task(link.ask(get, "get", PATIENCE))
            await stub.until(lambda: len(stub.lines) == 1)
            stub.answering = versions
            stub.connections[0].cut()
            with pytest.raises(ConnectionFailed, match="broke") as lost:
                await waiting
            assert lost.value.sent
            number = (await link.connected(PATIENCE)).number
            assert number == 2
            assert (await link.ask(VersionLine, "tell its version", PATIENCE)).code == 200
            with pytest.raises(ConnectionFailed, match="the transaction belongs to has ended") as ended:
                await link.ask(VersionLine, "commit", PATIENCE, number=1)
            assert not ended.value.sent
            await links.close()

    run(main)


def test_commands_wait_for_the_try_that_is_under_way_in_their_order():
    async def main():
        async with Stub(lambda connection, line: connection.answer(404, b"", line.opaque)) as stub:
            links = Links(CALM)
            link = links.acquire(stub.address)
            asks = [
                link.ask(lambda opaque, n=n: GetLine("t", "g", n, 0, 1, opaque), "get", PATIENCE) for n in range(50)
            ]
            await asyncio.gather(*asks)
            assert [line.partition for line in stub.lines] == list(range(50))
            await links.close()

    run(main)


def test_a_server_that_is_away_fails_commands_at_once_and_is_tried_again():
    """With nothing sent; when it listens, it is connected to by itself."""

    async def main():
        async with Stub() as stub:
            stub.deaf()
            links = Links(QUICK)
            link = links.acquire(stub.address)
            with pytest.raises(ConnectionFailed, match=rf"cannot connect to {stub.address}") as failed:
                await link.ask(VersionLine, "tell its version", PATIENCE)
            assert not failed.value.sent
            with pytest.raises(ConnectionFailed, match=r"the next try comes within 0.05 s"):
                await link.ask(VersionLine, "tell its version", PATIENCE)
            await stub.listen()
            await stub.until(lambda: len(stub.connections) == 1)
            assert (await link.connected(PATIENCE)).number == 1
            await links.close()

    run(main)


def test_a_server_that_takes_connections_and_closes_them_is_logged_once_and_given_up(caplog):
    """Each command has its error; the next one begins anew."""

    async def main():
        async with Stub(lambda connection, line: connection.cut()) as stub:
            links = Links(ConnectionPace(reconnect_pause=0.01, reconnect_times=5))
            link = links.acquire(stub.address)
            for _ in range(20):
                with pytest.raises(ConnectionFailed):
                    await link.ask(VersionLine, "tell its version", PATIENCE)
            assert 1 <= sum("trying on" in record.getMessage() for record in caplog.records) < 10
            while link._task is not None:
                await asyncio.sleep(0.01)
            assert "tries were in vain" in caplog.text
            stub.answering = versions
            assert (await link.ask(VersionLine, "tell its version", PATIENCE)).code == 200
            await links.close()

    run(main)


def test_after_so_many_failed_tries_a_link_rests_until_it_is_needed():
    async def main():
        async with Stub() as stub:
            stub.deaf()
            links = Links(ConnectionPace(reconnect_pause=0.01, reconnect_times=2))
            link = links.acquire(stub.address)
            while link._task is not None:
                await asyncio.sleep(0.01)
            await stub.listen()
            assert (await link.ask(VersionLine, "tell its version", PATIENCE)).code == 200
            await links.close()

    run(main)


def test_a_silent_server_ends_a_command_by_its_time_out_and_its_late_answer_is_dropped():
    async def main():
        late = []

        def answering(connection, line):
            if isinstance(line, GetLine):
                late.append((connection, line))
            else:
                versions(connection, line)

        async with Stub(answering) as stub:
            links = Links(CALM)
            link = links.acquire(stub.address)
            await link.connected(PATIENCE)
            with pytest.raises(RequestTimeout, match=r"did not answer within 0.05 s; to get it") as timeout:
                await link.ask(get, "get it", 0.05)
            assert timeout.value.sent
            await stub.until(lambda: bool(late))
            late[0][0].answer(200, b"late", late[0][1].opaque)
            assert (await link.ask(VersionLine, "tell its version", PATIENCE)).body == b"1.4.6.2"
            await links.close()

    run(main)


def test_a_server_that_sends_no_answer_loses_its_connection_only():
    """What it says is in the error of what was under way."""

    async def main():
        async with Stub(lambda connection, line: connection.writer.write(b"HTTP/1.1 400 Bad Request\r\n")) as stub:
            links = Links(CALM)
            link = links.acquire(stub.address)
            with pytest.raises(ConnectionFailed, match=r"HTTP/1\.1 400"):
                await link.ask(get, "get", PATIENCE)
            stub.answering = versions
            assert isinstance(await link.ask(VersionLine, "tell its version", PATIENCE), ResultLine)
            await links.close()

    run(main)


def test_a_cancelled_command_leaves_nothing_behind():
    async def main():
        async with Stub(nothing) as stub:
            links = Links(CALM)
            link = links.acquire(stub.address)
            connection = await link.connected(PATIENCE)
            waiting = asyncio.create_task(link.ask(get, "get", PATIENCE))
            await stub.until(lambda: len(stub.lines) == 1)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert len(connection._pipeline) == 0
            await links.close()

    run(main)


def test_the_end_of_a_factory_fails_what_is_under_way_and_what_waits_for_a_connection():
    async def main():
        async with Stub(nothing) as stub:
            links = Links(CALM)
            link, dead = links.acquire(stub.address), links.acquire(f"127.0.0.1:{free_port()}")
            await link.connected(PATIENCE)
            under_way = asyncio.create_task(link.ask(get, "get", PATIENCE))
            waiting = asyncio.create_task(dead.ask(get, "get", PATIENCE))
            await stub.until(lambda: len(stub.lines) == 1)
            await links.close()
            for task in (under_way, waiting):
                with pytest.raises((ClientClosed, ConnectionFailed)):
                    await task

    run(main)


def test_a_server_of_this_machine_may_be_dialled_by_its_loopback_address(monkeypatch):
    """Its address stays the name of the connection."""
    monkeypatch.setattr("metaq.metaq1.shared.links.local_address", lambda: "10.0.0.5")

    async def main():
        async with Stub() as stub:
            port = stub.address.rpartition(":")[2]
            links = Links(CALM, loopback=True)
            link = links.acquire(f"10.0.0.5:{port}")
            await link.connected(PATIENCE)
            assert links.get(f"10.0.0.5:{port}") is link
            await links.close()
        assert Links(CALM)._to_dial("10.0.0.5:1") == "10.0.0.5:1"

    run(main)


def test_a_command_that_cannot_be_written_is_its_own_error():
    async def main():
        async with Stub() as stub:
            links = Links(CALM)
            link = links.acquire(stub.address)
            await link.connected(PATIENCE)
            with pytest.raises(MetaqError, match="two words") as error:
                await link.ask(lambda opaque: GetLine("two words", "g", 0, 0, 1, opaque), "get", PATIENCE)
            assert not isinstance(error.value, RemoteProtocolError)
            assert (await link.ask(VersionLine, "tell its version", PATIENCE)).code == 200
            await links.close()

    run(main)
