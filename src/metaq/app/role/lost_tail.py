"""What a master's log has lost in a crash, and a slave has: it is copied back before the master leads.

A send that a slave had to have is answered when it is in that slave's page cache, so a power cut at the master may take what was
acknowledged from its own log, or tear it. Without this, the slave would have to take over what is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from metaq.app.role.both_logs import AskBoth
from metaq.app.role.torn import cut_torn, first_difference, longest, to_compare, untorn
from metaq.broker.broker import Broker
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.scrubbing.comparison import NotComparable
from metaq.errors import Refused
from metaq.model.leadership import Found
from metaq.net.address import join_address, split_address
from metaq.servers.ha.slave import Following, Source
from metaq.servers.server import CallSoon

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls

log = logging.getLogger(__name__)

STALLED_SECONDS: Final = 10.0
"""A slave from which nothing comes for so long is not waited for any more, s."""


def longer(broker: Broker, slaves: Iterable[Found]) -> Found | None:
    """Return the one that has the most of this master's log beyond its end; None: none has more. Pure.

    `slaves`: as `slaves_of` returns them.
    """
    return longest(one for one in slaves if one[1].log_end > broker.store.log.end)


async def mend_torn(broker: Broker, slaves: Iterable[Found], asking: Callable[[str], AskBoth]) -> Found | None:
    """Cut this master's log where a power cut has torn it. Returns the slave from which the rest is copied; None: nothing is torn.

    Only before the broker leads; it follows when something was cut.

    Args: slaves: as `slaves_of` returns them. asking: asks this broker and the one at an address.
    Raises StoreError, OSError, Refused: the log could not be cut.
    """
    if (found := untorn(broker, slaves)) is None:
        return None
    address, state = found
    try:
        place = await first_difference(asking(address), to_compare(broker, state))
    except (*FAULTS, NotComparable, Refused, TimeoutError) as error:
        log.warning(
            "what a power cut may have torn of this log, from offset %d on, could not be compared with that of the slave at %s: %s",
            broker.roles.torn.start, address, str(error) or "one of the two does not sync it",
        )  # fmt: skip
        return None
    torn = broker.roles.torn
    if place is None:
        broker.roles.torn = range(min(max(torn.start, state.log_end), torn.stop), torn.stop)
        return None
    broker.follow(for_now=True)
    await cut_torn(broker, place, "this log", f"the slave at {address}")
    broker.roles.torn = range(0)
    return found


class LostTail:
    """Copies it. Only while the broker takes nothing else.

    Args:
        found: the slave, see `longer`.
        ha_tls: how it connects to copy the log; None: without TLS.
    """

    def __init__(self, broker: Broker, call_soon: CallSoon, found: Found, ha_tls: ClientTls | None = None) -> None:
        self._broker, (self._address, self._state) = broker, found
        self._following = Following(broker, call_soon, self._find, lambda: None, ha_tls)

    async def _find(self) -> Source:
        return Source(join_address(split_address(self._address)[0], self._state.ha_port))

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
