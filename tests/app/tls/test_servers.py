"""Whole servers with TLS: clients, the command line, Spark's links, a slave's copy, MetaQ 1.x, and what each refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pathlib
import pickle
import ssl

import pytest

import metaq
from metaq import aio
from metaq.admin import Admin
from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.errors import ConfigError, ConnectionFailed, MetaqError, SendFailed
from metaq.options import BrokerOptions, Metaq1Options, NamesrvOptions
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.sink.settings import SinkOptions
from metaq.spark.source.settings import SourceOptions
from metaq.testing import EmbeddedBroker
from metaq.tls_options import TlsOptions
from tests.broker.support import small_store
from tests.certificates import Authority, Issued
from tests.support import PATIENCE, environment, eventually, run_metaq


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issued(authority) -> Issued:
    return authority.issue("server")


@pytest.fixture(scope="module")
def options(authority, issued) -> TlsOptions:
    return TlsOptions(
        tls_server_mode="enforcing",
        tls_server_cert_path=str(issued.cert),
        tls_server_key_path=str(issued.key),
        tls_client_trust_cert_path=str(authority.cert),
    )


@pytest.fixture(scope="module")
def broker(options):
    pairs = {name: value for name, value in options.properties().items() if value}
    with EmbeddedBroker(options=pairs) as running:
        yield running


async def rest(reader: asyncio.StreamReader, size: int = 100) -> bytes:
    """What comes before the end, or the first `size` bytes of it."""
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        return error.partial
    except ConnectionResetError:
        return b""


def test_every_client_speaks_tls(broker, authority, monkeypatch) -> None:
    """By arguments, and by the environment; to the name server and to the broker. One message of 1 MiB goes both ways."""
    tls = {"tls": True, "ca": authority.cert}
    with metaq.Producer(broker.namesrv, **tls) as producer:
        for number in range(15):  # enough for a direct link, which has TLS, too
            producer.send("tls", b"%d" % number)
        links = producer._core.links
        eventually(lambda: broker.broker in links.ready)
        for number in range(15, 30):
            producer.send("tls", b"%d" % number)
        pending = [producer.submit("tls", b"x" * (1 << 20)) for _ in range(3)]
        assert all(future.result(PATIENCE).status is metaq.SendStatus.SEND_OK for future in pending)
    with metaq.Reader(broker.namesrv, "tls", start="earliest", **tls) as reader:
        found = [len(message.body) for _, message in zip(range(33), reader, strict=False)]
    assert sorted(found) == sorted([1] * 10 + [2] * 20 + [1 << 20] * 3)
    monkeypatch.setenv("METAQ_TLS", "1")
    monkeypatch.setenv("METAQ_TLS_CA", str(authority.cert))
    with Admin(broker.namesrv) as admin:
        assert "tls" in admin.list_topics()
    client = ClusterClient(broker.namesrv, 0.0)
    assert client.topics("tls") == ["tls"]
    client.close()

    async def act() -> None:
        async with aio.Producer(broker.namesrv) as producer:
            assert (await producer.send("tls", b"aio")).offset >= 0

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_who_does_not_speak_it_or_does_not_trust_is_told(broker, authority, monkeypatch) -> None:
    """Plain text, the system's certificates, and how to go without."""
    for arguments, says in (
        ({}, "broke|closed"),
        ({"tls": True}, "self-signed|local issuer"),
    ):
        with pytest.raises(MetaqError, match=says), Admin(broker.namesrv, **arguments) as admin:
            admin.list_topics()
    with Admin(broker.namesrv, tls=True, tls_verify="none") as admin:
        admin.list_topics()
    monkeypatch.setenv("METAQ_TLS", "1")
    with pytest.raises(ConnectionFailed, match="certificate is not accepted"):
        ClusterClient(broker.namesrv, 0.0).topics("tls")


def test_the_command_line_has_flags_of_tls(broker, authority) -> None:
    flags = ("--tls", "--ca", str(authority.cert))
    done = run_metaq(*flags, "topic", "list", "-n", broker.namesrv, "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)
    refused = run_metaq("--tls", "topic", "list", "-n", broker.namesrv)
    assert refused.returncode == 1
    assert "certificate is not accepted" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"tls": "yes"}, TypeError, "pass True or False"),
        ({"ca": "/nowhere.pem"}, metaq.ConfigError, "ca without tls=True"),
        ({"tls": True, "ca": "/nowhere.pem"}, metaq.ConfigError, "ca /nowhere.pem cannot be read"),
        ({"tls": True, "key": "/nowhere.key"}, metaq.ConfigError, "key without cert"),
        ({"crl": "/nowhere.pem"}, metaq.ConfigError, "crl without tls=True"),
        ({"tls": True, "crl": "/nowhere.pem"}, metaq.ConfigError, "crl /nowhere.pem cannot be read"),
        ({"tls": True, "crl": "/nowhere.pem", "tls_verify": "none"}, metaq.ConfigError, "crl with tls_verify=none"),
        ({"tls": True, "tls_verify": "some"}, metaq.ConfigError, "allowed are full, ca, none"),
        ({"tls": True, "key_password": b"hidden-word"}, TypeError, "key_password is a bytes"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(arguments, error, says) -> None:
    with pytest.raises(error, match=says) as refused:
        metaq.Producer("127.0.0.1:1", **arguments)
    assert "hidden-word" not in str(refused.value)


def test_no_client_with_a_list_goes_to_a_revoked_server(broker, authority, issued, tmp_path, monkeypatch) -> None:
    """By argument, flag, environment and Spark's option; while the list does not name the server, all of them do."""
    ca, crl = str(authority.cert), tmp_path / "list.pem"
    flags = ("--tls", "--ca", ca, "--crl", str(crl))
    given = {"nameServers": broker.namesrv, "subscribe": "tls", "tls": "true", "tlsCa": ca, "tlsCrl": str(crl)}

    def by_argument() -> None:
        with Admin(broker.namesrv, tls=True, ca=ca, crl=crl) as admin:
            admin.list_topics()
        with metaq.Producer(broker.namesrv, tls=True, ca=ca, crl=crl) as producer:
            producer.send("tls", b"1")

    def by_flag() -> None:
        done = run_metaq(*flags, "topic", "list", "-n", broker.namesrv)
        if done.returncode:
            raise ConnectionFailed(done.stderr)

    def by_environment() -> None:
        with monkeypatch.context() as patched:
            for name, value in (("", "1"), ("_CA", ca), ("_CRL", str(crl))):
                patched.setenv(f"METAQ_TLS{name}", value)
            by_flag()
            with Admin(broker.namesrv) as admin:
                admin.list_topics()

    def by_spark() -> None:
        access = pickle.loads(pickle.dumps(SourceOptions.of(given).access))
        with contextlib.closing(ClusterClient(broker.namesrv, 0.0, access=access)) as client:
            client.topics("tls")

    ways = by_argument, by_flag, by_environment, by_spark
    crl.write_bytes(authority.revoke().read_bytes())
    for way in ways:
        way()
    crl.write_bytes(authority.revoke(issued).read_bytes())
    for way in ways:
        with pytest.raises(ConnectionFailed, match="certificate revoked"):
            way()


def test_a_broker_does_not_register_at_a_revoked_name_server(options, authority, tmp_path, caplog) -> None:
    """Once the list says so: it is read again when it changes."""
    withdrawn = authority.issue("withdrawn")
    crl = tmp_path / "list.pem"
    crl.write_bytes(authority.revoke().read_bytes())
    shows = options.replace(tls_server_cert_path=str(withdrawn.cert), tls_server_key_path=str(withdrawn.key))

    async def act() -> None:
        namesrv = await start_namesrv(NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv")), tls=shows)
        given = BrokerOptions(broker_name="a", listen_port=0, namesrv_addr=namesrv.address)
        tls = options.replace(tls_client_crl_path=str(crl))
        broker = await start_broker(given, small_store(tmp_path / "s"), tls=tls)
        assert "a" in namesrv._service.clusters().brokers
        assert "cannot register" not in caplog.text
        first = broker._tasks.tls.client.context
        crl.write_bytes(authority.revoke(withdrawn).read_bytes())
        while broker._tasks.tls.client.context is first:
            await asyncio.sleep(0.01)
        await broker.close()
        starting = asyncio.create_task(start_broker(given, small_store(tmp_path / "s"), tls=tls))
        while "cannot register at name server" not in caplog.text:
            await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.wait({starting})
        assert "certificate revoked" in caplog.text
        await namesrv.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_connections_with_tls_are_not_shared_with_those_without(broker, authority) -> None:
    """Clients of one process share them else."""
    with metaq.Producer(broker.namesrv, tls=True, ca=authority.cert) as producer:
        producer.send("tls", b"1")
        with pytest.raises(MetaqError), metaq.Producer(broker.namesrv, timeout=1.0) as plain:
            plain.send("tls", b"2")


def test_a_slave_copies_with_tls(tmp_path, options, caplog) -> None:
    """The log, the tables and the registration: nothing in plain text, and no plain connection to the port of the log."""
    everywhere = options.replace(tls_ha_enable=True)

    async def act() -> None:
        namesrv = await start_namesrv(NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv")), tls=options)
        common = {"broker_name": "a", "listen_port": 0, "ha_listen_port": 0, "namesrv_addr": namesrv.address}
        master = await start_broker(BrokerOptions(**common), small_store(tmp_path / "m"), tls=everywhere)
        slave = await start_broker(
            BrokerOptions(broker_id=1, broker_role="SLAVE", **common), small_store(tmp_path / "s"), tls=everywhere
        )
        ca = options.tls_client_trust_cert_path
        async with aio.Producer(namesrv.address, tls=True, ca=ca) as producer:
            for number in range(50):
                await producer.send("orders", b"%d" % number * 1000)
        while slave._broker.store.log.end < master._broker.store.log.end:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*master.addresses["replication"].split(":"))
        writer.write(bytes(8))
        assert await rest(reader) == b""
        writer.close()
        await slave.close()
        await master.close()
        await namesrv.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(act(), PATIENCE))
    assert caplog.text.count("tls.server.mode=enforcing wants that") == 1, "the plain connection of the test"


def test_a_client_without_tls_is_told_what_the_port_wants(tmp_path, options):
    """The server can only close: a plain client reads no alert. What it says is for whoever has forgotten tls=True."""

    async def act() -> None:
        namesrv = await start_namesrv(NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv")), tls=options)
        async with aio.Producer(namesrv.address, timeout=1.0) as producer:
            with pytest.raises(
                SendFailed, match=r"before it answered anything: .* takes TLS only does so: tls=True, --tls"
            ):
                await producer.send("orders", b"hello")
        await namesrv.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


async def shows(address: str, trusted: ssl.SSLContext) -> None:
    """Return once a port shows a certificate that this context trusts."""
    host, port = address.rsplit(":", 1)
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port), ssl=trusted, server_hostname=host)
        except ssl.SSLError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


@pytest.mark.parametrize("connects", [True, False], ids=["all with TLS", "only copies with TLS"])
def test_files_that_change_are_in_force_at_every_port_and_for_every_connection(tmp_path, connects) -> None:
    """Of a name server, a master and a slave; another authority issues all. The slave copies on from its restarted master."""
    authorities = [Authority(tmp_path, name) for name in ("first", "second")]
    issued = [one.issue(name) for one, name in zip(authorities, ("server-1", "server-2"), strict=True)]
    cert, key, trust = (tmp_path / name for name in ("own.pem", "own.key", "trust.pem"))

    def put(number: int) -> None:
        for path, source in ((key, issued[number].key), (cert, issued[number].cert), (trust, authorities[number].cert)):
            fresh = path.with_suffix(".fresh")
            fresh.write_bytes(source.read_bytes())
            fresh.rename(path)

    put(0)
    tls = TlsOptions(
        tls_server_mode="permissive",
        tls_enable=connects,
        tls_ha_enable=True,
        tls_metaq1_enable=True,
        tls_server_cert_path=str(cert),
        tls_server_key_path=str(key),
        tls_client_trust_cert_path=str(trust),
    )
    metaq1 = Metaq1Settings(Metaq1Options(server_port=0, host_name="localhost", zk_enable=False))

    async def act() -> None:
        namesrv = await start_namesrv(
            NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv"), listeners="inside=127.0.0.1:0"), tls=tls
        )
        common = {"broker_name": "a", "listen_port": 0, "ha_listen_port": 0, "namesrv_addr": namesrv.address}
        copies = BrokerOptions(broker_id=1, broker_role="SLAVE", **common)

        async def send(count: int, ca: pathlib.Path) -> None:
            async with aio.Producer(namesrv.address, tls=True, ca=ca) as producer:
                for number in range(count):
                    await producer.send("orders", b"%d" % number)

        async def copied() -> None:
            while slave._broker.store.log.end < master._broker.store.log.end:
                await asyncio.sleep(0.01)

        master = await start_broker(BrokerOptions(**common), small_store(tmp_path / "m"), metaq1=metaq1, tls=tls)
        slave = await start_broker(copies, small_store(tmp_path / "s"), tls=tls)
        await send(5, authorities[0].cert)
        await copied()
        put(1)
        trusted = ssl.create_default_context(cafile=str(authorities[1].cert))
        addresses = [address for one in (namesrv, master, slave) for address in one.addresses.values()]
        assert len(addresses) == 2 + 3 + 2
        await asyncio.gather(*(shows(address, trusted) for address in addresses))
        await master.close()
        master = await start_broker(BrokerOptions(**common), small_store(tmp_path / "m"), metaq1=metaq1, tls=tls)
        await send(5, authorities[1].cert)
        await copied()
        for one in (slave, master, namesrv):
            await one.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_the_server_of_metaq_1_takes_tls_by_option(tmp_path, options, authority) -> None:
    """Without it, it stays as it is: its own clients speak plain text."""

    async def ask(address: str, context: ssl.SSLContext | None) -> bytes:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(b"version 1\r\n")
        answer = await rest(reader, 10)
        writer.close()
        return answer

    async def act(more: dict[str, bool], *, takes_tls: bool) -> None:
        text = Metaq1Settings(Metaq1Options(server_port=0, host_name="localhost", zk_enable=False))
        running = await start_broker(
            BrokerOptions(listen_port=0, broker_name="a"),
            small_store(tmp_path / str(takes_tls)),
            metaq1=text,
            tls=options.replace(**more),
        )
        address, context = running.addresses["metaq1"], ssl.create_default_context(cafile=str(authority.cert))
        assert (await ask(address, context if takes_tls else None)).startswith(b"result 200")
        if takes_tls:
            assert await ask(address, None) == b""
        else:
            with pytest.raises((ssl.SSLError, OSError, TimeoutError)):
                await asyncio.wait_for(ask(address, context), 2)
        await running.close()

    for takes_tls in (True, False):
        asyncio.run(asyncio.wait_for(act({"tls_metaq1_enable": takes_tls}, takes_tls=takes_tls), PATIENCE))


def test_the_environment_of_tests_has_no_tls_of_its_own() -> None:
    """Else these tests would say nothing."""
    assert not [name for name in (*os.environ, *environment()) if name.startswith("METAQ_TLS")]


def test_sparks_options_say_how_to_connect(broker, authority, monkeypatch):
    """In driver and executors, in place of the environment; what cannot be is refused where the query is made."""
    ca = str(authority.cert)
    given = {"nameServers": broker.namesrv, "subscribe": "spark", "tls": "true", "tlsCa": ca}
    with Admin(broker.namesrv, tls=True, ca=ca) as admin:
        admin.create_topic("spark", queues=1)
    for options in (
        SourceOptions.of(given),
        SinkOptions.of({"nameServers": broker.namesrv, "topic": "spark", "tls": "true", "tlsCa": ca}),
    ):
        access = pickle.loads(pickle.dumps(options.access))
        with contextlib.closing(ClusterClient(broker.namesrv, 5.0, access=access)) as client:
            assert client.topics("spark") == ["spark"]
    monkeypatch.setenv("METAQ_TLS", "1")
    plain = SourceOptions.of({"nameServers": broker.namesrv, "subscribe": "spark", "tls": "false"}).access
    with contextlib.closing(ClusterClient(broker.namesrv, 0.0, access=plain)) as client, pytest.raises(MetaqError):
        client.topics("spark")
    monkeypatch.delenv("METAQ_TLS")
    for wrong, says in (
        ({"tlsCa": ca}, "without tls"),
        ({"tls": "true", "tlsVerify": "some"}, "allowed are"),
        ({"tls": "true", "tlsCa": "/none.pem"}, "/none.pem"),
    ):
        with pytest.raises(ConfigError, match=says):
            SourceOptions.of({"nameServers": broker.namesrv, "subscribe": "spark", **wrong})
