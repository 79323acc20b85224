"""Leader and follower at a quiet point: the same log, the same queues, the same tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from metaq.broker.broker import Broker
from metaq.broker.delays.positions import CARRIED
from metaq.model import TopicConfig
from metaq.model.topics.system import SCHEDULE_TOPIC, TRANSACTION_GROUP
from metaq.store.message_store import MessageStore
from metaq.wire.record import decode_record
from tests.crash.pairs.side import Side
from tests.crash.simulation.bare import log_files
from tests.crash.simulation.ledger import Broken


def raw_log(root: Path, start: int, stop: int) -> bytes:
    """The bytes of a store's log files in [start, stop)."""
    found = bytearray()
    for path in log_files(root):
        base = int(path.name)
        data = path.read_bytes()
        if base < stop and base + len(data) > start:
            found += data[max(0, start - base) : stop - base]
    return bytes(found)


def compare(leader: Side, follower: Side, keys: Iterable[tuple[str, str]]) -> None:
    """Raises Broken: the follower is not what the leader is. `keys`: topic and key of messages that are found by them."""
    low = max(leader.log_store.log.min, follower.log_store.log.min)
    _compare_logs(leader, follower, low)
    for key in sorted({*_filled(leader.log_store), *_filled(follower.log_store)}):
        ours, theirs = (_queue(side.log_store, key, low) for side in (leader, follower))
        # Where retention had taken all of a queue before one of the two began, nothing tells it where the queue ended.
        if ours[1] or theirs[1] or 0 not in {ours[0], theirs[0]}:
            _same(f"queue {key}", ours, theirs)
    for topic, key in keys:
        _same(f"key {key} of {topic}", *(_found(side.log_store, topic, key, low) for side in (leader, follower)))
    a, b = leader.there, follower.there
    _same("topics", _topics(a), _topics(b))
    _same("groups", dict(a.groups.table), dict(b.groups.table))
    ours, theirs = _progress(a), _progress(b)
    # What was committed at the follower alone stays there. Of a queue whose messages had all gone before the leader began to copy, that
    # one knows no end.
    known = {place: offset for place, offset in theirs.items() if place in ours}
    ends = {place: _queue(leader.log_store, place[1:], low)[0] for place in known}
    # It led and had more when the leader, promoted without it, told of less for the first time: which is newer is not known.
    more = {
        (group, topic, queue_id): offset for (topic, group, queue_id), offset in b.followed._progress._agreed.items()
    }
    known = {place: ours[place] if more.get(place) == offset else offset for place, offset in known.items()}
    _same("offsets", ours, {place: min(offset, ends[place]) for place, offset in known.items()})
    ours, theirs = _generations(a), _generations(b)
    # A deletion of which a leader that was promoted by force had not heard is known to the one that had it.
    _same("generations", ours, {name: place for name, place in theirs.items() if name in ours})
    _same("epochs", a.roles.kept.epochs, b.roles.kept.epochs)
    delivered = b.followed._delivered
    _same("progress of delays", dict(a.schedule.positions.offsets), dict(delivered.offsets) if delivered else {})


def _compare_logs(leader: Side, follower: Side, low: int) -> None:
    ends = leader.log_store.log.end, follower.log_store.log.end
    if ends[0] != ends[1]:
        raise Broken(
            f"the log of {leader.name}, which leads, ends at {ends[0]}, and that of {follower.name} at {ends[1]}"
        )
    ours, theirs = (raw_log(side.disk.root, low, ends[0]) for side in (leader, follower))
    if ours != theirs:
        at = next(
            (place for place in range(min(len(ours), len(theirs))) if ours[place] != theirs[place]),
            min(len(ours), len(theirs)),
        )
        raise Broken(
            f"the logs of {leader.name} and {follower.name} differ at log offset {low + at} "
            f"({ours[at : at + 20]!r} and {theirs[at : at + 20]!r}; compared from {low} to {ends[0]})"
        )


def _filled(store: MessageStore) -> set[tuple[str, int]]:
    return {key for key, queue in store.reader.queues().items() if queue.max_offset}


def _queue(store: MessageStore, key: tuple[str, int], low: int) -> tuple[int, list[Any]]:
    """Max offset of a queue, and its units that point to `low` or behind."""
    queue = store.reader.existing_queue(*key)
    if queue is None:
        return 0, []
    units = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
    if key[0] == SCHEDULE_TOPIC and key[1] >= CARRIED:  # when they are due stands in the record; nobody reads it here
        units = [unit._replace(tags_code=0) for unit in units]
    return queue.max_offset, [unit for unit in units if unit.log_offset >= low]


def _found(store: MessageStore, topic: str, key: str, low: int) -> list[tuple[int, bytes]]:
    found = [decode_record(data) for data in store.reader.query(topic, key, 32, 0, 1 << 60)]
    return sorted((one.log_offset, one.body) for one in found if one.log_offset >= low)


def _progress(broker: Broker) -> dict[tuple[str, str, int], int]:
    return {
        (group, topic, queue_id): offset
        for (topic, group), queues in broker.offsets.table.items()
        if group != TRANSACTION_GROUP
        for queue_id, offset in queues.items()
    }


def _topics(broker: Broker) -> dict[str, TopicConfig]:
    return {name: config for name, config in broker.topics.table.items() if not broker.topics.is_system(name)}


def _generations(broker: Broker) -> dict[str, int]:
    found = {**broker.deletions.generations.table, **broker.deletions.marks.table}
    return {name: place for name, place in found.items() if place}  # 0: it was deleted before the first record


def _same(what: str, ours: Any, theirs: Any) -> None:
    if ours != theirs:
        if isinstance(ours, dict) and isinstance(theirs, dict):
            odd = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
            ours, theirs = ({key: side.get(key) for key in sorted(odd)} for side in (ours, theirs))
        raise Broken(f"{what}: the leader has {str(ours)[:700]}, the follower {str(theirs)[:700]}")
