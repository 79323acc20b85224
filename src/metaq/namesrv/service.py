"""What a name server does: values in, values out; it refuses what is not there. Servers know codes and bytes."""

from __future__ import annotations

from msgspec import structs

from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model import ClusterInfo, DataVersion, Route
from metaq.model.topics.registration import Registered, Registration, VersionCheck
from metaq.model.topics.route import MASTER_ID, ORDER_NAMESPACE, SystemTopics
from metaq.model.topics.topic import UNIT, UNIT_SUBSCRIBED, check_partition_topic
from metaq.namesrv.kv import KvTable
from metaq.namesrv.routes import RouteTable
from metaq.options import NamesrvOptions, Settings
from metaq.saved import Pending


class NameService:
    """One name server: a route table on leases and a KV table that survives.

    Args: kv: kept in a file of its own.
    """

    def __init__(self, options: NamesrvOptions, clock: Clock, kv: KvTable) -> None:
        self.options, self.clock = options, clock
        self.settings = Settings(options)
        self._kv, self._routes = kv, RouteTable(clock, options.broker_lease_ms)

    # ---------------------------------------------------------------- time

    def tick(self) -> list[str]:
        """Let time pass: drop the brokers whose lease has ended. Returns their addresses."""
        self._kv.saved.tick()
        return self._routes.expire()

    def close(self) -> None:
        """Take no change any more, and wait for a save that is under way."""
        self._kv.saved.close()

    # ---------------------------------------------------------------- brokers

    def register(self, registration: Registration, connection: object) -> Registered:
        """Take a registration, which lasts as long as `connection`. Raises Refused for a name that no topic may have."""
        for name in registration.topics:
            check_partition_topic(name)
        broker = self._routes.register(registration, connection)
        order = self._kv.table(ORDER_NAMESPACE)
        if registration.who.broker_id != MASTER_ID and broker.master:
            return Registered(broker.master, self._routes.ha_address(broker.master), order)
        return Registered(order=order)

    def unregister(self, broker: str, broker_id: int, address: str) -> None:
        """A broker says goodbye. One that is not known is left alone."""
        self._routes.unregister(broker, broker_id, address)

    def disconnected(self, connection: object) -> list[str]:
        """Drop the brokers that registered through a connection that broke. Returns their addresses."""
        return self._routes.disconnected(connection)

    def check_version(self, address: str, asked: DataVersion) -> VersionCheck:
        """For a broker that asks whether it must tell its table again. Renews its lease if not."""
        return self._routes.check_version(address, asked)

    def set_writable(self, broker: str, *, writable: bool) -> int:
        """Take or give a broker's queues the permission to be written to. Returns how many topics were touched."""
        return self._routes.set_writable(broker, writable=writable)

    def clusters(self) -> ClusterInfo:
        """Every broker, and which cluster it belongs to."""
        return self._routes.clusters()

    # ---------------------------------------------------------------- topics

    def route(self, topic: str) -> Route:
        """The route, with the order configuration if `orderMessageEnable` is on.

        Raises Refused NO_TOPIC: no queue of it is on a broker that is up.
        """
        route = self._routes.route(topic)
        if route is None:
            raise Refused(Reason.NO_TOPIC, f"No topic route info in name server for the topic: {topic[:200]}")
        if not self.options.order_message_enable:
            return route
        return structs.replace(route, order=self._kv.get(ORDER_NAMESPACE, topic))

    def topics(self, cluster: str | None = None) -> list[str]:
        """Names of all topics, or of those that a broker of `cluster` holds; sorted."""
        return self._routes.topics(cluster)

    def system_topics(self) -> SystemTopics:
        """The topics that clusters and brokers are."""
        info = self._routes.clusters()
        address = next((data.any_address for data in info.brokers.values() if data.addresses), None)
        return SystemTopics((*info.clusters, *info.brokers), address)

    def unit_topics(self) -> list[str]:
        """Topics of units; and so on for the next two."""
        return self._routes.topics_flagged([UNIT])

    def unit_subscribed_topics(self) -> list[str]:
        return self._routes.topics_flagged([UNIT_SUBSCRIBED])

    def unit_subscribed_plain_topics(self) -> list[str]:
        return self._routes.topics_flagged([UNIT_SUBSCRIBED], drop=UNIT)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or on the brokers of one cluster."""
        self._routes.delete_topic(topic, cluster)

    # ---------------------------------------------------------------- KV configuration

    def put_kv(self, namespace: str, key: str, value: str) -> Pending:
        """Raises Refused if the table cannot take it."""
        return self._kv.put(namespace, key, value)

    def get_kv(self, namespace: str, key: str) -> str:
        """Raises Refused NOT_FOUND."""
        value = self._kv.get(namespace, key)
        if value is None:
            raise Refused(Reason.NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return value

    def delete_kv(self, namespace: str, key: str) -> Pending:
        """Deleting what is not there is accepted silently, as in RocketMQ."""
        return self._kv.delete(namespace, key)

    def kv_table(self, namespace: str) -> dict[str, str]:
        """Raises Refused NOT_FOUND."""
        table = self._kv.table(namespace)
        if table is None:
            raise Refused(Reason.NOT_FOUND, f"No config item, Namespace: {namespace}")
        return table
