"""Roles registered with the core for broker-initiated requests: group members and transaction checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from metaq.model import ConsumerView, MessageQueue
from metaq.model.notices import TransactionCheck


class Member(Protocol):
    """A consumer group's member, as the core needs it."""

    @property
    def group(self) -> str: ...

    def heartbeat(self) -> ConsumerView:
        """The member's part of a heartbeat."""
        ...

    def rebalance_soon(self) -> None:
        """Schedule a rebalance: the group's members or the queues may have changed."""
        ...

    def uses(self, topic: str) -> bool: ...

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Reset offsets on an administrator's request (220)."""
        ...


class Checker(Protocol):
    """A producer that answers transaction checks for its group, as the core needs it."""

    @property
    def group(self) -> str: ...

    def check(self, question: TransactionCheck, address: str) -> None:
        """In the loop: take a check of the broker at `address`. Returns at once; the answer is sent later."""
        ...
