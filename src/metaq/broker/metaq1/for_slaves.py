"""Byte positions that a master begins for its slaves: a slave cannot begin any, and a 1.x client may come to it first."""

from __future__ import annotations

import contextlib
from typing import Final

from metaq.broker.environment import Environment
from metaq.broker.metaq1.partitions import Partitions
from metaq.broker.metaq1.position_bases import Bases
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.part import IDLE_SECONDS, BrokerPart
from metaq.broker.replication.replicas import Replicas
from metaq.errors import Refused
from metaq.saved import Saving

_TOPICS_PER_STEP: Final = 64


class PositionsForSlaves(BrokerPart):
    """Of a master with slaves: begins the positions of partitions that hold messages of other protocols alone.

    Of topics that have a section in server.ini, or a partition that a 1.x client has used: of all others' positions would cost memory
    and disk for nobody.
    """

    def __init__(
        self,
        environment: Environment,
        replicas: Replicas,
        partitions: Partitions,
        bases: Bases,
        settings: Metaq1Settings,
    ) -> None:
        self._reader, self._replicas = environment.store.reader, replicas
        self._partitions, self._bases, self._settings = partitions, bases, settings
        self._left = list[str]()
        """Topics that are still to be looked at in this round."""

    def step(self) -> float:
        """Look at some topics. Returns the seconds until the next call."""
        if self._replicas.connected:
            if not self._left:
                self._left = self._partitions.names()
            some, self._left = self._left[-_TOPICS_PER_STEP:], self._left[:-_TOPICS_PER_STEP]
            for topic in some:
                self._begin(topic)
        return IDLE_SECONDS

    def _begin(self, topic: str) -> None:
        published = self._partitions.published_topic(topic)
        if published is None:
            return
        missing = [one for one in range(published.partitions) if self._bases.find(topic, one) is None]
        if topic not in self._settings.rules.topics and len(missing) == published.partitions:
            return
        for partition in missing:
            queue = self._reader.existing_queue(topic, partition)
            if queue is not None and queue.max_offset > 0:
                with contextlib.suppress(Saving, Refused):
                    self._bases.touch(topic, partition)
