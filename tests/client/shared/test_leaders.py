"""A changed leader is found for all topics by one question, and wakes those who wait for it."""

from __future__ import annotations

import asyncio

from metaq.client.conversation.call import At
from metaq.client.conversation.name_servers import NameServers
from metaq.client.conversation.routes import GetCluster, GetRoute
from metaq.client.shared.leaders import Leaders
from metaq.client.shared.routes import KnownRoutes
from metaq.errors import NoRoute
from metaq.model import BrokerData, ClusterInfo, QueueData, Route
from tests.support import PATIENCE

OLD, NEW = {0: "a:1", 1: "b:1"}, {0: "b:1"}


class Names:
    """A name server: answers with what it has, and counts the routes that were asked for."""

    def __init__(self) -> None:
        self.addresses = OLD
        self.topics = {"orders", "bills"}
        self.asked: list[str] = []

    def _broker(self) -> BrokerData:
        return BrokerData("C", "pair", self.addresses)

    async def consult(self, consultation):
        step, value = next(consultation), None
        while True:
            assert isinstance(step, At)
            value = None
            if isinstance(step.call, GetCluster):
                value = ClusterInfo({"pair": self._broker()} if self.addresses else {}, {})
            elif isinstance(step.call, GetRoute):
                self.asked.append(step.call.topic)
                await asyncio.sleep(0)
                if step.call.topic in self.topics and self.addresses:
                    value = Route(step.call.topic, (QueueData("pair", 2, 2, 6),), (self._broker(),))
            try:
                step = consultation.send(value)
            except StopIteration as end:
                return end.value


def routes_of(names: Names, on_broker=lambda _: None) -> tuple[KnownRoutes, list[str]]:
    changed: list[str] = []
    return KnownRoutes(NameServers(["n:1"]), names.consult, changed.append, on_broker), changed


def test_what_one_topic_tells_of_a_broker_holds_for_all():
    """A new list of writable queues for each: what was prepared for the old leader is dropped."""

    async def body() -> None:
        names, told = Names(), list[BrokerData]()
        routes, changed = routes_of(names, told.append)
        for topic in names.topics:
            await routes.publish_queues(topic)
        before = {topic: routes.publish_queues_now(topic) for topic in names.topics}
        changed.clear()
        names.addresses = NEW
        await routes.route("bills", fresh=True)
        assert routes.broker("pair").master == "b:1"
        assert (await routes.route("orders")).broker("pair").master == "b:1"
        assert sorted(changed) == ["bills", "orders"]
        for topic in names.topics:
            assert routes.publish_queues_now(topic) == before[topic]
            assert routes.publish_queues_now(topic) is not before[topic]
        assert [data.master for data in told] == ["a:1", "b:1"]
        routes.heard(BrokerData("C", "pair", OLD))
        assert routes.broker("pair").master == "a:1"

    asyncio.run(body())


def test_a_thousand_failed_sends_ask_once():
    async def body() -> None:
        names = Names()
        routes, _ = routes_of(names)
        await routes.publish_queues("orders")
        names.asked.clear()
        for _ in range(3):
            await asyncio.gather(*(routes.recent_queues("orders") for _ in range(1000)))
        assert len(names.asked) <= 1

    asyncio.run(body())


def test_a_topic_without_a_leader_is_told_from_one_that_is_gone():
    """`away`: somebody may lead soon. A topic that nobody has, or that was deleted, is not waited for."""

    async def missing(routes: KnownRoutes, topic: str) -> bool:
        try:
            await routes.publish_queues(topic, fresh=True)
        except NoRoute as error:
            return error.away
        raise AssertionError("there is a route")

    async def body() -> None:
        names = Names()
        routes, _ = routes_of(names)
        assert not await missing(routes, "unknown")
        await routes.publish_queues("orders")
        names.addresses = {1: "b:1"}
        assert await missing(routes, "orders")
        names.addresses = {}  # no broker is left
        assert await missing(routes, "orders")
        names.addresses, names.topics = OLD, set()  # deleted
        assert not await missing(routes, "orders")

    asyncio.run(body())


def test_who_waits_for_a_leader_is_woken_by_its_change_and_the_search_ends():
    async def body() -> None:
        now, looks = [0.0], 0
        known = BrokerData("C", "pair", {1: "b:1"})

        async def look(_broker: str) -> None:
            nonlocal looks, known
            looks += 1
            now[0] += 1.0
            if looks == 3:
                known = BrokerData("C", "pair", NEW)
                found.append(leaders.changed(known))

        tasks, found = list[asyncio.Task[None]](), list[str | None]()
        leaders = Leaders(lambda: now[0], lambda work: tasks.append(asyncio.ensure_future(work)), lambda _: known, look)
        assert leaders.changed(BrokerData("C", "pair", OLD)) is None  # nobody was there before
        assert leaders.changed(known) is None  # nobody leads
        leaders.doubt("pair")
        leaders.doubt("pair")
        assert len(tasks) == 1
        await asyncio.wait_for(leaders.pause("pair", PATIENCE), PATIENCE)
        assert found == ["a:1"]
        await leaders.pause("pair", PATIENCE, since=2.5)  # it has changed since
        await asyncio.wait_for(tasks[0], PATIENCE)
        leaders.doubt("pair")
        assert len(tasks) == 2
        tasks[1].cancel()

    asyncio.run(body())
