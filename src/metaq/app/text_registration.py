"""A broker and ZooKeeper: what clients of MetaQ 1.x are told, by the registrar that only such a broker loads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from metaq.broker.broker import Broker
from metaq.broker.metaq1.progress import Tell
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.errors import ConfigError
from metaq.net.address import join_address
from metaq.options import Metaq1Options

if TYPE_CHECKING:
    from metaq.registry.zookeeper.registrar import ZookeeperRegistrar, ZookeeperSettings


def zookeeper_settings(options: Metaq1Options) -> ZookeeperSettings:
    """What the options say of ZooKeeper."""
    from metaq.registry.zookeeper.registrar import ZookeeperSettings

    return ZookeeperSettings(
        options.zk_connect or "",
        options.zk_root,
        options.zk_session_timeout_ms / 1000,
        options.zk_connection_timeout_ms / 1000,
        options.zk_sync_time_ms / 1000,
    )


class TextRegistration:
    """Of one broker; nowhere, until it is started, and without `zk.zkConnect` or with `zk.zkEnable=false` for ever.

    Args: place: host and port of the MetaQ 1.x server, as clients reach it.
    """

    def __init__(self, settings: Metaq1Settings | None, place: tuple[str, int]) -> None:
        self._settings, self._place = settings, place
        self._registrar: ZookeeperRegistrar | None = None
        self._asking: set[asyncio.Task[dict[tuple[str, int], int] | None]] = set()

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
            from metaq.registry.zookeeper.registrar import Advertisement, ZookeeperRegistrar
        except ImportError as error:
            raise ConfigError(
                f"zk.zkConnect={options.zk_connect}: registering in ZooKeeper needs kazoo ({error}); install"
                " pymetaq[zookeeper], or set zk.zkEnable=false"
            ) from None
        who = TextBroker(options.broker_id, f"meta://{join_address(*self._place)}")
        registrar = ZookeeperRegistrar(
            zookeeper_settings(options), who, lambda: Advertisement(settings.text, partitions.published())
        )
        partitions.watch(registrar.changed)
        settings.watch(lambda _topics: registrar.changed())
        self._registrar = registrar
        broker.partition_progress.ask_by(self._ask)
        await registrar.start()

    def _ask(self, group: str, topic: str | None, tell: Tell) -> None:
        """How far a group has come, from ZooKeeper."""
        registrar = self._registrar
        assert registrar is not None, "asked when it is there"
        task = asyncio.get_running_loop().create_task(registrar.positions(group, topic))
        self._asking.add(task)  # the loop alone keeps no task

        def told(task: asyncio.Task[dict[tuple[str, int], int] | None]) -> None:
            self._asking.discard(task)
            tell(None if task.cancelled() or task.exception() is not None else task.result())

        task.add_done_callback(told)

    async def stop(self) -> None:
        """Leave, and wait as long as clients may take to notice."""
        if self._registrar is not None:
            await self._registrar.stop()
