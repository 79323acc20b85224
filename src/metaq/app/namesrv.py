"""Composition of a name server: its KV file, its service, its server, its listening port."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from typing import Final

from metaq.app.configuration import listen_limits
from metaq.clock import SYSTEM, Clock
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.net.listener import Listener, listen
from metaq.options import NamesrvOptions
from metaq.saved import TableFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.store.config_file import BackgroundFile, ConfigFile
from metaq.store.disk import Disk
from metaq.wire.files import KV_CONFIG

EXPIRY_SECONDS: Final = 10.0
"""Between two looks for brokers whose lease has ended, as in RocketMQ."""

KV_FILE_DEFAULT: Final = "~/namesrv/kvConfig.json"


class RunningNamesrv:
    """A name server that accepts connections. Made by `start_namesrv`."""

    def __init__(self, server: NamesrvServer, listener: Listener, service: NameService) -> None:
        self._server, self._listener, self._service = server, listener, service
        self.settings = {"namesrv": service.settings}
        self.text = self.reloading = None
        service.settings.watch(lambda _names: listener.limit(listen_limits(service.options)))
        loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[str] = loop.create_future()
        self._timer = loop.call_later(EXPIRY_SECONDS, self._tick)

    @property
    def address(self) -> str:
        return self._listener.address

    @property
    def ready(self) -> str:
        return f"ready namesrv {self.address}"

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EXPIRY_SECONDS, self._tick)
        self._service.tick()
        self._server.tick()

    async def close(self) -> None:
        self._timer.cancel()
        await self._listener.close()
        self._server.close()
        self._service.close()


async def start_namesrv(options: NamesrvOptions, clock: Clock = SYSTEM, disk: Disk | None = None) -> RunningNamesrv:
    """Start a name server with a copy of the options. Raises ConfigError: its port is taken or its KV file cannot be read.

    Args: disk: for tests, a `metaq.testing.FaultyDisk`.
    """
    options = options.replace()
    loop = asyncio.get_running_loop()

    def call_soon(work: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(work)

    kv = KvTable(TableFile(BackgroundFile(_kv_file(options, disk)), KV_CONFIG), clock, call_soon)
    service = NameService(options, clock, kv)
    server = NamesrvServer(service)
    listener = await listen(options.bind_address, options.listen_port, server.session, listen_limits(options))
    return RunningNamesrv(server, listener, service)


def _kv_file(options: NamesrvOptions, disk: Disk | None) -> ConfigFile:
    return ConfigFile(pathlib.Path(options.kv_config_path or KV_FILE_DEFAULT).expanduser(), disk)
