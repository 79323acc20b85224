"""Roles registered with the core for broker-initiated requests: group members and transaction checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from metaq.model import ConsumerView, MessageQueue
from metaq.model.inspection import ConsumedDirectly, MemberState
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

    def leader_changed(self, broker: str) -> None:
        """Tell the new leader of the broker of that name what the former one knew in its memory, or perhaps alone."""
        ...

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Reset offsets on an administrator's request (220)."""
        ...

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """The offsets that it would commit now, in its queues of a topic; "": in all (221)."""
        ...

    async def state(self, *, stacks: bool) -> MemberState:
        """Its options, queues and rates (307). `stacks`: with those of all threads and tasks."""
        ...

    async def consume(self, record: bytes, broker: str) -> ConsumedDirectly:
        """Have its handler consume the message in a record of that broker (309). Raises ClientError: it has none."""
        ...


class Checker(Protocol):
    """A producer that answers transaction checks for its group, as the core needs it."""

    @property
    def group(self) -> str: ...

    def check(self, question: TransactionCheck, address: str) -> None:
        """In the loop: take a check of the broker at `address`. Returns at once; the answer is sent later."""
        ...
