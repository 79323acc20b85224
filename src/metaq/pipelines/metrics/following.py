"""Join of traces with their messages: recent messages by the key of their id, and traces that wait for their message.

A message may be read after the trace of its delivery: they are in different topics, and a batch may take more of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from metaq.pipelines.metrics.counting import FOLLOWED_TYPE, TOLD_TYPE

KNOWN_TYPE = np.dtype([*FOLLOWED_TYPE.descr, ("place", "<u4")])
"""Row of a followed message; `place` is an index of topics and brokers."""
KNOWN_MAX = 4_000_000
"""Most followed messages: 112 MB."""
WAITING_MAX = 200_000
CHUNKS_MAX = 16


class Matched(NamedTuple):
    """Traces and their messages, row by row."""

    told: Any
    known: Any


class Known:
    """The followed messages, in immutable chunks that have a name and are sorted by key."""

    def __init__(self, chunks: Iterable[tuple[str, Any]] = ()) -> None:
        self.chunks: dict[str, Any] = dict(chunks)

    def __len__(self) -> int:
        return sum(map(len, self.chunks.values()))

    def add(self, name: str, rows: Any) -> None:
        """Add a chunk of new messages. Many chunks are merged into one of that name."""
        if not len(rows):
            return
        # Few chunks: every trace is searched for in each of them.
        if len(self.chunks) >= CHUNKS_MAX:
            rows = np.concatenate([*self.chunks.values(), rows])
            self.chunks.clear()
        self.chunks[name] = rows[np.argsort(rows["key"], kind="stable")]

    def expire(self, oldest_ms: int) -> int:
        """Drop messages stored before a time, and the oldest beyond KNOWN_MAX. Returns the number of the latter."""
        for name, rows in list(self.chunks.items()):
            if int(rows["store_ms"].max()) < oldest_ms:
                del self.chunks[name]
        early = 0
        # Whole chunks, the oldest first: they are files that never change.
        for name, rows in list(self.chunks.items()):
            if len(self) <= KNOWN_MAX:
                break
            early += int((rows["store_ms"] >= oldest_ms).sum())
            del self.chunks[name]
        return early

    def match(self, told: Any) -> tuple[Matched, Any]:
        """Return the traces whose message is known, with it, and the other traces."""
        left, found_told, found_known = told, [], []
        for rows in self.chunks.values():
            # A key behind the last one points at the last row, and is no hit there.
            places = np.minimum(np.searchsorted(rows["key"], left["key"]), len(rows) - 1)
            hit = rows["key"][places] == left["key"]
            found_told.append(left[hit])
            found_known.append(rows[places[hit]])
            left = left[~hit]
        if not found_told:
            return Matched(np.empty(0, TOLD_TYPE), np.empty(0, KNOWN_TYPE)), left
        return Matched(np.concatenate(found_told), np.concatenate(found_known)), left


def limited(waiting: Mapping[str, Any], oldest_ms: int) -> tuple[dict[str, Any], int]:
    """Limit the waiting traces. Returns group → traces that still wait, and the number of dropped ones."""
    kept = {group: rows[rows["time_ms"] >= oldest_ms] for group, rows in waiting.items()}
    room = WAITING_MAX
    # Small groups first: the largest ones lose traces.
    for group in sorted(kept, key=lambda name: len(kept[name])):
        kept[group] = kept[group][-room:] if room else kept[group][:0]
        room -= len(kept[group])
    given_up = sum(map(len, waiting.values())) - sum(map(len, kept.values()))
    return {group: rows for group, rows in kept.items() if len(rows)}, given_up
