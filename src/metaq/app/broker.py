"""Composition of a broker: store, services, door, listening port, registration at name servers."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from metaq.app.configuration import EVERYWHERE, listen_limits
from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.client.conversation.name_servers import parse_addresses
from metaq.client.transport import Transport
from metaq.clock import SYSTEM, Clock
from metaq.doors.remoting import RemotingDoor
from metaq.errors import StoreFailed
from metaq.log import RateLimitedLog
from metaq.model import DataVersion, TopicConfig
from metaq.model.message import host_bytes
from metaq.model.registration import BrokerIdentity
from metaq.net.listener import Listener, SecondPort, listen
from metaq.net.local import local_address
from metaq.net.peer import Peer, Session, join_address
from metaq.options import BrokerOptions, StoreOptions
from metaq.registry.namesrv import Registrar
from metaq.store.config_file import BackgroundFile, ConfigFile
from metaq.store.disk import Disk
from metaq.store.message_store import MessageStore
from metaq.wire.command import Command

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
VIP_PORT: Final = SecondPort(-2, "the VIP port (listenPort - 2; vipPortEnable=false goes without)")


class RunningBroker:
    """A broker that accepts connections. Made by `start_broker`.

    `failure` gets the reason when the store cannot keep its promise any more.
    """

    def __init__(
        self, name: str, address: str, broker: Broker, door: RemotingDoor, listener: Listener, clock: Clock
    ) -> None:
        self.name, self.address = name, address
        self._broker, self._door, self._listener, self._clock = broker, door, listener, clock
        self.settings = {"broker": broker.settings, "store": broker.settings}
        broker.settings.on_change.append(lambda _names: listener.limit(listen_limits(broker.options)))
        self._transport: Transport | None = None
        self._registrar: Registrar | None = None
        self._faults = RateLimitedLog(log, clock)
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[str] = self._loop.create_future()
        broker.store.when_failed(self._on_store_failure)
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self._delivery: asyncio.Handle = self._loop.call_later(TICK_SECONDS, self._deliver)
        broker.ladder.wake = self._deliver_soon

    @property
    def ready(self) -> str:
        return f"ready broker {self.name} {self.address}"

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        try:
            self._door.tick()
            self._broker.store.tick(self._clock.now_ms())
        except StoreFailed as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001
            # One service's fault, or a full disk, must not stop the clock of the others; what it did is in the log.
            self._faults.error(type(error).__name__, "a timer of the broker failed", error=error)
        self._faults.tick()

    def _deliver(self) -> None:
        pause = TICK_SECONDS
        try:
            pause = self._door.deliver()
        except Exception:
            log.exception("delivering delayed messages failed; it is tried again")
        # 0: time ran out, not the work. The connections have their turn, then it goes on.
        self._delivery = self._loop.call_later(pause, self._deliver) if pause else self._loop.call_soon(self._deliver)

    def _deliver_soon(self) -> None:
        self._delivery.cancel()
        self._delivery = self._loop.call_soon(self._deliver)

    def _on_store_failure(self, why: str) -> None:
        self._loop.call_soon_threadsafe(self._fail, why)  # it comes from the flush thread

    def _fail(self, why: str) -> None:
        if not self.failure.done():
            self.failure.set_result(why)

    def _describe(self, names: Collection[str] | None) -> tuple[DataVersion, Mapping[str, TopicConfig]]:
        topics, version = self._broker.registration(names)
        return version, topics

    async def register(self, name_servers: Sequence[str], identity: BrokerIdentity, period: float) -> None:
        """Register at the name servers; returns once one of them has taken us."""

        def lost(address: str) -> None:
            registrar.lost(address)

        self._transport = Transport(_answer_nothing, _ignore, lost)
        registrar = self._registrar = Registrar(self._transport, name_servers, identity, self._describe, period)
        self._broker.topics.watch(registrar.changed)
        self._door.after_registration = registrar.when_told
        await registrar.start()
        await registrar.registered()

    async def close(self) -> None:
        """Leave the name servers, let the peers go, save, flush, and mark the store as closed."""
        self._timer.cancel()
        self._broker.ladder.wake = _nothing
        self._delivery.cancel()
        try:
            if self._registrar is not None and self._transport is not None:
                await self._registrar.stop()
                await self._transport.close()
            await self._listener.close()
            self._door.close()
            self._broker.close()
        finally:  # whatever failed before, for example saving offsets on a full disk
            self._broker.store.close()


async def start_broker(
    options: BrokerOptions, store_options: StoreOptions, clock: Clock = SYSTEM, disk: Disk | None = None
) -> RunningBroker:
    """Start a broker with a copy of the options; returns when it accepts connections and, if it has name servers, is registered at one.

    Args: disk: for tests, a `metaq.testing.FaultyDisk`.
    Raises: ConfigError: its port is taken, a configuration file is broken, or a name server's address is no address.
    StoreLocked, StoreForeign, StoreCorrupt: the folder cannot be opened; nothing in it was changed.
    """
    options, store_options = options.replace(), store_options.replace()
    name_servers = parse_addresses(options.namesrv_addr) if options.namesrv_addr else ()
    doors: list[RemotingDoor] = []

    # The port first: records name it, and a taken one should be found before the store is touched. Nobody is accepted
    # before the door is there.
    def session(peer: Peer) -> Session:
        return doors[0].session(peer)

    second = VIP_PORT if options.vip_port_enable else None
    listener = await listen(
        options.bind_address, options.listen_port, session, listen_limits(options), second, start=False
    )
    try:
        running = _compose(options, store_options, clock, disk, listener, doors)
    except BaseException:
        await listener.close()
        raise
    try:
        await listener.start()
    except BaseException:
        await running.close()
        raise
    if name_servers:
        host = running.address.rpartition(":")[0]
        identity = BrokerIdentity(
            options.broker_cluster_name,
            running.name,
            options.broker_id,
            running.address,
            f"{host}:{listener.port + 1}",  # where RocketMQ's slaves expect replication
        )
        try:
            await running.register(name_servers, identity, options.register_name_server_period / 1000)
        except BaseException:
            await running.close()
            raise
    return running


def _compose(
    options: BrokerOptions,
    store_options: StoreOptions,
    clock: Clock,
    disk: Disk | None,
    listener: Listener,
    doors: list[RemotingDoor],
) -> RunningBroker:
    name = options.broker_name or platform.node() or "DEFAULT_BROKER"
    host = options.broker_ip1 or (local_address() if listener.host in {EVERYWHERE, "::"} else listener.host)
    store_host = host_bytes(host, listener.port)
    store = MessageStore(store_options, clock, store_host, options.broker_cluster_name, disk=disk)
    try:
        loop = asyncio.get_running_loop()

        def call_soon(work: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(work)

        def open_file(file: str) -> BackgroundFile:
            return BackgroundFile(ConfigFile(store.folder.config / file, store.disk))

        broker = Broker(options, store_options, store, clock, name, store_host, broker_files(open_file), call_soon)
        doors.append(RemotingDoor(broker, call_soon))
    except BaseException:
        store.close()
        raise
    return RunningBroker(name, join_address(host, listener.port), broker, doors[0], listener, clock)


def _answer_nothing(address: str, command: Command) -> Command | None:  # noqa: ARG001  nobody asks a broker's own client
    return None


def _ignore(_address: str) -> None:
    return None


def _nothing() -> None:
    return None
