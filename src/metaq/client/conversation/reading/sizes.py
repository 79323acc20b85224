"""Estimation of message sizes in a range of a queue, by a few small pulls.

No request returns the bytes between two queue offsets. So a few messages are read at evenly spread offsets, and more
of them where neighbouring samples differ, until the uncertainty is negligible. For splitting a Spark query into tasks
of equal bytes.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import NamedTuple

from metaq.client.conversation.call import Conversation, asked
from metaq.client.conversation.reading.pulling import Pull, PullStatus
from metaq.model import MessageQueue

SAMPLE_MESSAGES = 32
SAMPLE_BYTES = 64 * 1024
"""Bytes per pull: a RocketMQ broker returns at most 32 messages, and stops behind this size."""
PLACES = 5
"""Number of evenly spread samples at first."""
_BURSTS = 1 / 4
"""Share of the largest difference that counts as uncertain between two similar samples (there may be a burst), while half of the
pulls are left. The other half is spent where sizes change."""
_NEGLIGIBLE = 1 / 16
"""Share of all bytes that may remain uncertain between two samples."""


class Sample(NamedTuple):
    """Size of the messages [start, stop) of a queue in the log, bytes, with headers and properties."""

    start: int
    stop: int
    size: int

    @property
    def mean(self) -> float:
        """Mean bytes per message."""
        return self.size / (self.stop - self.start)


def sample_sizes(
    queue: MessageQueue, start: int, end: int, *, group: str, pulls_max: int, known: Iterable[Sample] = ()
) -> Conversation[list[Sample]]:
    """Sample [start, end). Returns the samples in order, with those of `known`; empty if nothing can be read.

    At most `pulls_max` pulls for `group`. Changes of size within the distance of two samples may be missed.
    """
    search = SizeSearch(start, end, pulls_max, known)
    while (probe := search.probe) is not None:
        pull = Pull(group=group, queue=queue, offset=probe, count=SAMPLE_MESSAGES, bytes_max=SAMPLE_BYTES)
        result = yield from asked(pull)
        if result.status is PullStatus.FOUND and result.next_offset > probe and len(result.records):
            search.found(Sample(probe, result.next_offset, len(result.records)))
        else:
            search.nothing()
    return search.samples


class SizeSearch:
    """Chooses the offsets. While `probe` is not None, pull there and call `found` or `nothing`."""

    def __init__(self, start: int, end: int, pulls_max: int, known: Iterable[Sample] = ()) -> None:
        self.samples = sorted(sample for sample in known if start <= sample.start < end)
        self._pulls_left, self._half = pulls_max, pulls_max // 2
        last = max(start, end - SAMPLE_MESSAGES)
        places = min(pulls_max, PLACES, -(-(end - start) // SAMPLE_MESSAGES))
        if places <= 1:
            self._first = [start] if places == 1 and not self.samples else []
        else:
            step = (last - start) / (places - 1)
            # Backwards, since `_choose` takes the last.
            evenly = [start + int(step * number) for number in reversed(range(places))]
            self._first = [at for at in evenly if all(abs(one.start - at) > step / 2 for one in self.samples)]
        self._probe: int | None = None
        self._choose()

    @property
    def probe(self) -> int | None:
        """Next offset to sample; None: enough is known."""
        return self._probe

    def found(self, sample: Sample) -> None:
        """Add the sample that begins at the probe."""
        bisect.insort(self.samples, sample)
        self._choose()

    def nothing(self) -> None:
        """Note that nothing can be read at the probe: its messages are deleted, or not there yet."""
        self._choose()

    def _choose(self) -> None:
        self._probe = None
        if self._pulls_left <= 0:
            return
        self._pulls_left -= 1
        if self._first:
            self._probe = self._first.pop()
            return
        self._probe = self._most_doubtful()

    def _most_doubtful(self) -> int | None:
        """Return the middle between the two samples with the largest uncertainty; None: it is negligible."""
        worst, between, total = 0.0, None, 0.0
        means = [sample.mean for sample in self.samples]
        bursts = _BURSTS * (max(means) - min(means)) if means and self._pulls_left >= self._half else 0.0
        for one, other in zip(self.samples, self.samples[1:], strict=False):
            gap = other.start - one.stop
            doubt = max(abs(one.mean - other.mean) / 2, bursts) * gap
            total += one.size + (one.mean + other.mean) / 2 * max(0, gap)
            if gap > SAMPLE_MESSAGES and doubt > worst:
                worst, between = doubt, (one.stop + other.start - SAMPLE_MESSAGES) // 2
        return between if worst > _NEGLIGIBLE * total else None
