"""Topic routes: queried at the name servers, cached, and refreshed.

A known route stays in use while no name server answers: a cluster keeps working without its name servers.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, TypeVar

from msgspec import structs

from metaq.client.conversation.call import FAULTS, Consultation
from metaq.client.conversation.name_servers import NameServers
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.conversation.sending.sending import Template
from metaq.errors import ConfigError, NoRoute
from metaq.model import BrokerData, MessageQueue, Route
from metaq.model.topics.route import OrderLayout, guessed
from metaq.model.topics.topic import Perm

log = logging.getLogger("metaq.client")

T = TypeVar("T")

RECENT_SECONDS = 0.1
"""Age up to which an answer will do for those whose request has failed, s: so routes are asked for ten times a second at most."""
_PATIENCE = (0.05, 0.15, 0.3)
"""Pauses of `subscribe_queues(patient=True)`, s; half a second together."""
USUAL_TEMPLATE = Template()


class Consult(Protocol):
    """Runs a conversation with the name servers."""

    def __call__(self, consultation: Consultation[T]) -> Awaitable[T]: ...


def _nothing(_: BrokerData) -> None:
    """Nobody wants to know."""


class KnownRoutes:
    """Routes of the topics in use. `on_change(topic)` is called when one has changed, `on_broker(data)` before that when a broker
    of it has other addresses than before, or was not known.

    What one route tells of a broker holds for all topics: a new leader that is found for one is found for all.
    """

    def __init__(
        self,
        name_servers: NameServers,
        consult: Consult,
        on_change: Callable[[str], None],
        on_broker: Callable[[BrokerData], None] = _nothing,
    ) -> None:
        self._name_servers, self._consult, self._on_change, self._on_broker = (
            name_servers,
            consult,
            on_change,
            on_broker,
        )
        self._routes: dict[str, Route] = {}
        self._writable: dict[str, list[MessageQueue]] = {}
        self.publish_queues_now: Callable[[str], list[MessageQueue] | None] = self._writable.get
        """Return the cached writable queues of a topic; None: unknown. For any thread.

        It is a bound method of the dict, because every send calls it.
        """
        self._guessed: set[str] = set()
        """Topics that do not exist yet, and have the route of the template topic until the first send creates them."""
        self._wanted: set[str] = set()
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._asked_at: dict[str, float] = {}
        """Topic → when the last question began that was answered (time of the loop)."""
        self._looks: dict[str, tuple[float, asyncio.Task[list[MessageQueue]]]] = {}
        """Topic → when `recent_queues` asked last, and that question."""
        self._fixed: dict[str, list[MessageQueue]] = {}
        """Topics sent to in strict order → all queues of the layout, whether their brokers are up or not."""

    async def route(self, topic: str, *, fresh: bool = False) -> Route:
        """Return the topic's route, cached unless `fresh`. Raises NoRoute, ConnectionFailed, RequestTimeout."""
        self._wanted.add(topic)
        known = self._routes.get(topic)
        if known is not None and not fresh and topic not in self._guessed:
            return known
        # One query per topic at a time: a thousand sends to a new topic must not ask a thousand times.
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(topic))
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(task)  # shared: a caller that gives up must not cancel it for others

    async def publish_queues(
        self, topic: str, *, fresh: bool = False, template: Template = USUAL_TEMPLATE
    ) -> list[MessageQueue]:
        """Return the writable queues; for an unknown topic, those that automatic creation by `template` will make.

        Raises NoRoute: unknown, and the cluster creates none; or no broker of it is writable.
        """
        known = self._routes.get(topic)
        if known is None or fresh:
            try:
                known = await self.route(topic, fresh=True)
            except NoRoute:
                if known is not None and topic not in self._guessed and await self._lacks_brokers(known):
                    # As RocketMQ's clients, which keep the route they know: the topic is not made at other brokers.
                    names = ", ".join(sorted(data.broker for data in known.queues))
                    missing = NoRoute(f"the brokers of topic {topic} ({names}) are away, and no name server lists them")
                    missing.away = True
                    raise missing from None
                known = await self._guess(topic, template)
            except FAULTS as error:
                # While no name server answers, sends use the known route.
                if known is None or not judge(error, Purpose.LOOK_UP).again:
                    raise
        queues = self._writable[topic]
        if not queues:
            names = ", ".join(sorted(data.broker for data in known.queues))
            missing = NoRoute(
                f"no queue of topic {topic} can be written: its brokers ({names}) are down or read-only; "
                f"see `metaq topic show {topic}`"
            )
            missing.away = any(
                data.perm & Perm.WRITE and (broker := known.broker(data.broker)) is not None and broker.master is None
                for data in known.queues
            )
            raise missing
        return queues

    async def recent_queues(self, topic: str, template: Template = USUAL_TEMPLATE) -> list[MessageQueue]:
        """Return the writable queues, for a send that has failed: as name servers have told them within the last RECENT_SECONDS.

        However many sends fail, their topic is asked for once at a time. Raises as `publish_queues`.
        """
        now = asyncio.get_running_loop().time()
        if self.is_recent(topic) and (queues := self._writable.get(topic)):
            return queues
        asked_at, look = self._looks.get(topic, (-math.inf, None))
        if look is None or now - asked_at >= RECENT_SECONDS:
            look = asyncio.get_running_loop().create_task(self.publish_queues(topic, fresh=True, template=template))
            look.add_done_callback(lambda done: done.cancelled() or done.exception())  # as in `_asked`
            self._looks[topic] = now, look
        return await asyncio.shield(look)

    def is_recent(self, topic: str) -> bool:
        """Return whether name servers were asked for the topic's route within the last RECENT_SECONDS, and have answered."""
        asked_at = self._asked_at.get(topic)
        return asked_at is not None and asyncio.get_running_loop().time() - asked_at < RECENT_SECONDS

    async def look(self, broker: str) -> bool:
        """Ask for the route of a topic that the broker has, unless that was just done. Returns whether a topic of it is known.

        Raises NoRoute, ConnectionFailed, RequestTimeout.
        """
        topic = next((topic for topic, route in self._routes.items() if route.broker(broker) is not None), None)
        if topic is None:
            return False
        if not self.is_recent(topic):
            await self.route(topic, fresh=True)
        return True

    async def _lacks_brokers(self, route: Route) -> bool:
        """Return whether a broker that had the topic is without a leader now: else it is the topic that is gone."""
        try:
            brokers = (await self._consult(self._name_servers.cluster())).brokers
        except FAULTS:
            return True
        found = (brokers.get(data.broker) for data in route.queues)
        return any(data is None or data.master is None for data in found)

    def is_guessed(self, topic: str) -> bool:
        """Any thread: return whether the topic's queues are those that automatic creation will make."""
        return topic in self._guessed

    async def fixed_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic's layout, in its order, whether their brokers are up or not.

        Raises ConfigError: it has no layout, or one that cannot be read. ConnectionFailed, RequestTimeout.
        """
        known = self._routes.get(topic)
        text = known.order if known is not None and topic not in self._guessed else None
        if text is None:  # RocketMQ's name servers put it into routes only with orderMessageEnable, off by default
            text = await self._consult(self._name_servers.order(topic))
        if text is None:
            self._fixed.pop(topic, None)
            raise ConfigError(
                f"topic {topic} has no fixed list of queues, which strict order needs: set it with `metaq topic order set "
                f"{topic}`"
            )
        self._fixed[topic] = OrderLayout.of(text).queues(topic)
        return self._fixed[topic]

    def fixed_queues_now(self, topic: str) -> list[MessageQueue] | None:
        """Any thread: return the last result of `fixed_queues`; None: it was not called yet."""
        return self._fixed.get(topic)

    async def subscribe_queues(self, topic: str, *, fresh: bool = False, patient: bool = False) -> list[MessageQueue]:
        """Return the readable queues. Raises NoRoute.

        `patient`: wait half a second for an unknown topic: one that a send has just created is registered at the name servers
        after the acknowledgement.
        """
        for pause in _PATIENCE if patient else ():
            try:
                return (await self.route(topic, fresh=fresh)).readable()
            except NoRoute:
                await asyncio.sleep(pause)
        try:
            return (await self.route(topic, fresh=fresh)).readable()
        except NoRoute:
            raise await self._consult(self._name_servers.no_route(topic)) from None

    def forget(self, topic: str) -> None:
        """Drop a topic's route, and stop refreshing it until it is used again."""
        self._wanted.discard(topic)
        for table in (self._routes, self._writable, self._asked_at, self._looks):
            table.pop(topic, None)

    def broker(self, name: str) -> BrokerData | None:
        """Return the addresses of a broker, from any route that mentions it."""
        for route in self._routes.values():
            if (data := route.broker(name)) is not None:
                return data
        return None

    def brokers(self) -> dict[str, BrokerData]:
        """Return all brokers in the routes in use."""
        return {data.broker: data for route in self._routes.values() for data in route.brokers}

    async def refresh(self) -> None:
        """Refresh the route of every topic in use. One that cannot be queried now stays as it is."""
        for topic in list(self._fixed):
            try:
                await self.fixed_queues(topic)
            except (*FAULTS, ConfigError) as error:
                log.debug("the layout of %s was not refreshed: %s", topic, error)
        for topic in sorted(self._wanted):
            try:
                await self.route(topic, fresh=True)
            except NoRoute:
                if topic in self._guessed:
                    continue
                log.debug("topic %s has no route (any more)", topic)
            except FAULTS as error:
                log.debug("the route of %s was not refreshed: %s", topic, error)
                # No name server answers: each further topic would wait for all time-outs too.
                return

    def forget_guess(self, topic: str) -> None:
        """Replace a guessed route: the first send has created the topic, so its own route is there soon."""
        if topic in self._guessed:
            self._guessed.discard(topic)
            task = asyncio.get_running_loop().create_task(self._settle_guess(topic))
            # The error is fetched, so that asyncio does not report it as lost.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _settle_guess(self, topic: str) -> None:
        for pause in (0.05, 0.2, 1.0, 5.0):  # the broker registers the new topic about now
            await asyncio.sleep(pause)
            try:
                await self.route(topic, fresh=True)
            except FAULTS:
                continue
            return

    async def _ask(self, topic: str) -> Route:
        began = asyncio.get_running_loop().time()
        route = await self._consult(self._name_servers.route(topic))
        self._asked_at[topic] = began
        self._guessed.discard(topic)
        if self._routes.get(topic) != route:
            self._keep(route)
        return route

    def _keep(self, route: Route) -> None:
        others = [data for data in route.brokers if self.broker(data.broker) != data]
        changed = [route.topic, *self._told(route.topic, others)]
        self._routes[route.topic] = route
        self._writable[route.topic] = _writable(route)
        for data in others:
            self._on_broker(data)
        for topic in changed:
            self._on_change(topic)

    def heard(self, data: BrokerData) -> None:
        """Take over a broker's addresses that the name servers have told otherwise than by a route."""
        if (known := self.broker(data.broker)) is None or known == data:
            return
        changed = self._told("", [data])
        self._on_broker(data)
        for topic in changed:
            self._on_change(topic)

    def _told(self, told: str, brokers: Collection[BrokerData]) -> list[str]:
        """Take over brokers' addresses into the routes of all topics but `told`. Returns those that are changed by it."""
        changed = []
        for topic, known in self._routes.items() if brokers else ():
            fresh = {data.broker: data for data in brokers if known.broker(data.broker) is not None}
            if topic != told and fresh:
                changed.append(topic)
                self._routes[topic] = structs.replace(
                    known, brokers=tuple(fresh.get(data.broker, data) for data in known.brokers)
                )
                self._writable[topic] = _writable(self._routes[topic])
        return changed

    def _asked(self, topic: str, task: asyncio.Task[Route]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            # Fetched, so that asyncio does not report an error as lost whose callers have all given up.
            task.exception()

    async def _guess(self, topic: str, template: Template) -> Route:
        try:
            # The route of TBW102 names the brokers that create topics automatically, as Java's producer uses it.
            known = await self._consult(self._name_servers.route(template.topic))
        except NoRoute:
            raise await self._consult(self._name_servers.no_route(topic)) from None
        route = guessed(topic, known, template.queues)
        self._guessed.add(topic)
        self._keep(route)
        return route


def _writable(route: Route) -> list[MessageQueue]:
    try:
        return route.writable()
    except ConfigError as error:
        log.warning("topic %s: %s; it is sent to as if it had no order configuration", route.topic, error)
        # A broken layout (anyone can write KV configuration) must not stop sends that need no strict order.
        return structs.replace(route, order=None).writable()
