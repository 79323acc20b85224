"""Remoting server of a broker: what its sessions share, and the table of its request codes.

A session (`session`) has a fast path for plain sends and pulls; all other requests go to the method with their code
(`messages`, `replies`, `clients`, `transactions`, `staging`, `admin`, `following`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from metaq.broker.audit import Audit
from metaq.broker.broker import Broker
from metaq.log import RateLimitedLog
from metaq.net import sweep
from metaq.net.address import join_address
from metaq.net.budget import Budget, ListenLimits
from metaq.net.listener import SecondPort
from metaq.net.peer import Peer
from metaq.options import BrokerOptions
from metaq.servers.held_acks import HeldAcks
from metaq.servers.log_lines import LastLines
from metaq.servers.pieces import ColdReads
from metaq.servers.remoting.acl.accounts import AccountHandlers, ServerName
from metaq.servers.remoting.acl.covered import as_covered
from metaq.servers.remoting.acl.signed import Signers, by_signature
from metaq.servers.remoting.admin import AdminHandlers
from metaq.servers.remoting.administration.cleaning import CleaningHandlers
from metaq.servers.remoting.administration.configuring import ConfiguringHandlers
from metaq.servers.remoting.administration.consumers import QUESTIONS, ConsumerQuestionHandlers
from metaq.servers.remoting.administration.inspection import InspectionHandlers
from metaq.servers.remoting.administration.log_lines import LogHandlers
from metaq.servers.remoting.administration.statistics import StatisticsHandlers
from metaq.servers.remoting.asking import Asking, Questions
from metaq.servers.remoting.auditing import RequestAudit
from metaq.servers.remoting.clients import ClientHandlers
from metaq.servers.remoting.dispatch import WAITED_IN_VAIN, Handling, Identify
from metaq.servers.remoting.failover import FailoverHandlers
from metaq.servers.remoting.following import FollowingHandlers
from metaq.servers.remoting.handlers import table_of
from metaq.servers.remoting.leading import by_leaders
from metaq.servers.remoting.messages import MessageHandlers
from metaq.servers.remoting.quota.handlers import QuotaHandlers
from metaq.servers.remoting.relaying import Relay
from metaq.servers.remoting.replies import ASKING, ReplyHandlers
from metaq.servers.remoting.session import BrokerSession
from metaq.servers.remoting.staging import StagingHandlers
from metaq.servers.remoting.sweeping import SweptSends
from metaq.servers.remoting.transactions import BranchHandlers, TransactionHandlers
from metaq.servers.remoting.workspace import Workspace
from metaq.servers.server import BrokerServices, CallSoon, PeerServer, WhenAnnounced
from metaq.servers.slices import SlowWork
from metaq.servers.tally import Tally
from metaq.servers.waiting import BYTES_MAX, Parking

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls
    from metaq.net.tls.server import ServerTls

log = logging.getLogger(__name__)

COLD_READERS = 2
VIP_PORT: Final = SecondPort(-2, "the VIP port (listenPort - 2; vipPortEnable=false goes without)")
"""RocketMQ's 3.x and 4.x clients may send to it (vipChannelEnabled, the default before 4.5), and do not pull there; its
slaves sync their configuration from it. It takes the same requests as the main port."""


def at_once(done: Callable[[], None]) -> None:
    """Call at once, for a broker that is registered nowhere."""
    done()


class RemotingServer:
    """The sessions of one broker. A `metaq.servers.server.SessionServer`.

    Args:
        broker: the services.
        call_soon: brings a call from another thread to the event loop.
        when_announced: calls its argument once the name servers know the topics as they are.
        asking: requests that the server itself can send; by default pushed replies and questions to consumers.
        identify: finds the caller of a request that is signed, or should be.
        accounts: answers requests about accounts.
        signers: whose signed requests the fast paths take; None: all of them take the slow path.
        audit: notes administrative and refused requests.
        connections: returns how many are open.
        leader_tls: how it connects to the leader when this broker has stepped down; None: without TLS.
    """

    def __init__(
        self,
        broker: Broker,
        call_soon: CallSoon,
        when_announced: WhenAnnounced = at_once,
        asking: Asking | None = None,
        identify: Identify | None = None,
        accounts: AccountHandlers | None = None,
        signers: Signers | None = None,
        audit: Audit | None = None,
        connections: Callable[[], int] = lambda: 0,
        tally: Tally | None = None,
        lines: LastLines | None = None,
        leader_tls: ClientTls | None = None,
    ) -> None:
        self.broker = broker
        self.relay = Relay(broker, leader_tls)
        self._cold_readers = ThreadPoolExecutor(COLD_READERS, "metaq-cold-read")
        timeout = broker.store_options.sync_flush_timeout / 1000
        held = HeldAcks(
            broker.acks, broker.store.flusher, broker.clock, call_soon, timeout,
            took=broker.stats.took, copy_seconds=broker.options.slave_timeout / 1000,
        )  # fmt: skip
        self.workspace = Workspace(broker, held, ColdReads(self._cold_readers), signers)
        if sweep.available():
            # One sweep for all connections of this server: the more of them it reads in a pass, the less each costs.
            self.workspace.sweep = SweptSends(self.workspace).sweep
        self._following = FollowingHandlers(broker)
        handlers = by_leaders(
            as_covered(
                broker.gatekeeper,
                table_of(
                    MessageHandlers(broker, self.workspace),
                    ClientHandlers(broker),
                    TransactionHandlers(broker, self.workspace),
                    ReplyHandlers(broker),
                    StagingHandlers(broker, self.workspace),
                    BranchHandlers(broker, self.workspace),
                    AdminHandlers(broker, when_announced, connections),
                    InspectionHandlers(broker),
                    StatisticsHandlers(broker),
                    CleaningHandlers(broker),
                    LogHandlers(broker.gatekeeper, lines or LastLines()),
                    ConsumerQuestionHandlers(broker),
                    ConfiguringHandlers(broker),
                    QuotaHandlers(broker.quotas, broker.gatekeeper),
                    accounts or AccountHandlers(None, ServerName("", "", "")),
                    self._following,
                    FailoverHandlers(broker),
                ),
            ),
            broker,
            self.relay,
        )
        self.handling = Handling(
            handlers,
            # A send that waits outlives its connection: a part of what all clients may make the broker keep.
            Parking(broker.clock, WAITED_IN_VAIN, bytes_max=min(BYTES_MAX, broker.options.peer_bytes_max // 8)),
            Questions(broker.clock, {**ASKING, **QUESTIONS} if asking is None else asking),
            RateLimitedLog(log, broker.clock),
            broker.gatekeeper,
            broker.options.frame_bytes_max,
            identify,
            SlowWork(broker.clock.monotonic),
            RequestAudit(audit, handlers) if audit is not None else None,
            broker.quotas,
            tally or Tally(),
        )

    def session(self, peer: Peer) -> BrokerSession:
        """Make the session of a new connection."""
        return BrokerSession(peer, self.handling, self.workspace)

    def tick(self) -> None:
        """End what has waited too long. Called ten times a second."""
        self.workspace.held_acks.expire()
        self.handling.tick()
        self._following.tick()
        self.relay.tick()

    def close(self) -> None:
        self.relay.close()
        # A read that hangs on a slow disk must not hold up the stop: its connection is closed already.
        self._cold_readers.shutdown(wait=False, cancel_futures=True)


def remoting_server(
    options: BrokerOptions, limits: ListenLimits, budget: Budget | None = None, tls: ServerTls | None = None
) -> PeerServer[BrokerServices]:
    """Make the server of a broker's `listenPort`, not bound yet. `budget`, `tls`: of all servers of the process."""

    def open_sessions(services: BrokerServices, server: PeerServer[BrokerServices]) -> RemotingServer:
        broker, access = services.broker, services.access
        server.admit_by(broker.quotas)
        address = join_address(services.host, server.port)
        who = ServerName(broker.environment.name, address, broker.options.broker_cluster_name)
        return RemotingServer(
            broker, services.call_soon, services.when_announced,
            identify=None if access is None else by_signature(access),
            accounts=AccountHandlers(access, who),
            signers=None if access is None else Signers(access),
            audit=services.audit,
            connections=lambda: server.connections,
            tally=services.tally,
            lines=services.log,
            leader_tls=services.tls,
        )  # fmt: skip

    if tls is not None:
        tls.stay_awake(sweep.awake_micros(options.busy_poll_micros))
    return PeerServer(
        "remoting",
        (options.bind_address, options.listen_port),
        limits,
        open_sessions,
        second=VIP_PORT if options.vip_port_enable else None,
        budget=budget,
        tls=tls,
    )
