"""Offset reset of an online group (INVOKE_BROKER_TO_RESET_OFFSET, 222): notifies the members, which commit the new offsets; and
copies of offsets from group to group (314).

As in RocketMQ, the broker's own table is not written: a member would overwrite it with the offset that it knows.
"""

from __future__ import annotations

import logging

from metaq.broker.channel import Effect
from metaq.broker.environment import Environment, Tables
from metaq.broker.pulls.lookup import Lookup
from metaq.broker.tables.members import ConsumerGroup
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model import MessageQueue
from metaq.model.notices import OffsetsReset
from metaq.model.topics.system import TRANSACTION_GROUP
from metaq.model.topics.topic import RETRY_PREFIX, check_group

log = logging.getLogger(__name__)

QUEUES_OF_A_PIECE = 16
"""Queues that are searched at once: some 0.5 ms."""
TO_THE_END = -1
"""Value of `time_ms`: behind the last message."""


class OffsetResets:
    """Computes new offsets, and the notices (220) to a group's members."""

    def __init__(self, environment: Environment, tables: Tables, lookup: Lookup) -> None:
        self._environment, self._tables, self._lookup = environment, tables, lookup

    def reset(
        self, group: str, topic: str, time_ms: int, *, force: bool, exact: bool = False
    ) -> InPieces[tuple[dict[MessageQueue, int], list[Effect]]]:
        """Return the new offset of each of the topic's writable queues, and the notices; some queues at a time.

        Args:
            time_ms: store time of the first message to consume, or TO_THE_END.
            force: also move forwards; without it, offsets move backwards only.
            exact: to the first message stored at `time_ms` or later; without it, to the one stored nearest to it, as in RocketMQ.

        Raises Refused: INVALID (no such topic, or the group has no offsets in it), OFFLINE (the group has no member).
        """
        config = self._tables.topics.get(topic)
        if config is None:
            raise Refused(Reason.INVALID, f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}")
        stored = self._tables.offsets.queues(group, topic)
        if not stored:
            raise Refused(Reason.INVALID, f"consumer group {group} has no progress in topic {topic} here")
        # Before the offsets are computed: each takes a search in the queue.
        self._online(group, topic)
        offsets = {}
        find = self._lookup.first_at if exact else self._lookup.offset_at
        for queue_id in range(config.write_queues):
            # Members commit only what they have consumed, so a queue without messages for the group has no offset. RocketMQ
            # refuses the whole reset then.
            current = stored.get(queue_id, self._lookup.min_offset(topic, queue_id))
            if time_ms == TO_THE_END:
                wanted = self._lookup.max_offset(topic, queue_id)
            else:
                wanted = find(topic, queue_id, time_ms)
            moved = wanted if force or wanted < current else current
            offsets[MessageQueue(topic, self._environment.name, queue_id)] = moved
            if queue_id % QUEUES_OF_A_PIECE == QUEUES_OF_A_PIECE - 1:
                yield
        online = self._online(group, topic)
        log.info("an administrator moves group %s in topic %s to %s", group, topic, _text(offsets))
        return offsets, [
            Effect(member.channel, OffsetsReset(group, offsets, time_ms, force, member.language))
            for member in online.members.values()
        ]

    def clone(self, source: str, target: str, topic: str | None, *, offline: bool) -> InPieces[None]:
        """Give a group the offsets that another has in a topic, or in all but its own retry topic; some topics at a time.

        What the target had for the same queues is overwritten, as in RocketMQ; members of it that are online overwrite that in turn.
        Topics in which the source has no offsets are passed over, and such that it does not subscribe to any more, unless
        `offline` is set.

        Raises Refused: INVALID (no name for a group), NO_PERMISSION (the positions are the broker's own).
        """
        check_group(target)
        if TRANSACTION_GROUP in (source, target):
            raise Refused(Reason.NO_PERMISSION, f"the positions of group {TRANSACTION_GROUP} are the broker's own")
        offsets, online = self._tables.offsets, self._tables.members.consumers.get(source)
        for name in [topic] if topic else offsets.topics_of(source):
            if self._tables.topics.get(name) is None or name == RETRY_PREFIX + source:
                continue
            if not offline and online is not None and online.subscriptions and name not in online.subscriptions:
                continue
            for queue_id, offset in list(offsets.queues(source, name).items()):
                offsets.put(target, name, queue_id, offset)
            yield

    def _online(self, group: str, topic: str) -> ConsumerGroup:
        online = self._tables.members.consumers.get(group)
        if online is None:
            raise Refused(
                Reason.OFFLINE, f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic}"
            )
        return online


def _text(offsets: dict[MessageQueue, int]) -> str:
    return ", ".join(f"{offset} of {queue}" for queue, offset in list(offsets.items())[:20])
