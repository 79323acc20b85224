"""Composition of a broker: store, services, protocol servers, registrations."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import metaq
from metaq.app.addressing.address_server import address_server, fetch, follow
from metaq.app.addressing.reachability import Reachability
from metaq.app.addressing.told import advertised_host, advertised_to_clients, check_addresses, told_to_clients
from metaq.app.audit_topic import AuditTopic
from metaq.app.auditing import RunningAudit, open_audit
from metaq.app.config_files.sections import METAQ1, TLS
from metaq.app.delivery import Delivery
from metaq.app.files import broker_files
from metaq.app.front import Front, broker_name, make_front
from metaq.app.peers import BrokerPeers
from metaq.app.predicate_process import filter_helpers, predicate_helpers
from metaq.app.registration import NameServerRegistration, Registration
from metaq.app.role.configured import check_role
from metaq.app.role.running import RunningRole
from metaq.app.serving import Serving, listen_limits
from metaq.app.supervision.concerns import Concerns
from metaq.app.supervision.loop_watch import LoopWatch
from metaq.app.supervision.opening import Opening
from metaq.app.supervision.service_manager import Told, nobody
from metaq.app.tls.wanted import tls_of
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.client.conversation.name_servers import parse_addresses
from metaq.client.shared.transport import Transport
from metaq.clock import SYSTEM, Clock, SteadyTime
from metaq.errors import ConfigError, ConnectionFailed, Refused, StoreFailed
from metaq.log import RateLimitedLog, when_dead
from metaq.model.acl.changes import accounts_of, patterns_of
from metaq.model.acl.secret import Credentials
from metaq.model.failover import ZOOKEEPER
from metaq.model.message import host_bytes
from metaq.model.metaq1.pair import GregorSettings
from metaq.model.trace_context import SpanProvider
from metaq.net.address import join_address, split_address
from metaq.options import BrokerOptions, Settings, StoreOptions
from metaq.saved_file import TextFile
from metaq.servers.server import BrokerServices, CallSoon, Server
from metaq.store.config_file import BackgroundFile, ConfigFile
from metaq.store.disk import Disk
from metaq.store.journalled_file import BackgroundTable
from metaq.store.message_store import MessageStore
from metaq.store.start_progress import StartProgress
from metaq.tls_options import NO_TLS, TlsOptions

if TYPE_CHECKING:
    from metaq.app.acl.files import AclWatch
    from metaq.app.failover.running import FailoverRole
    from metaq.app.tls.running import RunningTls
    from metaq.app.tracing.broker_spans import BrokerSpans
    from metaq.servers.metaq1_stats import StatsBodies

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
STOP_PAUSE_SECONDS: Final = 0.2
"""Between the answer to a stop request and the stop."""


class Tasks(NamedTuple):
    """A broker's work beside its protocol servers."""

    delivery: Delivery
    registrations: Sequence[Registration]
    name_servers: NameServerRegistration
    """One of the registrations."""
    peers: BrokerPeers
    role: RunningRole | FailoverRole
    acl: AclWatch | None
    """Watches the files of accounts."""
    tls: RunningTls | None
    """Watches the files of TLS."""
    audit: RunningAudit | None
    audit_topic: AuditTopic | None
    loop: LoopWatch


class RunningBroker:
    """A broker whose store is open. Made by `start_broker`.

    `failure` gets the reason when the store cannot keep its promise any more. `addresses`: of each protocol server, by
    name.

    Args:
        address: the broker's, `host:port`.
        services: for the protocol servers.
        serving: the protocol servers.
        tasks: the work beside them.
    """

    def __init__(self, address: str, services: BrokerServices, serving: Serving[BrokerServices], tasks: Tasks) -> None:
        broker = services.broker
        self.name, self.address, self.addresses = broker.environment.name, address, serving.addresses
        self._broker, self._tasks = broker, tasks
        self._steady = SteadyTime(broker.clock)
        """Ages log files."""
        self._services, self._serving = services, serving
        self.settings = {"broker": broker.settings, "store": broker.settings}
        self.reloading, self.restarting = broker.reloading, broker.restarting
        self.metaq1 = broker.metaq1.settings if broker.metaq1 is not None else None
        if self.metaq1 is not None:
            self.settings[METAQ1] = self.metaq1.settings
        broker.settings.watch(lambda _names: serving.limit(listen_limits(broker.options)))
        serving.limit(listen_limits(broker.options))  # some may have been changed over the wire, before this start
        self._faults = RateLimitedLog(log, broker.clock)
        self._reaching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._spans: BrokerSpans | None = None
        self._tracing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[str] = self._loop.create_future()
        broker.store.state.when_failed(self._on_store_failure)
        self.stopped: asyncio.Future[str] = self._loop.create_future()
        """Gets a reason when an administrator has the broker stop."""
        broker.stopping.by(self._stop)
        self.again = tasks.role.again
        """Gets a reason when the broker is to be closed and started again, because it has another role then."""
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    @property
    def ready(self) -> str:
        return f"ready broker {self.name} {self.address}"

    def show(self, settings: Settings) -> None:
        """Tell administrators of these options, too (30022)."""
        self._broker.all_settings.append(settings)

    def _tick(self) -> None:
        # The next tick is set first, whatever fails below.
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self._tasks.loop.tick()
        servers = (server.tick for server in self._serving.started())
        watches = (watch.tick for watch in (self._tasks.acl, self._tasks.tls) if watch is not None)
        ticks = self._broker.tick, *servers, self._tasks.role.tick, self._tick_store, self._tick_audit, *watches
        for tick in ticks:
            try:
                tick()
            except StoreFailed as error:
                self._fail(str(error))
            except Exception as error:  # noqa: BLE001
                # One service's fault, or a full disk, must not stop the timers of the others.
                self._faults.error(type(error).__name__, "a timer of the broker failed", error=error)
        self._faults.tick()

    def _tick_audit(self) -> None:
        if (running := self._tasks.audit) is not None:
            running.audit.tick()
        if self._tasks.audit_topic is not None:
            self._tasks.audit_topic.tick(self._broker)

    def _tick_store(self) -> None:
        self._broker.store.keeper.tick(self._steady.now_ms())

    def _stop(self, why: str) -> None:
        # Not in this turn: whoever has asked for it is answered first.
        self._loop.call_later(STOP_PAUSE_SECONDS, self._stop_now, why)

    def _stop_now(self, why: str) -> None:
        if not self.stopped.done():
            self.stopped.set_result(why)

    def _on_store_failure(self, why: str) -> None:
        self._loop.call_soon_threadsafe(self._fail, why)  # called in the flush thread

    def _fail(self, why: str) -> None:
        if not self.failure.done():
            self.failure.set_result(why)

    def trace_by(self, provider: SpanProvider | None) -> None:
        """Make spans by this provider; None: by that of `otelEndpoint`, if there is one. Raises ConfigError."""
        endpoint = self._broker.options.otel_endpoint
        if provider is None and not endpoint:
            return
        try:
            from metaq.app.tracing.broker_spans import BrokerSpans, provider_of  # only where they are wanted: an extra
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"otelEndpoint={endpoint} needs the package {error.name}: pip install 'pymetaq[otel]', or leave it out"
            ) from None
        made = provider or provider_of(endpoint, self.name)
        self._spans = BrokerSpans(self._broker, made, self.address, owned=provider is None)
        self._tracing = asyncio.create_task(self._spans.follow(), name="look for traced messages")
        self._tracing.add_done_callback(when_dead(log, "no spans are made of stored messages any more"))

    async def accept(self, stage: Callable[[str], None]) -> None:
        """Take the role, accept clients, and register then: whoever finds the broker in a registry must find all its servers.

        Args: stage: is told what is done now.
        Raises ConfigError: it cannot have its role, another process took a port, or a registry can never be used.
        """
        stage(_taking(self._broker.options))
        await self._tasks.role.take()
        if self._tasks.acl is not None:
            self._tasks.acl.start()
        if self._tasks.tls is not None:
            self._tasks.tls.start()
        self._tasks.delivery.start(self._broker.deliver)
        await self._serving.start(self._services)
        stage(_registering(self._tasks.name_servers.name_servers, self.metaq1))
        for registration in self._tasks.registrations:
            await registration.start(self._services)
        self._tasks.role.start(self._services)
        self._reaching = asyncio.create_task(self._look_whether_reached(), name="ask at the advertised addresses")
        self._reaching.add_done_callback(when_dead(log, "whether the advertised addresses lead here was not found out"))

    def follow(self, url: str, name_servers: Sequence[str]) -> None:
        """Register where the page of an address server says, from now on."""

        async def exchange(addresses: Sequence[str]) -> None:
            self._tasks.peers.exchange(addresses)
            await self._tasks.name_servers.exchange(addresses)

        self._following = asyncio.create_task(follow(url, name_servers, exchange), name="follow the address server")
        self._following.add_done_callback(when_dead(log, "this broker asks the address server no more"))

    async def _look_whether_reached(self) -> None:
        """In the background: an address that does not answer takes its time, and stops nobody."""
        tls = self._tasks.tls.client if self._tasks.tls is not None else None
        options, transport = self._broker.options, Transport(tls=tls)
        told, instance = told_to_clients(options, self.address), self._broker.environment.instance
        try:
            await Reachability(transport, instance, told, split_address(self.addresses["remoting"])[0]).look()
        finally:
            await transport.close()

    async def close(self) -> None:
        """Unregister, close connections, save, flush, and mark the store as closed."""
        self._timer.cancel()
        beside = [task for task in (self._reaching, self._following, self._tracing) if task is not None]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        if self._tasks.acl is not None:
            self._tasks.acl.stop()
        self._tasks.delivery.stop()
        try:
            await self._tasks.role.stop()
            # The broker unregisters first, while the servers still answer: clients that have the old route are not
            # refused.
            for registration in self._tasks.registrations:
                await registration.stop()
            await self._serving.close()
            await self._tasks.peers.close()
            if self._spans is not None:
                await self._spans.close()
            self._broker.close()
            if self._tasks.audit is not None:
                self._tasks.audit.file.close()
        finally:  # whatever has failed, such as saving offsets on a full disk
            self._services.log.close()
            if self._tasks.tls is not None:
                self._tasks.tls.stop()
            self._broker.store.close()


def _taking(options: BrokerOptions) -> str:
    """Return what a start does before clients are served, and what it may wait for."""
    if options.failover == ZOOKEEPER:
        return f"taking its role, which ZooKeeper {options.failover_zookeeper} has to tell: clients are not served yet"
    return "taking its role, and opening its tables"


def _registering(name_servers: Sequence[str], metaq1: Metaq1Settings | None) -> str:
    """Return what a start waits for once clients are served."""
    options = metaq1.options if metaq1 is not None else None
    if not name_servers:
        if options is not None and options.zk_connect and options.zk_enable:
            return f"clients are served, and those of MetaQ 1.x will find it once it is registered in ZooKeeper {options.zk_connect}"
        return "registering: clients are served"
    return f"clients are served, and will find it: it waits until name server {' or '.join(name_servers)} has registered it"


async def start_broker(
    options: BrokerOptions,
    store_options: StoreOptions,
    clock: Clock = SYSTEM,
    disk: Disk | None = None,
    metaq1: Metaq1Settings | None = None,
    servers: Sequence[Server[BrokerServices]] = (),
    tls: TlsOptions = NO_TLS,
    told: Told = nobody,
    tracer_provider: SpanProvider | None = None,
) -> RunningBroker:
    """Start a broker. Return once it accepts connections and, with name servers, is registered at one of them.

    Args:
        options: copied.
        store_options: copied.
        clock: a test's, or the system's.
        disk: for tests, a `metaq.testing.FaultyDisk`.
        metaq1: settings of MetaQ 1.x; None: it is not served.
        servers: servers of further protocols, not bound yet.
        tls: of its ports, and of its connections to name servers and other brokers.
        told: is told how far a long start is.
        tracer_provider: of OpenTelemetry: makes the broker's spans, instead of that of `otelEndpoint`.
    Raises:
        ConfigError: a port is taken, a configuration file or one of accounts or TLS is broken, or a name server's address is no address.
        StoreLocked, StoreForeign, StoreCorrupt: the folder cannot be opened; nothing in it was changed.
    """
    options, store_options = options.replace(), store_options.replace()
    check_role(options, metaq1)
    if metaq1 is not None and isinstance(metaq1.pair, GregorSettings):
        options = _hidden(options)
    _check_patterns(options)
    # A wrong address should be found before anything is touched.
    name_servers = parse_addresses(options.namesrv_addr) if options.namesrv_addr else ()
    check_addresses(options)
    if (url := address_server(options)) is not None:
        try:
            name_servers = await fetch(url)
        except ConnectionFailed as error:
            raise ConfigError(f"{error}: start it, or set namesrvAddr") from None
    acl, credentials = _access_control(options)
    running_tls = tls_of(tls, asyncio.get_running_loop().call_soon_threadsafe)
    front = make_front(options, metaq1, name_servers, servers, credentials, running_tls)
    # The ports first: records name that of remoting, and a taken one should be found before the store is touched.
    await front.serving.bind()
    opening = Opening(clock, told, front.early.tick if front.early is not None else lambda: None)
    opening.begin()
    try:
        running = await _opened(
            (options, store_options, metaq1), opening, clock, disk, front, name_servers, (acl, credentials), running_tls
        )
        running.settings[TLS] = Settings(tls)
        running.show(running.settings[TLS])
        try:
            running.trace_by(tracer_provider)
            await running.accept(opening.stage)
        except BaseException:
            await running.close()
            raise
    finally:
        opening.end()
    if url is not None:
        running.follow(url, name_servers)
    return running


async def _opened(
    settings: tuple[BrokerOptions, StoreOptions, Metaq1Settings | None],
    opening: Opening,
    clock: Clock,
    disk: Disk | None,
    front: Front,
    name_servers: Sequence[str],
    access: tuple[AclWatch | None, Credentials | None],
    tls: RunningTls | None,
) -> RunningBroker:
    """Open the store behind ports that are taken. Whatever it raises, they are free for the next try."""
    try:
        await _answer_early(settings[0], front, clock, opening)
        peers = BrokerPeers(name_servers, credentials=access[1], tls=tls.client if tls is not None else None)
        return await _compose(settings, opening, clock, disk, front, peers, access, tls)
    except BaseException:
        await front.serving.close()
        raise


async def _answer_early(options: BrokerOptions, front: Front, clock: Clock, opening: Opening) -> None:
    """Have the HTTP server, if there is one, say how far the start is. Raises ConfigError: another process took its port."""
    if front.early is None:
        return
    from metaq.servers.http.starting import StartingSessions  # only where it is served: it is an extra

    sessions = StartingSessions(clock, broker_name(options), options.broker_role, lambda: opening.status)
    await front.early.begin(sessions)


def _hidden(options: BrokerOptions) -> BrokerOptions:
    """Return the options with which the slave of a synchronous pair registers nowhere: to clients it is not there until it is master."""
    if options.namesrv_addr or options.fetch_namesrv_addr_by_address_server:
        log.warning("the slave of a synchronous pair registers at no name server: its master does")
    return options.replace(namesrv_addr=None, fetch_namesrv_addr_by_address_server=False)


def _check_patterns(options: BrokerOptions) -> None:
    """Raise ConfigError if options that have address patterns cannot be read."""
    for name, text, read in (
        ("haAllowedAddresses", options.ha_allowed_addresses, patterns_of),
        ("aclMetaq1Accounts", options.acl_metaq1_accounts, accounts_of),
    ):
        try:
            read(text)
        except Refused as refused:
            raise ConfigError(f"{name}: {refused.text}") from None


def _metaq1_stats(broker: Broker) -> StatsBodies | None:
    if broker.metaq1 is None:
        return None
    from metaq.servers.metaq1_stats import StatsBodies  # only where it is served: see `Metaq1Service`

    return StatsBodies(broker.metaq1, broker.clock, metaq.__version__)


def _access_control(options: BrokerOptions) -> tuple[AclWatch | None, Credentials | None]:
    """Return the accounts that the options ask for (None: everybody may everything), and what the broker itself signs with.

    Raises ConfigError.
    """
    if not (options.acl_enable or options.acl_credentials):
        return None, None
    from metaq.app.acl.files import acl_watch, credentials_of  # only where they are wanted: they load a reader of YAML

    loop = asyncio.get_running_loop()

    def call_soon(work: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(work)

    return acl_watch(options, call_soon) if options.acl_enable else None, credentials_of(options)


def _role(
    broker: Broker,
    call_soon: CallSoon,
    address: str,
    announced: NameServerRegistration,
    metaq1: Metaq1Settings | None,
    credentials: Credentials | None,
    tls: RunningTls | None,
    open_file: Callable[[str], BackgroundFile],
) -> RunningRole | FailoverRole:
    client, ha_client = (tls.client, tls.ha_client) if tls is not None else (None, None)
    if broker.in_sync is None:
        return RunningRole(broker, call_soon, address, announced, metaq1, credentials, client, ha_client)
    from metaq.app.failover.membership import MEMBERSHIP  # only where there is failover: it needs kazoo
    from metaq.app.failover.running import FailoverRole

    file = TextFile(open_file(MEMBERSHIP.name), MEMBERSHIP)
    return FailoverRole(broker, broker.in_sync, call_soon, address, announced, file, credentials, client, ha_client)


async def _compose(
    settings: tuple[BrokerOptions, StoreOptions, Metaq1Settings | None],
    opening: Opening,
    clock: Clock,
    disk: Disk | None,
    front: Front,
    peers: BrokerPeers,
    access: tuple[AclWatch | None, Credentials | None],
    tls: RunningTls | None,
) -> RunningBroker:
    options, store_options, metaq1 = settings
    port, host = front.remoting.port, advertised_host(options, front.remoting.host)
    store_host = host_bytes(host, port)

    def make(progress: StartProgress) -> MessageStore:
        return MessageStore(store_options, clock, store_host, options.broker_cluster_name, disk=disk, progress=progress)

    store = await opening.open(make)
    try:
        loop, own_thread = asyncio.get_running_loop(), threading.get_ident()
        # From here on syncs run without the GIL, where the compiled module is there.
        store.flusher.watch(loop.add_reader, loop.remove_reader)

        def call_soon(work: Callable[[], None]) -> None:
            # call_soon_threadsafe costs a system call, to wake the loop.
            if threading.get_ident() == own_thread:
                loop.call_soon(work)
            else:
                loop.call_soon_threadsafe(work)

        def open_file(file: str) -> BackgroundFile:
            return BackgroundFile(ConfigFile(store.folder.config / file, store.disk))

        def open_table(file: str) -> BackgroundTable:
            return BackgroundTable(store.folder.config / file, store.disk)

        delivery = Delivery()
        acl, credentials = access
        control = acl.access if acl is not None else None
        environment = Environment(options, store_options, clock, store, broker_name(options), store_host, clock.token())
        broker = Broker(
            environment,
            broker_files(open_file, open_table),
            call_soon,
            read_cold=delivery.read,
            gatekeeper=control.gatekeeper if control is not None else None,
            peers=peers,
            make_helper=predicate_helpers(options, call_soon),
            make_filter_helper=filter_helpers(options, metaq1.options, call_soon) if metaq1 is not None else None,
            metaq1=metaq1,
        )
        role = _role(
            broker, call_soon, join_address(host, port), front.name_servers, metaq1, credentials, tls, open_file
        )
        role.also_registered = [one for one in front.registrations if one is not front.name_servers]
        role.also_known_as = advertised_to_clients(options).addresses
        topic = AuditTopic(options.audit_log_topic) if options.audit_log_topic else None
        also = topic.put if topic is not None else None
        audit = open_audit(options, environment.name, store.folder.root, clock, disk, also)
        watch = LoopWatch(SYSTEM, TICK_SECONDS)  # timers of the loop are of real time, whatever clock a test has
        services = BrokerServices(
            broker, call_soon, front.name_servers.when_announced, host, control,
            audit.audit if audit is not None else None, watched=Concerns(watch, front.name_servers, acl, tls),
            metaq1_stats=_metaq1_stats(broker), tls=tls.client if tls is not None else None,
        )  # fmt: skip
        services.log.open()
        tasks = Tasks(delivery, front.registrations, front.name_servers, peers, role, acl, tls, audit, topic, watch)
        return RunningBroker(join_address(host, port), services, front.serving, tasks)
    except BaseException:
        store.close()
        raise
