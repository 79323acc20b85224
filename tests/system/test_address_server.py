"""Name servers that an HTTP page tells: who asks it, who does not, and what happens when it tells others."""

from __future__ import annotations

import asyncio
import contextlib
import signal
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
from tests.support import PATIENCE, eventually, metaq_command, process, read_line, run_metaq


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


def test_name_servers_are_exchanged_one_by_one_under_running_clients_without_one_failed_send(tmp_path, monkeypatch):
    """A;B become B;C and then C;D, by the page alone: broker, producer and consumer go along, and each that is gone from it stops
    while messages flow. New topics are found at those that are left."""
    monkeypatch.setattr(sources, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(address_server, "POLL_SECONDS", 0.02)

    async def body() -> None:
        async with contextlib.AsyncExitStack() as stack:
            servers = {name: await start_namesrv(options(tmp_path, name)) for name in "abcd"}
            pages = await start_namesrv(options(tmp_path, "pages", address_page_port=0, address_page="a:1"))
            running = {*servers.values(), pages}

            async def stop(one) -> None:
                running.discard(one)
                await one.close()

            async def stop_all() -> None:
                for one in running.copy():
                    await stop(one)

            stack.push_async_callback(stop_all)

            def named(names: str) -> tuple[str, ...]:
                return tuple(servers[name].address for name in names)

            def tell(names: str) -> None:
                """As SIGHUP does."""
                pages.settings["namesrv"].change({"addressPage": ";".join(named(names))})

            tell("ab")
            url = url_of(pages)
            given = BrokerOptions(
                broker_name="x", listen_port=0, fetch_namesrv_addr_by_address_server=True, address_server=url
            )
            broker = await start_broker(given, small_store(tmp_path / "data"))
            stack.push_async_callback(broker.close)
            traffic = Traffic(url)
            moving = asyncio.create_task(asyncio.to_thread(traffic.run))
            transport = Transport()
            stack.push_async_callback(transport.close)

            async def until(probe) -> None:
                while not await probe():
                    assert not traffic.failures
                    assert not moving.done(), moving
                    await asyncio.sleep(0.01)

            async def known(address: str) -> bool:
                return "x" in (await ask(transport, address, GetCluster())).brokers

            async def flows() -> None:
                """Until messages that are sent from now on are received."""
                wanted = traffic.sent + 20

                async def received() -> bool:
                    return len(traffic.received) >= wanted

                await until(received)

            await flows()
            for gone, left, topic in (("a", "bc", "later"), ("b", "cd", "latest")):
                tell(left)

                async def moved(left=left) -> bool:
                    cores_here = [one for one in cores._cores.values() if one.address_server == url]
                    told = all(set(one.name_servers.addresses) == set(named(left)) for one in cores_here)
                    return told and all([await known(address) for address in named(left)])

                await until(moved)
                await stop(servers[gone])
                traffic.topic = topic
                await flows()
            traffic.ended.set()
            await moving
            assert not traffic.failures
            assert sorted(traffic.received) == sorted(set(traffic.received)) == sorted(traffic.numbers)
            assert {topic for topic, _ in traffic.received} == {"orders", "later", "latest"}

    run(body())


class Traffic:
    """A producer without retries and a consumer, which have an address server's URL and nothing else, until `ended`."""

    def __init__(self, url: str) -> None:
        self.url, self.topic = url, "orders"
        self.ended = threading.Event()
        self.numbers: list[tuple[str, int]] = []
        self.received: list[tuple[str, int]] = []
        self.failures: list[metaq.MetaqError] = []

    @property
    def sent(self) -> int:
        return len(self.numbers)

    def run(self) -> None:
        """Send and receive, one after the other. The first failure ends it."""
        quick = {"address_server": self.url, "poll_name_server_interval": 0.05}
        with (
            metaq.Producer(retries=0, **quick) as producer,
            metaq.Consumer(
                group="readers", topics=["orders", "later", "latest"], start="earliest", **quick
            ) as consumer,
        ):
            try:
                while not self.ended.is_set():
                    topic, number = self.topic, self.sent
                    producer.send(topic, b"%d" % number)
                    self.numbers.append((topic, number))
                    self._receive(consumer, 0)
                while len(set(self.received)) < self.sent:
                    self._receive(consumer, PATIENCE)
            except metaq.MetaqError as error:
                self.failures.append(error)

    def _receive(self, consumer: metaq.Consumer[bytes], timeout: float) -> None:
        message = consumer.receive(timeout)
        if message is not None:
            with message:
                self.received.append((message.topic, int(message.body)))


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


def test_the_page_changes_when_its_server_reads_its_file_again(tmp_path):
    """SIGHUP; a list that is none changes nothing, and does not start."""
    file, text = tmp_path / "namesrv.properties", "addressPagePort=0\nbindAddress=127.0.0.1\naddressPage={}\n"
    file.write_text(text.format("a:1;b:2"))
    command = metaq_command("namesrv", "-c", str(file), "--port", "0", "--data", str(tmp_path), "--host", "127.0.0.1")
    with process(*command) as child:
        log = iter(child.stderr)
        place = next(line.split()[-1] for line in log if "the address page server listens at" in line)
        read_line(child, "ready")
        url = f"http://{place}/rocketmq/nsaddr"
        assert fetch_text(url, PATIENCE) == "a:1;b:2"
        for given, told in (("b:2;c:3", "b:2;c:3"), ("not a list", "b:2;c:3"), ("c:3", "c:3")):
            file.write_text(text.format(given))
            child.send_signal(signal.SIGHUP)
            next(line for line in log if "addressPage" in line)
            eventually(lambda told=told: fetch_text(url, PATIENCE) == told)
    file.write_text(text.format("not a list"))
    done = run_metaq(*command[3:])
    assert (done.returncode, "addressPage=not a list" in done.stderr) == (2, True)


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
