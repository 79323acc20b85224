"""Name servers: registrations, routes, KV values (100-105, 205, 216, 219, 224, 322, 327)."""

from __future__ import annotations

from msgspec import field

from metaq.wire.headers.codec import Header, Int, Long


class RegisterBrokerHeader(Header, kw_only=True):
    """REGISTER_BROKER (103). `body_crc32`: 31 bits of the CRC-32 of the body as sent, compressed or not; 0 is not
    checked."""

    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster: str = field(name="clusterName")
    ha_address: str = field(name="haServerAddr", default="")
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0
    advertised: str | None = field(name="metaqAdvertised", default=None)
    """Ours: further addresses for clients (`metaq.model.topics.advertised`)."""
    advertised_ha: str | None = field(name="metaqAdvertisedHa", default=None)
    """Ours: the same for slaves, in place of `haServerAddr`."""


class RegisterBrokerReplyHeader(Header, kw_only=True):
    """Answers REGISTER_BROKER (103). Both fields are for a slave whose master is alive, and absent otherwise."""

    ha_address: str | None = field(name="haServerAddr", default=None)
    master_address: str | None = field(name="masterAddr", default=None)


class BrokerHeader(Header, kw_only=True):
    """UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322): the broker that asks."""

    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster: str = field(name="clusterName")
    broker_id: Long


class DataVersionReplyHeader(Header, kw_only=True):
    """Answers QUERY_DATA_VERSION (322)."""

    changed: bool


class RouteHeader(Header, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class PutKvHeader(Header, kw_only=True):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class KvKeyHeader(Header, kw_only=True):
    """GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class KvValueReplyHeader(Header, kw_only=True):
    """Answers GET_KV_CONFIG (101)."""

    value: str


class NamespaceHeader(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class BrokerNameHeader(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class WipedReplyHeader(Header, kw_only=True):
    """Answers WIPE_WRITE_PERM_OF_BROKER (205): topics touched."""

    topics: Int = field(name="wipeTopicCount")


class RestoredReplyHeader(Header, kw_only=True):
    """Answers ADD_WRITE_PERM_OF_BROKER (327): topics touched."""

    topics: Int = field(name="addTopicCount")


class DeleteRouteHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216); with a cluster, only that cluster's brokers lose the topic. With a broker (ours), only that
    one does: a RocketMQ ignores it."""

    topic: str
    cluster: str | None = field(name="clusterName", default=None)
    broker_name: str | None = None


class ClusterHeader(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str
