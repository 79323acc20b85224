"""What XA producers for threads and for asyncio share: their name for a transaction manager, and the servers that they may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from metaq.errors import NoRoute
from metaq.metaq1.conversation.xa import Xid, check_qualifier
from metaq.metaq1.producing.base import ProducerBase
from metaq.metaq1.xa.branch import BranchCore

DEFAULT_PREFIX: Final = "XAMessageProducer"


class XaProducerBase(ProducerBase):
    """A producer whose messages may belong to branches of a transaction manager's transactions."""

    _qualifier: str | None = None
    _begun: dict[Xid, BranchCore] | None = None

    @property
    def unique_qualifier(self) -> str:
        """Tells the branches of this producer from those of others at `recover`; by default `XAMessageProducer-` and the host."""
        return self._qualifier or f"{DEFAULT_PREFIX}-{host_name()}"

    @unique_qualifier.setter
    def unique_qualifier(self, qualifier: str) -> None:
        """It must be the same after a restart, or recovery finds nothing. Raises TypeError, ConfigError."""
        self._qualifier = check_qualifier(qualifier)

    def set_unique_qualifier(self, qualifier: str) -> None:
        """Set `unique_qualifier`. Raises TypeError, ConfigError."""
        self.unique_qualifier = qualifier

    def set_unique_qualifier_prefix(self, prefix: str) -> None:
        """Set `unique_qualifier` to the prefix, a hyphen and the host's name. Raises TypeError, ConfigError."""
        check_qualifier(f"{prefix}-" if isinstance(prefix, str) else prefix)
        self.unique_qualifier = f"{prefix}-{host_name()}"

    @property
    def _branches(self) -> dict[Xid, BranchCore]:
        """Branch → its state, of those that were started here and have not ended with the server."""
        if self._begun is None:
            self._begun = {}
        return self._begun

    def _hold(self, branch: BranchCore) -> None:
        """Remember a branch; it is rolled back at the end of the producer if it is still open then."""
        self._branches[branch.xid] = branch
        with self._lock:
            self._transactions.add(branch)

    async def _publish(self, topic: str) -> None:
        """In the loop. Raises NoRoute: no server has all topics of this producer then."""
        new = topic not in self._topics
        await super()._publish(topic)
        if new and not self._common():
            self._topics.discard(topic)
            await self._core.routes.unpublish(topic)
            others = ", ".join(sorted(self._topics)) or "no other"
            raise NoRoute(
                f"no server that is up serves topic {topic} together with the topics published before ({others}): a branch belongs to "
                "one server"
            )

    def _common(self) -> dict[int, str]:
        """Return broker id → address of the servers that have all published topics."""
        found: dict[int, str] | None = None
        for topic in self._topics:
            addresses = self._addresses(topic)
            found = (
                dict(addresses)
                if found is None
                else {one: place for one, place in found.items() if addresses.get(one) == place}
            )
        return found or {}

    def _known(self) -> list[str]:
        """Return the addresses of all servers of published topics."""
        return sorted({address for topic in self._topics for address in self._addresses(topic).values()})

    def _addresses(self, topic: str) -> Mapping[int, str]:
        route = self._core.routes.route(topic)
        return route.addresses if route is not None else {}

    def _placed(self, address: str | None) -> tuple[int, str]:
        """Return the server with this address, or one of those that have all published topics, by chance. Raises NoRoute."""
        self._check_open()
        if address is not None:
            for topic in self._topics:
                for broker_id, place in self._addresses(topic).items():
                    if place == address:
                        return broker_id, place
            raise NoRoute(f"{address} serves no published topic now")
        common = sorted(self._common().items())
        if not common:
            raise NoRoute(
                "no server that is up serves all published topics"
                if self._topics
                else "no topic is published: publish all that a transaction may need first"
            )
        return common[self._core.clock.random_below(len(common))]


def host_name() -> str:
    """Return this machine's name, as a word of the protocol."""
    name = "".join(one if one.isascii() and (one.isalnum() or one in "-._") else "-" for one in os.uname().nodename)
    return name or "localhost"
