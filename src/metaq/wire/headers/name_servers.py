"""Name servers: registrations, routes, KV values (100-105, 205, 216, 219, 224, 322, 327)."""

from __future__ import annotations

from msgspec import field

from metaq.wire.headers.codec import Header, Int, Long


class RegisterBrokerHeader(Header, kw_only=True):
    """103. The body's checksum, 31 bits, is over the bytes as sent; 0 is unchecked."""

    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster: str = field(name="clusterName")
    ha_address: str = field(name="haServerAddr", default="")
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0


class RegisterBrokerReplyHeader(Header, kw_only=True):
    """Answers 103; both only to a slave whose master is alive."""

    ha_address: str | None = field(name="haServerAddr", default=None)
    master_address: str | None = field(name="masterAddr", default=None)


class BrokerHeader(Header, kw_only=True):
    """104, 322: which broker speaks."""

    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster: str = field(name="clusterName")
    broker_id: Long


class DataVersionReplyHeader(Header, kw_only=True):
    """Answers 322."""

    changed: bool


class RouteHeader(Header, kw_only=True):
    """105."""

    topic: str
    accept_standard_json_only: bool | None = None


class PutKvHeader(Header, kw_only=True):
    """100."""

    namespace: str
    key: str
    value: str


class KvKeyHeader(Header, kw_only=True):
    """101, 102."""

    namespace: str
    key: str


class KvValueReplyHeader(Header, kw_only=True):
    """Answers 101."""

    value: str


class NamespaceHeader(Header, kw_only=True):
    """219."""

    namespace: str


class BrokerNameHeader(Header, kw_only=True):
    """205, 327."""

    broker_name: str


class WipedReplyHeader(Header, kw_only=True):
    """Answers 205: topics touched."""

    topics: Int = field(name="wipeTopicCount")


class RestoredReplyHeader(Header, kw_only=True):
    """Answers 327: topics touched."""

    topics: Int = field(name="addTopicCount")


class DeleteRouteHeader(Header, kw_only=True):
    """216; with a cluster, only that cluster's brokers lose the topic."""

    topic: str
    cluster: str | None = field(name="clusterName", default=None)


class ClusterHeader(Header, kw_only=True):
    """224."""

    cluster: str
