"""Checks of queues: one order for all who read, what was read stays, and every replica holds the same."""

from __future__ import annotations

from collections.abc import Iterator

from metaq.testing.checking.history import Place
from metaq.testing.checking.index import HistoryIndex
from metaq.testing.checking.violation import Promises, Violation


def is_whole(index: HistoryIndex, promises: Promises) -> Iterator[Violation]:
    """The history can be judged: every queue was read to its end, and groups were asked how far they are."""
    for event in index.unanswered:
        text = f"send {event.op} of {event.process} has an answer and no beginning"
        yield Violation("is whole", text, event.at)
    wanted = {place.queue for send in index.sends for _, place in send.placed()}
    wanted |= {event.place.queue for event in index.observed}
    for queue in sorted(wanted - index.holds.keys()):
        yield Violation("is whole", f"{queue} was not read to its end", index.end, queues=(queue,))
    for queue, holds in sorted(index.holds.items()):
        missing = [at for at in range(holds.begin, holds.end) if Place(queue, at) not in index.held]
        if missing:
            text = f"{queue} holds offsets [{holds.begin}, {holds.end}), and a reader of it got none at {missing[:5]}"
            yield Violation("is whole", text, holds.at, queues=(queue,))
    beyond = sorted(place for place in index.held if not _inside(index, place))
    if beyond:
        text = f"a reader got offset {beyond[0].offset} of {beyond[0].queue}, outside of what the queue is said to hold"
        yield Violation("is whole", text, index.end, (index.held[beyond[0]],), (beyond[0].queue,))
    for group in sorted(set(promises.groups) - {event.group for event in index.groups}):
        yield Violation("is whole", f"nobody has asked how far the group {group} is", index.end)


def one_order(index: HistoryIndex, _promises: Promises) -> Iterator[Violation]:
    """A place has the same message for everybody, and who reads a queue in order gets it without gaps and steps back."""
    first: dict[Place, tuple[str, str]] = {}
    last: dict[tuple[str, str, str], int] = {}
    for event in index.observed:
        who, place = event.group or event.process, event.place
        key, other = first.setdefault(place, (event.key, who))
        if key != event.key:
            text = f"at {place.offset} of {place.queue} {other} has seen {key}, and {who} {event.key}"
            yield Violation("one order", text, event.at, (key, event.key), (place.queue,))
        if event.group and not event.orderly:
            continue
        line = (event.group, "" if event.group else event.process, place.queue)
        before = last.get(line)
        last[line] = max(place.offset, -1 if before is None else before)
        # An orderly group may get again what it has not acknowledged.
        if before is not None and (place.offset > before + 1 or (not event.group and place.offset <= before)):
            text = f"{who} has got offset {place.offset} of {place.queue} after {before}"
            yield Violation("one order", text, event.at, (event.key,), (place.queue,))
    for held, key in index.held_twice:
        text = f"at {held.place.offset} of {held.place.queue} there are {key} and {held.key}{f' in the files of {held.source}' if held.source else ''}"
        yield Violation("one order", text, held.at, (key, held.key), (held.place.queue,))


def reads_stay(index: HistoryIndex, promises: Promises) -> Iterator[Violation]:
    """What a consumer or reader has got is there in the end: nobody reads what a change of leaders takes back."""
    if not promises.reads_stay:
        return
    for event in index.observed:
        place = event.place
        if place.queue not in index.holds or index.expired(place) or index.held.get(place) == event.key:
            continue
        there = index.held.get(place)
        who = event.group or event.process
        text = f"{who} has seen {event.key} at {place.offset} of {place.queue}, and {f'{there} is there' if there else 'nothing is there'} in the end"
        yield Violation("reads stay", text, event.at, (event.key,), (place.queue,))


def replicas_are_equal(index: HistoryIndex, _promises: Promises) -> Iterator[Violation]:
    """The files of every replica hold what readers get."""
    for source, held in sorted(index.replicas.items()):
        for place in sorted(held.keys() | index.held.keys()):
            # Each replica deletes old files by itself.
            if index.expired(place) or place.queue not in index.holds or held.get(place) == index.held.get(place):
                continue
            if _broker(place.queue) != source.partition("/")[0]:
                continue
            text = f"at {place.offset} of {place.queue} the files of {source} have {held.get(place) or 'nothing'}, and readers get {index.held.get(place) or 'nothing'}"
            keys = tuple(key for key in (held.get(place), index.held.get(place)) if key)
            yield Violation("replicas are equal", text, index.end, keys, (place.queue,))
            break  # what follows in this replica follows from it


def _inside(index: HistoryIndex, place: Place) -> bool:
    holds = index.holds.get(place.queue)
    return holds is None or holds.begin <= place.offset < holds.end


def _broker(queue: str) -> str:
    """The broker's name in `topic@broker:queue id`."""
    return queue.rpartition("@")[2].rpartition(":")[0]
