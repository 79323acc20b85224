"""State of a mirror in its folder, beside Spark's checkpoint.

FOLDER/_mirror.json     the map of queues, the tables of offsets, and the last batch that is known to be in the target
FOLDER/groups.json      the groups' progress when they were carried over last, for people
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from metaq.durable import write_whole
from metaq.errors import ConfigError, StoreCorrupt
from metaq.model import MessageQueue
from metaq.pipelines.mirror import queue_map
from metaq.pipelines.mirror.queue_map import QueueMap
from metaq.pipelines.mirror.table import OffsetRun, Table

STATE: Final = "_mirror.json"
GROUPS: Final = "groups.json"


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    query: str
    source: str
    target: str
    batch: int
    decided: int
    queues: list[list[str | int]]
    tables: list[tuple[MessageQueue, tuple[int, int], list[OffsetRun]]]
    """(source queue, offsets where the mirror began, runs)."""
    seen: list[tuple[MessageQueue, int, int | None]]
    """(target queue, end of the search, first message of other writers)."""


class MirrorState:
    """State of a mirror in memory. Not thread-safe."""

    def __init__(self, source: str, target: str) -> None:
        """Args: names of the clusters in marks."""
        self.source, self.target = source, target
        self.query = ""
        """The id of the query that mirrors; empty: none yet."""
        self.batch = -1
        """Last batch that is known to be in the target."""
        self.decided = -1
        """Last batch with a transaction; a batch without copies has none, so the coordinator does not know it."""
        self.queues: QueueMap = {}
        self.tables: dict[MessageQueue, Table] = {}
        """Source queue → its table."""
        self.seen: dict[MessageQueue, int] = {}
        """Target queue → end of what was searched."""
        self.foreign: dict[MessageQueue, int] = {}
        """Target queue → first message that the mirror has not written."""

    def sources_of(self, target: MessageQueue) -> list[MessageQueue]:
        """Return the source queues that are copied to a target queue."""
        return [source for source, place in sorted(self.queues.items()) if place == target]

    def save(self, folder: Path) -> None:
        """Save atomically. Raises OSError."""
        kept = _Kept(
            query=self.query, source=self.source, target=self.target, batch=self.batch,
            decided=self.decided,
            queues=queue_map.to_rows(self.queues),
            tables=[(queue, table.begin, table.runs) for queue, table in sorted(self.tables.items())],
            seen=[(queue, at, self.foreign.get(queue)) for queue, at in sorted(self.seen.items())],
        )  # fmt: skip
        write_whole(folder / STATE, msgspec.json.encode(kept))


def load_state(folder: Path, source: str, target: str) -> MirrorState:
    """Load the saved state, or make a new one.

    Raises: StoreCorrupt: it cannot be read. ConfigError: the folder is of a mirror between other clusters.
    """
    state = MirrorState(source, target)
    try:
        kept = msgspec.json.decode((folder / STATE).read_bytes(), type=_Kept)
        state.queues = queue_map.from_rows(kept.queues)
    except FileNotFoundError:
        return state
    except (msgspec.DecodeError, ValueError, TypeError, OSError) as fault:
        raise StoreCorrupt(
            f"what the mirror keeps in {folder / STATE} cannot be read ({fault}): restore it from a copy with the rest of its folder. An "
            "empty folder is for empty topics in the target, or messages would be there twice"
        ) from fault
    for what, was, now in (("source", kept.source, source), ("target", kept.target, target)):
        if was != now:
            raise ConfigError(
                f"the folder {folder} is of a mirror whose {what} is called {was}, not {now}. If its name servers have moved, keep "
                f"the name: {what}Name = '{was}'; for another cluster take another folder"
            )
    state.query, state.batch, state.decided = kept.query, kept.batch, kept.decided
    state.tables = {queue: Table(begin, runs) for queue, begin, runs in kept.tables}
    state.seen = {queue: at for queue, at, _ in kept.seen}
    state.foreign = {queue: foreign for queue, _, foreign in kept.seen if foreign is not None}
    return state


def write_groups(folder: Path, told: Any) -> None:
    """Write the groups' progress, for people. Raises OSError."""
    write_whole(folder / GROUPS, msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")
