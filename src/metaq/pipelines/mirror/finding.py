"""Search for the offsets of mirrored messages in the target, by reading the target.

The messages of one part are consecutive in their queue, so the first one gives the offsets of all. Only messages that others
have written in between are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from metaq.client.arrow import records
from metaq.model import MessageQueue
from metaq.model import properties as props
from metaq.model.offsets import Slice
from metaq.pipelines.mirror import marks
from metaq.pipelines.mirror.marks import Origin
from metaq.pipelines.mirror.state import MirrorState
from metaq.pipelines.mirror.table import OffsetRun
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.source.fetch import FetchSettings, read_slice

LOOK_MESSAGES: Final = 500
"""Messages per read in a queue that others write to as well."""
LAST_MESSAGES: Final = 32
"""Newest messages of a queue that are searched for an earlier mirror's."""


class Part(NamedTuple):
    """Copies in one target queue that came from one slice. `runs`: source offset, number in the part, length."""

    queue: MessageQueue
    first: int
    """Source offset of its first message."""
    length: int
    runs: tuple[OffsetRun, ...]

    @property
    def end(self) -> int:
        """One past the source offset of its last message."""
        return self.runs[-1].end


def settings(retry_seconds: float) -> FetchSettings:
    """Return settings for reading the target, without an error for deleted messages: they need no translation."""
    # From the master: a slave may not have the newest copies yet.
    return FetchSettings(fail_on_data_loss=False, retry_seconds=retry_seconds, read_from="master")


def origins(client: ClusterClient, wanted: Slice, how: FetchSettings) -> Iterator[tuple[int, Origin | None]]:
    """Yield offset and mark of each message of a slice of the target. Raises as `read_slice`."""
    for decoded in read_slice(client, wanted, how):
        texts = records.views(decoded.data, decoded.parts["properties"], len(decoded))
        for offset, text in zip(decoded.queue_offsets.tolist(), texts.to_pylist(), strict=True):
            found = props.parse(text.decode("utf-8", "replace"))
            yield offset, marks.origin_of(found.get(marks.SOURCE))


def look(
    client: ClusterClient,
    state: MirrorState,
    targets: Iterable[MessageQueue],
    parts: Iterable[tuple[MessageQueue, Part]],
    how: FetchSettings,
) -> None:
    """Search new messages of the queues `targets`, and note found copies in the state.

    Args: parts: parts that were committed last; copies of others are found message by message.
    Raises as `ClusterClient`, `read_slice`: copies found until then are noted.
    """
    expected = {(target, part.queue, part.first): part for target, part in parts}
    for target, end in sorted(client.ends(targets).items()):
        # One message first: if it begins a part, it gives the place of all of the part.
        at, ahead = state.seen[target], 1
        while at < end:
            stop, ahead = min(at + ahead, end), LOOK_MESSAGES
            for offset, origin in list(origins(client, Slice(target, at, stop), how)):
                if origin is None or origin.cluster != state.source or state.queues.get(origin.queue) != target:
                    state.foreign.setdefault(target, offset)
                    continue
                part = expected.pop((target, origin.queue, origin.offset), None)
                # The rest of this part is not dispatched yet.
                if part is None or offset + part.length > end:
                    state.tables[origin.queue].add(OffsetRun(origin.offset, offset, 1))
                    continue
                for run in part.runs:
                    state.tables[origin.queue].add(OffsetRun(run.source, offset + run.target, run.length))
                stop, ahead = offset + part.length, 1
                break
            at = state.seen[target] = stop


def newest_of(
    client: ClusterClient, target: MessageQueue, end: int, source: str, how: FetchSettings
) -> dict[MessageQueue, int]:
    """Return source queue → newest offset of it among a queue's last messages, by a mirror of the cluster `source`."""
    found: dict[MessageQueue, int] = {}
    begin = max(client.starts([target])[target], end - LAST_MESSAGES)
    if begin < end:
        for _, origin in origins(client, Slice(target, begin, end), how):
            if origin is not None and origin.cluster == source:
                found[origin.queue] = max(found.get(origin.queue, 0), origin.offset)
    return found
