"""A master and its slave as they run: what lies outside the log is at the slave a moment later, and after whatever happens to either."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator

import pytest

import metaq.servers.remoting.following as served
from metaq.app.role import following
from metaq.broker.broker import Broker
from metaq.broker.requests import OffsetCommit
from metaq.client.shared.transport import Transport
from metaq.model import GroupConfig, SubscriptionData, TopicConfig
from metaq.model.cron import parse_cron
from metaq.model.metaq1.settings import DeletePolicy
from metaq.model.retention import FixedRetentions, TopicRetention
from metaq.store.reads.pull import ReadStatus
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import request
from tests.app.test_pair import FILE, Pair, commit, opened, until
from tests.store.support import answer, message, read_all
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

TOPIC = TopicConfig("orders", 2, 2)


async def make(pair: Pair) -> None:
    """The topic orders with two queues, and the group g, at both."""
    pair.leader.topics.update(TOPIC)
    pair.leader.groups.update(GroupConfig("g"))
    await until(lambda: pair.follower.topics.get("orders") and pair.follower.groups.get("g"))


def put(broker: Broker, queue_id: int, *bodies: bytes) -> None:
    for body in bodies:
        broker.appender.put([message("orders", queue_id, body)])


async def make_anew(pair: Pair) -> None:
    """Delete the topic, and make it again at once."""
    gone = asyncio.get_running_loop().create_future()
    pair.leader.delete_topic("orders").when_done(gone.set_result)
    assert await gone is None
    pair.leader.topics.update(TOPIC)
    await until(lambda: pair.leader.topics.get("orders"))


def bodies(broker: Broker) -> list[list[bytes]]:
    return [read_all(broker.store, "orders", queue_id) for queue_id in range(2)]


def generations(broker: Broker) -> list[int]:
    return [broker.deletions.generation(topic) for topic in ("orders", "another")]


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[Transport]:
    transport = Transport(lambda _a, _c: None, lambda _a: None, lambda _a: None)
    try:
        yield transport
    finally:
        await transport.close()


def test_a_topic_made_anew_between_two_looks_is_the_same_at_both(tmp_path):
    """While the slave follows and while it is away: no old message is left, and positions know the same generations."""

    async def body() -> None:
        async with opened(tmp_path) as pair:
            await make(pair)
            for away in (False, True):
                put(pair.leader, 0, b"old", b"older")
                put(pair.leader, 1, b"old too")
                await pair.same()
                if away:
                    await pair.slave.close()
                await make_anew(pair)
                put(pair.leader, 0, b"new")
                if away:
                    await pair.start_slave()
                await pair.same()
                await until(lambda: bodies(pair.follower) == [[b"new"], []])
                await until(lambda: generations(pair.follower) == generations(pair.leader))
                assert generations(pair.follower)[0] > 0 > generations(pair.follower)[1]
            await pair.slave.close()
            await pair.start_slave()
            assert bodies(pair.follower) == [[b"new"], []]
            assert generations(pair.follower) == generations(pair.leader)

    asyncio.run(body())


def test_a_deletion_waits_for_a_log_that_is_behind(tmp_path):
    """The slave's way to the log is slower than that to the tables; then it leads all the same."""

    async def body() -> None:
        async with opened(tmp_path) as pair:
            await make(pair)
            put(pair.leader, 0, b"old")
            await pair.same()
            pair.link.stall()
            put(pair.leader, 1, b"never copied in time")
            await make_anew(pair)
            put(pair.leader, 0, b"new")
            commit(pair.leader, 1)
            await until(lambda: pair.follower.offsets.get("g", "orders", 0) == 1)
            await until(lambda: pair.follower.followed._marks.waiting)
            assert bodies(pair.follower) == [[b"old"], []]
            pair.link.mend()
            await until(lambda: bodies(pair.follower) == [[b"new"], []])
            assert pair.follower.offsets.get("g", "orders", 0) == 1

    asyncio.run(body())


def test_settings_progress_filters_and_closed_partitions_are_there_at_once(tmp_path, monkeypatch):
    """No look every ten seconds is in between."""
    monkeypatch.setattr(following, "SYNC_SECONDS", 3600.0)

    async def body() -> None:
        async with opened(tmp_path) as pair:
            await make(pair)
            leader, follower = pair.leader, pair.follower
            topic = TopicConfig("orders", 3, 4, perm=4, sys_flag=1, filter_type="MULTI_TAG")
            leader.topics.update(topic)
            leader.topics.set_ordered(["orders"])
            group = GroupConfig("g", retry_max=3, slow_broker_id=2, consume_broadcast_enable=False)
            leader.groups.update(group)
            await until(
                lambda: (
                    follower.topics.get("orders") == leader.topics.get("orders") and leader.topics.get("orders").order
                )
            )
            await until(lambda: follower.groups.get("g") == group)
            for offset in (3, 1):
                commit(leader, offset)
                await until(lambda offset=offset: follower.offsets.get("g", "orders", 0) == offset)
            wanted = SubscriptionData("orders", "a > 5", expression_type="SQL92", version=3)
            leader.filters.register("g", {"orders": wanted}, "peer")
            await until(lambda: follower.filters.table == leader.filters.table != {})
            leader.filters.drop_group("g")
            await until(lambda: not follower.filters.table)
            leader.closed_partitions.close("orders", range(1, 2))
            await until(lambda: follower.closed_partitions.of("orders") == {1})
            pull = headers.PullHeader(
                group="g", topic="orders", queue_id=1, queue_offset=0, max_messages=32, sys_flag=4,
                commit_offset=0, suspend_ms=0, subscription="*", sub_version=0,
            )  # fmt: skip
            async with client() as ask:
                told = await ask.call(pair.slave.address, request(RequestCode.PULL_MESSAGE, pull), PATIENCE)
                assert told.code == ResponseCode.NO_PERMISSION
                leader.closed_partitions.open("orders")
                await until(lambda: not follower.closed_partitions)
                told = await ask.call(pair.slave.address, request(RequestCode.PULL_MESSAGE, pull), PATIENCE)
                assert told.code != ResponseCode.NO_PERMISSION

    asyncio.run(body())


def test_what_has_expired_at_the_master_cannot_be_read_at_the_slave(tmp_path):
    """By a rule of the topic's own, though the bytes are still there; after a restart of the slave too."""

    async def body() -> None:
        async with opened(tmp_path) as pair:
            await make(pair)
            while pair.leader.store.log.end < 3 * FILE:
                put(pair.leader, 0, b"x" * 100_000)
            await pair.same()
            cron = parse_cron("* * * * * ?")
            rule = TopicRetention(DeletePolicy.parse("delete,1"), cron)
            long = TopicRetention(DeletePolicy.parse("delete,1000"), cron)
            pair.leader.store.keeper.retain_by(FixedRetentions(long, {"orders": rule}))
            pair.leader.appender.put([message("long", 0, b"keeps the files")])
            later = pair.leader.clock.now_ms() + 5 * 3_600_000
            await asyncio.to_thread(pair.leader.store.keeper.retain, later, at_once=True)
            floor = pair.leader.store.keeper.floor("orders") or pair.leader.store.log.min
            assert floor >= 2 * FILE
            await until(
                lambda: pair.follower.store.keeper.floor("orders") == pair.leader.store.keeper.floor("orders") > 0
            )
            await pair.slave.close()
            await pair.start_slave()
            gone = answer(pair.follower.store.reader.pull("orders", 0, 0, 32))
            assert gone.status is ReadStatus.OFFSET_TOO_SMALL
            assert gone.next_offset == answer(pair.leader.store.reader.pull("orders", 0, 0, 32)).next_offset

    asyncio.run(body())


def test_a_slave_follows_a_master_that_was_away(tmp_path, monkeypatch):
    """What groups have committed at the slave meanwhile goes back; what the master has lost or made is the same at both again."""
    monkeypatch.setattr(following, "HOLD_SECONDS", 0.2)

    async def body() -> None:
        async with opened(tmp_path) as pair:
            await make(pair)
            put(pair.leader, 0, *[b"x"] * 9)
            commit(pair.leader, 2)
            pair.leader.closed_partitions.close("orders", range(1, 2))
            pair.leader.topics.update(TopicConfig("going", 1, 1))
            await pair.same()
            await until(lambda: pair.follower.offsets.get("g", "orders", 0) == 2 and pair.follower.closed_partitions)
            await until(lambda: pair.follower.topics.get("going"))
            port, ha_port = (
                int(pair.master.addresses[name].rpartition(":")[2]) for name in ("remoting", "replication")
            )
            await pair.master.close()
            commit(pair.follower, 7)
            await pair.start_master(port, ha_port)
            await until(lambda: pair.leader.offsets.get("g", "orders", 0) == 7)
            await until(lambda: not pair.follower.closed_partitions)  # open again after a start
            pair.leader.delete_topic("going")
            await until(lambda: pair.follower.topics.get("going") is None)
            commit(pair.leader, 8)
            await until(lambda: pair.follower.offsets.get("g", "orders", 0) == 8)

    asyncio.run(body())


def test_a_master_that_does_not_know_the_request_is_asked_as_a_rocketmq_is(tmp_path, monkeypatch, caplog):
    """The log says so once."""
    caplog.set_level("INFO")
    monkeypatch.setattr(following, "SYNC_SECONDS", 0.02)
    monkeypatch.setattr(following, "HURRY_SECONDS", 0.02)
    monkeypatch.setattr(
        "metaq.servers.remoting.server.FollowingHandlers",
        type("NoHandlers", (), {"__init__": lambda self, broker: None, "tick": lambda self: None}),
    )

    async def body() -> None:
        async with opened(tmp_path) as pair:
            await make(pair)
            put(pair.leader, 0, *[b"x"] * 9)
            for offset in (3, 4, 1):
                commit(pair.leader, offset)
                await until(lambda offset=offset: pair.follower.offsets.get("g", "orders", 0) == offset)
            await pair.same()
            pair.leader.delete_topic("orders")
            await until(lambda: pair.follower.topics.get("orders") is None)
        assert caplog.text.count("does not tell what has changed in its tables") == 1

    asyncio.run(body())


def test_a_slave_is_asked_in_vain_and_waiting_questions_are_few(tmp_path, monkeypatch):
    """A slave knows no changes; of one host sixteen wait, one of a connection, and one that is gone makes room."""
    monkeypatch.setattr(served, "HELD_OF_HOST_MAX", 2)

    async def body() -> None:
        async with opened(tmp_path) as pair:
            await make(pair)
            everything = request(RequestCode.FOLLOW_TABLES, headers.FollowTablesHeader())
            async with client() as one, client() as two:
                told = await one.call(pair.slave.address, everything, PATIENCE)
                assert (told.code, "is a slave" in told.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
                told = await one.call(pair.master.address, everything, PATIENCE)
                at = served.following.table_changes_of(told.body)
                assert at.complete
                waits = headers.FollowTablesHeader(feed=at.feed, position=at.position, suspend_ms=20_000)
                held = next(iter(pair.master._serving.started()))._sessions._following._held
                await until(lambda: held)  # the slave
                first = asyncio.create_task(
                    one.call(pair.master.address, request(RequestCode.FOLLOW_TABLES, waits), PATIENCE)
                )
                await until(lambda: len(held) == 2)
                full = await two.call(pair.master.address, request(RequestCode.FOLLOW_TABLES, waits), PATIENCE)
                assert (full.code, "2 of one host" in full.remark) == (ResponseCode.SYSTEM_BUSY, True)
                again = asyncio.create_task(
                    one.call(pair.master.address, request(RequestCode.FOLLOW_TABLES, waits), PATIENCE)
                )
                early = served.following.table_changes_of((await first).body)
                assert (early.position, early.topics) == (at.position, {})
                pair.leader.topics.update(TopicConfig("more", 1, 1))
                news = served.following.table_changes_of((await again).body)
                assert news.topics == {"more": TopicConfig("more", 1, 1)}
                last = headers.FollowTablesHeader(feed=news.feed, position=news.position, suspend_ms=20_000)
                left = asyncio.create_task(
                    one.call(pair.master.address, request(RequestCode.FOLLOW_TABLES, last), PATIENCE)
                )
                await until(lambda: len(held) == 2)
                left.cancel()
            await until(lambda: len(held) < 2)

    asyncio.run(body())


class Turns:
    """The longest turn of this loop, in seconds of this thread's own time: what others do on the machine does not count."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - before)


def test_large_tables_hold_up_neither_loop_and_changes_of_them_are_short(tmp_path, monkeypatch):
    """20 000 topics and 100 000 offsets come in pieces; then a commit is some hundred bytes."""
    sizes = list[int]()
    encode = served.following.table_changes

    def counted(changes: object) -> bytes:
        told = encode(changes)
        sizes.append(len(told))
        return told

    monkeypatch.setattr(served.following, "table_changes", counted)

    async def body() -> None:
        async with opened(tmp_path) as pair:
            await pair.slave.close()
            leader = pair.leader
            leader.topics.saved.start_with(
                {name: TopicConfig(name, 4, 4) for name in (f"topic{number}" for number in range(20_000))}
            )
            leader.groups.update(GroupConfig("g"))
            for number in range(100_000):
                leader.offsets.put("g", f"topic{number // 5}", number % 5, number)
            await pair.start_slave()
            follower, turns = pair.follower, Turns()
            sizes.clear()
            gc.collect()
            gc.disable()  # a full collection of this process takes longer than any piece of work
            watching = asyncio.create_task(turns.watch())
            await until(lambda: sum(map(len, follower.offsets.table.values())) == 100_000)
            await until(lambda: len(follower.topics.table) >= 20_000)
            await until(lambda: not leader.feed.has_news(*follower.followed.place))
            watching.cancel()
            assert max(sizes) < 1 << 20
            assert len(sizes) > 20
            print(f"longest turn {turns.longest * 1000:.1f} ms, {len(sizes)} answers, {sum(sizes)} bytes")
            assert turns.longest < 0.15
            sizes.clear()
            leader.commit_offset(OffsetCommit(group="g", topic="topic9", queue_id=0, offset=1))
            await until(lambda: follower.offsets.get("g", "topic9", 0) == 1)
            assert max(sizes) < 300

    try:
        asyncio.run(body())
    finally:
        gc.enable()
