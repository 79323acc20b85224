"""Saving of the broker's tables: retries of failed saves, and consumer offsets every few seconds."""

from __future__ import annotations

from collections.abc import Collection

from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.broker.part import BrokerPart


class TableSaving(BrokerPart):
    """Saves topics, groups, deletion marks and consumer offsets. On slaves too: tables change there as well."""

    leads = False

    def __init__(self, environment: Environment, tables: Tables, deletions: Deletions) -> None:
        self._options, self._clock = environment.options, environment.clock
        self._topics, self._offsets = tables.topics, tables.offsets
        self._tables = (tables.topics.saved, tables.groups.saved, deletions.marks, deletions.generations)
        self._offsets_due = 0.0

    def open(self) -> None:
        """Schedule the first save of offsets, a whole interval from now."""
        self._offsets_later()

    def _offsets_later(self) -> None:
        self._offsets_due = self._clock.monotonic() + self._options.flush_consumer_offset_interval / 1000

    def tick(self) -> None:
        """Retry failed saves, and save offsets when due (flushConsumerOffsetInterval)."""
        for table in self._tables:
            table.tick()
        if self._clock.monotonic() >= self._offsets_due:
            self._offsets_later()
            self._offsets.save()

    def options_changed(self, names: Collection[str]) -> None:
        """Update what depends on these options: the template topic, and the permission in registrations."""
        self._topics.options_changed(names)

    def close(self) -> None:
        """Wait for the saves under way, and save the offsets."""
        for table in self._tables:
            table.close()
        self._offsets.flush()
