"""The master of a synchronous pair in ZooKeeper: after its consumers' offsets are recovered, and only while its slave works."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from metaq.app.pair.link import SlaveConnection
from metaq.app.pair.offsets import OffsetRecovery
from metaq.app.registration import ZookeeperRegistration, zookeeper_settings
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.errors import ConfigError, ConnectionFailed
from metaq.log import when_dead
from metaq.servers.server import BrokerServices

log = logging.getLogger(__name__)

READY_SECONDS: Final = 5.0
"""Longest wait of the start for a slave that has all that is here."""


class SamsaRegistration:
    """Connects to the slave, and registers by `zookeeper` what the slave can follow. A `metaq.app.registration.Registration`."""

    def __init__(self, settings: Metaq1Settings, zookeeper: ZookeeperRegistration) -> None:
        self._settings, self._zookeeper = settings, zookeeper
        self._connection: SlaveConnection | None = None
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self, services: BrokerServices) -> None:
        metaq1 = services.broker.metaq1
        assert metaq1 is not None, "the broker serves MetaQ 1.x"
        assert metaq1.samsa is not None, "it is the master of a pair"
        samsa, options = metaq1.samsa, self._settings.options
        samsa.when_changed(self._changed.set)
        self._connection = SlaveConnection(samsa)
        await self._connection.first_try()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                while samsa.connected and not samsa.enough:
                    self._changed.clear()
                    await self._changed.wait()
        if samsa.settings.recover_offset and options.zk_connect and options.zk_enable:
            await self._recover(services)
        await self._zookeeper.start(services)
        self._following = asyncio.create_task(self._follow(services), name="registration of a synchronous pair")
        self._following.add_done_callback(when_dead(log, "whether the slave works is not told to ZooKeeper any more"))

    async def again(self, services: BrokerServices) -> None:
        """Nothing changes: the master of a pair has no other role in its process (`brokerRole` is no slave's)."""

    async def _recover(self, services: BrokerServices) -> None:
        """Rewrite the offsets of consumers. Raises ConfigError: ZooKeeper is away, and consumers would begin elsewhere."""
        from metaq.registry.zookeeper.client import ZookeeperClient

        metaq1 = services.broker.metaq1
        assert metaq1 is not None, "the broker serves MetaQ 1.x"
        settings = zookeeper_settings(self._settings.options)
        client = ZookeeperClient(
            settings.connect,
            settings.session_timeout,
            settings.connection_timeout,
            undone="recoverOffset=true rewrites no offset of a consumer, and this broker is registered nowhere",
        )
        try:
            recovery = OffsetRecovery(services.broker, metaq1, self._settings.options.broker_id)
            count = await recovery.run(client, settings.root)
        except ConnectionFailed as error:
            raise ConfigError(
                f"recoverOffset=true, and the offsets cannot be recovered: {error}. Nothing is registered: consumers would go on at places of "
                "the other broker"
            ) from None
        finally:
            await client.close()
        log.info("Recover offset successfully: %d offsets were rewritten", count)

    async def _follow(self, services: BrokerServices) -> None:
        """Leave ZooKeeper while the slave fails, and come back when it works."""
        metaq1 = services.broker.metaq1
        assert metaq1 is not None, "the broker serves MetaQ 1.x"
        samsa = metaq1.samsa
        assert samsa is not None, "it is the master of a pair"
        registered = True
        while True:
            self._changed.clear()
            if samsa.health.suspended and registered:
                registered = False
                await self._zookeeper.stop()
            elif not samsa.health.suspended and not registered:
                registered = True
                await self._zookeeper.start(services)
            else:
                await self._changed.wait()

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
        await self._zookeeper.stop()
        if self._connection is not None:
            await self._connection.close()
