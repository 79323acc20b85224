"""The connections of one listener or of one client, and their common limits."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from msgspec import Struct

from metaq.log import RateLimitedLog
from metaq.net.turns import Turns

log = logging.getLogger("metaq.net")

MIB = 1024 * 1024
CONGESTED_BYTES = 1 * MIB
"""Bytes of answers left unread above which a server stops reading a peer's requests."""
_TICKS_IDLE = 4
"""Ticks per idle time-out. An event only notes the number of the current tick, instead of reading a clock."""


class ListenLimits(Struct, frozen=True):
    """Limits of what peers may take of a server. 0 is no limit."""

    connections_max: int = 10_000
    descriptor_max: int = 0
    """Highest descriptor that a connection may have; those above are for files, without which nothing is stored or saved.

    The kernel gives out the lowest free number, so it says how many are in use, by all servers of the process."""
    unanswered_bytes_max: int = 64 * MIB
    """Bytes of answers that one peer leaves unread, above which it is closed."""
    unanswered_bytes_max_total: int = 256 * MIB
    """Bytes of answers that peers leave unread, all together, above which the peer with the most is closed."""
    half_read_bytes_max: int = 256 * MIB
    """Bytes held for unfinished frames, all peers together, above which the peer with the most is closed."""
    idle_seconds: float = 120
    """Silence after which a connection is closed. RocketMQ's server and Java's client have 120 s too."""


class LimitedStream(Protocol):
    """A connection, as the limits see it."""

    held: int
    """Bytes of memory for an unfinished frame."""
    waiting: int
    """Bytes of answers that its peer leaves unread."""

    def last_seen(self) -> int:
        """Number of the tick when something was last read or written."""
        ...

    def send_unsent(self) -> None:
        """Write what was gathered in this turn of the loop."""
        ...

    def close(self, why: str = "") -> None:
        """Close after what is written has gone out."""
        ...

    def abort(self, why: str) -> None:
        """Close at once."""
        ...


class Group:
    """The connections that share limits.

    Args:
        limits: replaced as a whole when options change.
        server: a listener's; a client's connections have no limits, and go on reading when they are congested.
    """

    def __init__(self, limits: ListenLimits, *, server: bool) -> None:
        self.limits = limits
        self.server = server
        self.streams: set[LimitedStream] = set()
        self.half_read_bytes = 0
        self.unanswered_bytes = 0
        """Bytes that the peers in `behind` leave unread."""
        self.behind: set[LimitedStream] = set()
        """Connections whose peers read more slowly than we write."""
        self.turns = Turns()
        self.tick = 0
        self.crowded = False
        """Whether the last two reads came from different connections: then writes are gathered (`Stream`)."""
        self.faults = RateLimitedLog(log)
        self._last_read: LimitedStream | None = None
        self._unsent: list[LimitedStream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    def add(self, stream: LimitedStream, descriptor: int = 0) -> str:
        """Add a connection with this socket. Returns "", or which limit refuses it."""
        limits = self.limits
        if limits.connections_max and len(self.streams) >= limits.connections_max:
            return f"there are {limits.connections_max} connections already, the limit"
        if limits.descriptor_max and descriptor > limits.descriptor_max:
            return f"{descriptor} files and connections are open, and the rest of this process's limit (ulimit -n) is for files"
        self.streams.add(stream)
        return ""

    def remove(self, stream: LimitedStream) -> None:
        self.streams.discard(stream)
        # A closed connection must not stay in memory for this.
        if self._last_read is stream:
            self._last_read = None
        if not self.streams:
            self._emptied.set()

    async def emptied(self) -> None:
        """Wait until no connection is left."""
        while self.streams:
            self._emptied.clear()
            await self._emptied.wait()

    def start(self) -> None:
        """Begin to close idle connections."""
        if self.limits.idle_seconds:
            loop = asyncio.get_running_loop()
            # One timer for all connections; idle ones are closed up to a quarter of the time too late.
            self._timer = loop.call_later(self.limits.idle_seconds / _TICKS_IDLE, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.tick += 1
        # A list first: aborting changes the set.
        for stream in [stream for stream in self.streams if self.tick - stream.last_seen() > _TICKS_IDLE]:
            stream.abort(f"nothing was read or written for {self.limits.idle_seconds:g} s")
        self.faults.tick()
        self.start()

    def was_read(self, stream: LimitedStream) -> None:
        self.crowded = stream is not self._last_read
        self._last_read = stream

    def send_later(self, stream: LimitedStream) -> None:
        """Have `stream` write what it has gathered at the end of this turn of the loop."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(stream)

    def _send(self) -> None:
        # The set is taken first: what is written meanwhile begins another round.
        streams, self._unsent = self._unsent, []
        for stream in streams:
            stream.send_unsent()

    # -- the limits over all peers
    def hold(self, more: int) -> None:
        """Account for bytes of unfinished frames; close the greediest peers above the limit."""
        self.half_read_bytes += more
        limit = self.limits.half_read_bytes_max
        while more > 0 and limit and self.half_read_bytes > limit:
            # The search is long but rare; `abort` gives the bytes back through `hold`, so the loop ends.
            greediest = max(self.streams, key=lambda stream: stream.held)
            if not greediest.held:
                break
            greediest.abort(
                f"it held {greediest.held} bytes of an unfinished frame when all peers together held "
                f"{self.half_read_bytes}, above the limit of {limit}"
            )

    def leave_unread(self, more: int) -> None:
        """Account for bytes that peers leave unread; close those that leave the most above the limit."""
        self.unanswered_bytes += more
        limit = self.limits.unanswered_bytes_max_total
        while more > 0 and limit and self.unanswered_bytes > limit:
            # The one with the most, not the one that crossed the limit: that may be a client with one small answer.
            greediest = max(self.behind, key=lambda stream: stream.waiting, default=None)
            if greediest is None or not greediest.waiting:
                break
            greediest.abort(
                f"it left {greediest.waiting} bytes of answers unread when all peers together left "
                f"{self.unanswered_bytes}, above the limit of {limit}"
            )

    @property
    def share(self) -> int:
        """Bytes that a peer may leave unread before its requests are not read any more.

        The more peers are behind and the less is left of the total, the less for each. So the total, above which
        connections are closed, is reached only by single answers that are larger than this.
        """
        limit = self.limits.unanswered_bytes_max_total
        if not limit:
            return CONGESTED_BYTES
        left = max(0, limit - self.unanswered_bytes)
        return min(CONGESTED_BYTES, limit // (2 * len(self.behind) or 1), left // 8)
