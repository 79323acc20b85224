"""Staged transactions that end without anybody's word: with their age, or with the connection that staged them."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from typing import Final

from metaq.broker.channel import Channel
from metaq.broker.staged.parts import Staged, Transaction
from metaq.clock import Clock
from metaq.errors import Refused
from metaq.log import RateLimitedLog

log = logging.getLogger(__name__)

ENDED_PER_TICK: Final = 100
EXPIRY_SLACK: Final = 1000
"""So many that are over may still stand among those that can expire."""


class Ends:
    """Rolls back what is not to last any longer. `settle` does so; Refused: not now."""

    def __init__(self, clock: Clock, table: Staged, settle: Callable[[Transaction], None]) -> None:
        self._clock, self._table, self._settle = clock, table, settle
        self._expiry: list[tuple[int, str]] = []
        self._due: dict[str, None] = {}
        """Transactions that are to be rolled back, and could not be yet."""
        self._by_channel: dict[Channel, set[str]] = {}
        self._told = RateLimitedLog(log, clock)

    def watch(self, transaction: Transaction) -> None:
        """End it when its time comes."""
        if (expires_ms := transaction.expires_ms) is not None:
            heapq.heappush(self._expiry, (expires_ms, transaction.id))
            if len(self._expiry) > 2 * len(self._table.table) + EXPIRY_SLACK:  # most are over long before
                self._expiry = [(due, tx.id) for tx in self._table if (due := tx.expires_ms) is not None]
                heapq.heapify(self._expiry)
        if transaction.channel is not None:
            self._by_channel.setdefault(transaction.channel, set()).add(transaction.id)

    def soon(self, transaction: Transaction) -> None:
        """End it."""
        self._due[transaction.id] = None

    def over(self, transaction: Transaction) -> None:
        """It has ended."""
        self._due.pop(transaction.id, None)
        if transaction.channel is not None and (names := self._by_channel.get(transaction.channel)) is not None:
            names.discard(transaction.id)
            if not names:
                del self._by_channel[transaction.channel]

    def closed(self, channel: Channel) -> None:
        """A connection has ended: what was to last as long is rolled back."""
        for name in self._by_channel.pop(channel, ()):
            self._due[name] = None
        self._end_some()

    def tick(self) -> None:
        """Let time pass."""
        self._expire()
        self._end_some()
        self._told.tick()

    def _end_some(self) -> None:
        for name in list(self._due)[:ENDED_PER_TICK]:
            transaction = self._table.get(name)
            if transaction is not None and transaction.decision is None:
                try:
                    self._settle(transaction)
                except Refused as error:
                    self._told.warning("end", "staged transactions are to be rolled back: %s", error)
                    return
            self._due.pop(name, None)

    def _expire(self) -> None:
        now_ms = self._clock.now_ms()
        while self._expiry and self._expiry[0][0] <= now_ms:
            _, name = heapq.heappop(self._expiry)
            transaction = self._table.get(name)
            expires_ms = transaction.expires_ms if transaction is not None else None
            if transaction is None or expires_ms is None:
                continue
            if expires_ms > now_ms:  # another one of the same name, which came later
                heapq.heappush(self._expiry, (expires_ms, name))
                continue
            self._told.warning(
                "expired", "transaction %s has staged %d bytes here, and nobody has decided it for %d s: it is rolled back",
                name, transaction.bytes, transaction.seconds,
            )  # fmt: skip
            self._due[name] = None
