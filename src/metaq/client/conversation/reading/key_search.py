"""All messages with a key at one broker.

RocketMQ's index finds keys by hash, and an answer has at most so many messages (`maxMsgsNumBatch`), the newest: other keys with the
same hash may take the place of what was asked for. So a full answer is followed by another one about the time before it. Index
entries know the second of a message: where one second fills an answer, its messages are read from the queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from metaq.client.conversation.call import Conversation, asked
from metaq.client.conversation.reading.lookups import END_OF_TIME_MS, QueryRecords, carries
from metaq.client.conversation.reading.newest import newest_between
from metaq.model import MessageQueue, StoredMessage

FULL: Final = 32
"""An answer with so many messages may be cut: brokers give 64 by default, and 32 where a message id is asked for."""
_SECOND_MS: Final = 1000


class KeySearch(Struct, frozen=True, kw_only=True):
    """What is looked for: messages of `topic` with `key` (`unique`: with that id) stored in [start_ms, end_ms), at most `limit`."""

    topic: str
    key: str
    unique: bool = False
    start_ms: int = 0
    end_ms: int = END_OF_TIME_MS
    limit: int = FULL

    def wants(self, message: StoredMessage) -> bool:
        in_time = self.start_ms <= message.store_ms < self.end_ms
        return in_time and carries(message, self.topic, self.key, unique=self.unique)


class Hits(NamedTuple):
    """The newest messages of a search, oldest first, bodies as they are stored. `more`: there are older ones."""

    messages: list[StoredMessage]
    more: bool


def search_key(search: KeySearch, broker: str, queues: Sequence[MessageQueue]) -> Conversation[Hits]:
    """Find the newest messages with a key at a broker. `queues`: of the topic there."""
    seen: set[int] = set()
    found: dict[int, StoredMessage] = {}
    # Entries have the time of the second in which their message was stored, or up to a second before.
    begin_ms, end_ms = max(0, search.start_ms - _SECOND_MS), search.end_ms - 1
    while end_ms >= begin_ms and len(found) <= search.limit:
        query = QueryRecords(
            topic=search.topic, key=search.key, broker=broker, unique=search.unique, begin_ms=begin_ms, end_ms=end_ms
        )
        answer = yield from asked(query)
        fresh = [one for one in answer if one.log_offset not in seen]
        seen.update(one.log_offset for one in fresh)
        found.update({one.log_offset: one for one in fresh if search.wants(one)})
        if len(answer) < FULL:
            break
        oldest_ms = min(one.store_ms for one in answer)
        if fresh:
            end_ms = min(end_ms, oldest_ms)
            continue
        # The same once more: more messages of this second than an answer has room for.
        for queue in queues:
            crowd = yield from newest_between(
                queue, oldest_ms - _SECOND_MS + 1, oldest_ms + 1, search.limit + 1, search.wants
            )
            found.update({one.log_offset: one for one in crowd})
        end_ms = oldest_ms - _SECOND_MS
    kept = [found[log_offset] for log_offset in sorted(found)]
    return Hits(kept[max(0, len(kept) - search.limit) :], len(kept) > search.limit)
