"""Name servers: registrations, routes, KV values (100-105, 205, 216, 219, 224, 322, 327)."""
# ruff: noqa: RUF009  `wire` makes a dataclass field, as `field` does

from __future__ import annotations

from dataclasses import dataclass

from metaq.wire.headers.codec import Header, Int, Long, wire


@dataclass(slots=True, kw_only=True)
class RegisterBrokerHeader(Header):
    """103. The body's checksum, 31 bits, is over the bytes as sent; 0 is unchecked."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster: str = wire("clusterName")
    ha_address: str = wire("haServerAddr", "")
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0


@dataclass(slots=True, kw_only=True)
class RegisterBrokerReplyHeader(Header):
    """Answers 103; both only to a slave whose master is alive."""

    ha_address: str | None = wire("haServerAddr", None)
    master_address: str | None = wire("masterAddr", None)


@dataclass(slots=True, kw_only=True)
class BrokerHeader(Header):
    """104, 322: which broker speaks."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster: str = wire("clusterName")
    broker_id: Long


@dataclass(slots=True, kw_only=True)
class DataVersionReplyHeader(Header):
    """Answers 322."""

    changed: bool


@dataclass(slots=True, kw_only=True)
class RouteHeader(Header):
    """105."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(slots=True, kw_only=True)
class PutKvHeader(Header):
    """100."""

    namespace: str
    key: str
    value: str


@dataclass(slots=True, kw_only=True)
class KvKeyHeader(Header):
    """101, 102."""

    namespace: str
    key: str


@dataclass(slots=True, kw_only=True)
class KvValueReplyHeader(Header):
    """Answers 101."""

    value: str


@dataclass(slots=True, kw_only=True)
class NamespaceHeader(Header):
    """219."""

    namespace: str


@dataclass(slots=True, kw_only=True)
class BrokerNameHeader(Header):
    """205, 327."""

    broker_name: str


@dataclass(slots=True, kw_only=True)
class WipedReplyHeader(Header):
    """Answers 205: topics touched."""

    topics: Int = wire("wipeTopicCount")


@dataclass(slots=True, kw_only=True)
class RestoredReplyHeader(Header):
    """Answers 327: topics touched."""

    topics: Int = wire("addTopicCount")


@dataclass(slots=True, kw_only=True)
class DeleteRouteHeader(Header):
    """216; with a cluster, only that cluster's brokers lose the topic."""

    topic: str
    cluster: str | None = wire("clusterName", None)


@dataclass(slots=True, kw_only=True)
class ClusterHeader(Header):
    """224."""

    cluster: str
