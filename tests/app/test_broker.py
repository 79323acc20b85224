"""A whole broker and name server in this process, on a disk that the test owns."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections import Counter

import pytest
import uvloop

import metaq
from metaq.app.broker import start_broker
from metaq.app.runtime import run
from metaq.app.up import start_up
from metaq.client.shared.transport import Transport
from metaq.errors import StoreFailed, StoreFull
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from metaq.testing import FaultyDisk
from metaq.wire.codes import RequestCode
from metaq.wire.command import request
from tests.support import PATIENCE

TIMEOUT = PATIENCE
BODY = random.Random(0).randbytes(50_000)  # zeros would be compressed


def options(tmp_path, **store):
    small = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}
    return (
        BrokerOptions(listen_port=0, broker_name="b"),
        StoreOptions(store_path_root_dir=str(tmp_path / "data"), **{**small, **store}),
        NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv.json")),
    )


def bodies(namesrv, topic):
    with metaq.Reader(namesrv, topic, start="earliest", stop_at_end=True) as reader:
        return Counter(len(message.body) for message in reader)


def test_full_disk_refuses_sends_and_spares_everything_else(tmp_path):
    """No room for another log file: the error says so, reads go on, and with room again so do sends."""
    disk = FaultyDisk()

    def use(namesrv):
        with metaq.Producer(namesrv, timeout=PATIENCE, retries=0) as producer:
            producer.send("orders", b"first", ordering_key="one queue")
            disk.room = 0
            stored = 0
            with pytest.raises(metaq.MetaqError, match=r"no room|disk|full") as caught:
                for _ in range(100):
                    producer.send("orders", BODY, ordering_key="one queue")
                    stored += 1
            assert 0 < stored < 100, "what was reserved before is still used"
            assert "Traceback" not in str(caught.value)
            assert bodies(namesrv, "orders") == {5: 1, len(BODY): stored}
            disk.room = None
            producer.send("orders", b"again", ordering_key="one queue")
            assert bodies(namesrv, "orders") == {5: 2, len(BODY): stored}

    async def main():
        service = await start_up(*options(tmp_path), disk=disk)
        await asyncio.to_thread(use, service.namesrv.address)
        assert not service.failure.done()
        await service.close()

    asyncio.run(main())


def test_failed_fsync_ends_the_process_with_exit_1(tmp_path, capsys, caplog):
    """Durability is lost for good: no ack any more, the reason in the log, exit code 1."""
    disk = FaultyDisk()
    outcome = {}

    def use(namesrv):
        with metaq.Producer(namesrv, timeout=PATIENCE, retries=0) as producer:
            assert producer.send("orders", b"safe").status is metaq.SendStatus.SEND_OK
            disk.sync_error = errno.EIO
            try:
                outcome["receipt"] = producer.send("orders", b"lost").status
            except metaq.MetaqError as error:
                outcome["error"] = str(error)

    async def start():
        service = await start_up(*options(tmp_path, flush_disk_type="SYNC_FLUSH"), disk=disk)
        outcome["user"] = asyncio.create_task(asyncio.to_thread(use, service.namesrv.address))
        return service

    assert run(start) == 1
    assert outcome.get("receipt") is not metaq.SendStatus.SEND_OK
    assert capsys.readouterr().out.startswith("ready up ")
    assert any("stopping: " in record.getMessage() for record in caplog.records)


def test_error_at_start_is_one_line_and_a_code(tmp_path, capsys):
    """A folder that is not a store's: exit 1, the folder named, nothing started."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "holiday.jpg").write_bytes(b"x")
    assert run(lambda: start_up(*options(tmp_path))) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert str(tmp_path / "data") in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_a_name_servers_address_that_is_none_is_said_before_anything_is_touched(tmp_path, capsys):
    """As a client says it, and with the exit code of wrong usage: registering there could never work."""
    broker, store, _ = options(tmp_path)
    assert run(lambda: start_broker(broker.replace(namesrv_addr="10.0.0.1:nine"), store)) == 2
    assert "10.0.0.1:nine" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "name", ["store_path_commit_log", "store_path_consume_queue", "store_path_index", "store_checkpoint", "abort_file"]
)
def test_each_path_of_the_store_can_be_set(tmp_path, name):
    """The part is where the option says, not under the root (A5)."""
    elsewhere = tmp_path / "elsewhere" / "part"

    def use(namesrv):
        with metaq.Producer(namesrv) as producer:
            producer.send("orders", b"x", keys="k")

    async def main():
        service = await start_up(*options(tmp_path, **{name: str(elsewhere)}))
        await asyncio.to_thread(use, service.namesrv.address)
        assert elsewhere.exists()
        await service.close()

    asyncio.run(main())
    default = {
        "store_path_commit_log": "commitlog",
        "store_path_consume_queue": "consumequeue",
        "store_path_index": "index",
        "store_checkpoint": "checkpoint",
        "abort_file": "abort",
    }[name]
    assert not (tmp_path / "data" / default).exists()


def test_kv_configuration_survives_a_restart_and_a_broken_file_is_named(tmp_path):
    """The name server's file is read at the start; one that is not JSON stops it, untouched."""
    kv = tmp_path / "kv.json"

    async def once():
        service = await start_up(*options(tmp_path))
        await service.close()

    kv.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"t":"b:4"}}}')
    asyncio.run(once())
    kv.write_text("not json")
    with pytest.raises(metaq.ConfigError, match=r"kv\.json cannot be read"):
        asyncio.run(once())
    assert kv.read_text() == "not json"


@pytest.mark.parametrize(("error", "ends"), [(StoreFull("no room"), False), (StoreFailed("fsync failed"), True)])
def test_timer_that_meets_a_full_disk_goes_on_and_a_failed_store_ends(tmp_path, error, ends):
    """Room may come back; durability that was lost does not."""

    async def main():
        service = await start_up(*options(tmp_path))

        def fail():
            raise error

        next(service.broker._serving.started()).tick = fail
        service.broker._tick()
        ended = service.failure.done()
        await service.close()
        return ended

    assert asyncio.run(main()) is ends


def with_vip(tmp_path, port=0):
    broker, store, _ = options(tmp_path)
    return broker.replace(vip_port_enable=True, listen_port=port), store


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_vip_port_serves_what_the_main_port_serves(tmp_path, loop_factory):
    """listenPort - 2 takes the same requests, under the same limits, and is free again after a stop."""

    async def main():
        for _ in range(2):
            service = await start_broker(*with_vip(tmp_path))
            host, _, port = service.address.rpartition(":")
            client = Transport(lambda _address, _command: None, lambda _address: None, lambda _address: None)
            for at in (int(port), int(port) - 2):
                answer = await client.call(f"{host}:{at}", request(RequestCode.GET_BROKER_RUNTIME_INFO), TIMEOUT)
                assert answer.code == 0
            await client.close()
            await service.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main(), PATIENCE))


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_taken_vip_port_stops_the_start_and_is_named(tmp_path, loop_factory):
    """The error says which port, why it is wanted and how to go without; the store was not touched."""

    async def main():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(metaq.ConfigError, match=rf"{port}, the VIP port .*vipPortEnable=false.*in use"):
                await start_broker(*with_vip(tmp_path, port + 2))
            with socket.create_server(("127.0.0.1", port + 2)):
                pass  # the main port was let go
        with pytest.raises(metaq.ConfigError, match="port -1, the VIP port"):
            await start_broker(*with_vip(tmp_path, 1))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main(), PATIENCE))
    assert not (tmp_path / "data").exists()
