"""The partitions of a consumer over HTTP: those that it has named, always."""

from __future__ import annotations

import logging
from collections.abc import Collection

from metaq.metaq1.http.core import HttpCore
from metaq.metaq1.rebalance.fetching import Fetching, Held
from metaq.metaq1.rebalance.fixed import end_fetching

log = logging.getLogger("metaq.client")


class NamedPartitions:
    """A `Balance`. Whoever consumes a partition is nobody else's business here: members of a group share them by what they name."""

    def __init__(self, core: HttpCore, group: str, fetching: Fetching, wanted: Collection[Held]) -> None:
        self._core, self._group, self._fetching, self._wanted = core, group, fetching, wanted
        self._loaded: frozenset[Held] = frozenset()
        self._ended = False

    @property
    def owned(self) -> frozenset[Held]:
        """The partitions that this consumer has now."""
        return self._loaded

    async def begin(self, topics: Collection[str]) -> None:
        """As `Balance.begin`. Raises what the offset storage raises."""
        await self._fetching.load(self._wanted)
        self._loaded = frozenset(held for held in self._wanted if held.topic in topics)
        await self._fetching.start({held: self._core.address_of(*held) for held in sorted(self._loaded)})

    async def end(self) -> None:
        """As `Balance.end`. Harmless twice, and after a `begin` that has failed."""
        if not self._ended:
            self._ended = True
            await end_fetching(self._fetching, self._group)
            self._fetching.forget(self._loaded)
