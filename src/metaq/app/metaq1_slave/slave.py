"""An asynchronous slave of MetaQ 1.x at work: it finds its master in ZooKeeper, and copies all its partitions."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import platform
from typing import TYPE_CHECKING, Final

from metaq.app.metaq1_slave.appending import CopiedPartitions
from metaq.app.metaq1_slave.partition_copy import ASK_SECONDS, CopyRules, PartitionCopy, settled
from metaq.app.role.pending import ended
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.errors import BrokerError, ConfigError, ConnectionFailed, MetaqError, Reason, Refused
from metaq.log import RateLimitedLog, when_dead
from metaq.model.metaq1.settings import WILDCARD
from metaq.model.upkeep.floors import queue_key
from metaq.saved import Pending
from metaq.servers.server import BrokerServices

if TYPE_CHECKING:
    from metaq.metaq1.shared.links import Link
    from metaq.registry.zookeeper.client import ZookeeperClient
    from metaq.registry.zookeeper.replicating import MasterNodes

log = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""Partitions that ask the master at the same time."""
LOOK_SECONDS: Final = 30.0
"""Longest time between two looks at the master's nodes."""
AGAIN_SECONDS: Final = 1.0
CONFIG_TRIES: Final = 3


class TextSlave:
    """A `metaq.app.registration.Registration`, behind that in ZooKeeper: it works while the broker serves.

    Args: settings: of MetaQ 1.x, with slaveId.
    """

    def __init__(self, settings: Metaq1Settings) -> None:
        options = settings.options
        if importlib.util.find_spec("kazoo") is None:
            raise ConfigError(f"slaveId={options.slave_id}: a slave finds its master in ZooKeeper, for which kazoo is needed; install "
                              "pymetaq[zookeeper]")  # fmt: skip
        self._settings = settings
        self._group = options.slave_group or f"meta-slave-group_{options.slave_id}"
        self.rules = CopyRules(self._group, options.slave_max_delay_in_mills / 1000)
        self._wake = asyncio.Event()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._services: BrokerServices | None = None
        self._client: ZookeeperClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._copies: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._checksum: str | None = None
        """Of the master's server.ini that was looked at last."""
        self._told: tuple[int, frozenset[str]] = (0, frozenset())
        """Session and topics of the slave's own node."""
        self._away = False

    async def start(self, services: BrokerServices) -> None:
        """Begin to copy, in the background."""
        from metaq.registry.zookeeper.client import ZookeeperClient
        from metaq.registry.zookeeper.layout import Layout

        options, broker = self._settings.options, services.broker
        self._services, self._layout = services, Layout(options.zk_root)
        self._copied = CopiedPartitions(broker)
        self._faults = RateLimitedLog(log, broker.clock)
        self._name = f"{self._group}_{platform.node()}-{os.getpid()}-{broker.clock.now_ms()}-1"
        self._client = ZookeeperClient(
            options.zk_connect or "",
            options.zk_session_timeout_ms / 1000,
            options.zk_connection_timeout_ms / 1000,
            undone="nothing is copied from the master",
        )
        self._client.listen(self._wake.set)
        self._task = asyncio.create_task(self._keep(), name="copy a master of MetaQ 1.x")
        self._task.add_done_callback(when_dead(log, "this slave copies its master no more"))

    async def again(self, services: BrokerServices) -> None:
        """Go on: the role of such a slave is its configuration's."""

    async def stop(self) -> None:
        """Copy no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._leave_master()
        if self._client is not None:
            await self._client.close()

    async def _keep(self) -> None:
        from metaq.registry.zookeeper.replicating import read_master

        assert self._client is not None, "it is started"
        broker_id, layout = self._settings.options.broker_id, self._layout
        while True:
            self._wake.clear()
            pause = LOOK_SECONDS
            try:
                nodes = await self._client.ask(lambda session: read_master(session, layout, broker_id))
                await self._look(nodes)
            except (ConnectionFailed, Refused, OSError) as error:
                # Without ZooKeeper the copy goes on: the master is where it was.
                self._faults.warning("look", "the master's nodes could not be followed: %s", error)
                pause = AGAIN_SECONDS
            except Exception as error:  # noqa: BLE001  a fault of ours is told, and tried again
                self._faults.error("fault", "the master's nodes could not be followed", error=error)
                pause = AGAIN_SECONDS
            self._faults.tick()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _look(self, nodes: MasterNodes) -> None:
        """Copy what the master has now. Raises ConnectionFailed, Refused, OSError: it is to be tried again."""
        options = self._settings.options
        if self._link is None or nodes.address != self._link.address:
            await self._leave_master()
            if nodes.address is None:
                if not self._away:
                    log.warning(
                        "the master of broker %d is not registered in ZooKeeper: nothing is copied until it is",
                        options.broker_id,
                    )
                self._away = True
                return
            self._go_to(nodes.address)
        link = self._link
        assert link is not None, "there is a master"
        if nodes.checksum is not None and nodes.checksum != self._checksum:
            self._checksum = nodes.checksum
            if options.auto_sync_master_config:
                await self._sync_config(link)
        for topic, count in sorted(nodes.topics.items()):
            await self._copy(link, topic, count)
        for key in [key for key in self._copies if key[0] not in nodes.topics]:
            self._copies.pop(key).cancel()
        await self._tell(frozenset(nodes.topics))

    def _go_to(self, address: str) -> None:
        from metaq.metaq1.shared.links import ConnectionPace, Link

        self._away = False
        log.info("copying from the master of broker %d at %s", self._settings.options.broker_id, address)
        # For ever: a slave has nothing else to do than to come back.
        self._link = Link(address, address, ConnectionPace(reconnect_pause=AGAIN_SECONDS, reconnect_times=1 << 31))

    async def _leave_master(self) -> None:
        copies, self._copies = list(self._copies.values()), {}
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _copy(self, link: Link, topic: str, count: int) -> None:
        # The original registers a wildcard section under its own name, which no topic has.
        if count <= 0 or WILDCARD in topic or (topic, count - 1) in self._copies:
            return
        assert self._services is not None, "it is started"
        try:
            await settled(lambda: self._copied.make_topic(topic, count - 1))
        except Refused as error:
            self._faults.error(("topic", topic), "topic %s of the master is not copied: %s", topic, error)
            return
        for partition in range(count):
            if (topic, partition) not in self._copies:
                copy = PartitionCopy(
                    self._copied, topic, partition, self.rules, let_go=self._let_go, at_once=self._at_once, faults=self._faults,
                    clock=self._services.broker.clock,
                )  # fmt: skip
                task = asyncio.create_task(copy.run(link), name=f"copy {topic}-{partition}")
                task.add_done_callback(when_dead(log, f"partition {partition} of topic {topic} is copied no more"))
                self._copies[topic, partition] = task

    async def _let_go(self, topic: str, partition: int) -> None:
        """Let all messages of a partition go. Raises Refused: not now."""
        assert self._services is not None, "it is started"
        queue, store, call_soon = (
            self._copied.queue(topic, partition),
            self._services.broker.store,
            self._services.call_soon,
        )
        if queue is None or queue.min_offset == queue.max_offset:
            return
        pending = Pending()
        busy = Refused(
            Reason.BUSY, f"older messages of topic {topic} cannot go yet: records of their positions are being written"
        )

        def over(moved: bool | None) -> None:
            call_soon(lambda: pending.finish(None if moved else busy))

        store.keeper.trim({queue_key(topic, partition): store.log.end}, over)
        await ended(pending)

    async def _tell(self, topics: frozenset[str]) -> None:
        """Show what is copied as a consumer of the slave's group, as the original does."""
        from metaq.registry.zookeeper.replicating import tell_slave

        assert self._client is not None, "it is started"
        layout, group, name = self._layout, self._group, self._name
        if topics and (self._client.session.id, topics) != self._told:
            await self._client.ask(lambda session: tell_slave(session, layout, group, name, topics))
            self._told = self._client.session.id, topics

    # ------------------------------------------------------------------ the master's server.ini

    async def _sync_config(self, link: Link) -> None:
        from metaq.app.metaq1_slave.config_sync import take_over

        assert self._services is not None, "it is started"
        path = self._settings.path
        if not path:
            self._faults.warning("config", "autoSyncMasterConfig: this broker has no server.ini to write")
            return
        text = await self._master_config(link)
        if text is None:
            self._checksum = None  # the next look tries again
            return
        try:
            changed = await asyncio.to_thread(take_over, path, text)
        except (ConfigError, OSError) as error:
            self._faults.error(
                "config", "autoSyncMasterConfig: topics of the master's server.ini are not taken over: %s", error
            )
            return
        if changed:
            log.info("autoSyncMasterConfig: %s has the topics of the master's server.ini now, and is read again", path)
            self._services.broker.reloading.again()

    async def _master_config(self, link: Link) -> bytes | None:
        from metaq.metaq1.conversation import answers
        from metaq.wire.metaq1.commands import StatsLine

        for _ in range(CONFIG_TRIES):
            try:
                answer = await link.ask(lambda opaque: StatsLine("config", opaque), "tell its server.ini", ASK_SECONDS)
                return answers.result_of(answer, link.address, "tell its server.ini")
            except (BrokerError, MetaqError) as error:
                self._faults.warning(
                    "config", "autoSyncMasterConfig: the master does not tell its server.ini: %s", error
                )
                await asyncio.sleep(AGAIN_SECONDS)
        return None
