"""Remoting server of a name server: request codes to calls of `metaq.namesrv` and their answers
(docs/formats/remoting.md)."""

from __future__ import annotations

import logging
from typing import Any, Final

from msgspec import structs

from metaq.broker.acl import AccessControl
from metaq.broker.audit import Audit
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.quota.service import Quotas, defaults_of
from metaq.errors import BadRequest, ConfigError, Reason, Refused
from metaq.in_pieces import InPieces
from metaq.log import RateLimitedLog
from metaq.model.access import Action, administered_locally, everybody
from metaq.model.servers.identity import ServerIdentity
from metaq.model.topics.advertised import Advertised, Origin
from metaq.model.topics.registration import BrokerIdentity, Registration
from metaq.namesrv.service import NameService
from metaq.net.peer import Peer
from metaq.servers.option_states import option_states
from metaq.servers.remoting.acl.accounts import AccountHandlers, ServerName
from metaq.servers.remoting.acl.signed import by_signature
from metaq.servers.remoting.asking import Questions
from metaq.servers.remoting.auditing import RequestAudit
from metaq.servers.remoting.dispatch import WAITED_IN_VAIN, Handling, RemotingSession
from metaq.servers.remoting.handlers import After, Answer, Call, NoHeader, Reply, handles, table_of
from metaq.servers.remoting.reports import namesrv_settings_text
from metaq.servers.slices import SlowWork
from metaq.servers.tally import Tally
from metaq.servers.waiting import Parking
from metaq.wire import bodies, extensions, headers
from metaq.wire.codes import RequestCode
from metaq.wire.hot import crc31

log = logging.getLogger(__name__)

MODERN_REGISTRATION_VERSION = 37
"""V3_0_11, from which on the body of a registration wraps the topic table."""

_NAMESAKE_SECONDS: Final = 600.0
"""Shortest interval between two warnings of brokers of one name, which register in turns for as long as they run."""

_DOCS = "See http://rocketmq.apache.org/docs/faq/ for further details."


class NamesrvServer:
    """The sessions of one name server, or of one of its listeners. A `metaq.servers.server.SessionServer`.

    Args:
        service: the routes, and the KV table.
        access: accounts; None: there are none.
        address: under which it tells the versions of its accounts.
        listener: name of the listener whose connections these are; "" for that of listenPort.
        audit: notes administrative and refused requests.
        quotas: of all listeners together; None: this one has its own.
        tally: counts requests, likewise.
    """

    def __init__(
        self,
        service: NameService,
        *,
        access: AccessControl | None = None,
        address: str = "",
        listener: str = "",
        audit: Audit | None = None,
        quotas: Quotas | None = None,
        tally: Tally | None = None,
    ) -> None:
        self.service, self.listener = service, listener
        options = service.options
        self.quotas = quotas or Quotas(service.clock, defaults_of(options), options.quota_wait_max / 1000)
        table = table_of(
            BrokerRegistration(service), RouteHandlers(service), PermissionHandlers(service), KvHandlers(service),
            IdentityHandlers(service), AccountHandlers(access, ServerName("", address, "")),
        )  # fmt: skip
        # Look-ups need an account, but no right: clients look for topics that accounts have none to, as a template.
        handlers = {
            code: one if one.action is not Action.OBSERVE else structs.replace(one, topic="")
            for code, one in table.items()
        }
        self.handling = Handling(
            handlers,
            Parking(service.clock, WAITED_IN_VAIN),
            # A name server asks its clients nothing.
            Questions(service.clock, {}),
            RateLimitedLog(log),
            # RocketMQ's name servers take administration from anybody (CVE-2023-37582 came that way); ours only from
            # this machine, unless they are told to, or have accounts.
            access.gatekeeper
            if access is not None
            else Gatekeeper(everybody if service.options.remote_administration_enable else administered_locally),
            service.options.frame_bytes_max,
            by_signature(access) if access is not None else None,
            slow_work=SlowWork(service.clock.monotonic),
            audit=RequestAudit(audit, handlers) if audit is not None else None,
            quotas=self.quotas,
            tally=tally or Tally(),
        )

    def session(self, peer: Peer) -> RemotingSession:
        """Make the session of a new connection."""
        return _NamesrvSession(peer, self)

    def tick(self) -> None:
        """End what has waited too long."""
        self.handling.tick()

    def close(self) -> None:
        """Release nothing: it holds nothing."""


class _NamesrvSession(RemotingSession):
    """A connection. When it ends, the brokers that registered through it are dropped, as in RocketMQ."""

    def __init__(self, peer: Peer, server: NamesrvServer) -> None:
        super().__init__(peer, server.handling)
        self._service = server.service
        self.origin = Origin(peer.address[0], server.listener)
        """Decides which of a broker's addresses is told."""

    def on_lost(self, why: str) -> None:
        for address in self._service.disconnected(self.peer):
            log.info("the broker at %s is gone: its connection ended%s", address, f" ({why})" if why else "")


class BrokerRegistration:
    """Registrations of brokers (103, 104, 322)."""

    def __init__(self, service: NameService) -> None:
        self._service = service
        self._log = RateLimitedLog(log, service.clock, _NAMESAKE_SECONDS)

    @handles(RequestCode.REGISTER_BROKER, headers.RegisterBrokerHeader, Action.REGISTER)
    def _register(self, call: Call[headers.RegisterBrokerHeader]) -> InPieces[Answer]:
        header, body = call.header, call.body
        # 0 means "not checked": older brokers send none.
        if header.body_crc32 and crc31(body) != header.body_crc32:
            raise Refused(
                Reason.INVALID, f"crc32 not match: the registration of {header.broker_name} was damaged on its way"
            )
        # Brokers before V3_0_11 send the topic table without a wrapper.
        bare = call.version < MODERN_REGISTRATION_VERSION
        version, topics = yield from bodies.registration_in_pieces(body, compressed=header.compressed, bare=bare)
        who = BrokerIdentity(
            header.cluster, header.broker_name, header.broker_id, header.broker_address, header.ha_address,
            _advertised(header.advertised, "metaqAdvertised"), _advertised(header.advertised_ha, "metaqAdvertisedHa"),
        )  # fmt: skip
        # The connection is handed in, too: its end ends the registration, long before the lease of 120 s does.
        told = self._service.register(Registration(who, version, topics), call.session.peer, _origin(call))
        # A slave that is promoted registers while its master, which has stepped down, may be connected still.
        if told.replaced is not None and not told.has_changed_role:
            self._log.warning(
                (who.broker, who.broker_id),
                "the broker %s registers from %s while it is registered and connected from %s, which its clients do not "
                "find any more: if these are two brokers, give one of them another brokerName",
                who.broker, who.address, told.replaced,
            )  # fmt: skip
        answer = headers.RegisterBrokerReplyHeader(ha_address=told.master_ha_address, master_address=told.master)
        return Reply(answer, bodies.kv_table(told.order) if told.order is not None else b"")

    @handles(RequestCode.UNREGISTER_BROKER, headers.BrokerHeader, Action.REGISTER)
    def _unregister(self, call: Call[headers.BrokerHeader]) -> None:
        header = call.header
        self._service.unregister(header.broker_name, header.broker_id, header.broker_address)

    @handles(RequestCode.QUERY_DATA_VERSION, headers.BrokerHeader, Action.REGISTER)
    def _check_version(self, call: Call[headers.BrokerHeader]) -> Reply:
        found = self._service.check_version(call.header.broker_address, bodies.data_version_of(call.body))
        answer = headers.DataVersionReplyHeader(changed=found.changed)
        return Reply(answer, bodies.data_version(found.known) if found.known else b"")


def _origin(call: Call[Any]) -> Origin:
    session = call.session
    assert isinstance(session, _NamesrvSession), "a name server makes no others"
    return session.origin


def _advertised(text: str | None, field: str) -> Advertised:
    """Raises BadRequest."""
    try:
        return Advertised.of(text or "", field)
    except ConfigError as error:
        raise BadRequest(str(error)) from None


class RouteHandlers:
    """Routes, clusters and lists of topics (105, 106, 206, 216, 224, 304, 311-313)."""

    def __init__(self, service: NameService) -> None:
        self._service = service

    @handles(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader, Action.OBSERVE)
    def _route(self, call: Call[headers.RouteHeader]) -> bytes:
        try:
            return bodies.route(self._service.route(call.header.topic, _origin(call)))
        except Refused as refused:
            # RocketMQ's whole text: Java's client looks at the code alone, people search for the words.
            raise Refused(refused.reason, f"{refused.text}\n{_DOCS}") from None

    @handles(RequestCode.GET_BROKER_CLUSTER_INFO, NoHeader, Action.OBSERVE)
    def _clusters(self, call: Call[NoHeader]) -> bytes:
        return bodies.cluster_info(self._service.clusters(_origin(call)))

    @handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoHeader, Action.OBSERVE)
    def _topics(self, _call: Call[NoHeader]) -> bytes:
        return bodies.topic_list(self._service.topics())

    @handles(RequestCode.GET_TOPICS_BY_CLUSTER, headers.ClusterHeader, Action.OBSERVE)
    def _topics_of_cluster(self, call: Call[headers.ClusterHeader]) -> bytes:
        return bodies.topic_list(self._service.topics(call.header.cluster))

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoHeader, Action.OBSERVE)
    def _system_topics(self, call: Call[NoHeader]) -> bytes:
        found = self._service.system_topics(_origin(call))
        return bodies.topic_list(found.names, found.broker_address)

    @handles(RequestCode.GET_UNIT_TOPIC_LIST, NoHeader, Action.OBSERVE)
    def _unit_topics(self, _call: Call[NoHeader]) -> bytes:
        return bodies.topic_list(self._service.unit_topics())

    @handles(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, NoHeader, Action.OBSERVE)
    def _unit_subscribed_topics(self, _call: Call[NoHeader]) -> bytes:
        return bodies.topic_list(self._service.unit_subscribed_topics())

    @handles(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoHeader, Action.OBSERVE)
    def _unit_subscribed_plain_topics(self, _call: Call[NoHeader]) -> bytes:
        return bodies.topic_list(self._service.unit_subscribed_plain_topics())

    @handles(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteRouteHeader, Action.ADMINISTER)
    def _delete_topic(self, call: Call[headers.DeleteRouteHeader]) -> None:
        self._service.delete_topic(call.header.topic, call.header.cluster, call.header.broker_name)


class IdentityHandlers:
    """Which process this is, and its time (30021)."""

    def __init__(self, service: NameService) -> None:
        self._clock, self._instance = service.clock, service.instance

    @handles(RequestCode.IDENTIFY, NoHeader, Action.OBSERVE, public=True)
    def _identify(self, call: Call[NoHeader]) -> bytes:
        identity = ServerIdentity(self._instance, self._clock.now_ms(), call.session.remote)
        return extensions.server_identity(identity)


class PermissionHandlers:
    """Write permissions of a broker's queues (205, 327)."""

    def __init__(self, service: NameService) -> None:
        self._service = service

    @handles(RequestCode.WIPE_WRITE_PERM_OF_BROKER, headers.BrokerNameHeader, Action.ADMINISTER)
    def _wipe(self, call: Call[headers.BrokerNameHeader]) -> headers.WipedReplyHeader:
        return headers.WipedReplyHeader(topics=self._service.set_writable(call.header.broker_name, writable=False))

    @handles(RequestCode.ADD_WRITE_PERM_OF_BROKER, headers.BrokerNameHeader, Action.ADMINISTER)
    def _restore(self, call: Call[headers.BrokerNameHeader]) -> headers.RestoredReplyHeader:
        return headers.RestoredReplyHeader(topics=self._service.set_writable(call.header.broker_name, writable=True))


class KvHandlers:
    """The KV configuration, and the server's own settings (100-102, 219, 318, 319, 30022)."""

    def __init__(self, service: NameService) -> None:
        self._service = service

    @handles(RequestCode.PUT_KV_CONFIG, headers.PutKvHeader, Action.ADMINISTER)
    def _put(self, call: Call[headers.PutKvHeader]) -> Answer:
        header = call.header
        return After(self._service.put_kv(header.namespace, header.key, header.value))

    @handles(RequestCode.GET_KV_CONFIG, headers.KvKeyHeader, Action.OBSERVE)
    def _get(self, call: Call[headers.KvKeyHeader]) -> headers.KvValueReplyHeader:
        return headers.KvValueReplyHeader(value=self._service.get_kv(call.header.namespace, call.header.key))

    @handles(RequestCode.DELETE_KV_CONFIG, headers.KvKeyHeader, Action.ADMINISTER)
    def _delete(self, call: Call[headers.KvKeyHeader]) -> Answer:
        return After(self._service.delete_kv(call.header.namespace, call.header.key))

    @handles(RequestCode.GET_KVLIST_BY_NAMESPACE, headers.NamespaceHeader, Action.OBSERVE)
    def _table(self, call: Call[headers.NamespaceHeader]) -> bytes:
        return bodies.kv_table(self._service.kv_table(call.header.namespace))

    @handles(RequestCode.GET_NAMESRV_CONFIG, NoHeader, Action.ADMINISTER)  # it names folders: not for everybody
    def _config(self, _call: Call[NoHeader]) -> bytes:
        return namesrv_settings_text(self._service.options).encode()

    @handles(RequestCode.OPTIONS, NoHeader, Action.ADMINISTER)  # as 319
    def _options(self, _call: Call[NoHeader]) -> bytes:
        return extensions.option_states(option_states(self._service.all_settings, {}))

    @handles(RequestCode.UPDATE_NAMESRV_CONFIG, NoHeader, Action.ADMINISTER)
    def _change(self, call: Call[NoHeader]) -> Answer:
        pairs = bodies.option_changes_of(call.body)
        log.info("%s changes options: %.200s", call.session.remote, ", ".join(pairs))
        return After(self._service.changed_options.change(pairs))
