"""Name servers that an HTTP page tells: who asks it, who does not, and what happens when it tells others."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

import metaq
from metaq.app.addressing import address_server
from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.client.conversation.driver import ask
from metaq.client.conversation.routes import GetCluster
from metaq.client.identity import sources
from metaq.client.shared import cores
from metaq.client.shared.transport import Transport
from metaq.errors import ConfigError, ConnectionFailed
from metaq.net.page import PAGE_BYTES_MAX, fetch_text
from metaq.options import BrokerOptions, NamesrvOptions
from metaq.testing import free_port
from tests.broker.support import small_store
from tests.support import PATIENCE, run_metaq


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("NAMESRV_ADDR", "METAQ_ADDRESS_SERVER"):
        monkeypatch.delenv(name, raising=False)


def options(tmp_path, name: str = "kv", **more: object) -> NamesrvOptions:
    return NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / f"{name}.json"), **more)


def url_of(namesrv) -> str:
    return f"http://{namesrv.addresses['address page']}/rocketmq/nsaddr"


def run(body):
    return asyncio.run(asyncio.wait_for(body, PATIENCE))


def test_name_servers_are_exchanged_under_running_clients_without_one_failed_send(tmp_path, monkeypatch):
    """The page names another name server; broker and clients go there, and the first one stops, while producers send on."""
    monkeypatch.setattr(sources, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(address_server, "POLL_SECONDS", 0.02)

    async def body() -> None:
        async with contextlib.AsyncExitStack() as stack:
            first = await start_namesrv(options(tmp_path, "first"))
            second = await start_namesrv(options(tmp_path, "second"))
            stack.push_async_callback(second.close)
            pages = await start_namesrv(options(tmp_path, "pages", address_page_port=0, address_page=first.address))
            stack.push_async_callback(pages.close)
            page = next(one for one in pages._serving._started if one.name == "address page")._sessions
            url = url_of(pages)
            given = BrokerOptions(
                broker_name="a", listen_port=0, fetch_namesrv_addr_by_address_server=True, address_server=url
            )
            broker = await start_broker(given, small_store(tmp_path / "data"))
            stack.push_async_callback(broker.close)
            ended, sent, failures = threading.Event(), [0], []

            def send() -> None:
                with metaq.Producer(address_server=url, retries=0, poll_name_server_interval=0.05) as producer:
                    core = producer._core
                    while not ended.is_set():
                        try:
                            producer.send("orders", b"%d" % sent[0])
                            sent[0] += 1
                        except metaq.MetaqError as error:
                            failures.append(error)
                            return
                    used.append(core.name_servers.addresses)

            used: list[tuple[str, ...]] = []
            sending = asyncio.create_task(asyncio.to_thread(send))
            transport = Transport()
            stack.push_async_callback(transport.close)

            async def until_sent(more: int) -> None:
                wanted = sent[0] + more
                while sent[0] < wanted and not failures:
                    await asyncio.sleep(0.01)

            async def known(address: str) -> bool:
                return "a" in (await ask(transport, address, GetCluster())).brokers

            await until_sent(50)
            assert not await known(second.address)
            page.text = f"{first.address};{second.address}"
            while not await known(second.address):
                await asyncio.sleep(0.01)
            page.text = second.address
            [core] = [one for one in cores._cores.values() if one.address_server == url]
            while core.name_servers.addresses != (second.address,) and not failures:
                await asyncio.sleep(0.01)
            await first.close()
            await until_sent(50)
            # A topic that nobody knew before is looked up at the second, too.
            ended.set()
            await sending
            assert not failures
            assert used == [(second.address,)]

    run(body())


def test_an_exchange_that_fails_is_tried_again(monkeypatch, caplog):
    """Whatever was wrong with it, or with the page; without waiting for other name servers to be named."""
    monkeypatch.setattr(address_server, "POLL_SECONDS", 0)
    outcomes = iter([ValueError("no page"), ("b:1",), ("b:1",), ("c:1",)])
    given, faults = [], iter([RuntimeError("not now"), None, None])

    async def fetch(_url: str) -> tuple[str, ...]:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def body() -> None:
        ended = asyncio.Event()

        async def exchange(addresses) -> None:
            given.append(addresses)
            if (fault := next(faults)) is not None:
                raise fault
            if addresses == ("c:1",):
                ended.set()

        monkeypatch.setattr(address_server, "fetch", fetch)
        following = asyncio.create_task(address_server.follow("http://page", ("a:1",), exchange))
        await ended.wait()
        following.cancel()

    run(body())
    assert given == [("b:1",), ("b:1",), ("c:1",)]
    assert "no page" in caplog.text
    assert "not now" in caplog.text


def test_page_is_asked_where_nothing_else_says_so(tmp_path, monkeypatch):
    """What the client is given beats NAMESRV_ADDR, and that the address server; the environment has its URL, too."""

    async def body() -> None:
        namesrv = await start_namesrv(options(tmp_path, address_page_port=0))
        url = url_of(namesrv)
        try:

            def addresses(namesrv_text: str | None = None, **more: object) -> tuple[str, ...]:
                with metaq.Producer(namesrv_text, **more) as producer:
                    return producer._core.name_servers.addresses

            assert await asyncio.to_thread(addresses, address_server=url) == (namesrv.address,)
            monkeypatch.setenv("METAQ_ADDRESS_SERVER", url)
            assert await asyncio.to_thread(addresses) == (namesrv.address,)
            closed = f"http://127.0.0.1:{free_port()}/"
            with pytest.raises(ConnectionFailed, match=r"the address server .* does not answer"):
                await asyncio.to_thread(addresses, address_server=closed)
            shown = await asyncio.to_thread(run_metaq, "topic", "list")
            assert shown.returncode == 0, shown.stderr
            monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
            shown = await asyncio.to_thread(run_metaq, "topic", "list", "-n", namesrv.address)
            assert shown.returncode == 0, shown.stderr
            shown = await asyncio.to_thread(run_metaq, "topic", "list")
            assert "127.0.0.1:1" in shown.stderr
            assert await asyncio.to_thread(addresses, address_server=closed) == ("127.0.0.1:1",)
            assert await asyncio.to_thread(addresses, "127.0.0.1:2", address_server=closed) == ("127.0.0.1:2",)
        finally:
            await namesrv.close()

    run(body())


def test_nothing_is_given():
    """The error names all four."""
    with pytest.raises(ConfigError) as caught:
        metaq.Producer()
    for word in ("pass its address", "-n", "NAMESRV_ADDR", "METAQ_ADDRESS_SERVER"):
        assert word in str(caught.value)


@pytest.mark.parametrize("url", ["", "somewhere", "ftp://host/", "http://", "http://host:x/", "http://ho st/"])
def test_url_that_is_none(url):
    with pytest.raises(ConfigError, match="is no URL"):
        metaq.Producer(address_server=url)


def test_page_answers_what_it_is_asked(tmp_path):
    """RocketMQ's path, with a unit behind it; other paths are not there, and garbage closes the connection alone."""

    async def body() -> None:
        namesrv = await start_namesrv(options(tmp_path, address_page_port=0, address_page="a:1, b:2"))
        try:
            url = url_of(namesrv)
            for path in ("", "-unit?nofix=1"):
                assert await asyncio.to_thread(fetch_text, url + path, PATIENCE) == "a:1;b:2"
            with pytest.raises(ConnectionFailed, match="404"):
                await asyncio.to_thread(fetch_text, url.replace("nsaddr", "other"), PATIENCE)
            host, _, port = namesrv.addresses["address page"].rpartition(":")
            for garbage in (b"\0" * 100 + b"\r\n\r\n", b"GET " + b"x" * 10_000, b"GET /\r\n\r\n"):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(garbage)
                assert await reader.read() == b""
                writer.close()
            assert await asyncio.to_thread(fetch_text, url, PATIENCE) == "a:1;b:2"
        finally:
            await namesrv.close()

    run(body())


def test_page_that_is_too_long_or_no_list(tmp_path, caplog):
    """The known ones stay."""

    async def body() -> None:
        namesrv = await start_namesrv(options(tmp_path, address_page_port=0))
        page = next(one for one in namesrv._serving._started if one.name == "address page")._sessions
        try:
            url = url_of(namesrv)
            core = await asyncio.to_thread(cores.acquire, None, cores.ClientOptions(address_server=url))
            for text, why in (
                ("x" * (PAGE_BYTES_MAX + 1), "more than"),
                ("<html>", "is not host:port"),
                ("", "no name server"),
            ):
                page.text = text
                await core._poll_addresses()
                assert core.name_servers.addresses == (namesrv.address,)
                with pytest.raises((ConfigError, ConnectionFailed), match=why):
                    await address_server.fetch(url)
            await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(
                    cores.release(core, cores.ClientOptions(address_server=url)), core.thread.loop
                )
            )
        finally:
            await namesrv.close()

    run(body())


def test_broker_without_a_page_does_not_start(tmp_path):
    """An address server that is asked for and not named, or not there; nothing is touched. `namesrvAddr` beats it."""
    for given, why in (
        ({}, "set addressServer"),
        ({"address_server": f"http://127.0.0.1:{free_port()}/"}, "does not answer"),
        ({"address_server": "somewhere"}, "is no URL"),
    ):
        wanted = BrokerOptions(listen_port=0, fetch_namesrv_addr_by_address_server=True, **given)
        with pytest.raises(ConfigError, match=why):
            run(start_broker(wanted, small_store(tmp_path / "data")))
    assert not (tmp_path / "data").exists()
