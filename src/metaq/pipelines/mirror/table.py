"""Offset translation: target offsets of a source queue's messages, and of a group's progress.

    source   0 ─────────────── 700 ────── 950          (100 left out in between)
    target   20 ────────────── 720 ─── 870

is [OffsetRun(0, 20, 700), OffsetRun(800, 720, 150)]. A mirror that alone writes to its queue makes one growing run; a message of
another writer in between begins a new run. A position in a gap of the table is translated to the end of the run before it, so
that a group never skips a message.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, NamedTuple

RUNS_MAX: Final = 1000
"""Most runs per queue. A group behind the oldest one is translated to the queue's beginning."""


class OffsetRun(NamedTuple):
    """The messages [source, source + length) of a queue are at [target, target + length) of its queue in the target."""

    source: int
    target: int
    length: int

    @property
    def end(self) -> int:
        """One past the source offset of its last message."""
        return self.source + self.length


class Table:
    """The runs of one source queue, in order. `begin`: (source, target) where the mirror began."""

    def __init__(self, begin: tuple[int, int], runs: Iterable[OffsetRun] = ()) -> None:
        self.begin = begin
        self.runs = list(runs)

    @property
    def end(self) -> int:
        """One past the newest source offset that is known."""
        return self.runs[-1].end if self.runs else self.begin[0]

    def add(self, run: OffsetRun) -> None:
        """Append a run found later in the target. Source messages that the table has already keep their first offset."""
        # With delivery at-least-once a replayed batch is in the target twice: the first copies count.
        behind = self.end - run.source
        if behind > 0:
            run = OffsetRun(run.source + behind, run.target + behind, run.length - behind)
        if run.length <= 0:
            return
        last = self.runs[-1] if self.runs else None
        if last is not None and (last.end, last.target + last.length) == run[:2]:
            self.runs[-1] = OffsetRun(last.source, last.target, last.length + run.length)
            return
        self.runs.append(run)
        del self.runs[:-RUNS_MAX]

    def translate(self, position: int) -> int:
        """Return the target offset at which a group continues that has consumed the source up to `position`.

        Never after the first message that it has not consumed; possibly before some that it has, which it gets again.
        """
        at = bisect.bisect_right(self.runs, position, key=lambda run: run.source) - 1
        if at < 0:
            return self.begin[1]
        run = self.runs[at]
        return run.target + min(position - run.source, run.length)


def together(translated: Iterable[int], foreign: int | None) -> int | None:
    """Return the offset up to which nothing is skipped in a target queue with several source queues, or other writers.

    Args: foreign: the first message that no mirror has written; None: there is none. Returns None without any bound.
    """
    positions = list(translated)
    if not positions:
        return None
    return min(positions) if foreign is None else min(*positions, foreign)
