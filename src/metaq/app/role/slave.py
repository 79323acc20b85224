"""What a slave does beside serving: it follows its master."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metaq.app.role.following import TableFollowing
from metaq.app.role.master import MasterSearch
from metaq.app.role.scrub import Scrubbing
from metaq.broker.broker import Broker
from metaq.client.shared.transport import Transport
from metaq.servers.ha.slave import RETRY_SECONDS, Following
from metaq.servers.server import CallSoon

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls


class Slave:
    """What a slave does beside serving: it copies its master's log, and takes over its tables.

    Args:
        transport: its owner closes it.
        search: finds the master.
        ha_tls: how it connects to copy the log; None: without TLS.
        retry_seconds: as of `Following`.
    """

    def __init__(
        self,
        broker: Broker,
        call_soon: CallSoon,
        transport: Transport,
        search: MasterSearch,
        ha_tls: ClientTls | None = None,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        self.search = search
        self.tables = TableFollowing(broker, transport, self.search)
        self.following = Following(broker, call_soon, self.search.find, self.tables.hurry, ha_tls, retry_seconds)
        self.scrubbing = Scrubbing(broker, transport, self.search)

    def start(self) -> None:
        self.following.start()
        self.tables.start()
        self.scrubbing.start()

    def tick(self) -> None:
        """Let time pass. Called ten times a second."""
        self.following.tick()
        self.search.tick()
        self.tables.tick()
        self.scrubbing.tick()

    async def stop(self) -> None:
        """End what is asked of the master, and the copy of its log."""
        await self.following.stop()
        await self.scrubbing.stop()
        await self.tables.stop()
