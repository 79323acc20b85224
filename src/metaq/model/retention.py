"""How long a topic's messages are kept, when that is looked at, and what becomes of them then."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.model.cron import Cron
from metaq.model.system import HALF_TOPIC, OP_TOPIC, OUR_PREFIX, SCHEDULE_TOPIC

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "": 3_600_000}
_TIME: Final = re.compile(r"(\d{1,9})([smh]?)\Z", re.IGNORECASE)
_CARRIED: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC})


class DeletePolicy(Struct, frozen=True):
    """What `deletePolicy` says: `delete,168` or `archive,72,true`."""

    keep_ms: int
    archive: bool = False
    """Written to an archive before they go."""
    compress: bool = False
    """As `.meta.zip` and not as `.meta.arc`."""


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


def parse_policy(text: str) -> DeletePolicy:
    """Read `delete,168`, `archive,30m` or `archive,72,true`. A bare number means hours. Raises ConfigError."""
    words = [word.strip() for word in text.split(",")]
    kind = words[0].lower()
    if kind not in {"delete", "archive"}:
        swapped = len(words) > 1 and words[1].lower() in {"delete", "archive"}
        hint = f": write {','.join((words[1], words[0], *words[2:]))}" if swapped else ""
        raise ConfigError(
            f"deletePolicy={text}: it begins with delete or archive{hint}, as in delete,168 or archive,72,true"
        )
    match = _TIME.match(words[1]) if len(words) > 1 else None
    if match is None:
        raise ConfigError(
            f"deletePolicy={text}: behind {kind} comes how long messages are kept, hours or with s, m, h, as in delete,168"
        )
    if len(words) > (3 if kind == "archive" else 2) or (len(words) == 3 and words[2].lower() not in {"true", "false"}):
        raise ConfigError(f"deletePolicy={text}: only archive has a third word, true or false (compressed or not)")
    compress = len(words) == 3 and words[2].lower() == "true"
    return DeletePolicy(int(match[1]) * _UNITS_MS[match[2].lower()], kind == "archive", compress)


def is_carried(topic: str) -> bool:
    """Whether the broker itself sees to what of a topic is still needed: no rule is asked for it, and it keeps no log file."""
    return topic in _CARRIED or topic.startswith(OUR_PREFIX)
