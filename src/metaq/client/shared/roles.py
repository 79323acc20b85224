"""What the shared core of a process needs of those that brokers speak to through it."""

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
        """What brokers are told of the member."""
        ...

    def rebalance_soon(self) -> None:
        """The group's members or the queues may have changed."""
        ...

    def uses(self, topic: str) -> bool: ...

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator moved the group's progress."""
        ...


class Checker(Protocol):
    """Whoever answers for the transactions of a producer group, as the core needs it."""

    @property
    def group(self) -> str: ...

    def check(self, question: TransactionCheck, address: str) -> None:
        """The broker at `address` asks. In the loop: returns at once, and answers later."""
        ...
