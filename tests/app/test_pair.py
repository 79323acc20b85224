"""A master and its slave as they run: the copy, what sends promise, what a slave serves and refuses, and the link between them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import pathlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest

import metaq.app.role.following
from metaq import aio
from metaq.app.broker import RunningBroker, start_broker
from metaq.app.namesrv import RunningNamesrv, start_namesrv
from metaq.broker.broker import Broker
from metaq.broker.requests import OffsetCommit
from metaq.client.shared.transport import Transport
from metaq.clock import seeded
from metaq.errors import SendFailed
from metaq.model import GroupConfig, SendStatus, TopicConfig, TransactionOutcome
from metaq.options import BrokerOptions, NamesrvOptions
from metaq.servers.remoting.leading import NOT_HERE
from metaq.store.disk import Disk
from metaq.testing import FaultyDisk, FlakyNetwork, free_port
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import request
from metaq.wire.ha import encode_report
from tests.broker.support import small_store
from tests.servers.support import send_header
from tests.store.log.test_raw import raw_log
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

FILE = 1 << 20
NEVER_MS = 3_600_000
"""A slaveTimeout that no busy machine reaches."""


class Pair:
    """Name server, master and slave in this process; the slave's way to the master's log leads through `link`."""

    def __init__(self, root: pathlib.Path, master_options: dict[str, object], slave_options: dict[str, object]) -> None:
        self._root, self._master_options, self._slave_options = root, master_options, slave_options
        self.store_options: dict[str, object] = {}
        """Of both."""
        self.slave_disk: Disk | None = None

    async def start(self) -> None:
        self.namesrv: RunningNamesrv = await start_namesrv(
            NamesrvOptions(listen_port=0, kv_config_path=str(self._root / "kv.json"))
        )
        await self.start_master()
        self.link = FlakyNetwork(self.master.addresses["replication"]).start()
        await self.start_slave()

    async def start_master(self, port: int = 0, ha_port: int = 0) -> None:
        options = BrokerOptions(
            broker_name="a",
            listen_port=port,
            ha_listen_port=ha_port,
            namesrv_addr=self.namesrv.address,
            **self._master_options,
        )
        self.master: RunningBroker = await start_broker(options, self._store("master"))

    async def start_slave(self) -> None:
        options = BrokerOptions(
            broker_name="a", listen_port=0, broker_id=1, broker_role="SLAVE", namesrv_addr=self.namesrv.address,
            ha_master_address=self.link.address, **self._slave_options,
        )  # fmt: skip
        self.slave: RunningBroker = await start_broker(options, self._store("slave"), disk=self.slave_disk)

    def _store(self, name: str) -> object:
        return small_store(self._root / name, mapped_file_size_commit_log=FILE, **self.store_options)

    @property
    def leader(self) -> Broker:
        return self.master._broker

    @property
    def follower(self) -> Broker:
        return self.slave._broker

    async def same(self) -> None:
        """Wait until the slave's log is the master's."""
        await until(lambda: self.follower.store.log.end == self.leader.store.log.end)
        end = self.leader.store.log.end
        assert raw_log(self._root / "slave", 0, end) == raw_log(self._root / "master", 0, end)


async def until(probe: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not probe():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def opened(
    root: pathlib.Path,
    slave_options: dict[str, object] | None = None,
    store_options: dict[str, object] | None = None,
    **master_options: object,
) -> AsyncIterator[Pair]:
    pair = Pair(root, master_options, slave_options or {})
    pair.store_options = store_options or {}
    await pair.start()
    try:
        yield pair
    finally:
        await pair.slave.close()
        pair.link.close()
        await pair.master.close()
        await pair.namesrv.close()


async def consume(pair: Pair, got: list[int], enough: int) -> None:
    """Add the numbers of messages until there are `enough`."""
    async with aio.Consumer(pair.namesrv.address, group="g", topics="orders", start="earliest") as consumer:
        async for message in consumer:
            async with message:
                got.append(int(message.body.split()[0]))
            if len(got) == enough:
                break


def test_a_slave_has_the_masters_log_and_serves_it_when_the_master_is_gone(tmp_path):
    """The same bytes over several files, whatever was appended while it was away; groups go on where they were."""

    async def body() -> None:
        async with opened(tmp_path) as pair:
            async with aio.Producer(pair.namesrv.address) as producer:
                for number in range(400):
                    await producer.send("orders", b"%d " % number + b"x" * 3000)
                await pair.same()
                await pair.slave.close()
                for number in range(400, 800):
                    await producer.send("orders", b"%d " % number + b"x" * 3000)
                await pair.start_slave()
                await pair.same()
            assert pair.leader.store.log.end > 2 * FILE
            got: list[int] = []
            await consume(pair, got, 300)
            await until(lambda: pair.follower.topics.get("orders"))
            await until(lambda: sum(pair.follower.offsets.queues("g", "orders").values()) == 300)
            await pair.master.close()
            await consume(pair, got, 800)
            assert sorted(got) == list(range(800))
            await pair.start_master()

    asyncio.run(body())


def test_a_synchronous_masters_send_is_answered_when_a_slave_has_it(tmp_path):
    """SEND_OK then, and SLAVE_NOT_AVAILABLE at once without a slave."""

    async def body() -> None:
        async with (
            opened(tmp_path, broker_role="SYNC_MASTER", slave_timeout=NEVER_MS) as pair,
            aio.Producer(pair.namesrv.address, timeout=PATIENCE, retries=0) as producer,
        ):
            await until(lambda: pair.leader.replicas.available)
            for number in range(50):
                receipt = await producer.send("orders", b"%d" % number)
                assert receipt.status is SendStatus.SEND_OK
                assert pair.follower.store.log.end == pair.leader.store.log.end
            await pair.slave.close()
            await until(lambda: not pair.leader.replicas.connected)
            assert (await producer.send("orders", b"alone")).status is SendStatus.SLAVE_NOT_AVAILABLE
            await pair.start_slave()
            await until(lambda: pair.leader.replicas.available)
            assert (await producer.send("orders", b"again")).status is SendStatus.SEND_OK
            await pair.same()

    asyncio.run(body())


def test_several_messages_of_a_master_without_its_slave_are_delivered_and_said_to_be(tmp_path):
    """As its other sends are: the answer SLAVE_NOT_AVAILABLE is no refusal, and nothing is rolled back."""

    async def body() -> None:
        async with (
            opened(tmp_path, broker_role="SYNC_MASTER", slave_timeout=NEVER_MS) as pair,
            aio.Producer(pair.namesrv.address, timeout=PATIENCE, retries=0) as producer,
        ):
            await producer.send("orders", b"makes the topic")
            await pair.slave.close()
            await until(lambda: not pair.leader.replicas.connected)
            async with producer.atomic() as tx:
                await tx.send("orders", b"one")
                await tx.send("orders", b"two")
            assert tx.outcome is TransactionOutcome.COMMIT
            assert tx.result.delivered
            with contextlib.suppress(ZeroDivisionError):
                async with producer.atomic() as rolled_back:
                    await rolled_back.send("orders", b"never")
                    raise ZeroDivisionError
            await pair.start_slave()
            await until(lambda: pair.leader.replicas.available)
            await pair.same()
            async with aio.Reader(pair.namesrv.address, "orders", stop_at_end=True) as reader:
                assert sorted([message.body async for message in reader]) == [b"makes the topic", b"one", b"two"]

    asyncio.run(body())


def test_a_send_whose_copy_takes_too_long_says_so(tmp_path):
    """FLUSH_SLAVE_TIMEOUT after slaveTimeout; whoever does not want to wait is not held up."""

    async def body() -> None:
        async with (
            opened(tmp_path, broker_role="SYNC_MASTER", slave_timeout=100) as pair,
            aio.Producer(pair.namesrv.address, timeout=PATIENCE, retries=0) as producer,
        ):
            await producer.send("orders", b"makes the topic")
            await until(lambda: pair.leader.replicas.available)
            pair.link.stall()
            receipt = await producer.send("orders", b"late")
            assert receipt.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            assert (await producer.send("orders", b"now", wait_store_ok=False)).status is SendStatus.SEND_OK
            pair.link.mend()
            await pair.same()

    asyncio.run(body())


def test_a_master_that_needs_slaves_refuses_sends_without_them(tmp_path):
    """minInSyncReplicas: nothing is stored."""

    async def body() -> None:
        async with (
            opened(tmp_path, broker_role="SYNC_MASTER", min_in_sync_replicas=2, slave_timeout=NEVER_MS) as pair,
            aio.Producer(pair.namesrv.address, timeout=PATIENCE, retries=0) as producer,
        ):
            await until(lambda: pair.leader.replicas.available)
            assert (await producer.send("orders", b"a")).status is SendStatus.SEND_OK
            await pair.slave.close()
            await until(lambda: not pair.leader.replicas.connected)
            end = pair.leader.store.log.end
            with pytest.raises(SendFailed, match="minInSyncReplicas"):
                await producer.send("orders", b"b")
            assert pair.leader.store.log.end == end
            await pair.start_slave()

    asyncio.run(body())


def test_a_slave_leaves_messages_and_settings_to_its_master(tmp_path):
    """And makes nothing for what it refuses."""

    async def body() -> None:
        async with opened(tmp_path) as pair:
            client = Transport(lambda _a, _c: None, lambda _a: None, lambda _a: None)
            told = []
            topic = headers.CreateTopicHeader(
                topic="made",
                default_topic="TBW102",
                read_queues=1,
                write_queues=1,
                perm=6,
                topic_filter_type="SINGLE_TAG",
            )
            for command in (
                request(RequestCode.SEND_MESSAGE_V2, send_header("made"), b"x"),
                request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic),
                request(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic="made")),
            ):
                answer = await client.call(pair.slave.address, command, PATIENCE)
                told.append((answer.code, answer.remark))
            assert told[0][0] == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "this broker is a slave (brokerId 1)" in told[0][1]
            assert told[1:] == [(ResponseCode.SYSTEM_ERROR, NOT_HERE)] * 2
            assert (pair.follower.topics.get("made"), pair.follower.store.log.end) == (None, 0)
            await client.close()

    asyncio.run(body())


def test_a_slave_has_its_masters_tables(tmp_path, monkeypatch):
    """Topics made, changed and deleted, groups, and progress, also where it was set back."""
    monkeypatch.setattr(metaq.app.role.following, "SYNC_SECONDS", 0.02)
    monkeypatch.setattr(metaq.app.role.following, "HURRY_SECONDS", 0.02)

    async def body() -> None:
        async with opened(tmp_path) as pair, aio.Producer(pair.namesrv.address) as producer:
            leader, follower = pair.leader, pair.follower
            leader.topics.update(TopicConfig("orders", 3, 3))
            leader.groups.update(GroupConfig("g", retry_max=3))
            await until(lambda: leader.topics.get("orders") and leader.groups.get("g"))
            for _ in range(9):
                await producer.send("orders", b"x")
            commit(leader, 3)
            await until(lambda: follower.offsets.get("g", "orders", 0) == 3)
            await until(
                lambda: follower.topics.get("orders") == leader.topics.get("orders")
            )  # tables follow in no order
            await until(lambda: follower.groups.get("g") == leader.groups.get("g"))
            commit(follower, 2)
            commit(leader, 1)  # a reset: what has changed at the master counts
            await until(lambda: follower.offsets.get("g", "orders", 0) == 1)
            commit(follower, 6)  # as while the master is away: it learns of it
            await until(lambda: leader.offsets.get("g", "orders", 0) == 6)
            leader.topics.update(TopicConfig("orders", 5, 4, perm=4))
            await until(lambda: follower.topics.get("orders") == TopicConfig("orders", 5, 4, perm=4))
            await pair.same()
            leader.delete_topic("orders")
            leader.delete_group("g", with_offsets=True)
            await until(lambda: follower.topics.get("orders") is None and follower.groups.get("g") is None)
            await until(lambda: not any(topic == "orders" for topic, _ in follower.store.reader.queues()))
            assert follower.offsets.get("g", "orders", 0) is None
            leader.topics.update(TopicConfig("orders", 1, 1))
            await until(lambda: leader.topics.get("orders"))
            await producer.send("orders", b"anew")
            await pair.same()
            queue = follower.store.reader.existing_queue("orders", 0)
            assert queue is not None and queue.max_offset == 1

    asyncio.run(body())


def commit(broker: Broker, offset: int) -> None:
    broker.commit_offset(OffsetCommit(group="g", topic="orders", queue_id=0, offset=offset))


def test_a_slave_without_room_serves_on_and_goes_on_when_there_is_some(tmp_path, caplog, monkeypatch):
    """It says so; what it has is served meanwhile."""
    monkeypatch.setattr("metaq.servers.ha.slave.RETRY_SECONDS", (0.01,))

    async def body() -> None:
        disk = FaultyDisk()
        pair = Pair(tmp_path, {}, {})
        pair.slave_disk = disk
        await pair.start()
        async with aio.Producer(pair.namesrv.address) as producer:
            await producer.send("orders", b"a")
            await pair.same()
            disk.room = 0
            disk.make_error = errno.ENOSPC
            for _ in range(400):
                await producer.send("orders", b"x" * 3000)
            await until(lambda: "is not followed any more" in caplog.text)
            assert "room" in caplog.text or "full" in caplog.text
            assert pair.follower.store.reader.pull("orders", 0, 0, 32).count or pair.follower.store.log.end
            disk.room, disk.make_error = None, 0
            await pair.same()
        await pair.slave.close()
        pair.link.close()
        await pair.master.close()
        await pair.namesrv.close()

    asyncio.run(body())


@pytest.mark.parametrize("fault", ["cut", "half_open", "garbage"])
def test_a_slave_comes_back_after_whatever_its_link_does(tmp_path, monkeypatch, fault):
    """Cut within a chunk, open on one side only, a master that is none."""
    monkeypatch.setattr("metaq.servers.ha.slave.RETRY_SECONDS", (0.01,))

    async def body() -> None:
        async with (
            opened(tmp_path, ha_housekeeping_interval=200, slave_options={"ha_send_heartbeat_interval": 50}) as pair,
            aio.Producer(pair.namesrv.address) as producer,
        ):
            await producer.send("orders", b"a")
            await pair.same()
            if fault == "cut":
                pair.link.cut_after(7)
            elif fault == "half_open":
                pair.link.half_open()
            else:
                await throw_at(pair.master.addresses["replication"])
            for _ in range(200):
                await producer.send("orders", b"x" * 3000)
            pair.link.mend()
            await pair.same()

    asyncio.run(body())


def test_who_waits_at_the_slave_gets_a_message_as_soon_as_it_is_there(tmp_path, monkeypatch):
    """No timer is in between: RocketMQ's slaves look every 5 s."""
    monkeypatch.setattr("metaq.app.broker.TICK_SECONDS", 3600.0)
    monkeypatch.setattr("metaq.broker.part.IDLE_SECONDS", 3600.0)

    async def body() -> None:
        async with opened(tmp_path) as pair, aio.Producer(pair.namesrv.address) as producer:
            await producer.send("orders", b"first")
            await pair.same()
            await until(lambda: pair.follower.topics.get("orders"))
            client = Transport(lambda _a, _c: None, lambda _a: None, lambda _a: None)
            queue_id = next(one for (topic, one) in pair.follower.store.reader.queues() if topic == "orders")
            pull = headers.PullHeader(
                group="g", topic="orders", queue_id=queue_id, queue_offset=1, max_messages=32, sys_flag=6,
                commit_offset=0, suspend_ms=15_000, subscription="*", sub_version=0,
            )  # fmt: skip
            asked = asyncio.create_task(
                client.call(pair.slave.address, request(RequestCode.PULL_MESSAGE, pull), PATIENCE)
            )
            await until(lambda: len(pair.follower.held_pulls))
            for _ in range(8):
                await producer.send("orders", b"next")
            assert (await asked).code == 0
            await client.close()

    asyncio.run(body())


def test_a_slave_that_reports_and_never_reads_costs_the_master_little(tmp_path):
    """What it does not read stays in the log; sends and the other slave go on."""

    async def body() -> None:
        async with opened(tmp_path) as pair, aio.Producer(pair.namesrv.address) as producer:
            host, _, port = pair.master.addresses["replication"].rpartition(":")
            deaf = socket.socket()
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            with deaf:
                await asyncio.get_running_loop().sock_connect(deaf, (host, int(port)))
                await asyncio.get_running_loop().sock_sendall(deaf, encode_report(0))
                await until(lambda: len(pair.leader.replicas.reported()) == 2)
                body = seeded("a body that no compression shortens").randbytes(100_000)
                for _ in range(300):
                    await producer.send("orders", body)
                await pair.same()
                sent = min(replica.sent for replica in pair.leader.replicas.connected)
                assert sent < 8 << 20 < pair.leader.store.log.end

    asyncio.run(body())


async def throw_at(address: str) -> None:
    """Garbage, from several peers: nobody else notices."""
    host, _, port = address.rpartition(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(8) + b"\xff" * 80, b"\x00" * 3, b"\xff" * 100_000):
        _, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(OSError):
            writer.write(data)
            await writer.drain()
        writer.close()


def test_slaves_find_the_log_where_the_name_server_says(tmp_path, monkeypatch, caplog):
    """Behind listenPort as in RocketMQ; where that is taken, elsewhere, and the log says so. A slave needs no address."""
    monkeypatch.setattr("metaq.servers.ha.slave.RETRY_SECONDS", (0.01,))

    async def body() -> None:
        namesrv = await start_namesrv(NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv.json")))
        port = free_port(1)
        taken = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", port + 1)
        masters = []
        for name in ("a", "b"):
            options = BrokerOptions(broker_name=name, listen_port=port, namesrv_addr=namesrv.address)
            masters.append(await start_broker(options, small_store(tmp_path / name)))
            assert masters[-1].addresses["replication"].endswith(f":{port + 1}") is (name == "b")
            if name == "a":
                await masters[0].close()
                taken.close()
                await taken.wait_closed()
        assert "slaves find this broker's log at port" in caplog.text
        slave_options = BrokerOptions(
            broker_name="b", listen_port=0, broker_id=1, broker_role="SLAVE", namesrv_addr=namesrv.address
        )
        slave = await start_broker(slave_options, small_store(tmp_path / "slave"))
        async with aio.Producer(namesrv.address) as producer:
            await producer.send("orders", b"a")
        await until(lambda: slave._broker.store.log.end > 0)
        for service in (slave, masters[1], namesrv):
            await service.close()

    asyncio.run(body())
