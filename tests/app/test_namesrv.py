"""A name server that listens: registration over TCP, restarts, and its one file."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.client.shared.transport import Transport
from metaq.errors import ConfigError
from metaq.model import DataVersion, TopicConfig
from metaq.model.topics.registration import BrokerIdentity
from metaq.options import MIB, BrokerOptions, NamesrvOptions, StoreOptions
from metaq.registry.namesrv import Registrar
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from tests.support import PATIENCE

IDENTITY = BrokerIdentity("C", "broker-a", 0, "127.0.0.1:10911", "127.0.0.1:10912")


def options(folder: pathlib.Path, port: int = 0) -> NamesrvOptions:
    return NamesrvOptions(listen_port=port, bind_address="127.0.0.1", kv_config_path=str(folder / "kvConfig.json"))


def transport(on_lost=lambda address: None) -> Transport:
    return Transport(lambda address, command: None, lambda address: None, on_lost)


def route(topic: str) -> Command:
    return request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic=topic))


def run(body) -> None:
    asyncio.run(asyncio.wait_for(body, PATIENCE))


def test_broker_registers_again_when_its_name_server_is_back(tmp_path) -> None:
    """A name server that was killed knows the broker a moment after its return, long before the next period."""

    async def body() -> None:
        namesrv = await start_namesrv(options(tmp_path))
        port = int(namesrv.address.rpartition(":")[2])
        calls = transport(lambda address: registrar.lost(address))
        topics = {"T": TopicConfig("T")}
        registrar = Registrar(
            calls, [namesrv.address], IDENTITY, lambda _names: (DataVersion(1, 1), topics), period=3600, retry=0.02
        )
        await registrar.start()
        client = transport()
        answer = await client.call(namesrv.address, route("T"), 5)
        assert bodies.route_of("T", answer.body).brokers[0].addresses == {0: "127.0.0.1:10911"}
        await namesrv.close()
        while not registrar.failing:
            await asyncio.sleep(0.005)
        namesrv = await start_namesrv(options(tmp_path, port))
        while registrar.failing:
            await asyncio.sleep(0.005)
        assert (await client.call(namesrv.address, route("T"), 5)).code == 0
        await registrar.stop()
        assert (await client.call(namesrv.address, route("T"), 5)).code == ResponseCode.TOPIC_NOT_EXIST
        await client.close()
        await calls.close()
        await namesrv.close()

    run(body())


def test_route_of_a_broker_goes_with_its_connection(tmp_path) -> None:
    """A broker that dies is gone from the routes at once, not after two minutes."""

    async def body() -> None:
        namesrv = await start_namesrv(options(tmp_path))
        broker, client = transport(), transport()
        registrar = Registrar(
            broker,
            [namesrv.address],
            IDENTITY,
            lambda _names: (DataVersion(1, 1), {"T": TopicConfig("T")}),
            period=3600,
        )
        await registrar.start()
        assert (await client.call(namesrv.address, route("T"), 5)).code == 0
        await broker.close()
        while (await client.call(namesrv.address, route("T"), 5)).code == 0:
            await asyncio.sleep(0.005)
        await client.close()
        await namesrv.close()

    run(body())


def test_two_brokers_of_one_name_are_told_by_name_server_and_broker(tmp_path, caplog) -> None:
    """The second to start finds the first; the name server warns of the first registration that replaces another."""

    async def body() -> None:
        namesrv = await start_namesrv(options(tmp_path))
        brokers = []
        for folder in ("one", "two"):
            named = BrokerOptions(broker_name="same", listen_port=0, namesrv_addr=namesrv.address)
            store = StoreOptions(store_path_root_dir=str(tmp_path / folder), mapped_file_size_commit_log=MIB)
            brokers.append(await start_broker(named, store))
        while "another broker named same" not in caplog.text:
            await asyncio.sleep(0.005)
        assert f"another broker named same runs at {brokers[0].address}" in caplog.text
        assert f"the broker same registers from {brokers[1].address} while it is" in caplog.text
        for broker in brokers:
            await broker.close()
        await namesrv.close()

    run(body())


def test_kv_configuration_survives_a_restart(tmp_path) -> None:
    """It is in the file, in RocketMQ's form, before the answer goes out."""
    put = headers.PutKvHeader(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")

    async def body() -> None:
        client = transport()
        namesrv = await start_namesrv(options(tmp_path))
        assert (await client.call(namesrv.address, request(RequestCode.PUT_KV_CONFIG, put), 5)).code == 0
        await namesrv.close()
        text = (tmp_path / "kvConfig.json").read_text()
        assert '"ORDER_TOPIC_CONFIG"' in text
        namesrv = await start_namesrv(options(tmp_path))
        key = headers.KvKeyHeader(namespace="ORDER_TOPIC_CONFIG", key="T")
        answer = await client.call(namesrv.address, request(RequestCode.GET_KV_CONFIG, key), 5)
        assert answer.ext == {"value": "broker-a:4"}
        await client.close()
        await namesrv.close()

    run(body())


@pytest.mark.parametrize("text", ["{", "[]", '{"other":1}', '{"configTable":[1]}', '{"configTable":{"N":1}}'])
def test_broken_kv_file_is_named_and_left_alone(tmp_path, text) -> None:
    """The name server does not start, and does not overwrite what somebody may still mend."""
    file = tmp_path / "kvConfig.json"
    file.write_text(text)

    async def body() -> None:
        with pytest.raises(ConfigError, match=r"kvConfig\.json cannot be read .*restore it from its \.bak"):
            await start_namesrv(options(tmp_path))

    run(body())
    assert file.read_text() == text


def test_options_that_were_changed_over_the_wire_are_there_after_a_restart(tmp_path) -> None:
    """318: of the name server beside its KV file, of the broker in its store; limits of connections too."""

    async def changed(address: str, code: int, pairs: dict[str, str]) -> None:
        client = transport()
        answer = await client.call(address, request(code, None, bodies.option_changes(pairs)), 5)
        await client.close()
        assert answer.code == 0, answer.remark

    async def told(address: str, code: int) -> dict[str, str]:
        client = transport()
        answer = await client.call(address, request(code), 5)
        await client.close()
        return bodies.settings_of(answer.body)

    def broker_options(namesrv: str) -> tuple[BrokerOptions, StoreOptions]:
        return (
            BrokerOptions(listen_port=0, broker_name="a", namesrv_addr=namesrv),
            StoreOptions(
                store_path_root_dir=str(tmp_path / "store"), mapped_file_size_commit_log=MIB, max_index_num=4000
            ),
        )

    async def body() -> None:
        namesrv = await start_namesrv(options(tmp_path))
        broker = await start_broker(*broker_options(namesrv.address))
        await changed(namesrv.address, RequestCode.UPDATE_NAMESRV_CONFIG, {"orderMessageEnable": "true"})
        await changed(
            broker.address, RequestCode.UPDATE_BROKER_CONFIG, {"connectionsMax": "1", "fileReservedTime": "5"}
        )
        await broker.close()
        await namesrv.close()
        namesrv = await start_namesrv(options(tmp_path))
        broker = await start_broker(*broker_options(namesrv.address))
        assert (await told(namesrv.address, RequestCode.GET_NAMESRV_CONFIG))["orderMessageEnable"] == "true"
        assert (await told(broker.address, RequestCode.GET_BROKER_CONFIG))["fileReservedTime"] == "5"
        reader, writer = await asyncio.open_connection(*broker.address.split(":"))
        second, also = await asyncio.open_connection(*broker.address.split(":"))
        assert await second.read() == b"", "the limit of one connection holds"
        for one in (writer, also):
            one.close()
        assert not reader.at_eof()
        await broker.close()
        await namesrv.close()
        assert (tmp_path / "metaqOptions.json").exists()
        assert (tmp_path / "store" / "config" / "metaqOptions.json").exists()

    run(body())
