"""Service of a name server: values in, values out; missing things are Refused. The protocol server knows codes and
bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import structs

from metaq.changed_options import ChangedFile, ChangedOptions
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model import ClusterInfo, DataVersion, Route
from metaq.model.topics.advertised import ANYWHERE, Origin
from metaq.model.topics.registration import Registered, Registration, VersionCheck
from metaq.model.topics.route import MASTER_ID, ORDER_NAMESPACE, SystemTopics
from metaq.model.topics.topic import UNIT, UNIT_SUBSCRIBED, check_partition_topic
from metaq.namesrv.kv import KvTable
from metaq.namesrv.routes import BrokerConnection, RouteTable
from metaq.options import NamesrvOptions, Settings
from metaq.saved import Pending, at_once


class NameFigures(NamedTuple):
    """What a name server has, and has done since its start.

    `brokers`: addresses that are registered. `removed`: addresses that were, by why they were removed.
    """

    brokers: int
    topics: int
    registrations: int
    routes_found: int
    routes_missing: int
    removed: Mapping[str, int]


class NameService:
    """One name server: a route table on leases, and a KV table on disk.

    Args:
        options: of the name server.
        clock: of the leases.
        kv: the KV table.
        changed: file of the options that are changed over the wire; None: none can be.
        call_soon: brings a call from another thread to the event loop.
    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(
        self,
        options: NamesrvOptions,
        clock: Clock,
        kv: KvTable,
        changed: ChangedFile | None = None,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        self.options, self.clock = options, clock
        self.instance = clock.token()
        """Tells this process from every other."""
        self.settings = Settings(options)
        self.changed_options = ChangedOptions(self.settings, changed, call_soon)
        self.all_settings = [self.settings]
        """The option tables that this process obeys; who runs it adds those that the service does not know."""
        self._kv, self._routes = kv, RouteTable(clock, options.broker_lease_ms)
        self.started_ms = clock.now_ms()
        self._routes_found = self._routes_missing = 0

    # ---------------------------------------------------------------- time

    def tick(self) -> list[str]:
        """Drop the brokers whose lease has ended. Return their addresses."""
        self._kv.saved.tick()
        return self._routes.expire()

    def close(self) -> None:
        """Refuse further changes, and wait for a running save."""
        self._kv.saved.close()

    def figures(self) -> NameFigures:
        """Return what there is, and what was done."""
        brokers, topics = self._routes.counts
        return NameFigures(
            brokers,
            topics,
            self._routes.registrations,
            self._routes_found,
            self._routes_missing,
            dict(self._routes.removed),
        )

    # ---------------------------------------------------------------- brokers

    def register(
        self, registration: Registration, connection: BrokerConnection, origin: Origin = ANYWHERE
    ) -> Registered:
        """Take a registration, which lasts as long as `connection`. `origin`: of the broker, as its master's client.

        Raises Refused INVALID: a name that no topic may have; BUSY: all peers together hold what they may.
        """
        for name in registration.topics:
            check_partition_topic(name)
        replaced = self._routes.holder(registration.who, connection)
        changed = self._routes.has_other_id(registration.who)
        broker = self._routes.register(registration, connection)
        order = self._kv.table(ORDER_NAMESPACE)
        # Only slaves are told: they copy their configuration from the master's address.
        if registration.who.broker_id != MASTER_ID and broker.master:
            master = self._routes.address_for(broker.master, origin)
            return Registered(master, self._routes.ha_address(broker.master, origin), order, replaced)
        return Registered(order=order, replaced=replaced, has_changed_role=changed)

    def unregister(self, broker: str, broker_id: int, address: str) -> None:
        """Drop a broker that unregisters. An unknown one is ignored."""
        self._routes.unregister(broker, broker_id, address)

    def disconnected(self, connection: BrokerConnection) -> list[str]:
        """Drop the brokers that registered through a broken connection. Return their addresses."""
        return self._routes.disconnected(connection)

    def check_version(self, address: str, asked: DataVersion) -> VersionCheck:
        """Return whether a broker must register again. Renews its lease if not."""
        return self._routes.check_version(address, asked)

    def set_writable(self, broker: str, *, writable: bool) -> int:
        """Remove or restore the write permission of a broker's queues. Return the number of topics."""
        return self._routes.set_writable(broker, writable=writable)

    def clusters(self, origin: Origin = ANYWHERE) -> ClusterInfo:
        """Return every broker, with the addresses for clients of `origin`, and the brokers of each cluster."""
        return self._routes.clusters(origin)

    # ---------------------------------------------------------------- topics

    def route(self, topic: str, origin: Origin = ANYWHERE) -> Route:
        """Return the route for clients of `origin`, with the layout of an ordered topic if `orderMessageEnable` is on.

        Raises Refused NO_TOPIC: no live broker has a queue of it.
        """
        route = self._routes.route(topic, origin)
        if route is None:
            self._routes_missing += 1
            raise Refused(Reason.NO_TOPIC, f"No topic route info in name server for the topic: {topic[:200]}")
        self._routes_found += 1
        # Off by default, as in RocketMQ.
        if not self.options.order_message_enable:
            return route
        return structs.replace(route, order=self._kv.get(ORDER_NAMESPACE, topic))

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those at brokers of `cluster`, sorted."""
        return self._routes.topics(cluster)

    def system_topics(self, origin: Origin = ANYWHERE) -> SystemTopics:
        """Return the topics with names of clusters and brokers, and a broker's address for clients of `origin`."""
        info = self._routes.clusters(origin)
        address = next((data.any_address for data in info.brokers.values() if data.addresses), None)
        return SystemTopics((*info.clusters, *info.brokers), address)

    def unit_topics(self) -> list[str]:
        """Return the topics of units (311). The next two: those that a unit's group subscribes to (312); of these, no
        units' (313)."""
        return self._routes.topics_flagged([UNIT])

    def unit_subscribed_topics(self) -> list[str]:
        return self._routes.topics_flagged([UNIT_SUBSCRIBED])

    def unit_subscribed_plain_topics(self) -> list[str]:
        return self._routes.topics_flagged([UNIT_SUBSCRIBED], drop=UNIT)

    def delete_topic(self, topic: str, cluster: str | None = None, broker: str | None = None) -> None:
        """Drop a topic, everywhere, at the brokers of one cluster or at one broker."""
        self._routes.delete_topic(topic, cluster, broker)

    # ---------------------------------------------------------------- KV configuration

    def put_kv(self, namespace: str, key: str, value: str) -> Pending:
        """Set a value. Raises Refused INVALID: too long, or the table is full."""
        return self._kv.put(namespace, key, value)

    def get_kv(self, namespace: str, key: str) -> str:
        """Return a value. Raises Refused NOT_FOUND."""
        value = self._kv.get(namespace, key)
        if value is None:
            raise Refused(Reason.NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return value

    def delete_kv(self, namespace: str, key: str) -> Pending:
        """Delete a value. A missing one is silently accepted, as in RocketMQ."""
        return self._kv.delete(namespace, key)

    def kv_table(self, namespace: str) -> dict[str, str]:
        """Return the values of a namespace. Raises Refused NOT_FOUND."""
        table = self._kv.table(namespace)
        if table is None:
            raise Refused(Reason.NOT_FOUND, f"No config item, Namespace: {namespace}")
        return table
