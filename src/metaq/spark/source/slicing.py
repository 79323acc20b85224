"""Slices between two positions: cut into Spark partitions, and limited to a micro-batch. Pure."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from metaq.client.conversation.reading.sizes import Sample
from metaq.model.offsets import Positions, Slice
from metaq.model.queue import MessageQueue

RECORD_BYTES_GUESS = 1024
"""Assumed bytes of a message where nothing was sampled."""


class Profile:
    """Estimated bytes along the messages [start, end) of a queue: each is as large as those of the nearest sample."""

    def __init__(self, start: int, end: int, samples: Sequence[Sample] = (), guess: float = RECORD_BYTES_GUESS) -> None:
        """Args: samples: in order; where there are none, a message has `guess` bytes."""
        self.start, self.end = start, end
        middles = itertools.accumulate(
            ((one.stop + other.start) // 2 for one, other in itertools.pairwise(samples)), max
        )
        borders = [min(max(start, middle), end) for middle in middles]
        self._borders = [start, *borders, end]
        self._means = [max(1.0, sample.mean) for sample in samples] or [max(1.0, guess)]
        sizes = [
            (stop - begin) * mean
            for (begin, stop), mean in zip(itertools.pairwise(self._borders), self._means, strict=True)
        ]
        self._sums = [0.0, *itertools.accumulate(sizes)]

    @property
    def bytes(self) -> float:
        """Total bytes."""
        return self._sums[-1]

    def until(self, offset: int) -> float:
        """Return the bytes of the messages from `start` to `offset`."""
        part = max(0, min(bisect.bisect_right(self._borders, offset) - 1, len(self._means) - 1))
        return self._sums[part] + (offset - self._borders[part]) * self._means[part]

    def place(self, size: float) -> int:
        """Return the last offset up to which there are at most `size` bytes."""
        return min(self.end, int(self._reached(size)))

    def marks(self, pieces: int) -> list[int]:
        """Return `pieces` + 1 offsets, from `start` to `end`, that cut into pieces of about equal bytes.

        Each piece has a message at least; `pieces` must not exceed the number of messages.
        """
        marks = [self.start]
        for step in range(1, pieces):
            wanted = round(self._reached(self.bytes * step / pieces))
            marks.append(min(max(wanted, marks[-1] + 1), self.end - (pieces - step)))
        return [*marks, self.end]

    def _reached(self, size: float) -> float:
        part = min(bisect.bisect_right(self._sums, size) - 1, len(self._means) - 1)
        return self._borders[part] + (size - self._sums[part]) / self._means[part]


def slices_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[Slice]:
    """Return the slices between two positions, one per queue, sorted.

    A queue that is in `end` only is new, and `end` pins its start: nothing of it is read yet. A queue whose start is at or
    behind its end has nothing to read: Spark may replay batch 0 with a start that has moved beyond the logged end.
    Depends on its arguments alone: Spark replays a batch with the logged offsets and must get the same rows.
    """
    pairs = ((queue, start.get(queue, stop), stop) for queue, stop in sorted(end.items()))
    return [Slice(queue, begin, stop) for queue, begin, stop in pairs if begin < stop]


def cut(
    slices: Iterable[Slice],
    pieces_min: int,
    messages_max: int | None = None,
    bytes_max: int | None = None,
    profiles: Mapping[MessageQueue, Profile] | None = None,
) -> list[Slice]:
    """Cut slices into pieces of about equal bytes. Pieces of a slice stay in order.

    Args:
        pieces_min: least number of pieces in all, if there are as many messages.
        messages_max: most messages of a piece, strict.
        bytes_max: most bytes of a piece, estimated.
        profiles: queue → bytes of its slice; without one, pieces are weighed by messages.
    """
    whole = list(slices)
    weighed = [(profiles or {}).get(piece.queue) or Profile(piece.start, piece.end) for piece in whole]
    counts = [
        min(piece.messages, max(1, -(-piece.messages // (messages_max or piece.messages)), _pieces(profile, bytes_max)))
        for piece, profile in zip(whole, weighed, strict=True)
    ]
    # Each further piece goes to the slice whose pieces are largest: the slowest task decides how long the stage takes.
    largest = [(-weighed[at].bytes / counts[at], at) for at in range(len(whole)) if counts[at] < whole[at].messages]
    heapq.heapify(largest)
    for _ in range(pieces_min - sum(counts)):
        if not largest:
            break
        at = largest[0][1]
        counts[at] += 1
        if counts[at] < whole[at].messages:
            heapq.heapreplace(largest, (-weighed[at].bytes / counts[at], at))
        else:
            heapq.heappop(largest)
    pieces: list[Slice] = []
    for piece, profile, count in zip(whole, weighed, counts, strict=True):
        for begin, stop in itertools.pairwise(profile.marks(count)):
            # Marks by bytes may leave pieces above `messages_max`, which is strict.
            marks = _evenly(begin, stop, -(-(stop - begin) // messages_max) if messages_max else 1)
            pieces += [Slice(piece.queue, *marked) for marked in itertools.pairwise(marks)]
    return pieces


def _pieces(profile: Profile, bytes_max: int | None) -> int:
    return 1 if bytes_max is None else math.ceil(profile.bytes / bytes_max)


def _evenly(start: int, end: int, pieces: int) -> list[int]:
    return [start + (end - start) * step // pieces for step in range(pieces + 1)]


def limit_bytes(profiles: Mapping[MessageQueue, Profile], bytes_max: int) -> Positions:
    """Return end positions for at most `bytes_max` bytes in all, each queue in proportion to its backlog.

    At least one message is taken: one that is larger than the limit would stop the query for good.
    """
    total = sum(profile.bytes for profile in profiles.values())
    if total <= bytes_max:
        return {queue: profile.end for queue, profile in profiles.items()}
    ends = {queue: profile.place(profile.bytes * bytes_max / total) for queue, profile in profiles.items()}
    left = bytes_max - sum(profile.until(ends[queue]) for queue, profile in profiles.items())
    # What rounding leaves goes first to queues whose share is less than a message: one message in a short queue would
    # otherwise wait for as long as producers are ahead of the query. Then to those that have most.
    none_yet = {queue: ends[queue] <= profile.start for queue, profile in profiles.items()}
    for queue in sorted(profiles, key=lambda queue: (not none_yet[queue], -profiles[queue].bytes, queue)):
        profile, end = profiles[queue], ends[queue]
        if end < profile.end and (size := profile.until(end + 1) - profile.until(end)) <= left:
            ends[queue], left = end + 1, left - size
    if all(ends[queue] <= profile.start for queue, profile in profiles.items()):
        queue = max(profiles, key=lambda queue: (profiles[queue].bytes, queue))
        ends[queue] += 1
    return ends


def limit(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], messages_max: int) -> Positions:
    """Return end positions for at most `messages_max` messages in all, each queue in proportion to its backlog.

    At least one message is taken: a small limit over many queues would round down to none.
    """
    behind = {queue: max(0, stop - start.get(queue, stop)) for queue, stop in end.items()}
    total = sum(behind.values())
    if total <= messages_max:
        return dict(end)
    shares = {queue: count * messages_max // total for queue, count in behind.items()}
    left = max(1, messages_max) - sum(shares.values())
    # What rounding leaves goes first to queues whose share is less than a message: one message in a short queue would
    # otherwise wait for as long as producers are ahead of the query. Then to those that are furthest behind.
    none_yet = {queue: not share for queue, share in shares.items()}
    for queue in sorted(behind, key=lambda queue: (not none_yet[queue], shares[queue] - behind[queue], queue)):
        extra = min(left, behind[queue] - shares[queue], 1 + left // len(behind))
        shares[queue] += extra
        left -= extra
    return {queue: start.get(queue, stop) + shares[queue] if behind[queue] else stop for queue, stop in end.items()}
