"""Map of source queues to target queues. An entry never changes: a key's messages would lose their order.

The queues of a topic are numbered as producers see them, by broker and id; number i goes to number i. If both topics have the
same number of queues, producers in the target choose the same queue for a key as the mirror does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metaq.errors import ConfigError
from metaq.model import MessageQueue

QueueMap = dict[MessageQueue, MessageQueue]


def spread(queues: int, brokers: Sequence[str]) -> dict[str, int]:
    """Return broker → its number of queues of a new topic: `queues` in all, spread evenly, the first brokers one more.

    A broker without queues is left out.
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
    """Return the map extended by the queues of one source topic; entries of `known` stay.

    Args:
        source: the topic's queues.
        target: writable queues of the target's topic.

    Raises ConfigError: there are too few, and `merge` is not allowed.
    """
    mapped = dict(known)
    missing = [queue for queue in sorted(source) if queue not in mapped]
    if not missing:
        return mapped
    places = sorted(target)
    if not places:
        raise ConfigError(f"the topic that {missing[0].topic} goes to has no queue that can be written to")
    taken = set(mapped.values())
    # With known queues that the route lacks now: numbers must not move while a broker is away.
    numbers = {
        queue: number
        for number, queue in enumerate(sorted({*source, *(one for one in known if _same(one, missing[0]))}))
    }
    later: list[MessageQueue] = []
    # By number first, so that a new queue does not take the place of one that is known.
    for queue in missing:
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
    """Return rows for JSON: [topic, broker, queue id, topic, broker, queue id], source before target."""
    return [[*source, *target] for source, target in sorted(queues.items())]


def from_rows(rows: Sequence[Sequence[str | int]]) -> QueueMap:
    """Parse rows of `to_rows`. Raises ValueError, TypeError."""
    found: QueueMap = {}
    for topic, broker, queue_id, to_topic, to_broker, to_id in rows:
        source = MessageQueue(str(topic), str(broker), int(queue_id))
        found[source] = MessageQueue(str(to_topic), str(to_broker), int(to_id))
    return found
