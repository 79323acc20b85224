"""What has changed in a master's tables since a slave asked last (30014): everything of a broker that its log does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from metaq.model.clients import GroupConfig
from metaq.model.filters.subscription import GroupFilter
from metaq.model.topics.topic import TopicConfig

LONG_MAX: Final = (1 << 63) - 1
Number = Annotated[int, Meta(ge=0, le=LONG_MAX)]
"""A LogOffset, a QueueOffset, or a number of the feed: Java's long, from 0 on."""
Generation = Annotated[int, Meta(ge=-LONG_MAX, le=LONG_MAX)]
"""As `metaq.broker.deletion` has it; that of the store is below 0."""
QueueId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class TableChanges(Struct, frozen=True, omit_defaults=True):
    """Entries as they are now, of those that have changed. None: the entry is gone."""

    feed: Number
    """Identity of the feed whose numbers these are. Another one means a master that does not know what the slave has."""
    since: Number
    """Number of the last change that the slave had; 0: these changes begin with all that there is."""
    position: Number
    """Number of the last change that it has with these."""
    complete: bool
    """There was no later one."""
    log_end: Number
    """LogOffset of the end of the master's log when the entries were read. Progress that the log tells too holds from there on."""
    topics: Mapping[str, TopicConfig | None] = field(default_factory=dict)
    groups: Mapping[str, GroupConfig | None] = field(default_factory=dict)
    generations: Mapping[str, Generation | None] = field(default_factory=dict)
    """Keys as in `metaqGenerations.json`: a topic, `topic@group`, or `@`. Of a topic: below which LogOffset its records are dead."""
    offsets: Mapping[str, Mapping[str, Mapping[QueueId, Number | None]]] = field(default_factory=dict)
    """Topic → group → queue id → QueueOffset."""
    filters: Mapping[str, Mapping[str, GroupFilter | None]] = field(default_factory=dict)
    """Topic → group → filter."""
    closed_partitions: Mapping[str, tuple[QueueId, ...]] = field(default_factory=dict)
    """Topic → its closed partitions; empty: all are open."""
    floors: Mapping[str, Number] = field(default_factory=dict)
    """Topic, or one queue of it as `topic@3`, → LogOffset below which its messages have expired or were trimmed."""
    delays: Mapping[QueueId, Number] | None = None
    """Delay level → QueueOffset of the next record to deliver; None: they have not changed."""
    needed_from: Number = 0
    """LogOffset below which the master needs no record any more, with what its log holds up to `log_end`."""
