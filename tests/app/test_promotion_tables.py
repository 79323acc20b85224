"""Tables at a change of leaders by hand: what the old leader had of topics is at the new one when that begins to lead."""

from __future__ import annotations

import asyncio
import errno
import pathlib
import time

import pytest

from metaq.app.role.following import HURRY_SECONDS
from metaq.client.conversation.administration import Promote
from metaq.model import TopicConfig
from metaq.model.leadership import ReplicaState
from metaq.store.disk import Disk
from tests.app.test_pair import until
from tests.app.test_promotion import Brokers, opened

pytestmark = pytest.mark.slow

TOPIC = TopicConfig("orders", 2, 2)
SLOW_SECONDS = 0.5
"""Longer than a promotion takes that does not wait for it."""


class SlowTopics(Disk):
    """Takes its time with the table of topics, from the moment on that it is said to be slow."""

    is_slow = fails = False

    def sync_file(self, descriptor: int) -> None:
        is_topics = "topics.json" in pathlib.Path(f"/proc/self/fd/{descriptor}").readlink().name
        if self.is_slow and is_topics:
            time.sleep(SLOW_SECONDS)
        if self.fails and is_topics:
            raise OSError(errno.EIO, "the disk is broken")
        super().sync_file(descriptor)


async def start_again(brokers: Brokers, name: str) -> SlowTopics:
    """With a disk that can be slow."""
    disk = SlowTopics()
    await brokers.stop(name)
    await brokers.start(name, disk=disk)
    return disk


async def promoted(brokers: Brokers) -> ReplicaState:
    """Have `b` lead. Returns its state, with its tables as they are at that moment."""
    led = await brokers.ask("b", Promote())
    assert led.leads
    return led


def test_a_slave_that_has_not_found_its_master_takes_its_tables(tmp_path):
    """It knows by what it keeps, or by the name servers, whom it has step down: the log that it has may be all that there is."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            slave = brokers.running["b"]._tasks.role._slave
            await until(lambda: slave.search.address)
            await slave.tables.stop()
            slave.search.address = None
            brokers.broker("a").topics.update(TOPIC)
            await until(lambda: brokers.broker("a").topics.get("orders"))
            assert brokers.broker("b").topics.get("orders") is None
            await promoted(brokers)
            assert brokers.broker("b").topics.get("orders") == TOPIC

    asyncio.run(body())


def test_who_leads_has_saved_what_its_master_has_told(tmp_path):
    """A client's next request is for a topic that the master had."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            disk = await start_again(brokers, "b")
            await until(lambda: brokers.running["b"]._tasks.role._slave.search.address)
            disk.is_slow = True
            brokers.broker("a").topics.update(TOPIC)
            await until(lambda: brokers.broker("a").topics.get("orders"))
            await promoted(brokers)
            assert brokers.broker("b").topics.get("orders") == TOPIC

    asyncio.run(body())


def test_what_the_old_leader_is_saving_is_at_the_new_one(tmp_path):
    """Whoever wants the change is told that it is made, and not where."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await brokers.stop("b")
            disk = await start_again(brokers, "a")
            await brokers.start("b")
            await until(lambda: brokers.running["b"]._tasks.role._slave.search.address)
            disk.is_slow = True
            change = brokers.broker("a").topics.update(TOPIC)
            await promoted(brokers)
            await until(lambda: change.done)
            assert change.error is None
            assert brokers.broker("b").topics.get("orders") == TOPIC

    asyncio.run(body())


def test_a_slave_that_cannot_save_does_not_say_that_it_has_what_it_was_told(tmp_path, caplog):
    """The master may tell an administrator that a change is at its slaves."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            disk = await start_again(brokers, "b")
            await until(lambda: brokers.running["b"]._tasks.role._slave.search.address)
            feed, asked = brokers.broker("a").feed, []
            has_news = feed.has_news

            def noted(number: int, position: int) -> bool:
                asked.append((number, position))
                return has_news(number, position)

            feed.has_news = noted
            await until(lambda: asked)
            disk.fails = True
            brokers.broker("a").topics.update(TOPIC)
            await until(lambda: brokers.broker("a").topics.get("orders"))
            known = feed.mark
            await until(lambda: "is not taken over yet" in caplog.text)
            await asyncio.sleep(3 * HURRY_SECONDS)
            assert all(position < known[1] for number, position in asked if number == known[0])

    asyncio.run(body())
