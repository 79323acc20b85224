"""Topic settings, the version of a table of them, and the rules for names."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from metaq.errors import Reason, Refused
from metaq.model.topics.system import SYSTEM_PREFIX, SYSTEM_TOPIC_NAMES, reply_topic

TOPIC_CHARS_MAX = 127
GROUP_CHARS_MAX = 255
QUEUES_MAX = 65_536
"""Most queues of one topic on one broker: each costs memory once it is used, and clients make lists of them."""
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
CONSUMER_GROUP_CHARS_MAX = TOPIC_CHARS_MAX - len(RETRY_PREFIX)
UNIT, UNIT_SUBSCRIBED = 1, 2
"""Bits of a topic's `sys_flag`: the topic belongs to a unit; a group of a unit subscribes to it."""
_HIDDEN_PREFIXES = (SYSTEM_PREFIX, RETRY_PREFIX, DEAD_LETTER_PREFIX)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_PARTITION_NAME = re.compile(r"(?!.*\.deleted-)[%|a-zA-Z0-9_-][%|a-zA-Z0-9_.-]*\Z")


class Perm(enum.IntFlag):
    """Permissions of a topic's queues, RocketMQ's bits. INHERIT: automatic creation may copy the topic."""

    INHERIT = 1
    """A topic that is made automatically may take this one for a template."""
    WRITE = 2
    """It may be sent to."""
    READ = 4
    """It may be consumed."""


READ_WRITE = Perm.READ | Perm.WRITE


class TopicConfig(Struct, frozen=True):
    """A topic as one broker holds it."""

    name: str
    """Name of the topic."""
    read_queues: int = 8
    """Queues that consumers see, numbers 0 to `read_queues` - 1."""
    write_queues: int = 8
    """Queues that producers see, numbers 0 to `write_queues` - 1."""
    perm: int = int(READ_WRITE)
    """Bits of `metaq.model.Perm`; 6: it may be sent to and consumed."""
    sys_flag: int = 0
    """RocketMQ's `topicSysFlag`: 1, made by a client of a unit; 2, subscribed to by one."""
    order: bool = False
    """Its queues are fixed at the name servers (`metaq topic order`), or it was made with `order=True`."""
    filter_type: str = "SINGLE_TAG"
    """RocketMQ's `topicFilterType`, SINGLE_TAG: a message has one tag at most."""

    @property
    def writable(self) -> bool:
        """Whether it may be sent to."""
        return bool(self.perm & Perm.WRITE)

    @property
    def readable(self) -> bool:
        """Whether it may be consumed."""
        return bool(self.perm & Perm.READ)


def check_topic(name: str) -> str:
    """Return `name` if it may become a topic, and a folder. Raises Refused INVALID with the rule that it breaks.

    The rule is RocketMQ's, `[%|a-zA-Z0-9_-]{1,127}`; without dot and slash no name leaves the store's folder.
    """
    return _check(name, "topic", TOPIC_CHARS_MAX)


def check_partition_topic(name: str) -> str:
    """Return `name` if it may be a topic of MetaQ 1.x, and a folder. Raises Refused INVALID with the rule that it
    breaks.

    As `check_topic`, and dots too: 1.x has such names. Not at the beginning, so that no name leaves the store's folder,
    and not such that it looks like the folder of a deleted topic (`store.folder`).
    """
    return _check(
        name, "topic", TOPIC_CHARS_MAX, _PARTITION_NAME, "[%|a-zA-Z0-9_.-], a dot at its beginning, or '.deleted-'"
    )


def check_group(name: str) -> str:
    """Return `name` if it may become a consumer or producer group. Raises Refused INVALID."""
    return _check(name, "group", GROUP_CHARS_MAX)


def check_consumer_group(name: str) -> str:
    """Return `name` if it may become a group of consumers: its retry topic's name must be a topic's. Raises Refused INVALID.

    RocketMQ takes up to 255 characters, and then neither lets such a group share queues nor stores what it gives back.
    """
    check_group(name)
    if len(name) > CONSUMER_GROUP_CHARS_MAX:
        raise Refused(
            Reason.INVALID,
            f"the consumer group name {name[:40]!r}... has {len(name)} characters, the limit is "
            f"{CONSUMER_GROUP_CHARS_MAX}: the name of its retry topic, {RETRY_PREFIX}{name[:20]}..., may have "
            f"{TOPIC_CHARS_MAX}",
        )
    return name


def users_topics(found: Iterable[str], own: Iterable[str]) -> list[str]:
    """Return those of the topics `found` at a name server that users made, sorted.

    `own`: names of its clusters and brokers, each of which is a topic too (304 lists them).
    """
    own = set(own)
    # Reply topics are named after clusters.
    hidden = own | SYSTEM_TOPIC_NAMES | {reply_topic(name) for name in own}
    return sorted(name for name in set(found) - hidden if not name.startswith(_HIDDEN_PREFIXES))


def _check(name: str, what: str, chars_max: int, rule: re.Pattern[str] = _NAME, chars: str = "[%|a-zA-Z0-9_-]") -> str:
    if not name or name.isspace():
        raise Refused(Reason.INVALID, f"the {what} name is blank")
    # Before the pattern, and shortened: the text goes into logs and answers.
    if len(name) > chars_max:
        raise Refused(
            Reason.INVALID, f"the {what} name {name[:40]!r}... has {len(name)} characters, the limit is {chars_max}"
        )
    if not rule.match(name):
        # Kafka's names often have dots, which RocketMQ's cannot.
        instead = [name.replace(".", char) for char in "-_"] if "." in name else []
        proposal = f": use {instead[0]!r} or {instead[1]!r}" if instead and _NAME.match(instead[0]) else ""
        raise Refused(Reason.INVALID, f"the {what} name {name!r} has characters outside {chars}{proposal}")
    return name


class DataVersion(NamedTuple):
    """Version of a configuration table, by which its copies elsewhere see a change: compare for equality, it has no
    order."""

    timestamp: int = 0
    """When the table last changed, ms since 1970."""
    counter: int = 0
    """How often it changed."""

    def next(self, now_ms: int) -> DataVersion:
        """The version after a change at `now_ms`."""
        return DataVersion(now_ms, self.counter + 1)
