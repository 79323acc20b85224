"""What a name server does on each request: values in, values out. The door (`metaq.doors.namesrv`) knows the codes."""

from __future__ import annotations

from metaq.clock import Clock
from metaq.errors import MetaqError
from metaq.model import DataVersion, Route
from metaq.model.route import MASTER_ID
from metaq.model.topic import check_topic
from metaq.namesrv.kv import ORDER_NAMESPACE, KvTable
from metaq.namesrv.routes import Registration, RouteTable
from metaq.options import NamesrvOptions, Settings
from metaq.saved import Pending

UNIT, UNIT_SUBSCRIBED = 1, 2
"""Bits of a topic's sys flag (RocketMQ's TopicSysFlag)."""


class KvNotFound(MetaqError):
    """No value under this namespace and key."""


class NameService:
    """One name server: a route table on leases and a KV table that survives.

    Args: kv: kept in a file of its own.
    """

    def __init__(self, options: NamesrvOptions, clock: Clock, kv: KvTable) -> None:
        self.options, self.clock, self.kv = options, clock, kv
        self.settings = Settings(options)
        self.routes = RouteTable(clock, options.broker_lease_ms)

    # ---------------------------------------------------------------- brokers

    def register(self, said: Registration, connection: object) -> tuple[str | None, str | None, dict[str, str] | None]:
        """Take a registration. Returns (master address, its replication address, order configuration).

        The first two are for a slave whose master is alive. Raises Refused for a topic name that no broker may hold.
        """
        for name in said.topics:
            check_topic(name)
        broker = self.routes.register(said, connection)
        order = self.kv.table(ORDER_NAMESPACE)
        if said.broker_id != MASTER_ID and broker.master:
            return broker.master, self.routes.ha_address(broker.master), order
        return None, None, order

    def unregister(self, broker: str, broker_id: int, address: str) -> None:
        self.routes.unregister(broker, broker_id, address)

    def query_version(self, address: str, asked: DataVersion) -> tuple[bool, DataVersion | None]:
        return self.routes.query_version(address, asked)

    def set_writable(self, broker: str, *, writable: bool) -> int:
        return self.routes.set_writable(broker, writable=writable)

    # ---------------------------------------------------------------- topics

    def route(self, topic: str) -> Route | None:
        """The route, with the order configuration if `orderMessageEnable` is on; None if there is none."""
        route = self.routes.route(topic)
        if route is None or not self.options.order_message_enable:
            return route
        order = self.kv.get(ORDER_NAMESPACE, topic)
        return Route(route.topic, route.queues, route.brokers, order)

    def system_topics(self) -> tuple[list[str], str | None]:
        """Cluster and broker names, which are topics too, and the address of some broker."""
        info = self.routes.clusters()
        names = [*info.clusters, *info.brokers]
        address = next((data.any_address for data in info.brokers.values() if data.addresses), None)
        return names, address

    def unit_topics(self) -> list[str]:
        return self.routes.topics_flagged([UNIT])

    def unit_subscribed_topics(self) -> list[str]:
        return self.routes.topics_flagged([UNIT_SUBSCRIBED])

    def unit_subscribed_plain_topics(self) -> list[str]:
        return self.routes.topics_flagged([UNIT_SUBSCRIBED], drop=UNIT)

    # ---------------------------------------------------------------- KV configuration

    def put_kv(self, namespace: str, key: str, value: str) -> Pending:
        """Raises Refused if the table cannot take it."""
        return self.kv.put(namespace, key, value)

    def get_kv(self, namespace: str, key: str) -> str:
        """Raises KvNotFound."""
        value = self.kv.get(namespace, key)
        if value is None:
            raise KvNotFound(f"No config item, Namespace: {namespace} Key: {key}")
        return value

    def delete_kv(self, namespace: str, key: str) -> Pending:
        """Deleting what is not there is accepted silently, as in RocketMQ."""
        return self.kv.delete(namespace, key)

    def kv_table(self, namespace: str) -> dict[str, str]:
        """Raises KvNotFound."""
        table = self.kv.table(namespace)
        if table is None:
            raise KvNotFound(f"No config item, Namespace: {namespace}")
        return table
