"""The name server's remoting door: request code → service call → answer (docs/formats/remoting.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from metaq.doors.dispatch import RemotingSession, when_saved
from metaq.doors.parking import Parking
from metaq.errors import Reason, Refused
from metaq.log import RateLimitedLog
from metaq.model.route import ClusterInfo
from metaq.namesrv.routes import Registration
from metaq.namesrv.service import KvNotFound, NameService
from metaq.net.peer import Peer, is_loopback
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, reply
from metaq.wire.hot import crc31

log = logging.getLogger(__name__)

MODERN_REGISTRATION_VERSION = 37
"""From V3_0_11 on, the body of a registration wraps the topic table (reference 1.5)."""

_DOCS = "See http://rocketmq.apache.org/docs/faq/ for further details."


class NamesrvDoor:
    """Makes a session for each connection to one name server."""

    def __init__(self, service: NameService) -> None:
        self.service = service
        self.faults = RateLimitedLog(log)
        self.parking = Parking(service.clock)
        self.handlers: dict[int, Callable[[RemotingSession, Command], Command | None]] = {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._clusters,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._restore,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics(service.unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_topics(service.unit_subscribed_topics),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_topics(service.unit_subscribed_plain_topics),
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_table,
            RequestCode.GET_NAMESRV_CONFIG: self._config,
        }

    def session(self, peer: Peer) -> RemotingSession:
        """A new connection."""
        return _NamesrvSession(peer, self)

    def tick(self) -> list[str]:
        """Drop the brokers whose lease has ended; called every 10 seconds. Returns their addresses."""
        self.faults.tick()
        self.parking.expire()
        self.service.kv.saved.retry()
        return self.service.routes.expire()

    def close(self) -> None:
        """Take no change any more, and wait for a save that is under way."""
        self.service.kv.saved.close()

    # ---------------------------------------------------------------- brokers

    def _register(self, session: RemotingSession, command: Command) -> Command:
        header = headers.RegisterBrokerHeader.from_ext(command.ext)
        body = command.body
        if header.body_crc32 and crc31(body) != header.body_crc32:
            raise Refused(
                Reason.INVALID, f"crc32 not match: the registration of {header.broker_name} was damaged on its way"
            )
        bare = command.version < MODERN_REGISTRATION_VERSION
        version, topics = bodies.registration_of(body, compressed=header.compressed, bare=bare)
        said = Registration(
            header.cluster,
            header.broker_name,
            header.broker_id,
            header.broker_address,
            header.ha_address,
            version,
            topics,
        )
        master, ha_address, order = self.service.register(said, session)
        answer = headers.RegisterBrokerReplyHeader(ha_address=ha_address, master_address=master)
        return reply(command, 0, answer, body=bodies.kv_table(order) if order else b"")

    def _unregister(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.BrokerHeader.from_ext(command.ext)
        self.service.unregister(header.broker_name, header.broker_id, header.broker_address)
        return reply(command)

    def _query_version(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.BrokerHeader.from_ext(command.ext)
        asked = bodies.data_version_of(command.body)
        changed, ours = self.service.query_version(header.broker_address, asked)
        answer = headers.DataVersionReplyHeader(changed=changed)
        return reply(command, 0, answer, body=bodies.data_version(ours) if ours else b"")

    def _wipe(self, session: RemotingSession, command: Command) -> Command:
        _administration(session, command)
        name = headers.BrokerNameHeader.from_ext(command.ext).broker_name
        return reply(command, 0, headers.WipedReplyHeader(topics=self.service.set_writable(name, writable=False)))

    def _restore(self, session: RemotingSession, command: Command) -> Command:
        _administration(session, command)
        name = headers.BrokerNameHeader.from_ext(command.ext).broker_name
        return reply(command, 0, headers.RestoredReplyHeader(topics=self.service.set_writable(name, writable=True)))

    # ---------------------------------------------------------------- topics

    def _route(self, _session: RemotingSession, command: Command) -> Command:
        topic = headers.RouteHeader.from_ext(command.ext).topic
        route = self.service.route(topic)
        if route is None:
            text = f"No topic route info in name server for the topic: {topic[:200]}\n{_DOCS}"
            return reply(command, ResponseCode.TOPIC_NOT_EXIST, remark=text)
        return reply(command, body=bodies.route(route))

    def _clusters(self, _session: RemotingSession, command: Command) -> Command:
        info: ClusterInfo = self.service.routes.clusters()
        return reply(command, body=bodies.cluster_info(info))

    def _topics(self, _session: RemotingSession, command: Command) -> Command:
        return reply(command, body=bodies.topic_list(self.service.routes.topics()))

    def _topics_of_cluster(self, _session: RemotingSession, command: Command) -> Command:
        cluster = headers.ClusterHeader.from_ext(command.ext).cluster
        return reply(command, body=bodies.topic_list(self.service.routes.topics(cluster)))

    def _system_topics(self, _session: RemotingSession, command: Command) -> Command:
        names, address = self.service.system_topics()
        return reply(command, body=bodies.topic_list(names, address))

    def _unit_topics(self, find: Callable[[], list[str]]) -> Callable[[RemotingSession, Command], Command]:
        return lambda _session, command: reply(command, body=bodies.topic_list(find()))

    def _delete_topic(self, session: RemotingSession, command: Command) -> Command:
        _administration(session, command)
        header = headers.DeleteRouteHeader.from_ext(command.ext)
        self.service.routes.delete_topic(header.topic, header.cluster)
        return reply(command)

    # ---------------------------------------------------------------- configuration

    def _put_kv(self, session: RemotingSession, command: Command) -> Command | None:
        _administration(session, command)
        header = headers.PutKvHeader.from_ext(command.ext)
        put = self.service.put_kv(header.namespace, header.key, header.value)
        return when_saved(put, lambda: reply(command))

    def _get_kv(self, _session: RemotingSession, command: Command) -> Command:
        header = headers.KvKeyHeader.from_ext(command.ext)
        try:
            value = self.service.get_kv(header.namespace, header.key)
        except KvNotFound as error:
            return reply(command, ResponseCode.QUERY_NOT_FOUND, remark=str(error))
        return reply(command, 0, headers.KvValueReplyHeader(value=value))

    def _delete_kv(self, session: RemotingSession, command: Command) -> Command | None:
        _administration(session, command)
        header = headers.KvKeyHeader.from_ext(command.ext)
        deleted = self.service.delete_kv(header.namespace, header.key)
        return when_saved(deleted, lambda: reply(command))

    def _kv_table(self, _session: RemotingSession, command: Command) -> Command:
        try:
            table = self.service.kv_table(headers.NamespaceHeader.from_ext(command.ext).namespace)
        except KvNotFound as error:
            return reply(command, ResponseCode.QUERY_NOT_FOUND, remark=str(error))
        return reply(command, body=bodies.kv_table(table))

    def _config(self, session: RemotingSession, command: Command) -> Command:
        _administration(session, command)
        return reply(command, body=self.service.options.properties_text().encode())


class _NamesrvSession(RemotingSession):
    """A connection whose end takes with it the brokers that registered through it."""

    def __init__(self, peer: Peer, door: NamesrvDoor) -> None:
        super().__init__(peer, door.handlers, door.parking, door.service.options.frame_bytes_max, door.faults)
        self._routes = door.service.routes

    def on_lost(self, why: str) -> None:
        for address in self._routes.disconnected(self):
            log.info("the broker at %s is gone: its connection ended%s", address, f" ({why})" if why else "")


def _administration(session: RemotingSession, command: Command) -> None:
    """Only from this machine: RocketMQ's open name server was the way into CVE-2023-37582."""
    address = session.peer.address[0]
    if not is_loopback(address):
        name = RequestCode(command.code).name
        raise Refused(Reason.NO_PERMISSION, f"{name} is taken from loopback addresses only, not from {address}")
