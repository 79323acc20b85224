"""Checks of sends: what was acknowledged is there, what was refused is not, nothing is there too often, and in which order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from metaq.testing.checking.history import Place
from metaq.testing.checking.index import HistoryIndex, SendRecord
from metaq.testing.checking.violation import Promises, Violation


def acked_is_kept(index: HistoryIndex, promises: Promises) -> Iterator[Violation]:
    """An acknowledged message is there in the end, where its acknowledgement said."""
    for send in index.sends:
        ended = send.ended
        if ended is None or ended.outcome != "acked" or send.begun.atomic:
            continue
        if ended.status and ended.status not in promises.kept_statuses:
            continue
        for key, place in send.placed():
            if index.held.get(place) == key or index.expired(place):
                continue
            elsewhere = index.places.get(key)
            found = f"it is at {_at(elsewhere[0])}" if elsewhere else "it is nowhere"
            there = index.held.get(place)
            beside = f"; {there} is there" if there is not None else ""
            yield Violation(
                "acked is kept",
                f"{key} of {send.begun.process} was acknowledged at {_at(place)}{f', {ended.status}' if ended.status else ''}, and {found}{beside}",
                ended.at,
                (key,),
                (place.queue,),
            )
        if not ended.places:
            for key in send.begun.keys:
                if key not in index.places:
                    text = f"{key} of {send.begun.process} was acknowledged, and is nowhere"
                    yield Violation("acked is kept", text, ended.at, (key,))


def refused_is_absent(index: HistoryIndex, _promises: Promises) -> Iterator[Violation]:
    """A message whose every send was refused is nowhere, and nobody has seen it."""
    refused = {
        key: sends[-1].ends_at
        for key, sends in index.by_key.items()
        if all(send.outcome == "refused" for send in sends)
    }
    for key in refused.keys() & index.places.keys():
        place = index.places[key][0]
        text = f"{key} was refused, and is at {_at(place)}"
        yield Violation("refused is absent", text, refused[key], (key,), (place.queue,))
    for event in index.observed:
        if event.key in refused and event.key not in index.places:
            text = f"{event.key} was refused, and {event.group or event.process} has seen it at {_at(event.place)}"
            yield Violation("refused is absent", text, event.at, (event.key,), (event.place.queue,))


def not_too_often(index: HistoryIndex, _promises: Promises) -> Iterator[Violation]:
    """Nothing is there that nobody sent, or more often than it was tried."""
    for key, places in index.places.items():
        sends = index.by_key.get(key, [])
        most = sum(send.begun.copies_max for send in sends if send.outcome != "refused")
        if sends and (len(places) <= most or not most):  # what was refused is the other check's
            continue
        why = f"was sent at most {most} times" if sends else "was sent by nobody"
        text = f"{key} {why}, and is there {len(places)} times: {', '.join(map(_at, places[:5]))}"
        at = sends[-1].begun.at if sends else index.end
        yield Violation("not too often", text, at, (key,), tuple({place.queue for place in places}))
    for event in index.observed:
        if event.key not in index.by_key:
            text = f"{event.group or event.process} has seen {event.key} at {_at(event.place)}, which nobody has sent"
            yield Violation("not too often", text, event.at, (event.key,), (event.place.queue,))


def in_order(index: HistoryIndex, _promises: Promises) -> Iterator[Violation]:
    """In a queue, what was acknowledged before another send began lies before it; a batch lies together, in its order.

    That holds for all producers together, as a queue has one leader at a time; so it holds for each alone.
    """
    queues: dict[str, list[tuple[SendRecord, Place, Place]]] = defaultdict(list)
    for send in index.sends:
        places = [place for key, place in send.placed() if index.held.get(place) == key]
        if send.outcome != "acked" or not places or len(places) < len(send.begun.keys):
            continue
        ordered = [Place(places[0].queue, places[0].offset + at) for at in range(len(places))]
        if places != ordered:
            text = f"the batch {', '.join(send.begun.keys[:3])}… lies at {', '.join(map(_at, places))}, not together and in order"
            yield Violation("in order", text, send.ends_at, send.begun.keys, (places[0].queue,))
            continue
        queues[places[0].queue].append((send, places[0], places[-1]))
    for queue, sends in queues.items():
        by_end = sorted(sends, key=lambda one: one[0].ends_at)
        behind: tuple[SendRecord, Place] | None = None  # of those that had ended, the one that lies furthest back
        at = 0
        for send, first, _ in sorted(sends, key=lambda one: one[0].begun.at):
            while by_end[at][0].ends_at < send.begun.at:
                done, _, last = by_end[at]
                if behind is None or last.offset > behind[1].offset:
                    behind = done, last
                at += 1
            if behind is not None and behind[1].offset > first.offset:
                text = (
                    f"{send.begun.keys[0]} was sent {send.begun.at - behind[0].ends_at:.3f} s after the acknowledgement of "
                    f"{behind[0].begun.keys[-1]}, and lies before it: {first.offset} and {behind[1].offset} of {queue}"
                )
                keys = (send.begun.keys[0], behind[0].begun.keys[-1])
                yield Violation("in order", text, send.ends_at, keys, (queue,))


def all_or_none(index: HistoryIndex, _promises: Promises) -> Iterator[Violation]:
    """Of an atomic send all messages are there, or none, each once; those of a queue together and in order."""
    for send in index.sends:
        if not send.begun.atomic:
            continue
        counts = Counter({key: len(index.places.get(key, ())) for key in send.begun.keys})
        wanted = {"acked": {1}, "refused": {0}, "ambiguous": {0, 1}}[send.outcome]
        found = set(counts.values())
        if len(found) > 1 or not found <= wanted:
            told = ", ".join(f"{key} {count} times" for key, count in counts.items())
            text = f"the atomic send {send.begun.op} of {send.begun.process} was {send.outcome}, and there are {told}"
            yield Violation("all or none", text, min(send.ends_at, index.end), send.begun.keys)
            continue
        if found != {1}:
            continue
        queues: dict[str, list[int]] = defaultdict(list)
        for key in send.begun.keys:
            place = index.places[key][0]
            queues[place.queue].append(place.offset)
        for queue, offsets in queues.items():
            if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
                text = f"the atomic send {send.begun.op} of {send.begun.process} lies at offsets {offsets} of {queue}, not together and in order"
                yield Violation("all or none", text, min(send.ends_at, index.end), send.begun.keys, (queue,))


def _at(place: Place) -> str:
    return f"{place.offset} of {place.queue}"
