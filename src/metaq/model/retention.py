"""Retention: how long each topic's messages are kept, and when that is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

from metaq.model.cron import Cron
from metaq.model.metaq1.settings import DeletePolicy
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC, OUR_PREFIX, SCHEDULE_TOPIC

_CARRIED: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC})


class TopicRetention(Struct, frozen=True):
    """Retention of one topic."""

    policy: DeletePolicy
    when: Cron
    """When expired messages are looked for."""


class Retentions(Protocol):
    """Retention by topic. Asked in the housekeeping thread."""

    def of(self, topic: str) -> TopicRetention:
        """Return the topic's rule, or the default."""
        ...


class FixedRetentions(Struct, frozen=True):
    """Fixed rules: topic → rule, and one for the others."""

    default: TopicRetention
    topics: Mapping[str, TopicRetention] = {}

    def of(self, topic: str) -> TopicRetention:
        """See `Retentions`."""
        return self.topics.get(topic, self.default)


def is_carried(topic: str) -> bool:
    """Return whether the broker itself copies on what it still needs of a topic: no rule is asked for it, and it keeps
    no log file."""
    return topic in _CARRIED or topic.startswith(OUR_PREFIX)
