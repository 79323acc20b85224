"""Recovery of topics that are missing in topics.json while their queues hold messages, as after the file was lost."""

from __future__ import annotations

import logging

from metaq.broker.environment import Environment
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.part import BrokerPart
from metaq.broker.tables.topics import Topics
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX

log = logging.getLogger(__name__)

_INTERNAL_PREFIXES = (RETRY_PREFIX, DEAD_LETTER_PREFIX)


class LostTopics(BrokerPart):
    """Restores lost topics. Not on slaves: there settings arrive later than messages.

    Args:
        metaq1: MetaQ 1.x's settings, with the number of partitions per topic; None: there are none.
    """

    def __init__(self, environment: Environment, topics: Topics, metaq1: Metaq1Settings | None) -> None:
        self._options, self._reader = environment.options, environment.store.reader
        self._topics, self._metaq1 = topics, metaq1

    def open(self) -> None:
        """Find queues that hold messages and have no topic, and restore the topics if `restoreLostTopics` says so.

        Recovery has emptied the queues of deleted topics, so what they hold is newer than the deletion.
        """
        lost: dict[str, list[int]] = {}
        for (topic, queue_id), queue in self._reader.queues().items():
            if queue.min_offset < queue.max_offset and not (self._topics.get(topic) or self._topics.is_system(topic)):
                lost.setdefault(topic, []).append(queue_id)
        # Too many queues harm nobody; too few would refuse producers that know the topic as it was.
        counts = {topic: max(max(queues) + 1, self._least_queues(topic)) for topic, queues in lost.items()}
        for topic, queues in lost.items():
            log.warning(
                "the topic %s is not in topics.json, and its queues %s hold messages: %s",
                topic,
                ", ".join(map(str, sorted(queues))),
                f"it is there again, with {counts[topic]} queues; change it if it had other settings"
                if self._options.restore_lost_topics
                else "nobody can read them until the topic is created",
            )
        if lost and self._options.restore_lost_topics:
            self._topics.restore(counts)

    def _least_queues(self, topic: str) -> int:
        """Return the least number of queues to restore a topic with."""
        # Retry and dead-letter topics are created with one queue unless the group says otherwise.
        if topic.startswith(_INTERNAL_PREFIXES):
            return 1
        rules = self._metaq1.rules if self._metaq1 is not None else None
        if rules is not None and rules.sections and rules.accepts(topic):
            return rules.settings(topic).num_partitions
        return self._options.default_topic_queue_nums
