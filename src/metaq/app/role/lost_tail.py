"""What a master's log has lost in a crash, and a slave has: it is copied back before the master leads.

A send that a slave had to have is answered when it is in that slave's page cache, so a power cut at the master may take what was
acknowledged from its own log. Without this, the slave would have to cut its log to what is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from metaq.broker.broker import Broker
from metaq.model.leadership import ReplicaState, parting
from metaq.net.address import join_address, split_address
from metaq.servers.ha.slave import Following
from metaq.servers.server import CallSoon

log = logging.getLogger(__name__)

STALLED_SECONDS: Final = 10.0
"""A slave from which nothing comes for so long is not waited for any more, s."""


def longest(broker: Broker, others: Sequence[tuple[str, ReplicaState]]) -> tuple[str, ReplicaState] | None:
    """Return the one of these slaves that has the most of this log beyond its end; None: none has more. Pure.

    `others`: brokers of this name, by address and state.
    """
    kept, end = broker.roles.kept, broker.store.log.end
    longer = [
        (address, state)
        for address, state in others
        # Of the same newest epoch: what another has beyond the begin of this master's epoch may be of the leader before.
        if not state.leads
        and state.rank == kept.rank
        and state.log_end > end
        and parting(kept.epochs, end, state.epochs, state.log_end) == end
    ]
    return max(longer, key=lambda one: one[1].log_end, default=None)


class LostTail:
    """Copies it. Only while the broker takes nothing else.

    Args: found: address and state of the slave, see `longest`.
    """

    def __init__(self, broker: Broker, call_soon: CallSoon, found: tuple[str, ReplicaState]) -> None:
        self._broker, (self._address, self._state) = broker, found
        self._following = Following(broker, call_soon, self._find, lambda: None)

    async def _find(self) -> str:
        return join_address(split_address(self._address)[0], self._state.ha_port)

    def tick(self) -> None:
        """Let time pass. Called ten times a second."""
        self._following.tick()

    async def copy(self) -> None:
        """Copy until this log is as long as the slave's was, or nothing comes any more. The log says how it ended."""
        store, start, wanted = self._broker.store, self._broker.store.log.end, self._state.log_end
        log.warning(
            "this master's log ends at %d after the crash, and that of its slave at %s at %d: the rest is copied from there first",
            start, self._address, wanted,
        )  # fmt: skip
        self._following.start()
        try:
            while store.log.end < wanted:
                before = store.log.end
                try:
                    async with asyncio.timeout(STALLED_SECONDS):
                        await self._following.copied(wanted)
                except TimeoutError:
                    if store.log.end == before:
                        log.error(  # noqa: TRY400  the text says it all
                            "%d bytes that the slave at %s has do not come: it will cut them off, and keep them, when it follows",
                            wanted - before, self._address,
                        )  # fmt: skip
                        return
        finally:
            await self._following.stop()
        log.warning("the log is whole again, up to %d", store.log.end)
