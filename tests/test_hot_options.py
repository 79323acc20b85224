"""Every option that is called hot is changed in a server that runs, and does something else afterwards.

One function for each, found by its table and name: an option that is hot and has none fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import pathlib
import socket
from collections.abc import Callable

import pytest

from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.app.runtime import follow_log_level
from metaq.broker.pulls.predicates import Predicates
from metaq.broker.requests import Decide, Stage
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import DataVersion, Heartbeat, MessageQueue, Perm, QueueLocks, TopicConfig
from metaq.model.filters.sql import Sql
from metaq.model.topics.route import ORDER_NAMESPACE
from metaq.model.transactions.staging import Chunk, DecisionOutcome, Phase
from metaq.net.page import fetch_text
from metaq.options import MIB, BrokerOptions, NamesrvOptions, StoreOptions, camel
from metaq.saved import Saving
from metaq.testing import FaultyDisk
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from tests.broker.staged.support import SOMEBODY, batch
from tests.broker.support import BORN_HOST, small_store
from tests.servers.ha.test_session import Slave
from tests.servers.ha.test_session import opened as replicating
from tests.servers.support import Client, SlowDisk, open_server, send_header, tick
from tests.support import PATIENCE, eventually

TABLES = {"broker": BrokerOptions, "store": StoreOptions, "namesrv": NamesrvOptions}
HOT = [f"{section}.{name}" for section, table in TABLES.items() for name in sorted(table.hot_names())]
HOUR = 3600.0
EFFECTS: dict[str, Callable[[pathlib.Path], None]] = {}


def effect_of(option: str) -> Callable[[Callable[[pathlib.Path], None]], Callable[[pathlib.Path], None]]:
    """The function changes this option and sees what that does."""

    def note(act: Callable[[pathlib.Path], None]) -> Callable[[pathlib.Path], None]:
        EFFECTS[option] = act
        return act

    return note


@pytest.mark.parametrize("option", HOT)
def test_hot_option_takes_effect_in_a_server_that_runs(option, tmp_path):
    """Changed as SIGHUP does, and then seen from outside."""
    assert option in EFFECTS, f"{option} is called hot: show that changing it does something"
    EFFECTS[option](tmp_path)


def test_no_effect_is_shown_of_an_option_that_is_not_hot():
    """A function whose option lost its mark, or its name, is found."""
    assert set(EFFECTS) == set(HOT)


def test_server_changes_its_own_copy_of_the_options(tmp_path):
    """Whoever started it, perhaps two of them with the same table, keeps what he has."""
    given = NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
    at_listener(lambda: start_namesrv(given), lambda service: service.settings["namesrv"].change({"connectionsMax": 5}))
    assert given.connections_max == 10_000


class Running:
    """A broker at its server, with small files, a clock and a disk that the test owns, and one client."""

    def __init__(self, root, store=None, disk=None, **options):
        self.clock, self.disk = FakeClock(), disk or FaultyDisk()
        self.disk.used = 10.0
        self._open = open_server(root, self.clock, store, self.disk, **options)

    def __enter__(self):
        self.broker, self.server = self._open.__enter__()
        self.store, self.client = self.broker.store, Client(self.server)
        return self

    def __exit__(self, *error):
        self._open.__exit__(*error)

    def change(self, **options):
        applied = self.broker.settings.change({camel(name): value for name, value in options.items()})
        assert applied.changed.keys() == options.keys()
        assert not applied.refused

    def fill(self, count, body=b"x" * 1000):
        for _ in range(count):
            assert self.client.send("T", body).code == 0

    def pull(self, **more):
        [answer] = self.client.pull("T", **more)
        return answer

    def pulled(self, **more):
        """Records of a pull and their bytes."""
        body = self.pull(**more).body
        count, at = 0, 0
        while at < len(body):
            at += int.from_bytes(body[at : at + 4], "big")
            count += 1
        return count, len(body)


# ---- broker -------------------------------------------------------------------------------------------------------


@effect_of("broker.ha_slave_fallbehind_max")
def _(root):
    with Running(root, broker_role="SYNC_MASTER") as one:
        replicas = one.broker.replicas
        replicas.report(replicas.connect("slave:1"), 0)
        assert one.client.send("T", b"x" * 1000, properties={"WAIT": "false"}).code == 0
        assert replicas.available
        one.change(ha_slave_fallbehind_max=1000)
        assert not replicas.available
        assert one.client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE


@effect_of("broker.in_sync_replicas")
def _(root):
    with Running(root, broker_role="SYNC_MASTER") as one:
        replicas = one.broker.replicas
        replicas.report(replicas.connect("slave:1"), 0)
        assert replicas.available
        one.change(in_sync_replicas=3)
        assert one.client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE


@effect_of("broker.min_in_sync_replicas")
def _(root):
    with Running(root, broker_role="SYNC_MASTER") as one:
        assert one.client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE
        one.change(min_in_sync_replicas=2)
        assert one.client.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE


@effect_of("broker.scrub_interval")
def _(root):
    with Running(root, scrub_interval=0) as one:
        assert one.broker.scrub.due_in() is None
        one.change(scrub_interval=2)
        one.broker.scrub.end(0, alone=False)
        assert one.broker.scrub.due_in() == 2 * HOUR


@effect_of("broker.max_scrub_byte_in_second")
def _(root):
    with Running(root) as one:
        assert one.broker.scrub.pause_after(10 * MIB) == 1
        one.change(max_scrub_byte_in_second=MIB)
        assert one.broker.scrub.pause_after(10 * MIB) == 10


@effect_of("broker.ha_transfer_batch_size")
def _(root):
    with replicating(root) as master:
        slave = Slave(master)
        slave.report(0)
        master.put(b"x" * 5000)
        master.turn()
        assert len(slave.got()) == 1
        master.broker.settings.change({"haTransferBatchSize": "1024"})
        master.put(b"x" * 5000)
        master.turn()
        assert [len(data) for _, data in slave.got()][:-1] == [1024] * 4


@effect_of("broker.ha_flow_control_enable")
@effect_of("broker.max_ha_transfer_byte_in_second")
def _(root):
    with replicating(root) as master:
        for _ in range(30):
            master.put(b"x" * 9000)
        master.broker.settings.change({"haFlowControlEnable": "true", "maxHaTransferByteInSecond": "65536"})
        slave = Slave(master)
        slave.report(0)
        assert slave.got() == []
        master.broker.settings.change({"maxHaTransferByteInSecond": "1000000"})
        master.turn()
        master.put(b"y")
        master.turn()
        assert slave.got()


@effect_of("broker.broker_permission")
def _(root):
    with Running(root) as running:
        running.fill(1)
        assert running.pull().code == ResponseCode.SUCCESS
        topics, version = running.broker.registration()
        told = []
        running.broker.topics.watch(told.append)
        running.change(broker_permission=int(Perm.WRITE))
        assert running.pull().code == ResponseCode.NO_PERMISSION
        changed, newer = running.broker.registration()
        assert topics["T"].perm == Perm.READ | Perm.WRITE
        assert changed["T"].perm == Perm.WRITE
        assert newer.counter > version.counter, "or name servers would not listen"
        assert set(told) == set(changed)


@effect_of("broker.draining")
def _(root):
    with Running(root) as running:
        running.fill(1)
        told = []
        running.broker.topics.watch(told.append)
        _, version = running.broker.registration()
        running.change(draining=True)
        changed, newer = running.broker.registration()
        assert {topic.perm & Perm.WRITE for topic in changed.values()} == {0}
        assert changed["T"].perm == Perm.READ
        assert newer.counter > version.counter, "or name servers would not listen"
        assert set(told) == set(changed)
        running.fill(1)
        assert running.pulled()[0] == 2, "who does not know yet is not refused"
        running.change(draining=False)
        assert running.broker.registration()[0]["T"].perm == Perm.READ | Perm.WRITE


def sql_pull(running, text="a = 5", topic="T"):
    return running.client.pull(topic, subscription=text, expression_type="SQL92")[0].code


@effect_of("broker.enable_property_filter")
def _(root):
    with Running(root) as running:
        running.client.send("T", properties={"a": "5"})
        assert sql_pull(running) == ResponseCode.SUCCESS
        running.change(enable_property_filter=False)
        assert sql_pull(running) == ResponseCode.SYSTEM_ERROR


@effect_of("broker.filter_support_retry")
def _(root):
    with Running(root) as running:
        running.client.beat("G", {"T": Sql("a = 5"), "%RETRY%G": "*"})
        for value in ("5", "6"):
            running.client.send("%RETRY%G", properties={"a": value, "RETRY_TOPIC": "T"})
        pull = {"group": "G", "sys_flag": 0, "subscription": None}
        both = running.client.pull("%RETRY%G", **pull)[0].body
        running.change(filter_support_retry=True)
        one = running.client.pull("%RETRY%G", **pull)[0].body
        assert b"a\x016" in both
        assert len(one) == len(both) // 2
        assert b"a\x016" not in one


@effect_of("broker.filter_time_limit")
def _(root):
    with Running(root) as running:
        asked = Asked()
        predicates = Predicates(running.broker.options, running.clock, asked.helper)
        predicates.places = {"p": "m:f"}
        predicates.tick()
        asked.told(asked, b'{"errors": {}}', "")
        predicates.judge("G", "p", [memoryview(b"record")], lambda _: None)
        running.clock.advance(0.5)
        predicates.tick()
        assert not asked.killed
        running.change(filter_time_limit=100)
        predicates.tick()
        assert "filterTimeLimit" in asked.killed


class Asked:
    """A helper process that never answers."""

    def __init__(self):
        self.killed, self.told = "", None

    def helper(self, told):
        if self.told is not None:  # another one takes its place, since its question is a long one
            return Asked()
        self.told = told
        return self

    def ask(self, question):
        """It thinks."""

    def step_back(self): ...

    def kill(self, why):
        self.killed = why


@effect_of("broker.filter_data_clean_time_span")
def _(root):
    with Running(root) as running:
        running.client.beat("G", {"T": Sql("a = 5")})
        running.client.leave()
        for _ in range(2):
            running.clock.advance(HOUR)
            tick(running.server)
        assert list(running.broker.filters.table) == [("T", "G")]
        running.change(filter_data_clean_time_span=60_000)
        running.clock.advance(11)
        tick(running.server)
        assert not running.broker.filters.table


@effect_of("broker.trace_on")
def _(root):
    with Running(root) as running:
        for way in ({}, {"properties": {"WAIT": "false"}}):
            assert running.client.send("T", **way).ext["TRACE_ON"] == "true"
        running.change(trace_on=False)
        for way in ({}, {"properties": {"WAIT": "false"}}):
            assert running.client.send("T", **way).ext["TRACE_ON"] == "false"


HALF = {"properties": {"TRAN_MSG": "true", "PGROUP": "PG"}, "sys_flag": 4}


class Transacting(Running):
    """One with a producer that leaves a transaction open; it is asked in the first round after `age` seconds."""

    def open(self):
        beat = bodies.heartbeat(Heartbeat("c@1", (), ("PG",)))
        assert self.client.ask(RequestCode.HEART_BEAT, None, beat).code == 0
        header = send_header("T", born_ms=self.clock.now_ms(), **HALF)
        assert self.client.ask(RequestCode.SEND_MESSAGE_V2, header, b"half").code == 0

    def checks(self, seconds):
        self.clock.advance(seconds)
        tick(self.server)
        while self.broker.deliver() == 0:
            pass
        return [command.code for command in self.client.received()].count(RequestCode.CHECK_TRANSACTION_STATE)


@effect_of("broker.reject_transaction_message")
def _(root):
    with Running(root) as running:
        assert running.client.send("T", **HALF).code == 0
        running.change(reject_transaction_message=True)
        assert running.client.send("T", **HALF).code == ResponseCode.NO_PERMISSION


@effect_of("broker.transaction_check_interval")
def _(root):
    with Transacting(root) as running:
        running.open()
        assert running.checks(10) == 0
        running.change(transaction_check_interval=9000)
        assert running.checks(0.1) == 1


@effect_of("broker.transaction_time_out")
def _(root):
    with Transacting(root) as running:
        running.change(transaction_time_out=90_000)
        running.open()
        assert running.checks(60.5) == 0
        running.change(transaction_time_out=1000)
        assert running.checks(59) == 0
        assert running.checks(1.1) == 1


@effect_of("broker.transaction_check_max")
def _(root):
    with Transacting(root) as running:
        running.open()
        assert running.checks(61) == 1
        running.change(transaction_check_max=1)
        assert running.checks(50) == 0
        assert running.checks(11) == 0
        assert running.store.reader.queue("TRANS_CHECK_MAX_TIME_TOPIC", 0).max_offset == 1


@effect_of("broker.auto_create_topic_enable")
def _(root):
    with Running(root) as running:
        assert running.client.send("one").code == 0
        running.change(auto_create_topic_enable=False)
        assert running.client.send("two").code == ResponseCode.TOPIC_NOT_EXIST
        assert not running.broker.registration()[0]["TBW102"].perm & Perm.INHERIT
        running.change(auto_create_topic_enable=True)
        assert running.client.send("two").code == 0
    with Running(root / "off", auto_create_topic_enable=False) as running:
        assert running.client.send("one").code == ResponseCode.TOPIC_NOT_EXIST
        running.change(auto_create_topic_enable=True)
        assert running.client.send("one").code == 0


@effect_of("broker.auto_create_subscription_group")
def _(root):
    with Running(root) as running:
        running.fill(1)
        running.change(auto_create_subscription_group=False)
        assert running.pull(group="new").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        running.change(auto_create_subscription_group=True)
        assert running.pull(group="new").code == ResponseCode.SUCCESS


def held_ms(running):
    """How long a pull that would wait a minute is held."""
    running.client.received()
    assert not running.client.pull(
        "T", offset=running.store.reader.queue("T", 0).max_offset, sys_flag=6, suspend_ms=60_000
    )
    for ms in range(500, 70_000, 500):
        running.clock.advance(0.5)
        tick(running.server)
        if running.client.received():
            return ms
    raise AssertionError("held for ever")


@effect_of("broker.long_polling_enable")
def _(root):
    with Running(root) as running:
        running.fill(1)
        assert 59_000 < held_ms(running) < 62_000
        running.change(long_polling_enable=False)
        assert held_ms(running) < 3000


@effect_of("broker.short_polling_time_mills")
def _(root):
    with Running(root, long_polling_enable=False) as running:
        running.fill(1)
        assert held_ms(running) < 3000
        running.change(short_polling_time_mills=20_000)
        assert 19_000 < held_ms(running) < 23_000


@effect_of("broker.notify_consumer_ids_changed_enable")
def _(root):
    with Running(root) as running:
        running.client.beat("G", {"T": "*"}, "c@1")
        other = Client(running.server)
        other.beat("G", {"T": "*"}, "c@2")
        assert running.client.received()
        running.change(notify_consumer_ids_changed_enable=False)
        other.leave()
        assert not running.client.received()


def locks(running, client_id, count=1):
    queues = tuple(MessageQueue("T", "broker-a", queue_id) for queue_id in range(count))
    body = bodies.queue_locks(QueueLocks("G", client_id, queues))
    return len(bodies.locked_queues_of(running.client.ask(RequestCode.LOCK_BATCH_MQ, None, body).body))


@effect_of("broker.rebalance_lock_max_live_time")
def _(root):
    with Running(root) as running:
        running.fill(1)
        assert locks(running, "a@1") == 1
        running.clock.advance(2)
        assert locks(running, "b@1") == 0
        running.change(rebalance_lock_max_live_time=1000)
        assert locks(running, "b@1") == 1


@effect_of("broker.queue_locks_max")
def _(root):
    with Running(root) as running:
        running.fill(1)
        running.change(queue_locks_max=2)
        assert locks(running, "a@1", 4) == 2
        running.change(queue_locks_max=3)
        assert locks(running, "a@1", 4) == 3


class Staging(Running):
    """With requests of staged transactions, each of another one unless it says otherwise."""

    def stage(self, *parts, transaction="t@broker-a", seconds=0):
        """The answer to chunks of these parts: (id, number, messages)."""
        chunks = tuple(Chunk(part=part, number=number, topic="T", queue_id=0, body=batch(*texts))
                       for part, number, texts in parts)  # fmt: skip
        request = Stage(transaction=transaction, chunks=chunks, born_ms=0, born_host=BORN_HOST, seconds=seconds)
        return self.answer(lambda: self.broker.staging.stage(request, SOMEBODY))

    def answer(self, act):
        try:
            act()
        except Saving:  # its topic is made
            return self.answer(act)
        except Refused as error:
            return error.reason
        return None


@effect_of("broker.staged_parts_max")
def _(root):
    with Staging(root) as running:
        running.change(staged_parts_max=8)  # one client may have a quarter
        assert running.stage(("p1", 0, [b"a"]), ("p2", 0, [b"a"])) is None
        assert running.stage(("p3", 0, [b"a"])) is Reason.BUSY
        running.change(staged_parts_max=12)
        assert running.stage(("p3", 0, [b"a"])) is None


@effect_of("broker.staged_bytes_per_transaction_max")
def _(root):
    with Staging(root) as running:
        running.change(staged_bytes_per_transaction_max=2000)
        assert running.stage(("p", 0, [b"a" * 1500])) is None
        assert running.stage(("p", 1, [b"a" * 1500])) is Reason.INVALID
        running.change(staged_bytes_per_transaction_max=4000)
        assert running.stage(("p", 1, [b"a" * 1500])) is None


@effect_of("broker.staged_bytes_max")
def _(root):
    with Staging(root) as running:
        running.change(staged_bytes_max=2000)
        assert running.stage(("p", 0, [b"a" * 1500])) is None
        assert running.stage(("p", 0, [b"a" * 1500]), transaction="u@broker-a") is Reason.BUSY
        running.change(staged_bytes_max=4000)
        assert running.stage(("p", 0, [b"a" * 1500]), transaction="u@broker-a") is None


@effect_of("broker.staged_chunks_per_part_max")
def _(root):
    with Staging(root) as running:
        running.change(staged_chunks_per_part_max=1)
        assert running.stage(("p", 0, [b"a"])) is None
        assert running.stage(("p", 1, [b"a"])) is Reason.INVALID
        running.change(staged_chunks_per_part_max=2)
        assert running.stage(("p", 1, [b"a"])) is None


@effect_of("broker.staged_seconds_max")
def _(root):
    with Staging(root) as running:
        running.change(staged_seconds_max=5)
        assert running.stage(("p", 0, [b"a"]), seconds=3600) is None
        running.change(staged_seconds_max=3600)
        assert running.stage(("p", 0, [b"a"]), transaction="u@broker-a") is None
        running.clock.advance(10)
        running.broker.tick()
        assert running.broker.staging.state("t@broker-a").phase is Phase.ROLLED_BACK
        assert running.broker.staging.state("u@broker-a").phase is Phase.OPEN


@effect_of("broker.transaction_rows_max")
def _(root):
    with Staging(root) as running:
        running.change(transaction_rows_max=1)

        def commit(number):
            decide = Decide(
                transaction=f"t{number}@broker-a",
                outcome=DecisionOutcome.COMMIT,
                parts=(),
                row=f"r{number}",
                sequence=1,
            )
            return running.answer(lambda: running.broker.staging.decide(decide, SOMEBODY))

        assert (commit(1), commit(2)) == (None, Reason.INVALID)
        running.change(transaction_rows_max=2)
        assert commit(2) is None


@effect_of("broker.slave_read_enable")
def _(root):
    with Running(root, {"access_message_in_memory_max_ratio": 0}) as running:
        running.fill(10)
        replicas = running.broker.replicas
        replicas.report(replicas.connect("127.0.0.1:1"), running.store.log.end)
        assert running.pull().ext["suggestWhichBrokerId"] == "0"
        running.change(slave_read_enable=True)
        assert running.pull().ext["suggestWhichBrokerId"] == "1"


@effect_of("broker.unflushed_bytes_max")
def _(root):
    with Running(root, {"flush_interval_commit_log": 3_600_000}) as running:
        running.fill(12, b"x" * 200_000)
        assert running.store.log.end - running.store.state.flushed > 2 * MIB
        running.change(unflushed_bytes_max=MIB)
        assert running.client.send("T").code == ResponseCode.SYSTEM_BUSY
        # Half of it is the slack: more than that is not flushed, so an answer asks for a flush and waits for it.
        running.change(unflushed_bytes_max=4 * MIB)
        running.client.feed(running.client.frame(RequestCode.SEND_MESSAGE_V2, send_header("T")))
        eventually(lambda: running.store.state.flushed > running.store.log.end - 2 * MIB)
        eventually(running.client.received)


@effect_of("broker.unanswered_bytes_max")
def _(root):
    disk = SlowDisk()
    with Running(root, {"flush_disk_type": "SYNC_FLUSH"}, disk) as running:
        client = running.client
        client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("T")))
        eventually(client.received)
        disk.may_sync.clear()
        try:
            for _ in range(600):  # more than 64 KiB of answers
                client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("T")))
            assert not client.received()
            running.change(unanswered_bytes_max=65_536)
            assert client.send("T").code == ResponseCode.SYSTEM_BUSY
        finally:
            disk.may_sync.set()
        eventually(client.received)


@effect_of("broker.auto_create_topics_max")
def _(root):
    with Running(root) as running:
        assert running.client.send("one").code == 0
        running.change(auto_create_topics_max=0)
        assert running.client.send("two").code == ResponseCode.TOPIC_NOT_EXIST
        running.change(auto_create_topics_max=1000)
        assert running.client.send("two").code == 0


@effect_of("broker.auto_create_topics_per_minute")
def _(root):
    with Running(root, auto_create_topics_per_minute=1) as running:
        assert running.client.send("one").code == 0
        assert running.client.send("two").code == ResponseCode.TOPIC_NOT_EXIST
        running.change(auto_create_topics_per_minute=600)
        running.clock.advance(1)
        assert running.client.send("two").code == 0


@effect_of("broker.auto_create_groups_max")
def _(root):
    with Running(root) as running:
        running.fill(1)
        running.change(auto_create_groups_max=0)
        assert running.pull(group="new").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        running.change(auto_create_groups_max=1000)
        assert running.pull(group="new").code == ResponseCode.SUCCESS


@effect_of("broker.auto_create_groups_per_minute")
def _(root):
    with Running(root, auto_create_groups_per_minute=1) as running:
        running.fill(1)
        assert running.pull(group="one").code == ResponseCode.SUCCESS
        assert running.pull(group="two").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        running.change(auto_create_groups_per_minute=600)
        running.clock.advance(1)
        assert running.pull(group="two").code == ResponseCode.SUCCESS


# ---- store --------------------------------------------------------------------------------------------------------


@effect_of("store.max_message_size")
def _(root):
    with Running(root, {"max_message_size": 2000}) as running:
        for way in ({}, {"properties": {"WAIT": "false"}}):  # the fast path and the slow one
            assert running.client.send("T", b"x" * 2001, **way).code == ResponseCode.MESSAGE_ILLEGAL
            assert running.client.send("T", b"x" * 2000, **way).code == 0
        running.change(max_message_size=3000)
        for way in ({}, {"properties": {"WAIT": "false"}}):
            assert running.client.send("T", b"x" * 3000, **way).code == 0
        running.change(max_message_size=1000)
        for way in ({}, {"properties": {"WAIT": "false"}}):
            assert running.client.send("T", b"x" * 1001, **way).code == ResponseCode.MESSAGE_ILLEGAL


@effect_of("store.flush_interval_commit_log")
def _(root):
    with Running(root, {"flush_interval_commit_log": 3_600_000}) as running:
        running.fill(1)
        assert running.store.state.flushed < running.store.log.end
        running.change(flush_interval_commit_log=1)
        eventually(lambda: running.store.state.flushed == running.store.log.end)
        running.fill(1)
        eventually(lambda: running.store.state.flushed == running.store.log.end)


def local_hour(clock, later=0):
    return f"{(dt.datetime.fromtimestamp(clock.now_ms() / 1000).hour + later) % 24:02}"  # noqa: DTZ006  deleteWhen is local time


def retention(root, **options):
    """A running broker with some full log files that are ten hours old; nothing is deleted at this hour."""
    never = local_hour(FakeClock(), later=15)
    small = {"mapped_file_size_commit_log": 65_536, "max_message_size": 2000}
    return Running(root, {**small, "delete_when": never, **options})


def expired(running):
    """How many log files go now."""
    return running.store.keeper.retain(running.clock.now_ms())


@effect_of("store.file_reserved_time")
def _(root):
    with retention(root) as running:
        running.fill(200)
        running.clock.advance(10 * HOUR)
        running.disk.used = 80.0
        assert not expired(running)
        running.change(file_reserved_time=5)
        assert expired(running)


@effect_of("store.delete_when")
def _(root):
    with retention(root, file_reserved_time=5) as running:
        running.fill(200)
        running.clock.advance(10 * HOUR)
        assert not expired(running)
        running.change(delete_when=local_hour(running.clock))
        assert expired(running)


@effect_of("store.disk_max_used_space_ratio")
def _(root):
    with retention(root, file_reserved_time=5) as running:
        running.fill(200)
        running.clock.advance(10 * HOUR)
        running.disk.used = 50.0
        assert not expired(running)
        running.change(disk_max_used_space_ratio=40)
        assert expired(running)


@effect_of("store.clean_file_forcibly_enable")
def _(root):
    with retention(root, clean_file_forcibly_enable=False) as running:
        running.fill(200)
        running.disk.used = 87.0
        assert not expired(running)
        running.change(clean_file_forcibly_enable=True)
        assert expired(running)


@effect_of("store.disk_space_clean_forcibly_ratio")
def _(root):
    with retention(root) as running:
        running.fill(200)
        running.disk.used = 60.0
        assert not expired(running)
        running.change(disk_space_clean_forcibly_ratio=0.55)
        assert expired(running)


@effect_of("store.disk_space_warning_level_ratio")
def _(root):
    with retention(root) as running:
        running.disk.used = 60.0
        expired(running)
        assert running.client.send("T").code == 0
        running.change(disk_space_warning_level_ratio=0.55)
        expired(running)
        assert running.client.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE


@effect_of("store.max_transfer_count_on_message_in_memory")
def _(root):
    with Running(root) as running:
        running.fill(50)
        assert running.pulled(max_messages=100)[0] == 32
        running.change(max_transfer_count_on_message_in_memory=40)
        assert running.pulled(max_messages=100)[0] == 40


@effect_of("store.max_transfer_bytes_on_message_in_memory")
def _(root):
    with Running(root) as running:
        running.fill(50)
        assert running.pulled()[1] > 32_000
        running.change(max_transfer_bytes_on_message_in_memory=10_000)
        assert running.pulled()[1] < 10_000
        pulled = running.store.reader.pull("T", 0, 0, 32, None, None)
        assert len(pulled.body) < 10_000, "also where nobody says how many bytes"


OLD = {"access_message_in_memory_max_ratio": 0}
"""Every message is an old one."""


@effect_of("store.access_message_in_memory_max_ratio")
def _(root):
    with Running(root) as running:
        running.fill(50)
        assert running.pulled()[0] == 32
        running.change(**OLD)
        assert running.pulled()[0] == 8


@effect_of("store.max_transfer_count_on_message_in_disk")
def _(root):
    with Running(root, OLD) as running:
        running.fill(50)
        assert running.pulled()[0] == 8
        running.change(max_transfer_count_on_message_in_disk=3)
        assert running.pulled()[0] == 3


@effect_of("store.max_transfer_bytes_on_message_in_disk")
def _(root):
    with Running(root, OLD) as running:
        running.fill(50)
        assert running.pulled()[1] > 8000
        running.change(max_transfer_bytes_on_message_in_disk=4000)
        assert running.pulled()[1] < 4000


# ---- listening ports ----------------------------------------------------------------------------------------------


def at_listener(start, use):
    """Run a whole server; `use(service)` is called in a thread beside it, as its clients are."""

    async def main():
        service = await start()
        try:
            await asyncio.to_thread(use, service)
        finally:
            await service.close()

    asyncio.run(main())


def connect(service, **options):
    host, _, port = service.address.rpartition(":")
    raw = socket.socket()
    for option, value in options.items():
        raw.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
    raw.settimeout(PATIENCE)
    raw.connect((host, int(port)))
    return raw


def served(raw):
    """Whether the server answers and does not close."""
    with contextlib.suppress(ConnectionError):
        raw.sendall(encode(Command(99_999)))
        return bool(raw.recv(65_536))
    return False


def limits_connections(service, section):
    with connect(service) as one, connect(service) as two:
        assert served(one)
        assert served(two)
        service.settings[section].change({"connectionsMax": 2})
        with connect(service) as three:
            assert not served(three)
        assert served(one)
        service.settings[section].change({"connectionsMax": 3})
        with connect(service) as three:
            assert served(three)


def a_broker(root):
    return lambda: start_broker(BrokerOptions(listen_port=0, broker_name="b"), small_store(root))


def a_namesrv(root):
    options = NamesrvOptions(listen_port=0, kv_config_path=str(root / "kv.json"))
    return lambda: start_namesrv(options)


@effect_of("broker.connections_max")
def _(root):
    at_listener(a_broker(root), lambda service: limits_connections(service, "broker"))


@effect_of("namesrv.connections_max")
def _(root):
    at_listener(a_namesrv(root), lambda service: limits_connections(service, "namesrv"))


def sets_the_level(service, section):
    before = logging.getLogger().level
    follow_log_level(service)
    try:
        service.settings[section].change({"logLevel": "error"})
        assert logging.getLogger().level == logging.ERROR
    finally:
        logging.getLogger().setLevel(before)


def sets_the_level_of_a_part(service, section):
    part, whole = logging.getLogger("metaq.broker.tested"), logging.getLogger()
    before = whole.level
    follow_log_level(service)
    change = service.settings[section].change
    try:
        whole.setLevel(logging.INFO)
        change({"logLevels": "metaq.broker.tested=debug,metaq.other=error"})
        assert part.isEnabledFor(logging.DEBUG)
        assert not whole.isEnabledFor(logging.DEBUG)
        change({"logLevels": "metaq.broker=error"})
        assert not part.isEnabledFor(logging.WARNING)
        change({"logLevels": ""})
        assert not part.isEnabledFor(logging.DEBUG)
        assert part.isEnabledFor(logging.INFO)
    finally:
        whole.setLevel(before)


@effect_of("broker.log_levels")
def _(root):
    at_listener(a_broker(root), lambda service: sets_the_level_of_a_part(service, "broker"))


@effect_of("namesrv.log_levels")
def _(root):
    at_listener(a_namesrv(root), lambda service: sets_the_level_of_a_part(service, "namesrv"))


@effect_of("broker.log_level")
def _(root):
    at_listener(a_broker(root), lambda service: sets_the_level(service, "broker"))


@effect_of("namesrv.log_level")
def _(root):
    at_listener(a_namesrv(root), lambda service: sets_the_level(service, "namesrv"))


@effect_of("namesrv.unanswered_bytes_max")
def _(root):
    asked = 300  # answers of 60 KB, and none is read before the last was asked for: the kernel does not take so much

    def use(service):
        get = request(RequestCode.GET_KV_CONFIG, headers.KvKeyHeader(namespace="n", key="k"))
        with connect(service) as raw:
            put = headers.PutKvHeader(namespace="n", key="k", value="v" * 60_000)
            assert ask(raw, request(RequestCode.PUT_KV_CONFIG, put)).code == 0

        def has_room():
            with connect(service) as third:
                return served(third)

        for limit, is_closed in ((64 * MIB, False), (65_536, True)):
            service.settings["namesrv"].change({"unansweredBytesMax": limit, "connectionsMax": 2})
            with connect(service, SO_RCVBUF=16_384) as lazy, connect(service) as other:
                lazy.sendall(encode(get) * asked)
                if is_closed:
                    eventually(has_room, what="the lazy one is closed")
                assert ask(other, get).code == 0
                assert (answers(lazy, asked) < asked) is is_closed
            eventually(has_room, what="both are closed")

    at_listener(a_namesrv(root), use)


def ask(raw, command):
    raw.sendall(encode(command))
    reader = Connection()
    while (answer := reader.next_command()) is None:
        data = raw.recv(1 << 20)
        assert data, "closed instead of answered"
        reader.receive_data(data)
    return answer


def answers(raw, wanted):
    """How many whole answers come before the end of the connection, at most `wanted`."""
    reader, count = Connection(), 0
    with contextlib.suppress(ConnectionError):
        while count < wanted and (data := raw.recv(1 << 20)):
            reader.receive_data(data)
            while reader.next_command() is not None:
                count += 1
    return count


@effect_of("namesrv.address_page")
def _(root):
    def use(service):
        url = f"http://{service.addresses['address page']}/rocketmq/nsaddr"
        for given, told in (("a:1; b:2", "a:1;b:2"), ("c:3", "c:3"), ("", service.address)):
            service.settings["namesrv"].change({"addressPage": given})
            assert fetch_text(url, PATIENCE) == told

    options = NamesrvOptions(listen_port=0, kv_config_path=str(root / "kv.json"), address_page_port=0)
    at_listener(lambda: start_namesrv(options), use)


@effect_of("namesrv.order_message_enable")
def _(root):
    def use(service):
        with connect(service) as raw:
            put = headers.PutKvHeader(namespace=ORDER_NAMESPACE, key="T", value="b:4")
            assert ask(raw, request(RequestCode.PUT_KV_CONFIG, put)).code == 0
            who = headers.RegisterBrokerHeader(
                broker_name="b", broker_address="127.0.0.1:1", cluster="c", ha_address="127.0.0.1:2", broker_id=0
            )
            body = bodies.registration(DataVersion(1, 1), {"T": TopicConfig("T")})
            assert ask(raw, request(RequestCode.REGISTER_BROKER, who, body)).code == 0
            route = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic="T"))
            assert b"b:4" not in ask(raw, route).body
            service.settings["namesrv"].change({"orderMessageEnable": "true"})
            assert b"b:4" in ask(raw, route).body

    at_listener(a_namesrv(root), use)
