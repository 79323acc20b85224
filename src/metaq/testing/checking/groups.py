"""Checks of consumer groups: everything reaches each of them, and their progress is where it may be."""

from __future__ import annotations

from collections.abc import Iterator

from metaq.testing.checking.history import Place
from metaq.testing.checking.index import HistoryIndex
from metaq.testing.checking.violation import Promises, Violation


def at_least_once(index: HistoryIndex, promises: Promises) -> Iterator[Violation]:
    """Each group has got every message that is there."""
    for group in promises.groups:
        seen = index.seen_by(group)
        for place, key in sorted(index.held.items()):
            if key not in seen:
                sends = index.by_key.get(key, [])
                at = min(sends[-1].ends_at, index.end) if sends else index.end
                text = f"the group {group} has not got {key}, at {place.offset} of {place.queue}"
                yield Violation("at least once", text, at, (key,), (place.queue,))


def progress_is_true(index: HistoryIndex, promises: Promises) -> Iterator[Violation]:
    """A group's progress is not behind what it was told to be saved, not past the queue's end, and not past what it has got."""
    saved: dict[tuple[str, str], Place] = {}
    for event in index.committed:
        before = saved.get((event.group, event.place.queue))
        if before is None or before.offset < event.place.offset:
            saved[event.group, event.place.queue] = event.place
        yield from _not_past(index, promises, event.group, event.place, event.at, f"{event.process} has saved")
    for told in index.groups:
        yield from _not_past(index, promises, told.group, told.place, told.at, "the broker says")
        wanted = saved.pop((told.group, told.place.queue), None)
        if wanted is not None and told.place.offset < wanted.offset:
            text = (
                f"the group {told.group} is at {told.place.offset} of {told.place.queue}, behind {wanted.offset}, which a consumer was "
                "told to be saved"
            )
            yield Violation("progress is true", text, told.at, queues=(told.place.queue,))
    for (group, queue), wanted in sorted(saved.items()):
        text = f"the broker knows no progress of the group {group} in {queue}, of which {wanted.offset} was told to be saved"
        yield Violation("progress is true", text, index.end, queues=(queue,))


def _not_past(
    index: HistoryIndex, promises: Promises, group: str, place: Place, at: float, who: str
) -> Iterator[Violation]:
    holds = index.holds.get(place.queue)
    if holds is None:
        return
    if place.offset > holds.end:
        text = f"{who} that the group {group} is at {place.offset} of {place.queue}, which ends at {holds.end}"
        yield Violation("progress is true", text, at, queues=(place.queue,))
        return
    if group not in promises.groups:
        return
    seen = index.seen_by(group)
    # The last of them is enough: each earlier one is before an earlier progress, or is found by `at_least_once`.
    key = index.held.get(Place(place.queue, place.offset - 1))
    if key is not None and seen.get(key, float("inf")) > at:
        text = (
            f"{who} that the group {group} is at {place.offset} of {place.queue}, and it had not got {key} before that"
        )
        yield Violation("progress is true", text, at, (key,), (place.queue,))
