"""Registrations of a broker: at name servers, and in ZooKeeper for clients of MetaQ 1.x."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from metaq.app.addressing.told import advertised_to_clients, advertised_to_slaves
from metaq.app.progress.asking import Asking
from metaq.app.progress.neighbours import ZookeeperNeighbours
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.client.shared.transport import Transport
from metaq.errors import ConfigError
from metaq.log import when_dead
from metaq.model import DataVersion, TopicConfig
from metaq.model.acl.secret import Credentials
from metaq.model.topics.registration import BrokerIdentity, Registered
from metaq.model.topics.route import MASTER_ID
from metaq.net.address import join_address
from metaq.options import Metaq1Options
from metaq.registry.namesakes import Namesakes
from metaq.registry.namesrv import Registrar
from metaq.servers.server import BrokerServices, PeerServer

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from metaq.broker.broker import Broker
    from metaq.broker.metaq1.progress import OnGroups, OnPositions
    from metaq.broker.metaq1.service import Metaq1Service
    from metaq.net.tls.client import ClientTls
    from metaq.registry.zookeeper.registrar import ZookeeperRegistrar, ZookeeperSettings


class Registration(Protocol):
    """This broker's registration in one registry."""

    async def start(self, services: BrokerServices) -> None:
        """Register. Clients come from then on: all servers must be listening. Raises ConfigError: it can never work."""
        ...

    async def again(self, services: BrokerServices) -> None:
        """Register with the role that the broker has now, in place of what is registered. Raises nothing that `start` has not."""
        ...

    async def stop(self) -> None:
        """Unregister, before any server stops listening."""
        ...


class NameServerRegistration:
    """Registers a broker and its changes at its name servers.

    Args:
        name_servers: addresses; may be empty.
        name: the broker's.
        server: the one whose address clients get.
        replication: the one whose address slaves get.
        credentials: what registrations are signed with; None: they are not signed.
        tls: how it connects to the name servers; None: without TLS.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        name: str,
        server: PeerServer[BrokerServices],
        replication: PeerServer[BrokerServices],
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._credentials, self._tls = credentials, tls
        self.name_servers, self._name, self._server, self._replication = name_servers, name, server, replication
        self.master = Registered()
        """What the name servers have told last of this broker's master."""
        self._transport: Transport | None = None
        self._registrar: Registrar | None = None
        self._looking: asyncio.Task[None] | None = None
        self._namesakes: Namesakes | None = None
        self._watching = False
        self._met: Callable[[str], Awaitable[bool]] | None = None

    def when_met(self, met: Callable[[str], Awaitable[bool]]) -> None:
        """Call `met` with each other address that is found under this broker's name and number, until it says that is settled."""
        self._met = met

    def when_announced(self, done: Callable[[], None]) -> None:
        """Call `done` once the name servers know the topics as they are; at once without name servers."""
        if self._registrar is None:
            done()
        else:
            self._registrar.when_registered(done)

    async def start(self, services: BrokerServices) -> None:
        """Register. Return once one name server has accepted; at once without name servers."""
        await self._begin(services)
        if self._registrar is not None:
            await self._registrar.registered()

    async def _begin(self, services: BrokerServices) -> None:
        """Register, and go on with it in the background. Return when each name server has answered, or failed to."""
        if not self.name_servers:
            return
        broker, host, port = services.broker, services.host, self._server.port
        options = broker.options
        identity = BrokerIdentity(
            options.broker_cluster_name,
            self._name,
            options.broker_id,
            join_address(host, port),
            join_address(options.broker_ip2 or host, self._replication.port),
            advertised_to_clients(options),
            advertised_to_slaves(options),
        )

        def describe(names: Collection[str] | None) -> tuple[DataVersion, Mapping[str, TopicConfig]]:
            topics, version = broker.registration(names)
            return version, topics

        def lost(address: str) -> None:
            registrar.lost(address)

        self._transport = Transport(on_lost=lost, credentials=self._credentials, tls=self._tls)
        registrar = self._registrar = Registrar(
            self._transport,
            self.name_servers,
            identity,
            describe,
            options.register_name_server_period / 1000,
            # A slave's topics are its master's.
            ordered=broker.topics.set_ordered if broker.leads else lambda _topics: None,
            told=self._told,
            timeout=options.register_broker_timeout_mills / 1000,
            certain=lambda: identity.broker_id != MASTER_ID or not broker.replicas.in_doubt,
        )
        namesakes = self._namesakes = Namesakes(
            self._transport,
            self.name_servers,
            identity,
            lambda: registrar.failing,
            options.register_name_server_period / 1000,
            self._meet,
            timeout=options.register_broker_timeout_mills / 1000,
        )
        # First, so that its requests go out before the registrations, which replace what it looks for.
        self._looking = asyncio.create_task(namesakes.keep_looking(), name="look for brokers of this name")
        self._looking.add_done_callback(when_dead(log, "this broker looks for others of its name no more"))
        await asyncio.sleep(0)
        if not self._watching:
            # Before the first registration: a topic that is made meanwhile must not be missed.
            self._watching = True
            broker.topics.watch(self._changed)
        await registrar.start()

    async def again(self, services: BrokerServices) -> None:
        """Register with another role. Return when each name server has answered, or failed to: what it knew of this address is gone."""
        before, transport = self._registrar, self._transport
        if self._looking is not None:
            self._looking.cancel()
        if before is not None:
            # Not unregistered: to a name server an address has one role, the newest, and clients find it all the time.
            await before.end()
        await self._begin(services)
        if transport is not None:
            await transport.close()

    async def cease(self) -> None:
        """Register no more, until `again`. What the name servers know stays until another broker takes its place: each registration
        more of a master that has stepped down would take the place of its successor."""
        if self._registrar is not None:
            await self._registrar.end()

    async def exchange(self, name_servers: Sequence[str]) -> None:
        """Register at these name servers instead."""
        before, self.name_servers = self.name_servers, tuple(name_servers)
        log.info(
            "the address server names other name servers: %s in place of %s", ";".join(name_servers), ";".join(before)
        )
        if self._registrar is not None and self._namesakes is not None:
            await self._registrar.exchange(self.name_servers)
            self._namesakes.exchange(self.name_servers)

    def notes(self) -> Iterator[str]:
        """Yield why clients will not find this broker: no name server takes its registration, whatever the others of it say."""
        failing = dict(self._registrar.failing) if self._registrar is not None else {}
        if failing and set(self.name_servers) <= set(failing):
            told = "; ".join(f"{address}: {why}" for address, why in failing.items())
            yield f"no name server takes its registration, and no new client finds it: {told}"

    def renew(self) -> None:
        """Register now, with all that there is: another broker may have stood under this one's number until now."""
        if self._registrar is not None:
            self._registrar.changed()

    def _changed(self, topic: str | None = None) -> None:
        if self._registrar is not None:
            self._registrar.changed(topic)

    async def _meet(self, address: str) -> bool:
        return self._met is not None and await self._met(address)

    def _told(self, answer: Registered) -> None:
        if answer.replaced is not None and self._namesakes is not None:
            self._namesakes.hurry()
        if answer.master is not None:
            self.master = answer

    async def find_master(self) -> str | None:
        """Return the address from which to copy the master's log, as the name servers know it now; None: they do not."""
        if self._registrar is not None:
            registered = asyncio.Event()
            self._registrar.changed()
            self._registrar.when_registered(registered.set)
            await registered.wait()
        return self.master.master_ha_address

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._registrar is not None and self._transport is not None:
            await self._registrar.stop()
            await self._transport.close()


def slave_number(broker: Broker) -> int | None:
    """Return the number that a broker has among the slaves of its 1.x broker id; None: it is the master.

    A slave of the log with brokerId n is slave n - 1: those of RocketMQ begin with 1, those of MetaQ 1.x with 0.
    """
    if not broker.leads:
        return broker.options.broker_id - 1
    return broker.metaq1.settings.options.slave_id if broker.metaq1 is not None else None


def zookeeper_settings(options: Metaq1Options) -> ZookeeperSettings:
    """Return the settings of ZooKeeper in the options."""
    from metaq.registry.zookeeper.registrar import ZookeeperSettings

    return ZookeeperSettings(
        options.zk_connect or "",
        options.zk_root,
        options.zk_session_timeout_ms / 1000,
        options.zk_connection_timeout_ms / 1000,
        options.zk_sync_time_ms / 1000,
    )


def _no_kazoo(options: Metaq1Options, why: str) -> ConfigError:
    return ConfigError(
        f"zk.zkConnect={options.zk_connect}: registering in ZooKeeper needs kazoo ({why}); install pymetaq[zookeeper], "
        "or set zk.zkEnable=false"
    )


class ZookeeperRegistration:
    """Publishes a broker's MetaQ 1.x topics in ZooKeeper, where 1.x clients find them; not without `zk.zkConnect`, nor
    with `zk.zkEnable=false`. Registrar and kazoo are loaded only then.

    Args:
        settings: of MetaQ 1.x.
        server: the one whose address clients get.
    Raises ConfigError: kazoo is missing.
    """

    def __init__(self, settings: Metaq1Settings, server: PeerServer[BrokerServices]) -> None:
        self._settings, self._server = settings, server
        # Now, before any port is bound or the store is opened, which may take long and change files.
        if self._wanted and importlib.util.find_spec("kazoo") is None:
            raise _no_kazoo(settings.options, "there is no module kazoo")
        self._registrar: ZookeeperRegistrar | None = None
        self._asking = Asking()

    @property
    def _wanted(self) -> bool:
        options = self._settings.options
        return bool(options.zk_connect and options.zk_enable)

    async def start(self, services: BrokerServices) -> None:
        """Register. Return when that is done, or when it fails for now and is tried on in the background.

        Raises ConfigError: kazoo is missing.
        """
        served = services.broker.metaq1
        if served is None or not self._wanted:
            return
        served.partitions.watch(self._changed)
        self._settings.watch(lambda _topics: self._changed())
        served.progress.ask_by(self._ask, self._ask_groups)
        await self._register(services, served)

    async def again(self, services: BrokerServices) -> None:
        """Register as what the broker is now: who is promoted takes the place of the master before, also while its session lasts."""
        served, before = services.broker.metaq1, self._registrar
        if served is not None and before is not None:
            await self._register(services, served, succeeds=True)
            await before.stop(at_once=True)

    async def _register(self, services: BrokerServices, served: Metaq1Service, *, succeeds: bool = False) -> None:
        settings, options = self._settings, self._settings.options
        try:
            from metaq.registry.zookeeper.layout import Metaq1Broker
            from metaq.registry.zookeeper.registrar import Advertisement, ZookeeperRegistrar
        except ImportError as error:
            raise _no_kazoo(options, str(error)) from None
        address = join_address(options.host_name or services.host, self._server.port)
        who = Metaq1Broker(options.broker_id, f"meta://{address}", slave_number(services.broker))
        broker = services.broker

        def describe() -> Advertisement | None:
            if slave_number(broker) != who.slave:
                return None  # its role is being changed: who leads next replaces the nodes
            return Advertisement(settings.text, served.partitions.published())

        registrar = ZookeeperRegistrar(
            zookeeper_settings(options),
            who,
            describe,
            succeeds=succeeds,
        )
        self._registrar = registrar
        served.neighbours = ZookeeperNeighbours(registrar, options.broker_id)
        await registrar.start()

    def _changed(self) -> None:
        if self._registrar is not None:
            self._registrar.changed()

    def _ask(self, group: str, topic: str | None, tell: OnPositions) -> None:
        """Read a group's positions from ZooKeeper."""
        assert self._registrar is not None, "asked when it is there"
        self._asking.tell(self._registrar.positions(group, topic), tell)

    def _ask_groups(self, tell: OnGroups) -> None:
        """Read the groups' names from ZooKeeper."""
        assert self._registrar is not None, "asked when it is there"
        self._asking.tell(self._registrar.groups(), tell)

    async def stop(self) -> None:
        """Unregister, and wait as long as clients may take to notice."""
        if self._registrar is not None:
            await self._registrar.stop()
