"""Where topics live: routes asked of the name servers, kept, and refreshed.

A route that was once known is kept while no name server answers: a cluster works on without its name servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from msgspec import structs

from metaq.client.conversation.call import FAULTS, Consultation
from metaq.client.conversation.name_servers import NameServers
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.conversation.sending.sending import Template
from metaq.errors import ConfigError, NoRoute
from metaq.model import BrokerData, MessageQueue, Route
from metaq.model.topics.route import OrderLayout, guessed

log = logging.getLogger("metaq.client")

T = TypeVar("T")

_PATIENCE = (0.05, 0.15, 0.3)
"""Pauses of `subscribe_queues(patient=True)`, half a second together."""
USUAL_TEMPLATE = Template()


class Consult(Protocol):
    """Drives a conversation with the name servers."""

    def __call__(self, consultation: Consultation[T]) -> Awaitable[T]: ...


class KnownRoutes:
    """Routes of the topics in use. `on_change(topic)` is called when one has changed."""

    def __init__(self, name_servers: NameServers, consult: Consult, on_change: Callable[[str], None]) -> None:
        self._name_servers, self._consult, self._on_change = name_servers, consult, on_change
        self._routes: dict[str, Route] = {}
        self._writable: dict[str, list[MessageQueue]] = {}
        self.publish_queues_now: Callable[[str], list[MessageQueue] | None] = self._writable.get
        """Any thread: what `publish_queues` would say from memory; None if the topic is not known yet. A bound dict
        method: every send calls it."""
        self._guessed: set[str] = set()  # Topics that have only the template's route until they are created.
        self._wanted: set[str] = set()
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._fixed: dict[str, list[MessageQueue]] = {}
        """Of topics that are sent to in strict order: all queues of the layout, whether or not their brokers are up."""

    async def route(self, topic: str, *, fresh: bool = False) -> Route:
        """The topic's route, from memory unless `fresh`. Raises NoRoute, ConnectionFailed, RequestTimeout."""
        self._wanted.add(topic)
        known = self._routes.get(topic)
        if known is not None and not fresh and topic not in self._guessed:
            return known
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(topic))
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(task)  # Shared: one caller that gives up must not cancel it for the others.

    async def publish_queues(
        self, topic: str, *, fresh: bool = False, template: Template = USUAL_TEMPLATE
    ) -> list[MessageQueue]:
        """Queues that can be sent to; for an unknown topic those that automatic creation by `template` will make.

        Raises NoRoute: unknown, and the cluster creates none; or no broker of it is writable.
        """
        known = self._routes.get(topic)
        if known is None or fresh:
            try:
                known = await self.route(topic, fresh=True)
            except NoRoute:
                known = await self._guess(topic, template)
            except FAULTS as error:
                # While no name server answers, sends go on by the route that is known.
                if known is None or not judge(error, Purpose.LOOK_UP).again:
                    raise
        queues = self._writable[topic]
        if not queues:
            names = ", ".join(sorted(data.broker for data in known.queues))
            raise NoRoute(
                f"no queue of topic {topic} can be written: its brokers ({names}) are down or read-only; "
                f"see `metaq topic show {topic}`"
            )
        return queues

    def is_guessed(self, topic: str) -> bool:
        """Any thread: whether its queues are only those that automatic creation will make."""
        return topic in self._guessed

    async def fixed_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a topic has by its layout, in the layout's order, whether or not their brokers are up.

        Raises ConfigError: it has no layout, or one that cannot be read. ConnectionFailed, RequestTimeout.
        """
        known = self._routes.get(topic)
        text = known.order if known is not None and topic not in self._guessed else None
        if text is None:  # Name servers put it into routes only with orderMessageEnable.
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
        """Any thread: what `fixed_queues` has said last; None if it was not asked yet."""
        return self._fixed.get(topic)

    async def subscribe_queues(self, topic: str, *, fresh: bool = False, patient: bool = False) -> list[MessageQueue]:
        """Queues that can be read. Raises NoRoute.

        `patient` gives a topic half a second to appear: one that a send has just created is registered at the name servers
        behind the acknowledgement.
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
        """Forget a topic: its route is not refreshed any more until somebody asks for it."""
        self._wanted.discard(topic)
        self._routes.pop(topic, None)
        self._writable.pop(topic, None)

    def broker(self, name: str) -> BrokerData | None:
        """The addresses of a broker, from any route that mentions it."""
        for route in self._routes.values():
            if (data := route.broker(name)) is not None:
                return data
        return None

    def brokers(self) -> dict[str, BrokerData]:
        """All brokers that the routes in use mention."""
        return {data.broker: data for route in self._routes.values() for data in route.brokers}

    async def refresh(self) -> None:
        """Refresh the route of every topic in use. A route that cannot be had now stays as it was."""
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
                return

    def forget_guess(self, topic: str) -> None:
        """Forget a guessed route: the first send created the topic, so its own route is there, or soon is."""
        if topic in self._guessed:
            self._guessed.discard(topic)
            task = asyncio.get_running_loop().create_task(self._settle_guess(topic))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _settle_guess(self, topic: str) -> None:
        for pause in (0.05, 0.2, 1.0, 5.0):  # The broker's registration is under way.
            await asyncio.sleep(pause)
            try:
                await self.route(topic, fresh=True)
            except FAULTS:
                continue
            return

    async def _ask(self, topic: str) -> Route:
        route = await self._consult(self._name_servers.route(topic))
        self._guessed.discard(topic)
        if self._routes.get(topic) != route:
            self._keep(route)
        return route

    def _keep(self, route: Route) -> None:
        try:
            writable = route.writable()
        except ConfigError as error:
            log.warning("topic %s: %s; it is sent to as if it had no order configuration", route.topic, error)
            writable = structs.replace(route, order=None).writable()
        self._routes[route.topic] = route
        self._writable[route.topic] = writable
        self._on_change(route.topic)

    def _asked(self, topic: str, task: asyncio.Task[Route]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()

    async def _guess(self, topic: str, template: Template) -> Route:
        try:
            known = await self._consult(self._name_servers.route(template.topic))
        except NoRoute:
            raise await self._consult(self._name_servers.no_route(topic)) from None
        route = guessed(topic, known, template.queues)
        self._guessed.add(topic)
        self._keep(route)
        return route
