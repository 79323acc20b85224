"""Saves of the tables that a broker keeps beside its log: retries of failed ones, and positions every few seconds."""

from __future__ import annotations

from collections.abc import Collection

from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.part import BrokerPart


class TableSaving(BrokerPart):
    """Saves topics, groups, marks of deletions, and groups' positions. In a follower too: they change there as well."""

    leads = False

    def __init__(self, environment: Environment, tables: Tables, deletions: Deletions) -> None:
        self._options, self._clock = environment.options, environment.clock
        self._topics, self._offsets = tables.topics, tables.offsets
        self._tables = (tables.topics.saved, tables.groups.saved, deletions.marks)
        self._offsets_due = 0.0

    def open(self) -> None:
        """Let a whole interval pass before the first save of positions."""
        self._offsets_later()

    def _offsets_later(self) -> None:
        self._offsets_due = self._clock.monotonic() + self._options.flush_consumer_offset_interval / 1000

    def tick(self) -> None:
        """Save again what could not be saved, and positions when that is due."""
        for table in self._tables:
            table.tick()
        if self._clock.monotonic() >= self._offsets_due:
            self._offsets_later()
            self._offsets.save()

    def options_changed(self, names: Collection[str]) -> None:
        """Change what was made of these options: the template topic, and what name servers learn of all topics."""
        self._topics.options_changed(names)

    def close(self) -> None:
        """Wait for the saves under way, and save the positions."""
        for table in self._tables:
            table.close()
        self._offsets.close()
