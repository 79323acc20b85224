"""Changes of leaders by hand: the slave that is promoted, the master that steps down, and the one that comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from msgspec import structs

from metaq import aio
from metaq.app.broker import RunningBroker, start_broker
from metaq.app.namesrv import start_namesrv
from metaq.app.role import stepping_down
from metaq.app.role.lost_tail import longer
from metaq.app.role.torn import slaves_of
from metaq.broker.broker import Broker
from metaq.client.conversation.administration import GetReplicaState, Promote, StepDown
from metaq.client.conversation.call import Call
from metaq.client.conversation.driver import ask
from metaq.client.shared.transport import Transport
from metaq.clock import FakeClock
from metaq.errors import BrokerError, ConfigError
from metaq.model import Message, SendStatus
from metaq.model.leadership import Epoch, Leadership, ReplicaState
from metaq.options import BrokerOptions, NamesrvOptions
from metaq.store.disk import Disk
from metaq.store.offline.reader import StoreReader
from tests.app.test_pair import until
from tests.broker.support import open_broker, small_store
from tests.store.log.test_raw import raw_log
from tests.support import PATIENCE, copy_folder, kept_port

pytestmark = pytest.mark.slow

FILE = 1 << 20


@pytest.fixture(autouse=True)
def _soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping_down, "QUIET_SECONDS", 0.3)


class Brokers:
    """A name server, and brokers `a` and `b` of one name, which begin as master and slave."""

    def __init__(self, root: pathlib.Path, options: dict[str, Any]) -> None:
        self._root, self._options = root, options
        self.both: dict[str, Any] = {}
        """Options of both brokers; `options` are of the first one."""
        self._ports = {name: (kept_port(self), kept_port(self)) for name in "ab"}
        self.running: dict[str, RunningBroker] = {}
        self._client = Transport(lambda _a, _c: None, lambda _a: None, lambda _a: None)

    async def open(self) -> None:
        self.namesrv = await start_namesrv(NamesrvOptions(listen_port=0, kv_config_path=str(self._root / "kv.json")))
        for name in "ab":
            await self.start(name)

    async def start(
        self, name: str, disk: Disk | None = None, store: dict[str, Any] | None = None, **changes: Any
    ) -> None:
        port, ha_port = self._ports[name]
        role = {"broker_id": 1, "broker_role": "SLAVE"} if name == "b" else {}
        options = BrokerOptions(
            broker_name="pair", listen_port=port, ha_listen_port=ha_port, namesrv_addr=self.namesrv.address,
            **{**role, **self.both, **(self._options if name == "a" else {}), **changes},
        )  # fmt: skip
        self.running[name] = await start_broker(
            options, small_store(self._root / name, mapped_file_size_commit_log=FILE, **(store or {})), disk=disk
        )

    async def restart_when_it_asks(self, name: str) -> None:
        """As the process does."""
        await asyncio.wait_for(self.running[name].again, PATIENCE)
        await self.stop(name)
        await self.start(name)

    async def stop(self, name: str) -> None:
        await self.running.pop(name).close()

    async def close(self) -> None:
        for name in list(self.running):
            await self.stop(name)
        await self._client.close()
        await self.namesrv.close()

    def broker(self, name: str) -> Broker:
        return self.running[name]._broker

    async def ask(self, name: str, call: Call[Any]) -> Any:
        return await ask(self._client, self.running[name].address, call)

    async def same(self) -> None:
        """Wait until both logs are as long, and compare them."""
        logs = self.broker("a").store.log, self.broker("b").store.log
        await until(lambda: logs[0].end == logs[1].end)
        assert raw_log(self._root / "a", 0, logs[0].end) == raw_log(self._root / "b", 0, logs[0].end)


@contextlib.asynccontextmanager
async def opened(root: pathlib.Path, **options: Any) -> AsyncIterator[Brokers]:
    brokers = Brokers(root, options)
    await brokers.open()
    try:
        yield brokers
    finally:
        await brokers.close()


async def send(brokers: Brokers, first: int, count: int) -> None:
    """Send numbers, each once, however often a broker has to be looked for."""
    async with aio.Producer(brokers.namesrv.address, timeout=PATIENCE, retries=50) as producer:
        for number in range(first, first + count):
            assert (await producer.send("orders", b"%d" % number)).status is SendStatus.SEND_OK


async def consume(brokers: Brokers, count: int, group: str = "g") -> list[int]:
    got = list[int]()
    async with aio.Consumer(brokers.namesrv.address, group=group, topics="orders", start="earliest") as consumer:
        async for message in consumer:
            async with message:
                got.append(int(message.body))
            if len(got) == count:
                return got
    raise AssertionError(got)


def test_a_slave_is_promoted_while_its_master_runs(tmp_path):
    """The master takes nothing more, the slave copies the rest and leads; the old master follows it, and groups go on."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await send(brokers, 0, 50)
            got = await consume(brokers, 20)
            led = await brokers.ask("b", Promote())
            assert (led.leads, led.broker_id, led.role, led.epoch) == (True, 0, "ASYNC_MASTER", 1)
            # On the disk: the old master had it there, and the new one may be killed in a moment.
            assert "orders@g" in (tmp_path / "b" / "config" / "consumerOffset.json").read_text()
            await brokers.restart_when_it_asks("a")
            await send(brokers, 50, 50)
            await brokers.same()
            state = await brokers.ask("a", GetReplicaState())
            assert (state.leads, state.broker_id, state.role, state.epochs) == (False, 1, "SLAVE", led.epochs)
            assert state.cuts == ()
            assert sorted(got + await consume(brokers, 80)) == list(range(100))
            # And back.
            assert (await brokers.ask("a", Promote())).epoch == 2
            await brokers.restart_when_it_asks("b")
            await send(brokers, 100, 10)
            await brokers.same()

    asyncio.run(body())


def test_roles_outlive_a_restart(tmp_path):
    """Whatever the configuration says since."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await send(brokers, 0, 5)
            await brokers.ask("b", Promote())
            await brokers.stop("a")
            await brokers.stop("b")
            await brokers.start("a")
            assert not brokers.broker("a").leads
            await brokers.start("b")
            assert brokers.broker("b").leads
            await send(brokers, 5, 5)
            await brokers.same()
            assert sorted(await consume(brokers, 10)) == list(range(10))

    asyncio.run(body())


def test_an_old_master_that_comes_back_keeps_aside_what_its_successor_never_had(tmp_path):
    """It follows, says in numbers what was cut off, and `metaq store dump` reads it."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await send(brokers, 0, 30)
            await until(lambda: brokers.broker("b").topics.get("orders"))
            await brokers.same()
            parted = brokers.broker("b").store.log.end
            await brokers.stop("b")
            await send(brokers, 1000, 7)
            lost_end = brokers.broker("a").store.log.end
            await brokers.stop("a")
            await brokers.start("b")
            with pytest.raises(BrokerError, match="--force"):
                await brokers.ask("b", Promote())
            assert not brokers.broker("b").leads
            await brokers.ask("b", Promote(force=True))
            await send(brokers, 30, 30)
            await brokers.start("a")
            assert not brokers.broker("a").leads
            await brokers.same()
            state = await brokers.ask("a", GetReplicaState())
            (cut,) = state.cuts
            assert (cut.log_offset, cut.log_end, cut.records) == (parted, lost_end, 7)
            assert {topic: sum(queues.values()) for topic, queues in cut.queues.items()} == {"orders": 7}
            kept = [message.body for message in StoreReader(cut.folder).records()]
            assert sorted(kept) == [b"%d" % number for number in range(1000, 1007)]
            assert sorted(await consume(brokers, 60)) == list(range(60))
            # What was cut off stays known.
            saved = json.loads((tmp_path / "a" / "config" / "metaqLeadership.json").read_text())
            assert saved["cuts"][0]["records"] == 7

    asyncio.run(body())


def test_a_master_that_was_replaced_behind_its_back_steps_down(tmp_path):
    """A broker that was stopped by SIGSTOP, or cut off, wakes up beside its successor: the name servers tell it."""

    async def body() -> None:
        async with opened(tmp_path, register_name_server_period=1000) as brokers:
            await send(brokers, 0, 5)
            await brokers.same()
            a, role = brokers.broker("a"), brokers.running["a"]._tasks.role
            a.roles.by(None, None)  # deaf, and blind
            role._announced.when_met(None)
            with pytest.raises(BrokerError, match="--force"):
                await brokers.ask("b", Promote())
            await brokers.ask("b", Promote(force=True))
            assert a.leads
            assert brokers.broker("b").leads
            role.start(role._services)
            await brokers.restart_when_it_asks("a")
            assert not brokers.broker("a").leads
            await brokers.same()

    asyncio.run(body())


def test_a_promoted_slave_waits_for_copies_as_its_master_did(tmp_path):
    """SYNC_MASTER stays what it is, whoever leads."""

    async def body() -> None:
        async with opened(tmp_path, broker_role="SYNC_MASTER", slave_timeout=3_600_000) as brokers:
            await until(lambda: brokers.broker("a").replicas.available)
            await send(brokers, 0, 5)
            assert (await brokers.ask("b", Promote())).role == "SYNC_MASTER"
            async with aio.Producer(brokers.namesrv.address, timeout=PATIENCE, retries=50) as producer:
                await brokers.stop("a")
                assert (await producer.send("orders", b"5")).status is SendStatus.SLAVE_NOT_AVAILABLE
                await brokers.start("a")
                await until(lambda: brokers.broker("b").replicas.available)
                assert (await producer.send("orders", b"6")).status is SendStatus.SEND_OK
                assert brokers.broker("a").store.log.end == brokers.broker("b").store.log.end

    asyncio.run(body())


def test_a_slave_that_leads_by_force_has_its_masters_role(tmp_path):
    """Also if it was started anew meanwhile, and its master is gone: SYNC_MASTER promises more than ASYNC_MASTER."""

    async def body() -> None:
        async with opened(tmp_path, broker_role="SYNC_MASTER") as brokers:
            await until(lambda: brokers.broker("a").replicas.available)
            await brokers.stop("a")
            await brokers.stop("b")
            await brokers.start("b")
            assert (await brokers.ask("b", Promote(force=True))).role == "SYNC_MASTER"

    asyncio.run(body())


def test_a_promotion_counts_more_than_starts_behind_crashes(tmp_path):
    """The old master began epochs of its own that the slave knew nothing of when it was promoted; it steps down all the same."""

    async def body() -> None:
        async with opened(tmp_path, register_name_server_period=1000) as brokers:
            await send(brokers, 0, 5)
            await brokers.same()
            await brokers.stop("a")
            await brokers.ask("b", Promote(force=True))
            await send(brokers, 5, 5)
            await brokers.stop("b")
            for crashes in (1, 2):
                (tmp_path / "a" / "abort").touch()
                await brokers.start("a")
                assert len((await brokers.ask("a", GetReplicaState())).epochs) == crashes
                await send(brokers, 100 * crashes, 1)
                if crashes < 2:
                    await brokers.stop("a")
            await brokers.start("b")
            await brokers.restart_when_it_asks("a")
            await brokers.same()
            assert sorted(await consume(brokers, 10)) == list(range(10))

    asyncio.run(body())


def test_what_cannot_be_is_refused(tmp_path):
    """And changes nothing."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            for name, call, why in (
                ("a", Promote(), "master already"),
                ("b", Promote(role="SLAVE"), "SYNC_MASTER"),
                ("b", StepDown(2), "slave already"),
                ("a", StepDown(0), "from 1 on"),
            ):
                with pytest.raises(BrokerError, match=why):
                    await brokers.ask(name, call)
            assert not (tmp_path / "a" / "config" / "metaqLeadership.json").exists()
            await send(brokers, 0, 1)

    asyncio.run(body())


def test_a_master_can_step_down_without_a_successor(tmp_path):
    """Nobody leads then, until one of the two is promoted, which may be the same one."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await send(brokers, 0, 3)
            left = await brokers.ask("a", StepDown(2))
            assert not left.leads
            await brokers.restart_when_it_asks("a")
            assert brokers.broker("a").options.broker_id == 2
            await brokers.ask("a", Promote(force=True))
            await send(brokers, 3, 3)
            await brokers.same()

    asyncio.run(body())


def test_what_is_owed_is_delivered_by_the_new_leader_once(tmp_path):
    """Delayed messages that were sent to the old one, due before, at and after the change."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            async with aio.Producer(brokers.namesrv.address, timeout=PATIENCE, retries=50) as producer:
                for number in range(20):
                    await producer.send(Message("orders", b"%d" % number, delay_level=1 if number < 10 else 2))
                await brokers.ask("b", Promote())
                for number in range(20, 30):
                    await producer.send(Message("orders", b"%d" % number, delay_level=1))
            await brokers.restart_when_it_asks("a")
            assert sorted(await consume(brokers, 30)) == list(range(30))
            await brokers.same()
            # Nothing more is delivered by either.
            assert sum(stats.max_offset for _, stats in brokers.broker("b").reports.topic_stats("orders")) == 30

    asyncio.run(body())


def test_an_old_master_that_starts_again_before_its_successor_leads_follows_it(tmp_path):
    """The two have one number for as long as the promotion takes, also if the successor ends in the middle of it."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await send(brokers, 0, 3)
            await brokers.ask("a", StepDown(1, brokers.running["b"].address))
            await brokers.restart_when_it_asks("a")
            await brokers.stop("b")
            await brokers.start("b")
            assert (await brokers.ask("b", Promote(force=True))).leads
            await send(brokers, 3, 3)
            await brokers.same()

    asyncio.run(body())


def test_a_number_that_another_slave_has_is_refused(tmp_path):
    """Clients and name servers would take the one for the other. A name server may know a slave that is gone."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            brokers._ports["c"] = kept_port(brokers), kept_port(brokers)
            with pytest.raises(ConfigError, match="brokerId=1 of pair is taken by the broker at"):
                await brokers.start("c", broker_role="SLAVE", broker_id=1)
            await brokers.start("c", broker_role="SLAVE", broker_id=2)
            await send(brokers, 0, 3)
            await until(lambda: brokers.broker("c").store.log.end == brokers.broker("a").store.log.end)

    asyncio.run(body())


def power_cut(brokers: Brokers, name: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """Take a picture of a broker's disk. What is returned ends the broker, and puts that picture in the place of its folder."""
    folder, picture = brokers._root / name, brokers._root / f"{name} then"
    copy_folder(folder, picture)

    async def cut() -> None:
        await brokers.stop(name)
        shutil.rmtree(folder)
        picture.rename(folder)

    return cut


def test_a_master_that_lost_the_end_of_its_log_gets_it_from_its_slave(tmp_path):
    """What the slave had, and was acknowledged for that, is not cut off: the master copies it before it leads."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await send(brokers, 0, 20)
            await brokers.same()
            cut = power_cut(brokers, "a")
            await send(brokers, 20, 20)
            await brokers.same()
            end = brokers.broker("a").store.log.end
            await cut()
            await brokers.start("a")
            assert brokers.broker("a").leads
            assert brokers.broker("a").store.log.end == end
            await send(brokers, 40, 20)
            await brokers.same()
            state = await brokers.ask("b", GetReplicaState())
            assert (state.epoch, state.epochs[0].start, state.cuts) == (1, end, ())
            assert sorted(await consume(brokers, 60)) == list(range(60))

    asyncio.run(body())


def longest(broker: Broker, others: list[tuple[str, ReplicaState]]) -> tuple[str, ReplicaState] | None:
    return longer(broker, slaves_of(broker, others))


def test_only_a_slave_of_the_newest_epoch_gives_back_what_was_lost(tmp_path):
    """What another one has where this epoch began is of the leader before, and would be taken for this one's."""
    with open_broker(tmp_path, FakeClock()) as broker:
        epochs = (Epoch(1, 0, "b", 5, 1, 1),)
        state = ReplicaState("a", 1, "SLAVE", False, 0, 638, 1)
        assert longest(broker, [("x", state)]) == ("x", state)
        assert longest(broker, [("x", structs.replace(state, leads=True))]) is None
        broker.roles.kept = Leadership(epochs=epochs)
        assert longest(broker, [("x", state)]) is None
        of_this = structs.replace(state, epochs=epochs, log_end=700)
        assert longest(broker, [("x", state), ("y", of_this)]) == ("y", of_this)


def test_a_slave_that_a_shortened_log_knows_nothing_of_keeps_aside_what_it_has_more(tmp_path):
    """It was away when its master came back after a power cut. Other records came there since."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await send(brokers, 0, 20)
            await brokers.same()
            short = brokers.broker("a").store.log.end
            cut = power_cut(brokers, "a")
            await send(brokers, 1000, 5)
            await brokers.same()
            await brokers.stop("b")
            await cut()
            await brokers.start("a")
            await send(brokers, 20, 40)
            await brokers.start("b")
            await brokers.same()
            (lost,) = (await brokers.ask("b", GetReplicaState())).cuts
            assert (lost.log_offset, lost.records) == (short, 5)
            assert sorted(await consume(brokers, 60)) == list(range(60))

    asyncio.run(body())


def test_a_master_that_lost_its_whole_log_is_told_apart_too(tmp_path):
    """Nothing was durable yet: what its slave has is of another history, however long the new log becomes."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            cut = power_cut(brokers, "a")
            await send(brokers, 1000, 5)
            await brokers.same()
            await brokers.stop("b")
            await cut()
            await brokers.start("a")
            await send(brokers, 20, 40)
            await brokers.start("b")
            await brokers.same()
            (lost,) = (await brokers.ask("b", GetReplicaState())).cuts
            assert (lost.log_offset, lost.records) == (0, 5)
            assert sorted(await consume(brokers, 40)) == list(range(20, 60))

    asyncio.run(body())


def test_a_slave_that_is_promoted_leads_though_its_master_has_begun_more_epochs(tmp_path):
    """Those of its crashes, of which the slave has not heard: the old master follows all the same when it comes back."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await send(brokers, 0, 20)
            await brokers.same()
            await brokers.stop("b")
            for number in range(2):
                cut = power_cut(brokers, "a")
                await cut()
                await brokers.start("a")
                await send(brokers, 1000 + number, 1)
            await brokers.stop("a")
            await brokers.start("b")
            assert (await brokers.ask("b", Promote(force=True))).epoch == 1
            await send(brokers, 20, 20)
            await brokers.start("a")
            await brokers.same()
            state = await brokers.ask("a", GetReplicaState())
            assert (state.leads, [cut.records for cut in state.cuts]) == (False, [2])
            assert brokers.broker("b").leads
            assert sorted(await consume(brokers, 40)) == list(range(40))

    asyncio.run(body())


def test_a_leader_is_found_again_when_the_one_before_has_registered_in_its_place(tmp_path):
    """Which was asleep, registers under its old number when it wakes up, and steps down: its registration goes with it."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:  # registered anew every 30 s
            await send(brokers, 0, 3)
            await brokers.same()
            brokers.broker("a").roles.by(None, None)  # deaf
            await brokers.ask("b", Promote(force=True))
            role = brokers.running["a"]._tasks.role
            role._announced.renew()
            role.start(role._services)
            await brokers.restart_when_it_asks("a")
            async with asyncio.timeout(10):
                await send(brokers, 3, 3)
            await brokers.same()

    asyncio.run(body())


def test_nothing_is_said_of_namesakes_while_roles_change(tmp_path, caplog):
    """For a moment the name servers know two brokers of one number, which is right."""

    async def body() -> None:
        async with opened(tmp_path, register_name_server_period=1000) as brokers:
            await send(brokers, 0, 3)
            for name, other in ("ba", "ab"):
                await brokers.ask(name, Promote())
                await brokers.restart_when_it_asks(other)
                await send(brokers, 3, 3)
                await brokers.same()

    asyncio.run(body())
    assert [record.message for record in caplog.records if record.name == "metaq.registry.namesakes"] == []


def test_a_group_passes_over_nothing_that_comes_in_the_place_of_lost_messages(tmp_path):
    """It gets none that only a SYNC_MASTER has. Had it read them, it would go on behind those that have their offsets since."""

    async def body() -> None:
        options = {"broker_role": "SYNC_MASTER", "slave_timeout": 3_600_000, "default_topic_queue_nums": 1}
        async with opened(tmp_path, **options) as brokers:
            a, b, got = brokers.broker("a"), brokers.broker("b"), list[int]()
            await until(lambda: a.replicas.available)
            await send(brokers, 0, 5)
            await until(lambda: b.topics.get("orders"))

            async def listen() -> None:
                async with aio.Consumer(
                    brokers.namesrv.address, group="g", topics="orders", start="earliest"
                ) as consumer:
                    async for message in consumer:
                        async with message:
                            got.append(int(message.body))

            listening = asyncio.create_task(listen())
            await until(lambda: len(got) == 5 and len(a.held_pulls))
            brokers.running["b"]._tasks.role._slave.following._session._peer.pause()  # it copies nothing any more
            async with aio.Producer(brokers.namesrv.address, timeout=PATIENCE, retries=50) as producer:
                lost = await producer.send("orders", b"1000", wait_store_ok=False)
                assert [lost.offset, a.lookup.max_offset("orders", 0)] == [5, 5]
                await brokers.stop("a")
                assert (await brokers.ask("b", Promote(force=True))).log_end < a.store.log.end
                for number in range(5, 8):
                    assert (await producer.send("orders", b"%d" % number)).offset == number
            await until(lambda: 7 in got)
            assert got == list(range(8))
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    asyncio.run(body())
