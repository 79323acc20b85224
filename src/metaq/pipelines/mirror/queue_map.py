"""Map of source queues to target queues: an entry never changes, so that order holds.

The queues of a topic are numbered in the order in which producers see them, by broker and id, and the one of number i goes to
the one of number i. Where both have the same number of queues a key's messages stay in the queue that producers in the target
choose for the key, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metaq.errors import ConfigError
from metaq.model import MessageQueue

QueueMap = dict[MessageQueue, MessageQueue]


def spread(queues: int, brokers: Sequence[str]) -> dict[str, int]:
    """How many queues of a new topic each broker gets: as many as there are in all, those that come first one more.

    A broker that would get none is not named.
    """
    each, more = divmod(queues, len(brokers))
    counts = {broker: each + (number < more) for number, broker in enumerate(sorted(brokers))}
    return {broker: count for broker, count in counts.items() if count}


def extended(
    known: Mapping[MessageQueue, MessageQueue],
    source: Sequence[MessageQueue],
    target: Sequence[MessageQueue],
    *,
    merge: bool,
) -> QueueMap:
    """The map with the queues of one source topic in it; what `known` says stays.

    Args: source: those of the topic. target: those that can be written to, of the topic that it goes to.
    Raises ConfigError: there are not enough, and `merge` is not allowed.
    """
    mapped = dict(known)
    missing = [queue for queue in sorted(source) if queue not in mapped]
    if not missing:
        return mapped
    places = sorted(target)
    if not places:
        raise ConfigError(f"the topic that {missing[0].topic} goes to has no queue that can be written to")
    taken = set(mapped.values())
    numbers = {
        queue: number
        for number, queue in enumerate(sorted({*source, *(one for one in known if _same(one, missing[0]))}))
    }
    later: list[MessageQueue] = []
    for queue in missing:  # Each its own number first, so that one that is new does not take another's place.
        wanted = places[numbers[queue]] if numbers[queue] < len(places) else None
        if wanted is None or wanted in taken:
            later.append(queue)
        else:
            mapped[queue] = wanted
            taken.add(wanted)
    free = [place for place in places if place not in taken]
    for queue in later:
        if free:
            mapped[queue] = free.pop(0)
        elif merge:
            mapped[queue] = places[numbers[queue] % len(places)]
        else:
            raise ConfigError(_too_few(queue, places, len(taken) + len(later)))
    return mapped


def _same(one: MessageQueue, other: MessageQueue) -> bool:
    return one.topic == other.topic


def _too_few(queue: MessageQueue, places: Sequence[MessageQueue], needed: int) -> str:
    topic, brokers = places[0].topic, len({place.broker for place in places})
    each = -(-needed // brokers)
    return (
        f"{queue} has no queue of its own in the target: the topic {topic} has {len(places)} there, and {needed} are needed. "
        f"Give it more (metaq topic create {topic} --queues {each} -n TARGET), or let queues share one (mergeQueues=true), "
        "which keeps the order of each, and mixes them"
    )


def to_rows(queues: Mapping[MessageQueue, MessageQueue]) -> list[list[str | int]]:
    """Rows for JSON: [topic, broker, queue id, topic, broker, queue id], source before target."""
    return [[*source, *target] for source, target in sorted(queues.items())]


def from_rows(rows: Sequence[Sequence[str | int]]) -> QueueMap:
    """Map from what `to_rows` made. Raises ValueError, TypeError."""
    found: QueueMap = {}
    for topic, broker, queue_id, to_topic, to_broker, to_id in rows:
        source = MessageQueue(str(topic), str(broker), int(queue_id))
        found[source] = MessageQueue(str(to_topic), str(to_broker), int(to_id))
    return found
