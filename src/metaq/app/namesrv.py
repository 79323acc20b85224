"""Composition of a name server: KV file, service, protocol server, port."""

from __future__ import annotations

import asyncio
import functools
import pathlib
from collections.abc import Callable
from typing import Final

from metaq.app.auditing import RunningAudit, open_audit
from metaq.app.configuration import listen_limits
from metaq.app.serving import Serving
from metaq.broker.audit import Audit
from metaq.clock import SYSTEM, Clock
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.servers.server import PeerServer
from metaq.store.config_file import BackgroundFile, ConfigFile
from metaq.store.disk import Disk
from metaq.wire.files import KV_CONFIG

EXPIRY_SECONDS: Final = 10.0
"""Interval of the search for expired leases, as in RocketMQ."""

KV_FILE_DEFAULT: Final = "~/namesrv/kvConfig.json"


class RunningNamesrv:
    """A name server whose KV file is read. Made by `start_namesrv`."""

    def __init__(
        self, address: str, serving: Serving[NameService], service: NameService, audit: RunningAudit | None
    ) -> None:
        self.address, self._serving, self._service, self._audit = address, serving, service, audit
        self.settings = {"namesrv": service.settings}
        self.metaq1 = self.reloading = self.again = None
        service.settings.watch(lambda _names: serving.limit(listen_limits(service.options)))
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

    async def accept(self) -> None:
        """Let clients in. Raises ConfigError: another process took the port in the meantime."""
        await self._serving.start(self._service)

    async def close(self) -> None:
        self._timer.cancel()
        await self._serving.close()
        self._service.close()
        if self._audit is not None:
            self._audit.file.close()


async def start_namesrv(options: NamesrvOptions, clock: Clock = SYSTEM, disk: Disk | None = None) -> RunningNamesrv:
    """Start a name server. Raises ConfigError: its port is taken or its KV file cannot be read.

    Args:
        options: copied.
        clock: a test's, or the system's.
        disk: for tests, a `metaq.testing.FaultyDisk`.
    """
    options = options.replace()
    loop = asyncio.get_running_loop()

    def call_soon(work: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(work)

    file = _kv_file(options, disk)
    audit = open_audit(options, "namesrv", file.path.parent, clock, disk)
    kv = KvTable(TableFile(BackgroundFile(file), KV_CONFIG), clock, call_soon)
    service = NameService(options, clock, kv)
    server: PeerServer[NameService] = PeerServer(
        "remoting",
        (options.bind_address, options.listen_port),
        listen_limits(options),
        functools.partial(_open_sessions, audit.audit if audit is not None else None),
    )
    serving = Serving([server])
    await serving.bind()
    running = RunningNamesrv(server.address, serving, service, audit)
    try:
        await running.accept()
    except BaseException:
        await running.close()
        raise
    return running


def _open_sessions(audit: Audit | None, service: NameService, server: PeerServer[NameService]) -> NamesrvServer:
    sessions = NamesrvServer(service, audit)
    server.admit_by(sessions.quotas)
    return sessions


def _kv_file(options: NamesrvOptions, disk: Disk | None) -> ConfigFile:
    return ConfigFile(pathlib.Path(options.kv_config_path or KV_FILE_DEFAULT).expanduser(), disk)
