"""Composition of a broker: store, services, server, listening port, registration at name servers."""

from __future__ import annotations

import asyncio
import logging
import platform
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import structs

import metaq
from metaq.app.configuration import EVERYWHERE, METAQ1, listen_limits
from metaq.app.delivery import Delivery
from metaq.app.files import broker_files
from metaq.app.peers import BrokerPeers
from metaq.app.predicate_process import filter_helpers, predicate_helpers
from metaq.app.registration import Registration
from metaq.app.text_registration import TextRegistration
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.client.conversation.name_servers import parse_addresses
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, StoreFailed
from metaq.log import RateLimitedLog
from metaq.model.message import host_bytes
from metaq.model.topics.registration import BrokerIdentity
from metaq.net.address import join_address
from metaq.net.group import ListenLimits
from metaq.net.listener import Listener, SecondPort, bind
from metaq.net.local import local_address
from metaq.options import BrokerOptions, StoreOptions
from metaq.servers.metaq1.server import IDLE_SECONDS, Metaq1Server
from metaq.servers.metaq1.transactions import TransactionHandlers
from metaq.servers.remoting.server import RemotingServer
from metaq.servers.server import Server
from metaq.store.config_file import BackgroundFile, ConfigFile
from metaq.store.disk import Disk
from metaq.store.journalled_file import BackgroundTable
from metaq.store.message_store import MessageStore

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
VIP_PORT: Final = SecondPort(-2, "the VIP port (listenPort - 2; vipPortEnable=false goes without)")


class Tasks(NamedTuple):
    """What works for a broker in the event loop, beside its server."""

    delivery: Delivery
    registration: Registration
    text_registration: TextRegistration
    peers: BrokerPeers


class Entrance(NamedTuple):
    """A server, and where it is."""

    protocol_server: Server
    listener: Listener


class RunningBroker:
    """A broker whose store is open. Made by `start_broker`.

    `failure` gets the reason when the store cannot keep its promise any more. `entrances`: that of the remoting protocol,
    and others.
    """

    def __init__(self, address: str, broker: Broker, entrances: Sequence[Entrance], tasks: Tasks) -> None:
        self.name, self.address = broker.environment.name, address
        self._broker, self._clock, self._tasks, self._entrances = broker, broker.clock, tasks, entrances
        self._listener = entrances[0].listener
        self.settings = {"broker": broker.settings, "store": broker.settings}
        self.text, self.reloading = broker.text, broker.reloading
        if self.text is not None:
            self.settings[METAQ1] = self.text.settings
        broker.settings.watch(lambda _names: self._limit())
        self._faults = RateLimitedLog(log, broker.clock)
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[str] = self._loop.create_future()
        broker.store.when_failed(self._on_store_failure)
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        tasks.delivery.start(broker.deliver)

    @property
    def ready(self) -> str:
        return f"ready broker {self.name} {self.address}"

    @property
    def text_address(self) -> str:
        """`host:port` of the MetaQ 1.x server; empty without one."""
        return self._entrances[1].listener.address if self._broker.partitions is not None else ""

    def _limit(self) -> None:
        for entrance in self._entrances:
            limits = listen_limits(self._broker.options)
            entrance.listener.limit(limits if entrance.listener is self._listener else text_limits(limits))

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        for tick in (
            self._broker.tick,
            *(entrance.protocol_server.tick for entrance in self._entrances),
            self._tick_store,
        ):
            try:
                tick()
            except StoreFailed as error:
                self._fail(str(error))
            except Exception as error:  # noqa: BLE001
                # One service's fault, or a full disk, must not stop the clock of the others; what it did is in the log.
                self._faults.error(type(error).__name__, "a timer of the broker failed", error=error)
        self._faults.tick()

    def _tick_store(self) -> None:
        self._broker.store.tick(self._clock.now_ms())

    def _on_store_failure(self, why: str) -> None:
        self._loop.call_soon_threadsafe(self._fail, why)  # it comes from the flush thread

    def _fail(self, why: str) -> None:
        if not self.failure.done():
            self.failure.set_result(why)

    async def accept(self, name_servers: Sequence[str]) -> None:
        """Let clients in, and register at the name servers if there are any. Raises ConfigError: another process took the port."""
        for entrance in self._entrances:
            await entrance.listener.start(entrance.protocol_server.session)
        options = self._broker.options
        if name_servers:
            host = self.address.rpartition(":")[0]
            identity = BrokerIdentity(
                options.broker_cluster_name,
                self.name,
                options.broker_id,
                self.address,
                f"{host}:{self._listener.port + 1}",  # where RocketMQ's slaves expect replication
            )
            await self._tasks.registration.start(
                self._broker,
                name_servers,
                identity,
                options.register_name_server_period / 1000,
            )
        if self.text_address:
            log.info("clients of MetaQ 1.x are served at %s", self.text_address)
        await self._tasks.text_registration.start(self._broker)

    async def close(self) -> None:
        """Leave the name servers, let the peers go, save, flush, and mark the store as closed."""
        self._timer.cancel()
        self._tasks.delivery.stop()
        try:
            await self._tasks.registration.stop()
            await self._tasks.text_registration.stop()
            for entrance in self._entrances:
                await entrance.listener.close()
            for entrance in self._entrances:
                entrance.protocol_server.close()
            await self._tasks.peers.close()
            self._broker.close()
        finally:  # whatever failed before, for example saving offsets on a full disk
            self._broker.store.close()


async def start_broker(
    options: BrokerOptions,
    store_options: StoreOptions,
    clock: Clock = SYSTEM,
    disk: Disk | None = None,
    text: Metaq1Settings | None = None,
) -> RunningBroker:
    """Start a broker with a copy of the options; returns when it accepts connections and, if it has name servers, is registered at one.

    Args: disk: for tests, a `metaq.testing.FaultyDisk`. text: to serve MetaQ 1.x, with these settings.
    Raises: ConfigError: its port is taken, a configuration file is broken, or a name server's address is no address.
    StoreLocked, StoreForeign, StoreCorrupt: the folder cannot be opened; nothing in it was changed.
    """
    options, store_options = options.replace(), store_options.replace()
    # A wrong address should be found before anything is touched.
    name_servers = parse_addresses(options.namesrv_addr) if options.namesrv_addr else ()
    # The port first: records name it, and a taken one should be found before the store is touched.
    second = VIP_PORT if options.vip_port_enable else None
    limits = listen_limits(options)
    listeners = [await bind(options.bind_address, options.listen_port, limits, second)]
    try:
        if text is not None:
            try:
                listeners.append(await bind(options.bind_address, text.options.server_port, text_limits(limits)))
            except ConfigError as error:
                raise ConfigError(f"the MetaQ 1.x server (serverPort): {error}") from None
        running = _compose((options, store_options, text), clock, disk, listeners, BrokerPeers(name_servers))
    except BaseException:
        for listener in listeners:
            await listener.close()
        raise
    try:
        await running.accept(name_servers)
    except BaseException:
        await running.close()
        raise
    return running


def text_limits(limits: ListenLimits) -> ListenLimits:
    """Those of the MetaQ 1.x server: its clients are silent for longer, as a person at a terminal is."""
    return structs.replace(limits, idle_seconds=max(limits.idle_seconds, IDLE_SECONDS))


def _compose(
    settings: tuple[BrokerOptions, StoreOptions, Metaq1Settings | None],
    clock: Clock,
    disk: Disk | None,
    listeners: Sequence[Listener],
    peers: BrokerPeers,
) -> RunningBroker:
    options, store_options, text = settings
    listener = listeners[0]
    name = options.broker_name or platform.node() or "DEFAULT_BROKER"
    host = options.broker_ip1 or (local_address() if listener.host in {EVERYWHERE, "::"} else listener.host)
    store_host = host_bytes(host, listener.port)
    store = MessageStore(store_options, clock, store_host, options.broker_cluster_name, disk=disk)
    try:
        loop, own_thread = asyncio.get_running_loop(), threading.get_ident()
        store.watch_flushes(loop.add_reader, loop.remove_reader)

        def call_soon(work: Callable[[], None]) -> None:
            if threading.get_ident() == own_thread:
                loop.call_soon(work)
            else:
                loop.call_soon_threadsafe(work)

        def open_file(file: str) -> BackgroundFile:
            return BackgroundFile(ConfigFile(store.folder.config / file, store.disk))

        def open_table(file: str) -> BackgroundTable:
            return BackgroundTable(store.folder.config / file, store.disk)

        place = host, 0
        if text is not None:
            place = text.options.host_name or host, listeners[1].port
        tasks = Tasks(Delivery(), Registration(), TextRegistration(text, place), peers)
        environment = Environment(options, store_options, clock, store, name, store_host)
        broker = Broker(
            environment,
            broker_files(open_file, open_table),
            call_soon,
            read_cold=tasks.delivery.read,
            peers=peers,
            make_helper=predicate_helpers(options, call_soon),
            make_filter_helper=filter_helpers(options, text.options, call_soon) if text is not None else None,
            text=text,
        )
        broker.lead()
        entrances = [Entrance(RemotingServer(broker, call_soon, tasks.registration.when_announced), listener)]
        if text is not None and broker.branches is not None:
            protocol_server = Metaq1Server(
                broker, text, TransactionHandlers(broker.branches), call_soon, place, metaq.__version__
            )
            entrances.append(Entrance(protocol_server, listeners[1]))
        return RunningBroker(join_address(host, listener.port), broker, entrances, tasks)
    except BaseException:
        store.close()
        raise
