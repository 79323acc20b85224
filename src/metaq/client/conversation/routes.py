"""Requests to name servers: routes (105), clusters (106), topic lists (206, 304, 305), KV configuration (100 to 102)."""

from __future__ import annotations

from typing import Final

from metaq.client.conversation.call import Call, Order
from metaq.model import ClusterInfo, Route
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request


class GetRoute(Call[Route | None], frozen=True):
    """Route of a topic (105); None: the name server does not know it."""

    answers = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)

    topic: str

    @property
    def action(self) -> str:
        return f"find topic {self.topic}"

    def request(self) -> Command:
        # RocketMQ before 4.9.4 ignores it and sends fastjson with bare numeric keys, which the decoder takes as well.
        header = headers.RouteHeader(topic=self.topic, accept_standard_json_only=True)
        return request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)

    def read(self, answer: Command) -> Route | None:
        return None if answer.code == ResponseCode.TOPIC_NOT_EXIST else bodies.route_of(self.topic, answer.body)


class GetCluster(Call[ClusterInfo], frozen=True):
    """All brokers of all clusters (106)."""

    action = "list the brokers"

    def request(self) -> Command:
        return request(RequestCode.GET_BROKER_CLUSTER_INFO)

    def read(self, answer: Command) -> ClusterInfo:
        return bodies.cluster_info_of(answer.body)


class ListTopics(Call[list[str]], frozen=True):
    """Names of all topics, including retry, dead-letter and system topics (206)."""

    action = "list the topics"

    def request(self) -> Command:
        return request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

    def read(self, answer: Command) -> list[str]:
        return bodies.topic_list_of(answer.body)


class ListSystemTopics(Call[list[str]], frozen=True):
    """Names of system topics: those of brokers and clusters (304; `metaq.model.topics.topic.users_topics`)."""

    action = "list the topics"

    def request(self) -> Command:
        return request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    def read(self, answer: Command) -> list[str]:
        return bodies.topic_list_of(answer.body)


class ListBrokersOwnTopics(Call[list[str]], frozen=True):
    """Names of one broker's system topics (305)."""

    action = "list the broker's own topics"

    def request(self) -> Command:
        return request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)

    def read(self, answer: Command) -> list[str]:
        return bodies.topic_list_of(answer.body)


class DeleteTopicRoute(Order, frozen=True):
    """Delete the route of a deleted topic at one name server (216). Each name server must get it: they share no state.

    `broker`: only its queues; for name servers of ours alone: RocketMQ's would delete the whole route.
    """

    topic: str
    broker: str | None = None

    @property
    def action(self) -> str:
        return f"delete topic {self.topic}"

    def request(self) -> Command:
        return request(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteRouteHeader(topic=self.topic, broker_name=self.broker)
        )


class ListValues(Call[dict[str, str]], frozen=True):
    """All values of a namespace of a name server's KV configuration (219)."""

    answers = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)

    namespace: str

    @property
    def action(self) -> str:
        return f"tell the values of {self.namespace}"

    def request(self) -> Command:
        return request(RequestCode.GET_KVLIST_BY_NAMESPACE, headers.NamespaceHeader(namespace=self.namespace))

    def read(self, answer: Command) -> dict[str, str]:
        return {} if answer.code == ResponseCode.QUERY_NOT_FOUND else bodies.kv_table_of(answer.body)


NAME_SERVER_OF_OURS: Final = "brokerLeaseMs"
"""Setting that only name servers of ours have (319): others leave requests that they do not know without an answer."""


class GetNameServerSettings(Call[dict[str, str]], frozen=True):
    """Settings of a name server (319). Ours tells them to those who may change routes and values."""

    action = "tell its settings"

    def request(self) -> Command:
        return request(RequestCode.GET_NAMESRV_CONFIG)

    def read(self, answer: Command) -> dict[str, str]:
        return bodies.settings_of(answer.body)


class GetValue(Call[str | None], frozen=True):
    """Value of a name server's KV configuration (101); None: there is none."""

    answers = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)

    namespace: str
    key: str

    @property
    def action(self) -> str:
        return f"tell the value of {self.namespace}/{self.key}"

    def request(self) -> Command:
        header = headers.KvKeyHeader(namespace=self.namespace, key=self.key)
        return request(RequestCode.GET_KV_CONFIG, header)

    def read(self, answer: Command) -> str | None:
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return headers.KvValueReplyHeader.from_ext(answer.ext).value


class PutValue(Order, frozen=True):
    """Set a value of a name server's KV configuration (100). Each name server has its own."""

    namespace: str
    key: str
    value: str

    @property
    def action(self) -> str:
        return f"set the value of {self.namespace}/{self.key}"

    def request(self) -> Command:
        header = headers.PutKvHeader(namespace=self.namespace, key=self.key, value=self.value)
        return request(RequestCode.PUT_KV_CONFIG, header)


class DeleteValue(Order, frozen=True):
    """Delete a value of a name server's KV configuration (102). A missing one is no error."""

    namespace: str
    key: str

    @property
    def action(self) -> str:
        return f"delete the value of {self.namespace}/{self.key}"

    def request(self) -> Command:
        return request(RequestCode.DELETE_KV_CONFIG, headers.KvKeyHeader(namespace=self.namespace, key=self.key))
