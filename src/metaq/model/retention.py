"""How long each topic's messages are kept, and when that is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

from metaq.model.cron import Cron
from metaq.model.metaq1.settings import DeletePolicy
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC, OUR_PREFIX, SCHEDULE_TOPIC

_CARRIED: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC})


class TopicRetention(Struct, frozen=True):
    """A topic's rule."""

    policy: DeletePolicy
    when: Cron
    """When it is looked at whether a topic's time is up."""


class Retentions(Protocol):
    """Whose rule is which. Asked from the housekeeping thread."""

    def of(self, topic: str) -> TopicRetention:
        """The topic's rule, or the one for topics without one."""
        ...


class FixedRetentions(Struct, frozen=True):
    """Rules that are known: topic → rule, and one for the others."""

    default: TopicRetention
    topics: Mapping[str, TopicRetention] = {}

    def of(self, topic: str) -> TopicRetention:
        """See `Retentions`."""
        return self.topics.get(topic, self.default)


def is_carried(topic: str) -> bool:
    """Whether the broker itself sees to what of a topic is still needed: no rule is asked for it, and it keeps no log file."""
    return topic in _CARRIED or topic.startswith(OUR_PREFIX)
