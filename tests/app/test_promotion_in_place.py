"""Changes of leaders by hand under load: the old leader relays what clients ask, follows in place, and nobody is cut or refused."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest

from metaq import aio
from metaq.admin import Admin
from metaq.app.role import stepping_down
from metaq.client.conversation.administration import GetReplicaState, Promote
from metaq.errors import BrokerError
from metaq.model import Message, MessageQueue, SendStatus, TopicConfig
from metaq.model import properties as props
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import request
from metaq.wire.record import decode_record
from tests.app.test_pair import until
from tests.app.test_promotion import Brokers, opened
from tests.servers.remoting.test_relaying import client_of
from tests.servers.remoting.test_transactions import HALF, end_header
from tests.servers.support import send_header
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow

QUEUES = 4
POLL_SECONDS = 0.3


@pytest.fixture(autouse=True)
def _soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is injected would not do: clients and sockets have the system's."""
    monkeypatch.setattr(stepping_down, "QUIET_SECONDS", 3 * POLL_SECONDS)


class Load:
    """A producer for each queue that sends numbers without a pause, and tries none again."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers, self._over = brokers, False
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.longest = 0.0
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            producers = [
                await stack.enter_async_context(
                    aio.Producer(
                        self._brokers.namesrv.address, timeout=PATIENCE, retries=0, instance_name=f"p{queue_id}",
                        poll_name_server_interval=POLL_SECONDS,
                    )
                )
                for queue_id in range(QUEUES)
            ]  # fmt: skip
            await asyncio.gather(*(self._send(one, queue_id) for queue_id, one in enumerate(producers)))

    async def _send(self, producer: aio.Producer, queue_id: int) -> None:
        queue, number = MessageQueue("orders", "pair", queue_id), 0
        while not self._over:
            began = time.monotonic()
            receipt = await producer.send("orders", b"%d" % number, queue=queue)
            self.longest = max(self.longest, time.monotonic() - began)
            # A leader that is new waits for no slave before one is there.
            assert receipt.status in {SendStatus.SEND_OK, SendStatus.SLAVE_NOT_AVAILABLE}
            self.sent[queue_id].append(number)
            number += 1

    async def more(self) -> None:
        """Return when each queue has got more."""
        before = {queue_id: len(numbers) for queue_id, numbers in self.sent.items()}

        def grown() -> bool:
            return all(len(self.sent[one]) > before.get(one, 0) + 20 for one in range(QUEUES))

        await until(lambda: self.task.done() or grown())
        assert not self.task.done(), self.task.exception()

    def stop(self) -> None:
        self._over = True


@contextlib.asynccontextmanager
async def loaded(brokers: Brokers) -> AsyncIterator[Load]:
    for name in "ab":
        await until(lambda name=name: brokers.broker(name).topics.get("orders"))
    load = Load(brokers)
    try:
        await load.more()
        yield load
    finally:
        load.stop()
        await load.task


async def make_topic(brokers: Brokers) -> None:
    brokers.broker("a").topics.saved.change("orders", TopicConfig("orders", QUEUES, QUEUES))


def numbers_of(brokers: Brokers, name: str) -> dict[int, list[int]]:
    """What a broker has, queue by queue, in order."""
    reader, found = brokers.broker(name).store.reader, dict[int, list[int]]()
    for queue_id in range(QUEUES):
        queue = reader.queue("orders", queue_id)
        records = [reader.record_at(unit.log_offset) for unit in queue.units(0, queue.max_offset)]
        found[queue_id] = [int(decode_record(record).body) for record in records]
    return found


async def promote(brokers: Brokers, name: str) -> None:
    """As `Admin.promote`: a broker that has led before starts again first."""
    while True:
        try:
            await brokers.ask(name, Promote())
        except BrokerError as error:
            assert error.code == ResponseCode.SYSTEM_BUSY
            await brokers.restart_when_it_asks(name)
        else:
            return


def test_what_was_begun_at_the_old_leader_is_ended_by_the_new_one_once(tmp_path):
    """By a client that knows the old one only: a transaction, progress, a delayed message. Also when the old one leads again."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await make_topic(brokers)
            async with client_of(brokers.running["a"].address) as client:
                half = await client.ask(
                    request(
                        RequestCode.SEND_MESSAGE_V2,
                        send_header("orders", queue_id=0, sys_flag=4, properties=HALF),
                        b"0",
                    )
                )
                delayed = {props.DELAY: "1"}
                told = send_header("orders", queue_id=1, properties=delayed)
                assert (await client.ask(request(RequestCode.SEND_MESSAGE_V2, told, b"1"))).code == 0
                await promote(brokers, "b")
                ended = await client.ask(request(RequestCode.END_TRANSACTION, end_header(half)))
                assert (ended.code, ended.remark) == (0, None)
                commit = headers.UpdateOffsetHeader(group="g", topic="orders", queue_id=0, commit_offset=1)
                assert (await client.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, commit))).code == 0
                assert brokers.broker("b").offsets.get("g", "orders", 0) == 1
                await until(lambda: numbers_of(brokers, "b") == {0: [0], 1: [1], 2: [], 3: []})
            await brokers.restart_when_it_asks("a")
            await brokers.same()
            await promote(brokers, "a")
            await brokers.restart_when_it_asks("b")
            await send_on(brokers)
            assert brokers.broker("a").transactions.progress.open_halves == 0
            assert numbers_of(brokers, "a") == {0: [0], 1: [1], 2: [], 3: [2]}
            await brokers.same()

    asyncio.run(body())


def test_who_promotes_the_old_leader_waits_for_its_restart(tmp_path, monkeypatch):
    """It restarts at once, though its clients have not gone over, and leads then."""
    monkeypatch.setattr(stepping_down, "QUIET_SECONDS", PATIENCE)
    monkeypatch.setattr(stepping_down, "STAY_SECONDS_MAX", PATIENCE)

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await make_topic(brokers)
            await promote(brokers, "b")
            await until(lambda: not brokers.broker("a").roles.has_led)
            restart = asyncio.create_task(brokers.restart_when_it_asks("a"))
            with Admin(brokers.namesrv.address) as admin:

                def both() -> bool:
                    # The one that follows has told the name server last.
                    return len([one for one in admin.list_replicas("pair") if one.state is not None]) == 2

                await asyncio.to_thread(eventually, both, what="the name server knows both brokers")
                led = await asyncio.to_thread(admin.promote, "pair")
            await restart  # it leads before all of its start is done
            assert (led.address, led.leads) == (brokers.running["a"].address, True)
            assert led.state.epoch == 2

    asyncio.run(body())


async def send_on(brokers: Brokers) -> None:
    """Send one message more, delayed: what was due before it is delivered by then."""
    async with aio.Producer(brokers.namesrv.address, timeout=PATIENCE, retries=50) as producer:
        await producer.send(Message("orders", b"2", delay_level=1), queue=MessageQueue("orders", "pair", 3))
    await until(lambda: numbers_of(brokers, "a")[3])


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_producers_notice_nothing_of_five_changes_of_leaders(tmp_path, role, capsys):
    """No send fails, though none is tried again; nothing is lost, repeated or reordered; a group gets all of it."""

    async def body() -> None:
        async with opened(tmp_path, broker_role=role, slave_timeout=PATIENCE * 1000) as brokers:
            await make_topic(brokers)
            await until(lambda: brokers.broker("a").replicas.available)
            got = defaultdict[int, list[int]](list)

            async def listen() -> None:
                async with aio.Consumer(
                    brokers.namesrv.address, group="g", topics="orders", start="earliest", orderly=True,
                    poll_name_server_interval=POLL_SECONDS,
                ) as consumer:  # fmt: skip
                    async for message in consumer:
                        async with message:
                            got[message.queue_id].append(int(message.body))

            async with loaded(brokers) as load:
                listening = asyncio.create_task(listen())
                for old, new in ("ab", "ba", "ab", "ba", "ab"):
                    await promote(brokers, new)
                    assert brokers.running[old]._tasks.role.must_start_again
                    await load.more()
                    await until(lambda old=old: not brokers.broker(old).roles.has_led)
                    await load.more()
                    await brokers.restart_when_it_asks(old)
                    await load.more()
                assert (await brokers.ask("b", GetReplicaState())).epoch == 5
            await until(lambda: listening.done() or all(got[one][-1:] == load.sent[one][-1:] for one in range(QUEUES)))
            assert not listening.done()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await brokers.same()
            assert numbers_of(brokers, "b") == load.sent
            for queue_id, numbers in load.sent.items():
                assert list(dict.fromkeys(got[queue_id])) == numbers
            with capsys.disabled():
                total = sum(map(len, load.sent.values()))
                print(f"\n{role}: {total} sends, the longest took {load.longest:.3f} s")

    asyncio.run(body())
