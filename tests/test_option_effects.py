"""Options of RocketMQ that need a restart: a server that starts with another value does something else.

`tests/rocketmq_options.txt` names the test of each; tests/test_hot_options.py has those of options that are changed while a server
runs.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import re
import socket
import struct
import threading
import time

import pytest

from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.model import Perm
from metaq.options import BrokerOptions, NamesrvOptions
from metaq.testing.ports import free_port
from metaq.wire import bodies, headers
from metaq.wire.bodies.parts import settings_of
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import request
from tests.broker.support import small_store
from tests.support import eventually
from tests.test_hot_options import HALF, Running, a_namesrv, ask, at_listener, connect, expired, retention

# ---- topics of a broker's own, and what its answers say ---------------------------------------------------------------


@pytest.mark.parametrize("option", ["cluster_topic_enable", "broker_topic_enable"])
def test_the_topics_named_like_cluster_and_broker_may_be_closed(tmp_path, option):
    name = {"cluster_topic_enable": "DefaultCluster", "broker_topic_enable": "broker-a"}[option]
    for enabled in (True, False):
        with Running(tmp_path / str(enabled), **{option: enabled}) as running:
            perm = running.broker.registration()[0][name].perm
            assert bool(perm & (Perm.READ | Perm.WRITE)) is enabled
            [answer] = running.client.pull(name)
            assert (answer.code == ResponseCode.NO_PERMISSION) is not enabled


def test_the_template_topic_has_as_many_queues_as_default_topic_queue_nums_says(tmp_path):
    with Running(tmp_path, default_topic_queue_nums=3) as running:
        assert running.broker.registration()[0]["TBW102"].write_queues == 3
        running.client.send("T", default_topic="TBW102", default_topic_queues=16)
        assert running.broker.registration()[0]["T"].write_queues == 3


def test_answers_to_sends_name_the_region_id(tmp_path):
    with Running(tmp_path, region_id="there") as running:
        assert running.client.send("T").ext["MSG_REGION"] == "there"


# ---- look-ups ---------------------------------------------------------------------------------------------------------


def found(running, key, *, unique=False):
    header = headers.QueryMessageHeader(
        topic="T", key=key, max_messages=64, begin_ms=0, end_ms=2**60, unique_id_query=unique
    )
    answer = running.client.ask(RequestCode.QUERY_MESSAGE, header)
    count, at = 0, 0
    while at < len(answer.body):
        at += int.from_bytes(answer.body[at : at + 4], "big")
        count += 1
    return answer.code, count


def test_a_look_up_by_key_finds_max_msgs_num_batch_and_one_by_id_default_query_max_num(tmp_path):
    unique = "7F00000100002A9F0000000000000001"
    for number, limits in enumerate(({}, {"max_msgs_num_batch": 3}, {"default_query_max_num": 2})):
        with Running(tmp_path / str(number), limits) as running:
            for _ in range(5):
                running.client.send("T", properties={"KEYS": "k"})
            assert found(running, "k") == (0, limits.get("max_msgs_num_batch", 5))
            least = min(limits.get("default_query_max_num", 5), limits.get("max_msgs_num_batch", 5))
            assert found(running, unique, unique=True) == (0, least)


def test_without_message_index_enable_nothing_is_found_by_key(tmp_path):
    with Running(tmp_path, {"message_index_enable": False}) as running:
        running.client.send("T", properties={"KEYS": "k"})
        assert found(running, "k") == (ResponseCode.QUERY_NOT_FOUND, 0)
        assert not list((tmp_path / "index").glob("*"))


# ---- intervals --------------------------------------------------------------------------------------------------------


def test_progress_is_saved_each_flush_consumer_offset_interval(tmp_path):
    path = tmp_path / "config" / "consumerOffset.json"
    with Running(tmp_path, flush_consumer_offset_interval=60_000) as running:
        running.fill(1)
        header = headers.UpdateOffsetHeader(group="G", topic="T", queue_id=0, commit_offset=1)
        running.client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        running.clock.advance(59)
        running.broker.tick()
        assert not path.exists()
        running.clock.advance(2)
        running.broker.tick()
        eventually(lambda: path.exists() and "T@G" in path.read_text())


def test_positions_of_delays_are_saved_each_flush_delay_offset_interval(tmp_path):
    path = tmp_path / "config" / "delayOffset.json"

    def delivered():
        running.broker.tick()  # it is saved once what it counts is on the disk
        return (
            path.exists() and re.search(r"\b1:1\b", path.read_text()) is not None
        )  # not JSON: its keys are bare numbers

    with Running(tmp_path, {"flush_delay_offset_interval": 3_600_000}) as running:
        running.client.send("T", properties={"DELAY": "1"})
        for _ in range(5):
            running.clock.advance(30)
            running.broker.deliver()
            running.broker.tick()
        assert running.store.reader.queue("T", 0).max_offset == 1
        assert not delivered()
        running.clock.advance(3600)
        running.broker.deliver()
        running.broker.tick()
        eventually(delivered)


def test_what_may_be_deleted_is_looked_at_each_clean_resource_interval(tmp_path):
    for number, (interval, goes) in enumerate(((10, True), (3_600_000, False))):
        with retention(tmp_path / str(number), clean_resource_interval=interval, file_reserved_time=1) as running:
            keeper = running.store.keeper
            keeper.tick(running.clock.now_ms())  # the first look, whatever the interval
            running.fill(200)
            running.clock.advance(1800)
            running.disk.used = 87.0
            before = running.store.log.min
            keeper.tick(running.clock.now_ms())
            if goes:
                eventually(lambda store=running.store, before=before: store.log.min > before)
            else:
                assert running.store.log.min == before
                assert expired(running)


def test_queues_are_synced_each_flush_interval_consume_queue(tmp_path):
    tails = pathlib.Path("config", "metaqTails.json")
    for interval, soon in ((10, True), (3_600_000, False)):
        root = tmp_path / str(interval)
        with Running(root, {"flush_interval_consume_queue": interval, "flush_interval_commit_log": 1}) as running:
            running.fill(1)
            eventually(lambda store=running.store: store.state.flushed == store.log.end)
            end = running.store.log.end

            def written(root=root, end=end):
                return (root / tails).exists() and str(end) in (root / tails).read_text()

            if soon:
                eventually(written)
            else:
                assert not written()


# ---- connections ------------------------------------------------------------------------------------------------------


def test_a_silent_connection_ends_after_server_channel_max_idle_time_seconds(tmp_path):
    def use(service):
        with connect(service) as raw:
            began = time.monotonic()
            assert raw.recv(1) == b""
            assert time.monotonic() - began < 60

    options = NamesrvOptions(
        listen_port=0, kv_config_path=str(tmp_path / "kv.json"), server_channel_max_idle_time_seconds=1
    )
    at_listener(lambda: start_namesrv(options), use)


def test_ports_have_the_server_socket_backlog_and_buffer_sizes_that_are_set(tmp_path):
    """Linux tells the backlog of a listening socket as its second number of segments; buffers are twice what was asked for."""

    def use(service):
        listeners = service._serving._servers[0]._listener
        (port,) = listeners._ports
        (backlog,) = struct.unpack_from("=I", port.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)
        assert backlog == 7
        with connect(service) as raw:
            ask(raw, request(RequestCode.GET_NAMESRV_CONFIG))
            (stream,) = listeners._group.streams
            accepted = stream._transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 40_000
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 50_000

    options = NamesrvOptions(
        listen_port=0, kv_config_path=str(tmp_path / "kv.json"), server_socket_backlog=7,
        server_socket_snd_buf_size=40_000, server_socket_rcv_buf_size=50_000,
    )  # fmt: skip
    at_listener(lambda: start_namesrv(options), use)


# ---- who the broker is, and where it is found --------------------------------------------------------------------------


def test_a_broker_is_registered_as_its_options_say(tmp_path):
    """namesrvAddr, brokerName, brokerClusterName, brokerId, brokerIP1 and listenPort to everybody, brokerIP2 to its slaves."""

    def use(namesrv):
        port = free_port(1)
        options = BrokerOptions(
            namesrv_addr=namesrv.address, broker_name="b", broker_cluster_name="C", broker_ip1="127.0.0.7",
            broker_ip2="127.0.0.8", listen_port=port,
        )  # fmt: skip

        def look(broker):
            with connect(namesrv) as raw:
                info = bodies.cluster_info_of(ask(raw, request(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
                assert {name: set(brokers) for name, brokers in info.clusters.items()} == {"C": {"b"}}
                assert info.brokers["b"].addresses == {0: f"127.0.0.7:{port}"}
                slave = headers.RegisterBrokerHeader(
                    broker_name="b", broker_address="127.0.0.1:1", cluster="C", ha_address="127.0.0.1:2", broker_id=1
                )
                empty = bodies.registration(broker._broker.registration()[1], {})
                answer = ask(raw, request(RequestCode.REGISTER_BROKER, slave, empty))
                replication = broker.addresses["replication"].rpartition(":")[2]
                assert answer.ext["haServerAddr"] == f"127.0.0.8:{replication}"
                assert answer.ext["masterAddr"] == f"127.0.0.7:{port}"

        at_listener(lambda: start_broker(options, small_store(tmp_path / "store")), look)

    at_listener(a_namesrv(tmp_path), use)


def test_a_name_server_may_take_register_broker_timeout_mills_to_answer(tmp_path, caplog):
    """One that takes connections and answers nothing is given up after that time, and is tried again."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        taken = []
        threading.Thread(target=lambda: taken.append(silent.accept()), daemon=True).start()

        def use(namesrv):
            addresses = f"{namesrv.address};127.0.0.1:{silent.getsockname()[1]}"
            options = BrokerOptions(
                namesrv_addr=addresses, listen_port=0, broker_name="b", register_broker_timeout_mills=200
            )
            with caplog.at_level(logging.WARNING):
                at_listener(lambda: start_broker(options, small_store(tmp_path / "store")), lambda _broker: eventually(
                    lambda: "did not answer 103 REGISTER_BROKER within 0.2 s" in caplog.text
                ))  # fmt: skip

        at_listener(a_namesrv(tmp_path), use)
        assert taken
        taken[0][0].close()


def test_without_options_a_broker_is_what_rocketmqs_is(tmp_path):
    """Its name is the host's, its cluster DefaultCluster, its number 0 (B20)."""

    def use(service):
        with connect(service) as raw:
            told = settings_of(ask(raw, request(RequestCode.GET_BROKER_CONFIG)).body)
        assert (told["brokerName"], told["brokerClusterName"], told["brokerId"]) == (
            socket.gethostname(), "DefaultCluster", "0",
        )  # fmt: skip
        assert (told["deleteWhen"], told["fileReservedTime"]) == ("04", "72")
        assert told["maxTransferBytesOnMessageInMemory"] == "262144"
        assert (told["maxTransferCountOnMessageInMemory"], told["maxTransferBytesOnMessageInDisk"]) == ("32", "65536")
        assert told["maxTransferCountOnMessageInDisk"] == "8"

    at_listener(lambda: start_broker(BrokerOptions(listen_port=0), small_store(tmp_path)), use)


def test_with_clean_file_forcibly_enable_off_a_full_disk_refuses_sends_and_deletes_nothing(tmp_path):
    """Also half messages; nothing has expired (B20)."""
    with retention(tmp_path, clean_file_forcibly_enable=False) as running:
        running.fill(200)
        running.disk.used = 96.0
        before = running.store.log.min
        running.store.keeper.retain(running.clock.now_ms())
        assert running.client.send("T").code != 0
        assert running.client.send("T", **HALF).code != 0
        assert running.store.log.min == before
        running.disk.used = 50.0
        running.store.keeper.retain(running.clock.now_ms())
        assert running.client.send("T").code == 0
