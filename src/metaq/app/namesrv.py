"""Composition of a name server: KV file, service, protocol server, port."""

from __future__ import annotations

import asyncio
import functools
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from metaq.app.addressing.told import advertised_by, listeners_of, told_name_servers
from metaq.app.auditing import RunningAudit, open_audit
from metaq.app.config_files.sections import TLS
from metaq.app.serving import Serving, listen_limits, without_http
from metaq.app.tls.wanted import tls_of
from metaq.broker.quota.service import Quotas, defaults_of
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.net.budget import Budget
from metaq.option_table import decide
from metaq.options import NamesrvOptions, Settings
from metaq.saved_file import TableFile, TextFile
from metaq.servers.address_page import AddressPage
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.servers.server import PeerServer
from metaq.servers.tally import Tally
from metaq.store.config_file import BackgroundFile, ConfigFile
from metaq.store.disk import Disk
from metaq.tls_options import NO_TLS, TlsOptions
from metaq.wire.files import KV_CONFIG, OPTIONS

if TYPE_CHECKING:
    from metaq.app.acl.files import AclWatch
    from metaq.app.tls.running import RunningTls
    from metaq.broker.acl import AccessControl
    from metaq.broker.audit import Audit
    from metaq.net.tls.server import ServerTls

EXPIRY_SECONDS: Final = 10.0
"""Interval of the search for expired leases, as in RocketMQ."""

KV_FILE_DEFAULT: Final = "~/namesrv/kvConfig.json"


class Gates(NamedTuple):
    """What all requests of a name server pass."""

    access: AccessControl | None
    audit: Audit | None
    quotas: Quotas
    tally: Tally
    budget: Budget


class RunningNamesrv:
    """A name server whose KV file is read. Made by `start_namesrv`."""

    def __init__(
        self,
        address: str,
        serving: Serving[NameService],
        service: NameService,
        acl: AclWatch | None = None,
        tls: RunningTls | None = None,
        tls_options: TlsOptions = NO_TLS,
        audit: RunningAudit | None = None,
    ) -> None:
        self.address, self.addresses, self._serving, self._service = address, serving.addresses, serving, service
        """`addresses`: those of the named listeners are under `remoting NAME`."""
        self._acl, self._tls, self._audit = acl, tls, audit
        self.settings = {"namesrv": service.settings, TLS: Settings(tls_options)}
        service.all_settings.append(self.settings[TLS])
        self.metaq1 = self.reloading = self.restarting = self.again = self.stopped = None
        service.settings.watch(lambda _names: serving.limit(listen_limits(service.options)))
        serving.limit(listen_limits(service.options))  # some may have been changed over the wire, before this start
        loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[str] = loop.create_future()
        self._timer = loop.call_later(EXPIRY_SECONDS, self._tick)

    @property
    def ready(self) -> str:
        return f"ready namesrv {self.address}"

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EXPIRY_SECONDS, self._tick)
        self._service.tick()
        for server in self._serving.started():
            server.tick()
        if self._audit is not None:
            self._audit.audit.tick()
        for watch in (self._acl, self._tls):
            if watch is not None:
                watch.tick()

    async def accept(self) -> None:
        """Let clients in. Raises ConfigError: another process took the port in the meantime."""
        if self._acl is not None:
            self._acl.start()
        if self._tls is not None:
            self._tls.start()
        await self._serving.start(self._service)

    async def close(self) -> None:
        self._timer.cancel()
        if self._acl is not None:
            self._acl.stop()
        await self._serving.close()
        if self._tls is not None:
            self._tls.stop()
        self._service.close()
        if self._audit is not None:
            self._audit.file.close()


async def start_namesrv(
    options: NamesrvOptions, clock: Clock = SYSTEM, disk: Disk | None = None, tls: TlsOptions = NO_TLS
) -> RunningNamesrv:
    """Start a name server. Raises ConfigError: its port is taken, or its KV file, or one of accounts or TLS, cannot be used.

    Args:
        options: copied.
        clock: a test's, or the system's.
        disk: for tests, a `metaq.testing.FaultyDisk`.
        tls: of its port.
    """
    options = options.replace()
    loop = asyncio.get_running_loop()

    def call_soon(work: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(work)

    acl: AclWatch | None = None
    if options.acl_enable:
        from metaq.app.acl.files import acl_watch  # only where it is wanted: it loads a reader of YAML

        acl = acl_watch(options, call_soon)
    running_tls = tls_of(tls, call_soon)
    server_tls = running_tls.server if running_tls is not None else None
    file = _kv_file(options, disk)
    audit = open_audit(options, "namesrv", file.path.parent, clock, disk)
    gates = Gates(
        acl.access if acl is not None else None,
        audit.audit if audit is not None else None,
        Quotas(clock, defaults_of(options), options.quota_wait_max / 1000),
        Tally(),
        Budget(listen_limits(options)),  # one for all servers: what counts is the memory of the process
    )
    kv = KvTable(TableFile(BackgroundFile(file), KV_CONFIG), clock, call_soon)
    changed = TextFile(BackgroundFile(ConfigFile(file.path.with_name(OPTIONS.name), disk)), OPTIONS)
    service = NameService(options, clock, kv, changed, call_soon)
    server: PeerServer[NameService] = PeerServer(
        "remoting",
        (options.bind_address, options.listen_port),
        listen_limits(options),
        functools.partial(_open_sessions, gates, ""),
        budget=gates.budget,
        tls=server_tls,
    )
    servers = [server, *_named(options, gates, server_tls), *_page(options, server)]
    if options.http_port is not None:
        servers.append(_http_server(options, gates, server_tls, servers))
    serving = Serving(servers)
    await serving.bind()
    decide(options, listen_port=server.port)  # the one that it has, for those who ask for its settings
    running = RunningNamesrv(server.address, serving, service, acl, running_tls, tls, audit)
    try:
        await running.accept()
    except BaseException:
        await running.close()
        raise
    return running


def _http_server(
    options: NamesrvOptions, gates: Gates, tls: ServerTls | None, servers: list[PeerServer[NameService]]
) -> PeerServer[NameService]:
    """Make the HTTP server, whose metrics are those of all `servers`, too. Raises ConfigError: what it runs on is not installed."""
    try:
        from metaq.servers.http.namesrv import namesrv_http_server  # only where it is served: it is an extra
    except ModuleNotFoundError as error:
        raise ConfigError(without_http(options.http_port, error)) from None
    limits = listen_limits(options)
    return namesrv_http_server(options, limits, lambda: servers, gates.budget, gates.tally, gates.access, tls)


def _page(options: NamesrvOptions, server: PeerServer[NameService]) -> list[PeerServer[NameService]]:
    """Make the server of `addressPage`, if there is to be one, not bound yet. Raises ConfigError."""
    if options.address_page_port is None:
        return []
    told_name_servers(options)  # a wrong one is told before anything is opened
    place = options.bind_address, options.address_page_port

    def make(service: NameService, _server: PeerServer[NameService]) -> AddressPage:
        page = AddressPage("")

        def tell(_names: frozenset[str]) -> None:
            page.text = told_name_servers(service.options) or advertised_by(server.address)

        service.settings.watch(tell)
        tell(frozenset())
        return page

    what = "the address page (addressPagePort)"
    return [PeerServer("address page", place, listen_limits(options), make, what=what)]


def _named(options: NamesrvOptions, gates: Gates, tls: ServerTls | None) -> list[PeerServer[NameService]]:
    """Make the servers of `listeners`, not bound yet. Raises ConfigError."""

    limits = listen_limits(options)
    return [
        PeerServer(
            f"remoting {name}",
            place,
            limits,
            functools.partial(_open_sessions, gates, name),
            what=f"the listener {name} (listeners)",
            budget=gates.budget,
            tls=tls,
        )
        for name, place in listeners_of(options.listeners).items()
    ]


def _open_sessions(gates: Gates, listener: str, service: NameService, server: PeerServer[NameService]) -> NamesrvServer:
    sessions = NamesrvServer(
        service,
        access=gates.access,
        address=server.address,
        listener=listener,
        audit=gates.audit,
        quotas=gates.quotas,
        tally=gates.tally,
    )
    server.admit_by(sessions.quotas)
    return sessions


def _kv_file(options: NamesrvOptions, disk: Disk | None) -> ConfigFile:
    return ConfigFile(pathlib.Path(options.kv_config_path or KV_FILE_DEFAULT).expanduser(), disk)
