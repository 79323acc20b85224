"""The replication server of a broker (`haListenPort`): slaves, ours and RocketMQ's, copy the log from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from metaq.errors import ConfigError
from metaq.log import RateLimitedLog
from metaq.net.budget import Budget, ListenLimits
from metaq.net.peer import Peer
from metaq.options import BrokerOptions
from metaq.servers.ha.session import Shared, SlaveSession, StrangerSession
from metaq.servers.pieces import ColdReads
from metaq.servers.server import BrokerServices, PeerServer
from metaq.wire.hot import QueueTail

if TYPE_CHECKING:
    from metaq.net.tls.server import ServerTls

log = logging.getLogger(__name__)

COLD_READERS = 1
PORT_MAX = 65535


class ReplicationServer:
    """The slaves' sessions of one broker. A `metaq.servers.server.SessionServer`."""

    def __init__(self, services: BrokerServices) -> None:
        broker = services.broker
        self._broker = broker
        self._strangers = set[StrangerSession]()
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(COLD_READERS, "metaq-ha-read")
        self._shared = Shared(
            broker.options,
            broker.clock,
            broker.store,
            broker.replicas,
            ColdReads(self._readers),
            sessions=set(),
            faults=RateLimitedLog(log, broker.clock),
        )
        self._pumping = False
        broker.appender.when_grown(self._grew)

    def session(self, peer: Peer) -> SlaveSession | StrangerSession:
        """Make the session of a new connection."""
        why = self._broker.slave_admission.why_not(peer.address[0])
        if not why:
            return SlaveSession(peer, self._shared)
        self._shared.faults.error(peer.address[0], "a connection that would copy the log is refused: %s", why)
        session = StrangerSession(peer, self._shared.clock.monotonic(), self._strangers)
        self._strangers.add(session)
        return session

    def _grew(self, _queues: Sequence[QueueTail], _messages: int, _size: int, _start: int, _end: int) -> None:
        # Once in a turn of the loop, behind its appends.
        if self._shared.sessions and not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        for session in list(self._shared.sessions):
            session.pump()

    def tick(self) -> None:
        """Send heartbeats, and end silent connections."""
        now = self._shared.clock.monotonic()
        self._shared.replicas.note_end(now)
        for session in list(self._shared.sessions):
            session.pump()  # growth that no hook told: records that no queue has
            session.tick(now)
        for stranger in list(self._strangers):
            stranger.tick(now, self._broker.options.ha_send_heartbeat_interval / 1000)
        self._shared.faults.tick()

    def close(self) -> None:
        # A read that hangs on a slow disk must not hold up the stop: its connection is closed already.
        self._readers.shutdown(wait=False, cancel_futures=True)


def _open_sessions(services: BrokerServices, server: PeerServer[BrokerServices]) -> ReplicationServer:
    services.broker.replicas.port = server.port
    return ReplicationServer(services)


class ReplicationPort(PeerServer[BrokerServices]):
    """The server of a broker's replication port.

    Args:
        options: of the broker.
        remoting_port: returns the port of the remoting server, which is bound before.
    """

    def __init__(
        self,
        options: BrokerOptions,
        remoting_port: Callable[[], int],
        limits: ListenLimits,
        budget: Budget | None,
        tls: ServerTls | None,
    ) -> None:
        super().__init__(
            "replication",
            (options.bind_address, options.ha_listen_port or 0),
            limits,
            _open_sessions,
            what="the replication server (haListenPort)",
            budget=budget,
            tls=tls,
        )
        self._options, self._remoting_port = options, remoting_port

    async def bind(self) -> None:
        options = self._options
        # As RocketMQ, whose slaves ask the name servers for it. Where the port is taken, any other will do for them.
        expected = self._remoting_port() + 1 if options.ha_listen_port is None and options.listen_port else 0
        if 0 < expected <= PORT_MAX:
            self._place = (options.bind_address, expected)
            try:
                await super().bind()
            except ConfigError as error:
                self._place = (options.bind_address, 0)
                await super().bind()
                log.warning("slaves find this broker's log at port %d: %s", self.port, error)
            return
        await super().bind()


def replication_server(
    options: BrokerOptions,
    remoting_port: Callable[[], int],
    limits: ListenLimits,
    budget: Budget | None = None,
    tls: ServerTls | None = None,
) -> PeerServer[BrokerServices]:
    """Make the server of a broker's replication port, not bound yet. `budget`, `tls`: of all servers of the process."""
    return ReplicationPort(options, remoting_port, limits, budget, tls)
