"""Samples message sizes of a query's queues when it plans, and caches them while it runs.

No request of RocketMQ's tells how many bytes lie between two offsets, so a few small pulls per queue have to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaq.client.conversation.reading.sizes import SAMPLE_MESSAGES, Sample
from metaq.model import offsets
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.source import slicing
from metaq.spark.source.slicing import RECORD_BYTES_GUESS, Profile

PULLS_MAX = 64
"""Most pulls per plan: planning time must not grow with the backlog."""
PULLS_PER_QUEUE = 24
BEYOND = 2
"""Range to sample, in multiples of what a byte limit takes at the known mean size: the next messages may be smaller."""


class Sampler:
    """Estimates the bytes of slices by samples. At most PULLS_MAX small pulls per plan; the longest slices first."""

    def __init__(self, group: str) -> None:
        """Args: group: consumer group that pulls are made for."""
        self._group = group
        self._known: dict[MessageQueue, list[Sample]] = {}

    def profiles(self, client: ClusterClient, slices: Sequence[Slice]) -> dict[MessageQueue, Profile]:
        """Return queue → estimated bytes along its slice. Raises what `client` raises."""
        longest = sorted(slices, key=lambda piece: (-piece.messages, piece))[:PULLS_MAX]
        self._look(client, longest, min(PULLS_PER_QUEUE, PULLS_MAX // max(1, len(longest))))
        guess = self._guess()
        found = {}
        for piece in slices:
            known = self._known.get(piece.queue, [])
            inside = [sample for sample in known if piece.start <= sample.start < piece.end]
            found[piece.queue] = Profile(piece.start, piece.end, inside, known[-1].mean if known else guess)
        return found

    def limited(self, client: ClusterClient, slices: Sequence[Slice], bytes_max: int) -> offsets.Positions:
        """Return the slices' ends for at most `bytes_max` bytes in all, estimated. Raises what `client` raises."""
        unknown = [piece for piece in slices if piece.queue not in self._known]
        longest = sorted(unknown, key=lambda piece: (-piece.messages, piece))[:PULLS_MAX]
        self._look(client, [Slice(piece.queue, piece.start, piece.start + 1) for piece in longest], 1)
        guess = self._guess()
        means = {piece.queue: known[-1].mean if (known := self._known.get(piece.queue)) else guess for piece in slices}
        total = sum(piece.messages * means[piece.queue] for piece in slices)
        near = []
        for piece in slices:
            share = piece.messages * min(1.0, BEYOND * bytes_max / total)
            near.append(Slice(piece.queue, piece.start, min(piece.end, piece.start + max(SAMPLE_MESSAGES, int(share)))))
        return slicing.limit_bytes(self.profiles(client, near), bytes_max)

    def _look(self, client: ClusterClient, slices: Sequence[Slice], pulls_max: int) -> None:
        found = client.sizes(slices, self._group, pulls_max, self._known)
        # A queue whose broker is away has no new samples: keep the old ones.
        self._known |= {queue: samples for queue, samples in found.items() if samples}

    def _guess(self) -> float:
        """Return the mean size, bytes, to assume for a queue that was not sampled."""
        means = [samples[-1].mean for samples in self._known.values()]
        return sum(means) / len(means) if means else RECORD_BYTES_GUESS
