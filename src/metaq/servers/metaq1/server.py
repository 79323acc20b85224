"""The MetaQ 1.x server of a broker: its sessions and what they share. `session` has the commands."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from metaq.broker.audit import Audit
from metaq.broker.broker import Broker
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.log import RateLimitedLog
from metaq.model.access import Caller
from metaq.model.acl.addresses import AddressPattern
from metaq.net.budget import Budget, ListenLimits
from metaq.net.peer import Peer
from metaq.options import MIB
from metaq.servers.held_acks import HeldAcks
from metaq.servers.metaq1.answers import Behind
from metaq.servers.metaq1.failures import Failures
from metaq.servers.metaq1.late import not_at_the_slave, too_late
from metaq.servers.metaq1.session import Metaq1Session
from metaq.servers.metaq1.space import Space, Transactions
from metaq.servers.metaq1.transactions import TransactionSteps
from metaq.servers.metaq1_stats import StatsBodies
from metaq.servers.pieces import ColdReads
from metaq.servers.server import BrokerServices, CallSoon, PeerServer
from metaq.servers.slices import SlowWork
from metaq.servers.waiting import Parking, Wording
from metaq.wire.hot import AppendOutcome, Replies

if TYPE_CHECKING:
    from metaq.net.tls.server import ServerTls

log = logging.getLogger(__name__)

COLD_READERS: Final = 2
IDLE_SECONDS: Final = 300.0
"""Silence that a connection may keep, at least: a person at a terminal is slow. The original closes after 300 s too;
the Java client sends a heartbeat after 10."""


PARKED_BYTES_MAX: Final = 256 * MIB
"""Most bytes of puts that wait for a topic or its positions, one of each connection: as much as unfinished frames may
take."""
WAITED_IN_VAIN: Final = Wording(
    too_often="what it needs is deleted as often as it is made, try again",
    too_many="too many commands wait for changes to be saved, try again",
    too_late="a change that the command needs was not saved within {seconds:g} s. ",
    undone="Nothing was done, try again",
    uncertain="It may still take effect: look, and repeat it if it has not, try again",
)


class Metaq1Server:
    """The sessions of one broker's MetaQ 1.x server. A `metaq.servers.server.SessionServer`.

    Args:
        broker: one with partitions.
        settings: of MetaQ 1.x.
        transactions: handles steps, and puts into transactions.
        call_soon: brings a call from another thread to the event loop.
        place: host and port under which clients know the server.
        version: answer to `version`.
        stats: of the broker, which this server tells where it is.
        audit: notes refused commands.
        identify: finds the caller of a connection by its address; None: there is no access control.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Metaq1Settings,
        transactions: Transactions,
        call_soon: CallSoon,
        place: tuple[str, int],
        version: str,
        stats: StatsBodies,
        audit: Audit | None = None,
        identify: Callable[[Caller], Caller] | None = None,
    ) -> None:
        assert broker.metaq1 is not None, "the broker serves MetaQ 1.x"
        services = broker.metaq1
        self._cold_readers = ThreadPoolExecutor(COLD_READERS, "metaq-1x-cold-read")
        timeout = broker.store_options.sync_flush_timeout / 1000
        samsa = services.samsa
        copy_seconds = broker.options.slave_timeout / 1000 if samsa is None else samsa.settings.send_timeout
        self.stats = stats
        stats.place, stats.connections = place, lambda: self._space.connections
        self._space = Space(
            broker=broker,
            partitions=services.partitions,
            settings=settings,
            transactions=transactions,
            held_acks=HeldAcks(
                broker.acks,
                broker.store.flusher,
                broker.clock,
                call_soon,
                timeout,
                too_late if samsa is None else functools.partial(not_at_the_slave, samsa),
                broker.stats.took,
                copy_seconds,
            ),
            cold_reads=ColdReads(self._cold_readers),
            counters=stats.counters,
            stats=stats.body,
            failures=Failures(
                stats.counters,
                RateLimitedLog(log, broker.clock),
                stats.url,
                audit,
                master=samsa is not None,
                slave=services.gregor is not None,
            ),
            version=version.encode(),
            fast_path=services.fast_path,
            # 1.x answers carry neither region nor trace switch; only the buffer is used.
            acks=Replies(b"", trace_on=False),
            outcome=AppendOutcome(),
            parking=Parking(broker.clock, WAITED_IN_VAIN, bytes_max=PARKED_BYTES_MAX, peer_bytes_max=PARKED_BYTES_MAX),
            behind=Behind(),
            slow_work=SlowWork(broker.clock.monotonic),
            gregor=services.gregor,
            identify=identify,
        )

    def session(self, peer: Peer) -> Metaq1Session:
        """Make the session of a new connection."""
        return Metaq1Session(peer, self._space)

    def tick(self) -> None:
        """End what has waited too long. Called ten times a second."""
        space = self._space
        space.parking.expire()
        space.held_acks.expire()
        space.counters.tick()
        space.failures.tick()

    def close(self) -> None:
        self._cold_readers.shutdown(wait=False, cancel_futures=True)


def metaq1_server(
    bind_address: str,
    settings: Metaq1Settings,
    limits: ListenLimits,
    version: str,
    budget: Budget | None = None,
    tls: ServerTls | None = None,
    accounts: Sequence[tuple[Iterable[AddressPattern], str]] = (),
) -> PeerServer[BrokerServices]:
    """Make the server of a broker's `serverPort`, not bound yet. `budget`, `tls`: of all servers of the process.

    `accounts`: (addresses, access key) by which clients are judged where there is access control.
    """

    def open_sessions(services: BrokerServices, server: PeerServer[BrokerServices]) -> Metaq1Server:
        broker = services.broker
        server.admit_by(broker.quotas)
        assert broker.metaq1 is not None, "the broker serves MetaQ 1.x"
        # The port that was really bound: with serverPort=0 it is known only now.
        place = settings.options.host_name or services.host, server.port
        stats = services.metaq1_stats
        assert stats is not None, "the broker serves MetaQ 1.x"
        access, steps = services.access, TransactionSteps(broker.metaq1.transactions)
        identify = None if access is None else lambda caller: access.by_address(caller, accounts)
        return Metaq1Server(
            broker, settings, steps, services.call_soon, place, version, stats, services.audit, identify
        )

    return PeerServer(
        "metaq1",
        (bind_address, settings.options.server_port),
        limits,
        open_sessions,
        what="the MetaQ 1.x server (serverPort)",
        idle_seconds_min=IDLE_SECONDS,
        budget=budget,
        tls=tls,
    )
