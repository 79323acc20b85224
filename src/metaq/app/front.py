"""What clients find of a broker: its protocol servers, and where they are registered."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import metaq
from metaq.app.progress.offset_table import OffsetTableProgress
from metaq.app.registration import NameServerRegistration, Registration, ZookeeperRegistration
from metaq.app.serving import Serving, listen_limits, without_http
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.errors import ConfigError
from metaq.model.acl.changes import accounts_of
from metaq.model.acl.secret import Credentials
from metaq.model.metaq1.pair import GregorSettings, SamsaSettings
from metaq.net.budget import Budget, ListenLimits
from metaq.options import BrokerOptions
from metaq.servers.ha.server import replication_server
from metaq.servers.remoting.server import remoting_server
from metaq.servers.server import BrokerServices, PeerServer, Server

if TYPE_CHECKING:
    from metaq.app.tls.running import RunningTls
    from metaq.net.tls.server import ServerTls
    from metaq.servers.http.starting import EarlyServer


class Front(NamedTuple):
    """A broker's protocol servers, and its registrations."""

    serving: Serving[BrokerServices]
    remoting: PeerServer[BrokerServices]
    """The server whose address stands for the broker in records and in routes."""
    name_servers: NameServerRegistration
    registrations: Sequence[Registration]
    """All registrations, that at the name servers first."""
    early: EarlyServer | None
    """The server that answers before the store is open; None: there is none."""


def broker_name(options: BrokerOptions) -> str:
    """Return the broker's name: the configured one, or that of the machine."""
    return options.broker_name or platform.node() or "DEFAULT_BROKER"


def make_front(
    options: BrokerOptions,
    metaq1: Metaq1Settings | None,
    name_servers: Sequence[str],
    more: Sequence[Server[BrokerServices]],
    credentials: Credentials | None,
    tls: RunningTls | None,
) -> Front:
    """Make the protocol servers of the options, with `more`, and the registrations, which are signed with `credentials`."""
    ports = tls.server if tls is not None else None
    limits = listen_limits(options)
    budget = Budget(limits)  # one for all servers: what counts is the memory of the process
    remoting = remoting_server(options, limits, budget, ports)
    replication = replication_server(
        options, lambda: remoting.port, limits, budget, ports if tls is not None and tls.for_ha else None
    )
    servers: list[Server[BrokerServices]] = [remoting, replication]
    announced = NameServerRegistration(
        name_servers, broker_name(options), remoting, replication, credentials, tls.client if tls is not None else None
    )
    registrations: list[Registration] = [announced]
    if metaq1 is not None:
        from metaq.servers.metaq1.server import metaq1_server  # only where it is served: see `Metaq1Service`

        server = metaq1_server(
            options.bind_address, metaq1, limits, metaq.__version__, budget,
            ports if tls is not None and tls.for_metaq1 else None, accounts_of(options.acl_metaq1_accounts),
        )  # fmt: skip
        servers.append(server)
        zookeeper: Registration = ZookeeperRegistration(metaq1, server)
        if isinstance(metaq1.pair, SamsaSettings):
            from metaq.app.pair.registration import SamsaRegistration  # only in a pair

            zookeeper = SamsaRegistration(metaq1, ZookeeperRegistration(metaq1, server))
        hidden = isinstance(metaq1.pair, GregorSettings)
        registrations += [OffsetTableProgress(metaq1)] if hidden else [zookeeper, OffsetTableProgress(metaq1)]
        if metaq1.options.slave_id is not None:
            from metaq.app.metaq1_slave.slave import TextSlave  # only where it is wanted: a client of its own kind

            registrations.append(TextSlave(metaq1))
    early = _http_server(options, limits, budget, ports, servers) if options.http_port is not None else None
    if early is not None:
        servers.append(early)
    return Front(Serving([*servers, *more]), remoting, announced, registrations, early)


def _http_server(
    options: BrokerOptions,
    limits: ListenLimits,
    budget: Budget,
    tls: ServerTls | None,
    servers: Sequence[Server[BrokerServices]],
) -> EarlyServer:
    """Make the HTTP server, whose metrics are those of all `servers`, too. Raises ConfigError: what it runs on is not installed."""
    try:
        from metaq.servers.http.server import http_server  # only where it is served: it is an extra
    except ModuleNotFoundError as error:
        raise ConfigError(without_http(options.http_port, error)) from None

    def peer_servers() -> Iterator[PeerServer[BrokerServices]]:
        return (one for one in servers if isinstance(one, PeerServer))

    return http_server(options, limits, peer_servers, budget, tls)
