"""Consumers that are far behind read from the slave of a pair, and come back; and what they do without it."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator

from metaq import aio
from metaq.broker.broker import Broker
from metaq.broker.pulls.redirect import Redirect
from metaq.model import MessageQueue, TopicConfig
from tests.app.test_pair import Pair, opened, until

COUNT, AT_ONCE = 300, 10
KEY = ("orders", 0)
QUEUE = MessageQueue("orders", "a", 0)


@contextlib.asynccontextmanager
async def behind(root: pathlib.Path) -> AsyncIterator[Pair]:
    """A pair to which all messages are old but the log's last one, with so many in one queue."""
    reads = {"slave_read_enable": True}
    async with opened(root, reads, {"access_message_in_memory_max_ratio": 0}, **reads) as pair:
        pair.leader.topics.update(TopicConfig("orders", 1, 1))
        await send(pair, 0, COUNT)
        await copied(pair)
        await until(lambda: pair.follower.topics.get("orders"))
        yield pair


async def send(pair: Pair, first: int, count: int) -> None:
    async with aio.Producer(pair.namesrv.address) as producer:
        for number in range(first, first + count):
            await producer.send("orders", b"%d" % number)


async def copied(pair: Pair) -> None:
    """Wait until the master knows that its slave has all."""
    await until(lambda: pair.leader.replicas.reported())
    await until(lambda: max(pair.leader.replicas.reported().values()) == pair.leader.store.log.end)


def consumer(pair: Pair) -> aio.Consumer:
    """With little in hand, so that it goes on pulling."""
    return aio.Consumer(
        pair.namesrv.address, group="g", topics="orders", start="earliest", pull_count=AT_ONCE, queue_messages_max=2 * AT_ONCE
    )  # fmt: skip


async def take(members: aio.Consumer, count: int) -> list[int]:
    got = list[int]()
    async for message in members:
        async with message:
            got.append(int(message.body))
        if len(got) == count:
            return got
    raise AssertionError(got)


def served(broker: Broker) -> int:
    """Messages that it has given so far."""
    for fast_path in broker.pulls.fast_paths._fast_paths.values():
        broker.pulls.fast_paths.take_over(fast_path)
    return broker.stats.got_messages


def waits_at(broker: Broker) -> bool:
    return bool(list(broker.held_pulls.waiting(KEY)))


def test_a_group_that_is_behind_reads_from_the_slave_and_comes_back(tmp_path):
    """The master gives the first messages and what comes when the group has caught up; its progress is there, too."""

    async def body() -> None:
        async with behind(tmp_path) as pair, consumer(pair) as member:
            assert await take(member, COUNT) == list(range(COUNT))
            assert served(pair.leader) <= 2 * AT_ONCE
            assert served(pair.follower) >= COUNT - 2 * AT_ONCE
            await until(lambda: waits_at(pair.leader))
            before = served(pair.leader)
            await send(pair, COUNT, 1)
            assert await take(member, 1) == [COUNT]
            assert served(pair.leader) == before + 1
            await member.close()
            assert pair.leader.offsets.get("g", "orders", 0) == COUNT + 1

    asyncio.run(body())


def test_who_is_behind_goes_on_at_the_master_where_the_slave_lags(tmp_path, monkeypatch):
    """Nobody waits at a slave for what its master has."""

    async def body() -> None:
        async with behind(tmp_path) as pair:
            pair.link.stall()
            await send(pair, COUNT, COUNT)
            held = list[object]()
            hold = pair.follower.held_pulls.hold
            monkeypatch.setattr(pair.follower.held_pulls, "hold", lambda pull: held.append(pull.key) or hold(pull))
            async with consumer(pair) as member:
                assert await take(member, 2 * COUNT) == list(range(2 * COUNT))
            assert served(pair.follower) >= COUNT - 3 * AT_ONCE
            assert served(pair.leader) >= COUNT
            assert KEY not in held
            pair.link.mend()

    asyncio.run(body())


def test_who_is_sent_to_a_slave_that_is_away_goes_on_at_the_master(tmp_path, monkeypatch, caplog):
    """At once, and without a try for each pull: a RocketMQ master suggests its slave whether it is there or not."""
    monkeypatch.setattr(Redirect, "after", lambda _self, _group, _pulled: 1)

    async def body() -> None:
        async with behind(tmp_path) as pair, consumer(pair) as member:
            got = await take(member, COUNT // 2)
            assert served(pair.follower) > 0
            await pair.slave.close()
            got += await take(member, COUNT - len(got))
            assert got == list(range(COUNT))
            assert 1 <= caplog.text.count("its master is asked") <= 2  # the queue, and that of the group's retries
            await pair.start_slave()

    asyncio.run(body())


def test_readers_and_pull_consumers_read_from_the_slave_as_well(tmp_path):
    """To the queue's end, as the master has it."""

    async def body() -> None:
        async with behind(tmp_path) as pair:
            async with aio.Reader(
                pair.namesrv.address, "orders", start="earliest", stop_at_end=True, pull_count=AT_ONCE
            ) as reader:
                assert [int(message.body) async for message in reader] == list(range(COUNT))
            assert served(pair.follower) >= COUNT - 2 * AT_ONCE
            before = served(pair.follower)
            pair.link.stall()
            await send(pair, COUNT, AT_ONCE)
            async with aio.PullConsumer(pair.namesrv.address, group="p") as puller:
                got, offset = list[int](), 0
                while (batch := await puller.pull(QUEUE, offset, AT_ONCE)).messages:
                    got += [int(message.body) for message in batch.messages]
                    offset = batch.next_offset
            assert got == list(range(COUNT + AT_ONCE))
            assert served(pair.follower) - before >= COUNT - 3 * AT_ONCE
            pair.link.mend()

    asyncio.run(body())
