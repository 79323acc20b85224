"""Where the messages of a source queue lie in the target, in runs; and what a group's progress becomes there.

    source   0 ─────────────── 700 ────── 950          (100 left out in between)
    target   20 ────────────── 720 ─── 870

is [OffsetRun(0, 20, 700), OffsetRun(800, 720, 150)]. A mirror that is alone in its queue makes one run that grows; a message of others
in between begins another. Only what is known is in the table, and what is missing never makes a group skip a message: of a
position that lies in no run the end of the run before it is told.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, NamedTuple

RUNS_MAX: Final = 1000
"""Of one queue. Groups that are further behind than the oldest one left are told the queue's beginning."""


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
        """Append what was found further on in the target. What the source had before stays where it was found first."""
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
        """The target offset from which a group goes on that has consumed the source up to `position`.

        Never behind the first message that it has not consumed. Messages that it has may be before it: they come again.
        """
        at = bisect.bisect_right(self.runs, position, key=lambda run: run.source) - 1
        if at < 0:
            return self.begin[1]
        run = self.runs[at]
        return run.target + min(position - run.source, run.length)


def together(translated: Iterable[int], foreign: int | None) -> int | None:
    """Of a target queue that several source queues go to, and perhaps others write to: up to where nothing is skipped.

    Args: foreign: the first message that no mirror has written. None: there is nothing to say.
    """
    positions = list(translated)
    if not positions:
        return None
    return min(positions) if foreign is None else min(*positions, foreign)
