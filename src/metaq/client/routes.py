"""Where topics live: routes asked of the name servers, kept, and refreshed.

Any name server will do, each knows all. One is chosen by chance and kept until it fails; then the next is tried. A
route that was once known is kept while no name server answers: a cluster works on without its name servers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence

from metaq.client.transport import Transport
from metaq.clock import Clock
from metaq.errors import BadRequest, BrokerError, ClientError, ConfigError, ConnectionFailed, NoRoute, RequestTimeout
from metaq.model import BrokerData, ClusterInfo, MessageQueue, Route
from metaq.model.system import AUTO_CREATE_TOPIC
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request

log = logging.getLogger("metaq.client")

NAMESRV_SECONDS = 3.0
_PATIENCE = (0.05, 0.15, 0.3)
AUTO_CREATE_QUEUES = 4
"""RocketMQ's `defaultTopicQueueNums` of a producer."""


def parse_addresses(text: str) -> tuple[str, ...]:
    """`host:port;host:port` (commas do as well) as addresses; a port left out is 9876. Raises ConfigError, TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"the name servers are {text!r}: pass one text, 'host:port', several joined by ';'")
    addresses = []
    for part in text.replace(",", ";").split(";"):
        if address := part.strip():
            host, colon, port = address.rpartition(":")
            if not colon:
                host, port = address, "9876"
            if "/" in address:
                raise ConfigError(
                    f"the name server address {address!r} is a URL or a path: write host:port, without http://"
                )
            if not host or any(map(str.isspace, host)) or not port.isdecimal() or not 0 < int(port) < 1 << 16:
                raise ConfigError(f"the name server address {address!r} is not host:port")
            addresses.append(f"{host}:{port}")
    if not addresses:
        raise ConfigError("no name server: pass its address, such as 'localhost:9876', or set NAMESRV_ADDR")
    return tuple(dict.fromkeys(addresses))


class NameServers:
    """Requests to whichever name server answers."""

    def __init__(self, transport: Transport, addresses: Sequence[str], clock: Clock) -> None:
        self._transport, self.addresses = transport, tuple(addresses)
        self._chosen = clock.random_below(len(self.addresses))

    def __str__(self) -> str:
        return ";".join(self.addresses)

    async def call(self, code: int, header: headers.Header | None = None, *, body: bytes = b"") -> Command:
        """Ask one name server, the next if it cannot be reached or is none; its answer, code unseen.

        Raises ConnectionFailed or RequestTimeout of the last one when none can be reached, BrokerError when those that
        can are no name servers.
        """
        failure: ConnectionFailed | RequestTimeout | BrokerError | None = None
        for step in range(len(self.addresses)):
            index = (self._chosen + step) % len(self.addresses)
            try:
                answer = await self._transport.call(self.addresses[index], request(code, header, body), NAMESRV_SECONDS)
            except (ConnectionFailed, RequestTimeout) as error:
                failure = failure or error
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code in _ALL_NAME_SERVERS_KNOW:
                failure = _no_name_server(self.addresses[index], answer)
                continue
            self._chosen = index
            return answer
        assert failure is not None
        if isinstance(failure, BrokerError):
            raise failure
        raised = type(failure)(f"no name server of {self} can be reached, is one running there? {failure}")
        raised.sent = False  # What was to be sent to a broker, that is.
        raise raised from failure

    async def call_all(self, code: int, header: headers.Header | None = None) -> dict[str, Command | ClientError]:
        """Ask every name server; address → answer or error. For what each must be told."""

        async def one(address: str) -> Command | ClientError:
            try:
                return await self._transport.call(address, request(code, header), NAMESRV_SECONDS)
            except ClientError as error:
                return error

        answers = await asyncio.gather(*map(one, self.addresses))
        return dict(zip(self.addresses, answers, strict=True))

    async def route(self, topic: str) -> Route:
        """Ask for a topic's route. Raises NoRoute, and what `call` raises."""
        header = headers.RouteHeader(topic=topic, accept_standard_json_only=True)
        answer = await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise self._unknown(topic)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark or "", str(self), f"find topic {topic}")
        return bodies.route_of(topic, answer.body)

    async def cluster(self) -> ClusterInfo:
        """All brokers of all clusters. Raises BrokerError, and what `call` raises."""
        answer = await self.call(RequestCode.GET_BROKER_CLUSTER_INFO)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark or "", str(self), "list the brokers")
        return bodies.cluster_info_of(answer.body)

    async def no_route(self, topic: str) -> NoRoute:
        """Why a topic has no route: it does not exist, or no broker is there that could hold it."""
        try:
            nobody = not (await self.cluster()).brokers
        except (ClientError, BrokerError, BadRequest):
            nobody = False  # Then say what is known.
        if nobody:
            return NoRoute(
                f"no broker is registered at name servers {self}, so topic {topic} has no route: is the broker running, "
                "and was it started with this name server's address?"
            )
        return self._unknown(topic)

    def _unknown(self, topic: str) -> NoRoute:
        return NoRoute(
            f"no route for topic {topic} at name servers {self}: create it with `metaq topic create {topic}`"
        )


_ALL_NAME_SERVERS_KNOW = {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO}


def _no_name_server(address: str, answer: Command) -> BrokerError:
    return BrokerError(
        answer.code,
        f"{address} is no name server, a broker perhaps: pass the name server's address; its port is 9876 by default",
        address,
        "find the brokers",
    )


class RouteTable:
    """Routes of the topics in use. `on_change(topic)` is called when one has changed."""

    def __init__(self, name_servers: NameServers, on_change: Callable[[str], None]) -> None:
        self.name_servers, self._on_change = name_servers, on_change
        self._routes: dict[str, Route] = {}
        self._writable: dict[str, list[MessageQueue]] = {}
        self._guessed: set[str] = set()  # Topics that have only the template's route until they are created.
        self._wanted: set[str] = set()
        self._asking: dict[str, asyncio.Task[Route]] = {}

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
        return await asyncio.shield(task)

    async def publish_queues(self, topic: str, *, fresh: bool = False) -> list[MessageQueue]:
        """Queues that can be sent to; for an unknown topic those that automatic creation will make.

        Raises NoRoute: unknown, and the cluster creates none; or no broker of it is writable.
        """
        known = self._routes.get(topic)
        if known is None or fresh:
            try:
                known = await self.route(topic, fresh=True)
            except NoRoute:
                known = await self._guess(topic)
            except (ConnectionFailed, RequestTimeout):
                if known is None:
                    raise
        queues = self._writable[topic]
        if not queues:
            names = ", ".join(sorted(data.broker for data in known.queues))
            raise NoRoute(
                f"no queue of topic {topic} can be written: its brokers ({names}) are down or read-only; "
                f"see `metaq topic show {topic}`"
            )
        return queues

    def publish_queues_now(self, topic: str) -> list[MessageQueue] | None:
        """Any thread: what `publish_queues` would say from memory; None if the topic is not known yet."""
        return self._writable.get(topic)

    async def subscribe_queues(self, topic: str, *, fresh: bool = False, patient: bool = False) -> list[MessageQueue]:
        """Queues that can be read. Raises NoRoute.

        `patient` gives a topic half a second to appear: one that a send has just created is told to the name servers
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
            raise await self.name_servers.no_route(topic) from None

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
        """Ask for every topic in use again. What cannot be had stays as it was."""
        for topic in sorted(self._wanted):
            try:
                await self.route(topic, fresh=True)
            except NoRoute:
                if topic in self._guessed:
                    continue
                log.debug("topic %s has no route (any more)", topic)
            except (ClientError, BrokerError, BadRequest) as error:
                log.debug("the route of %s was not refreshed: %s", topic, error)
                return

    def forget_guess(self, topic: str) -> None:
        """The first send to an automatically created topic succeeded: its own route is there, or soon is."""
        if topic in self._guessed:
            self._guessed.discard(topic)
            task = asyncio.get_running_loop().create_task(self._settle_guess(topic))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _settle_guess(self, topic: str) -> None:
        for pause in (0.05, 0.2, 1.0, 5.0):  # The broker's registration is under way.
            await asyncio.sleep(pause)
            try:
                await self.route(topic, fresh=True)
            except (ClientError, BrokerError):
                continue
            return

    async def _ask(self, topic: str) -> Route:
        route = await self.name_servers.route(topic)
        self._guessed.discard(topic)
        if self._routes.get(topic) != route:
            self._keep(route)
        return route

    def _keep(self, route: Route) -> None:
        self._routes[route.topic] = route
        self._writable[route.topic] = route.writable()
        self._on_change(route.topic)

    def _asked(self, topic: str, task: asyncio.Task[Route]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()

    async def _guess(self, topic: str) -> Route:
        try:
            template = await self.name_servers.route(AUTO_CREATE_TOPIC)
        except NoRoute:
            raise await self.name_servers.no_route(topic) from None
        queues = tuple(
            dataclasses.replace(
                data,
                read_queues=min(data.read_queues, AUTO_CREATE_QUEUES),
                write_queues=min(data.read_queues, AUTO_CREATE_QUEUES),
            )
            for data in template.queues
        )
        route = Route(topic, queues, template.brokers)
        self._guessed.add(topic)
        self._keep(route)
        return route
