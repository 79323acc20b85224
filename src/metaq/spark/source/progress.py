"""Consumer lag of a streaming query: `metaq.spark.lag`.

It compares the end of the query's last finished batch with the queues' max offsets (as the query saw them last, or as the
brokers answer now), and looks up the store time of the first message that was not read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct, structs

from metaq.client.identity.access import Access
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError
from metaq.model import offsets
from metaq.model.offsets import Positions
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import ClusterClient

RETRY_SECONDS = 5.0
"""Retry time: a user waits for the result, so a broker that is away for longer is an error."""
_LOG_VERSIONS = ("v1", "v2")
"""Supported versions of Spark's offset log."""


class QueueLag(Struct, frozen=True):
    """Progress of a query in one queue, of one of its sources.

    `source`: number of the source in the query, from 0. `position`: offset of the next message to read. `end`: the queue's
    max offset, None if it is not known: not yet, or its broker is away; of a queue that is no longer there, `position`.
    `waiting_since_ms`: store time of the first message that is not read; None if there is none, it was not asked for, or it
    cannot be read any more.
    """

    queue: MessageQueue
    """The queue."""
    position: int
    end: int | None
    source: int = 0
    waiting_since_ms: int | None = None

    @property
    def topic(self) -> str:
        """Topic of the queue."""
        return self.queue.topic

    @property
    def broker(self) -> str:
        """Name of the queue's broker."""
        return self.queue.broker

    @property
    def queue_id(self) -> int:
        """Number of the queue at its broker."""
        return self.queue.queue_id

    @property
    def behind(self) -> int | None:
        """Messages that are not read yet; None if it is not known."""
        return None if self.end is None else max(0, self.end - self.position)


class Lag(Struct, frozen=True):
    """Progress of a query. `query`: its id. `name`: None if it has none. `batch`: number of the last finished one.

    `queues`: by source and queue. `now_ms`: when brokers were asked for store times; None: they were not.
    """

    query: str
    name: str | None
    batch: int
    queues: tuple[QueueLag, ...]
    now_ms: int | None = None

    @property
    def behind(self) -> int | None:
        """Messages that are not read yet, all queues together; None while one of the queues is not known."""
        known = [queue.behind for queue in self.queues if queue.behind is not None]
        return sum(known) if len(known) == len(self.queues) else None

    @property
    def seconds(self) -> float | None:
        """Age of the oldest message that is not read, by the broker's store time: 0 if there is none, None if not known."""
        if self.behind == 0:
            return 0.0
        waiting = [queue.waiting_since_ms for queue in self.queues if queue.waiting_since_ms is not None]
        return max(0, self.now_ms - min(waiting)) / 1000 if waiting and self.now_ms is not None else None

    @property
    def positions(self) -> Positions:
        """Queue → offset of the next message; of a queue that several sources read, the one that is furthest behind."""
        found: Positions = {}
        for one in self.queues:
            found[one.queue] = min(one.position, found.get(one.queue, one.position))
        return found


def lag(
    query: Any,
    *,
    name_servers: str | None = None,
    retry_seconds: float = RETRY_SECONDS,
    clock: Clock = SYSTEM,
    acl_file: str | None = None,
) -> Lag | None:
    """Return how far a query is behind. None: it has not finished a batch yet.

    Args:
        query: a StreamingQuery, running or not; or one of its progress reports (`query.lastProgress`, `event.progress`);
            or the folder of its checkpoint, for a query that is not running.
        name_servers: `host:port`, `;`-separated: ask the brokers for the ends of queues now, and for the age of the first
            unread message. None: the ends are those that the query saw last, and ages are not known.
        retry_seconds: seconds to go on asking a broker that is away, 5 by default.
        clock: what the age of messages is counted from.
        acl_file: file of the keys by which requests are signed, as of the source (docs/spark.md).

    Raises: ConfigError: no source of the query is `format("metaq")`; or a checkpoint cannot be read, or is given without
        name servers. NoRoute, ConnectionFailed, RequestTimeout, RemoteProtocolError, BrokerError: a broker did not answer.
    """
    if isinstance(query, (str, PathLike)):
        if name_servers is None:
            raise ConfigError("a checkpoint does not tell where queues end: give name_servers to ask the brokers")
        found = of_checkpoint(str(query))
    else:
        progress = query if isinstance(query, Mapping) else query.lastProgress
        found = of_progress(progress) if progress else None
    if found is None or name_servers is None:
        return found
    with contextlib.closing(ClusterClient(name_servers, retry_seconds, access=Access(acl_file=acl_file))) as client:
        return _asked(found, client, clock)


def of_progress(progress: Mapping[str, Any]) -> Lag | None:
    """Return the lag that a progress report shows by itself. None: no batch has finished yet.

    Raises ConfigError: no source is `format("metaq")`.
    """
    ends = [_value(source.get("endOffset")) for source in progress["sources"]]
    ours = [number for number, end in enumerate(ends) if _is_ours(end)]
    if not ours:
        # A source without an end offset has not finished a batch: it may still turn out to be ours.
        if all(end is not None for end in ends) and ends:
            text = f"{_called(progress)} has no source of format('metaq'): nothing tells how far it is behind"
            raise ConfigError(text)
        return None
    queues: list[QueueLag] = []
    for number in ours:
        newest = _value(progress["sources"][number].get("latestOffset"))
        known = _positions(newest) if newest is not None else {}
        reached = sorted(_positions(ends[number]).items())
        queues += [QueueLag(queue, position, known.get(queue), number) for queue, position in reached]
    return Lag(str(progress.get("id", "")), progress.get("name"), int(progress.get("batchId", 0)), tuple(queues))


def _value(offset: Any) -> Any:
    """Parse a source's offset. None: there is none yet."""
    # `lastProgress` has values, a listener's event has the same as JSON text.
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:  # Another source, whose offsets are not JSON.
        return offset


def _is_ours(offset: Any) -> bool:
    # Other sources' offsets may be JSON objects too, Kafka's for instance.
    return isinstance(offset, dict) and set(offset) - {"g"} == {"v", "q"}


def _positions(offset: Any) -> Positions:
    return offsets.from_json(offset, "the query's offset")


def _called(progress: Mapping[str, Any]) -> str:
    return f"the query {progress.get('name') or progress.get('id', '')}".rstrip()


def _asked(found: Lag, client: ClusterClient, clock: Clock) -> Lag:
    # A query by pattern has the queues of deleted topics in its checkpoint for ever.
    ends = client.of_existing(found.positions, client.ends)
    queues = [structs.replace(one, end=ends.get(one.queue, one.position)) for one in found.queues]
    waiting = client.store_times({one.queue: one.position for one in queues if one.behind})
    # A queue that two sources read was asked for once, at the position of the one behind: its store time is not the other's.
    queues = [
        structs.replace(one, waiting_since_ms=waiting.get(one.queue))
        if one.position == found.positions[one.queue]
        else one
        for one in queues
    ]
    return structs.replace(found, queues=tuple(queues), now_ms=clock.now_ms())


# ------------------------------------------------------------------ checkpoints
def _local(place: str) -> Path:
    parts = urlsplit(place)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        raise ConfigError(
            f"the checkpoint {place} is not a local folder: only Spark can read it. Give the query, or its lastProgress"
        )
    return Path(unquote(parts.path) if parts.scheme == "file" else place)


def of_checkpoint(place: str) -> Lag | None:
    """Return the lag at the end of the last finished batch, without ends of queues. None: none is finished.

    Raises ConfigError: not a local checkpoint, of an unknown version, or of a query without a source of ours.
    """
    folder = _local(place)
    try:
        query = str(json.loads((folder / "metadata").read_text(encoding="utf-8"))["id"])
        # Beside the batches lie Hadoop's checksums (`.0.crc`) and temporary files.
        done = [int(path.name) for path in (folder / "commits").glob("*") if path.name.isdigit()]
        if not done:
            return None
        # Of the last committed batch: what is only planned is not read yet.
        text = (folder / "offsets" / str(max(done))).read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise ConfigError(f"{folder} is not the checkpoint of a query: {fault}") from None
    # Spark's offset log: version, metadata as JSON, then a line per source, in the order of the plan.
    version, _, *lines = text.split("\n")
    if version not in _LOG_VERSIONS:
        raise ConfigError(f"{folder}: Spark's offset log has version {version[:20]!r}, which is not known here")
    # `NAME:OFFSET`; a query has it by spark.sql.streaming.offsetLog.formatVersion=2.
    if version == "v2":
        lines = [line.partition(":")[2] for line in lines]
    # Spark writes `-` for a source that has no offset yet.
    sources = [{"endOffset": None if line == "-" else line} for line in lines if line]
    return of_progress({"id": query, "batchId": max(done), "sources": sources})
