"""Commits at the master of a pair: answered when all of their messages are in their partitions, from where the slave gets them.

Elsewhere a commit of more than a few hundred messages is answered when its decision is stored, and is expanded in steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from metaq.broker.staged.service import StagingService
from metaq.saved import Pending


class _Expanded(Pending):
    wait_seconds: ClassVar[float] = 60.0
    __slots__ = ()


class WholeCommits:
    """The commits of one broker whose messages are not all in their partitions yet."""

    def __init__(self, staging: StagingService) -> None:
        self._staging = staging
        self._waiting: dict[str, _Expanded] = {}

    def when_whole(self, transaction: str, act: Callable[[], None]) -> Pending | None:
        """Call `act` when all messages of a commit are in their partitions; at once if they are. Returns what ends then; None: they are."""
        if not self._staging.state(transaction).remaining:
            act()
            return None
        pending = self._waiting.setdefault(transaction, _Expanded())
        pending.when_done(lambda _error: act())
        return pending

    def tick(self) -> None:
        """Let the answers go whose commits are whole now."""
        for transaction in [name for name in self._waiting if not self._staging.state(name).remaining]:
            self._waiting.pop(transaction).finish()
