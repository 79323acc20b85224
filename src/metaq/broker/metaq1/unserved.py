"""Byte positions in the store of a broker that serves no clients of MetaQ 1.x.

It served them before, or another broker of the set does.

They stay as they were told: log files are kept until newer bases are written, as `Bases` does wherever clients are
served. A store without positions, as most are, does not even load it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from metaq.broker.environment import Environment
from metaq.broker.log.appender import Appender
from metaq.broker.part import IDLE_SECONDS, BrokerPart
from metaq.model.topics.system import POSITIONS_TOPIC

if TYPE_CHECKING:
    from metaq.broker.metaq1.position_bases import Bases


class UnservedBases(BrokerPart):
    """The bases of a store's positions, if it has any when it is opened. `Bases` describes the arguments."""

    def __init__(
        self,
        environment: Environment,
        appender: Appender,
        closed: Callable[[str], bool],
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._store = environment.store
        self._arguments = environment, appender, closed, call_soon
        self._bases: Bases | None = None

    def open(self) -> None:
        """Look for positions in the log and on the disk; a follower may have copied some meanwhile."""
        if self._store.reader.existing_queue(POSITIONS_TOPIC, 0) is None and not self._store.folder.positions.exists():
            return
        from metaq.broker.metaq1.position_bases import Bases

        self._bases = Bases(*self._arguments)
        self._bases.open()

    def step(self) -> float:
        """See `Bases.step`."""
        return self._bases.step() if self._bases is not None else IDLE_SECONDS

    def drop_topic(self, topic: str) -> None:
        """See `Bases.drop_topic`."""
        if self._bases is not None:
            self._bases.drop_topic(topic)

    def log_was_cut(self) -> None:
        """See `Bases.log_was_cut`."""
        if self._bases is not None:
            self._bases.log_was_cut()

    def close(self) -> None:
        """See `Bases.close`."""
        if self._bases is not None:
            self._bases.close()
