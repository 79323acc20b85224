"""Commits at the master of a pair: answered when all of their messages are in their partitions, from where the slave gets them.

Elsewhere a commit of more than a few hundred messages is answered when its decision is stored, and is expanded in steps.
"""

from __future__ import annotations

from typing import ClassVar

from metaq.broker.staged.service import StagingService
from metaq.model.transactions.metaq1 import Ended
from metaq.saved import Pending, Saving


class _Expanded(Pending):
    wait_seconds: ClassVar[float] = 60.0
    __slots__ = ()


class WholeCommits:
    """The commits of one broker whose messages are not all in their partitions yet."""

    def __init__(self, staging: StagingService) -> None:
        self._staging = staging
        self._waiting: dict[str, _Expanded] = {}

    def wait(self, transaction: str, ended: Ended) -> None:
        """Return if all messages of a commit are in their partitions. Raises Saving, after which the commit ends with `ended`."""
        if self._staging.state(transaction).remaining:
            pending = self._waiting.setdefault(transaction, _Expanded())
            raise Saving(pending, then=lambda: ended)

    def tick(self) -> None:
        """Let the answers go whose commits are whole now."""
        for transaction in [name for name in self._waiting if not self._staging.state(name).remaining]:
            self._waiting.pop(transaction).finish()
