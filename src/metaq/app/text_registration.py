"""A broker and ZooKeeper: what clients of MetaQ 1.x are told, by the registrar that only such a broker loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.broker.broker import Broker
from metaq.broker.metaq1_settings import Metaq1Settings
from metaq.errors import ConfigError
from metaq.net.address import join_address

if TYPE_CHECKING:
    from metaq.registry.zookeeper.registrar import ZookeeperRegistrar


class TextRegistration:
    """Of one broker; nowhere, until it is started, and without `zk.zkConnect` or with `zk.zkEnable=false` for ever.

    Args: place: host and port of the text door, as clients reach it.
    """

    def __init__(self, settings: Metaq1Settings | None, place: tuple[str, int]) -> None:
        self._settings, self._place = settings, place
        self._registrar: ZookeeperRegistrar | None = None

    async def start(self, broker: Broker) -> None:
        """Register; returns when that is done, or cannot be done now and is tried on.

        Raises ConfigError: the library is missing.
        """
        settings, partitions = self._settings, broker.partitions
        if settings is None or partitions is None:
            return
        options = settings.options
        if not options.zk_connect or not options.zk_enable:
            return
        try:
            from metaq.registry.zookeeper.layout import TextBroker
            from metaq.registry.zookeeper.registrar import Told, ZookeeperRegistrar, ZookeeperSettings
        except ImportError as error:
            raise ConfigError(
                f"zk.zkConnect={options.zk_connect}: registering in ZooKeeper needs kazoo ({error}); install"
                " pymetaq[zookeeper], or set zk.zkEnable=false"
            ) from None
        zookeeper = ZookeeperSettings(
            options.zk_connect,
            options.zk_root,
            options.zk_session_timeout_ms / 1000,
            options.zk_connection_timeout_ms / 1000,
            options.zk_sync_time_ms / 1000,
        )
        who = TextBroker(options.broker_id, f"meta://{join_address(*self._place)}")
        registrar = ZookeeperRegistrar(zookeeper, who, lambda: Told(settings.text, partitions.published()))
        partitions.watch(registrar.changed)
        settings.watch(lambda _topics: registrar.changed())
        self._registrar = registrar
        await registrar.start()

    async def stop(self) -> None:
        """Leave, and wait as long as clients may take to notice."""
        if self._registrar is not None:
            await self._registrar.stop()
