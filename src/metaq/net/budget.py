"""What peers make a process keep: counted over the connections of all its listeners, with a limit.

Three kinds are counted for each connection. Unfinished frames and answers that the peer leaves unread are the stream's
own. The rest is its session's, which says so by `Peer.keep`: subscriptions, held pulls, requests that wait for something.
Each kind of the first two has a limit of its own, too. Above a limit, the connection that holds the most is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

MIB = 1024 * 1024
CONGESTED_BYTES = 1 * MIB
"""Bytes of answers left unread above which a server stops reading a peer's requests."""
BEHIND_BYTES = 32 * 1024
"""High-water mark of a server's transport: a peer that leaves more unread is behind, and counted."""
_BEHIND_BYTES_MIN = 1024
_UNSEEN_SHARE = 16
"""Part of all that peers may hold that is left for what is below the high-water marks, and not counted."""


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
    peer_bytes_max: int = 512 * MIB
    """Bytes of all that peers make the process keep, above which the peer that holds the most is closed."""
    idle_seconds: float = 120
    """Silence after which a connection is closed. RocketMQ's server and Java's client have 120 s too."""
    backlog: int = 1024
    """Connections that may wait to be accepted. As the next two, of ports that are taken from now on."""
    send_buffer: int = 0
    """Bytes that the system keeps of what is written to a connection; 0: its own choice, which is no limit."""
    receive_buffer: int = 0


class LimitedStream(Protocol):
    """A connection, as the limits see it. The first three are set by the `Budget`."""

    held: int
    """Bytes of memory for an unfinished frame."""
    waiting: int
    """Bytes of answers that its peer leaves unread."""
    kept: int
    """Bytes that its session keeps for it."""

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


def _all_of(stream: LimitedStream) -> int:
    return stream.held + stream.waiting + stream.kept


class Budget:
    """Memory that the peers of all listeners of a process make it keep.

    Args: limits: replaced as a whole when options change.
    """

    def __init__(self, limits: ListenLimits | None = None) -> None:
        self.limits = limits or ListenLimits()
        self.bytes = 0
        """All that is counted."""
        self.half_read_bytes = 0
        self.unanswered_bytes = 0
        """Bytes that the peers in `behind` leave unread."""
        self.behind: set[LimitedStream] = set()
        """Connections whose peers read more slowly than we write."""
        self._holders: set[LimitedStream] = set()
        """Connections with anything that is counted."""

    def hold(self, stream: LimitedStream, size: int) -> None:
        """Set the bytes of a connection's unfinished frame; close the greediest above a limit."""
        more = size - stream.held
        if not more:
            return
        stream.held = size
        self.half_read_bytes += more
        self._add(stream, more)
        limit = self.limits.half_read_bytes_max
        if more > 0 and limit and self.half_read_bytes > limit:
            self._cut(
                self._holders,
                lambda one: one.held,
                lambda: self.half_read_bytes - limit,
                lambda greediest: (
                    f"it held {greediest.held} bytes of an unfinished frame when all peers together held "
                    f"{self.half_read_bytes}, above the limit of {limit}"
                ),
            )

    def leave_unread(self, stream: LimitedStream, size: int) -> None:
        """Set the bytes that the peer of a connection leaves unread; close those that leave the most above a limit.

        0: it is not behind.
        """
        if size:
            self.behind.add(stream)
        else:
            self.behind.discard(stream)
        more, stream.waiting = size - stream.waiting, size
        self.unanswered_bytes += more
        if more:
            self._add(stream, more)
        limit = self.limits.unanswered_bytes_max_total
        if more > 0 and limit and self.unanswered_bytes > limit:
            self._cut(
                self.behind,
                lambda one: one.waiting,
                lambda: self.unanswered_bytes - limit,
                lambda greediest: (
                    f"it left {greediest.waiting} bytes of answers unread when all peers together left "
                    f"{self.unanswered_bytes}, above the limit of {limit}"
                ),
            )

    def keep(self, stream: LimitedStream, more: int) -> None:
        """Count bytes that a session keeps, or gives up (below 0); close the greediest above the limit."""
        stream.kept += more
        self._add(stream, more)

    def may_keep(self, stream: LimitedStream, more: int) -> bool:
        """Return whether so many bytes more would not get this connection closed. A session that can refuse asks first."""
        limit = self.limits.peer_bytes_max
        if not limit or self.bytes + more <= limit:
            return True
        return _all_of(stream) + more < max(map(_all_of, self._holders), default=0)

    def forget(self, stream: LimitedStream) -> None:
        """Release all that a session keeps: its connection has ended."""
        if stream.kept:
            self.keep(stream, -stream.kept)

    def _add(self, stream: LimitedStream, more: int) -> None:
        self.bytes += more
        if more < 0:
            if not _all_of(stream):
                self._holders.discard(stream)
            return
        self._holders.add(stream)
        limit = self.limits.peer_bytes_max
        if limit and self.bytes > limit:
            self._cut(
                self._holders,
                _all_of,
                lambda: self.bytes - limit,
                lambda greediest: (
                    f"it made the process keep {_all_of(greediest)} bytes, {greediest.held} of an unfinished "
                    f"frame, {greediest.waiting} of answers that it does not read, and {greediest.kept} of subscriptions, "
                    f"registrations and waiting requests, when all peers together held {self.bytes}, above the limit of {limit} "
                    "(peerBytesMax)"
                ),
            )

    @staticmethod
    def _cut(
        streams: set[LimitedStream],
        size_of: Callable[[LimitedStream], int],
        excess: Callable[[], int],
        why: Callable[[LimitedStream], str],
    ) -> None:
        """Close those of `streams` with the most, until nothing is in excess.

        The one with the most, not the one that crossed the limit: that may be a client with one small answer. The search is
        long but rare; `abort` gives the bytes back through `hold`, `leave_unread` and `forget`, so the loop ends.
        """
        while excess() > 0:
            greediest = max(streams, key=size_of, default=None)
            if greediest is None or not size_of(greediest):
                break
            greediest.abort(why(greediest))

    @property
    def share(self) -> int:
        """Bytes that a peer may leave unread before its requests are not read any more.

        The more peers are behind and the less is left of the total, the less for each. So the total, above which
        connections are closed, is reached only by single answers that are larger than this.
        """
        limit, left = self.limits.unanswered_bytes_max_total, CONGESTED_BYTES * 8
        if limit:
            left = min(left, limit - self.unanswered_bytes)
        if most := self.limits.peer_bytes_max:
            left, limit = min(left, most - self.bytes), min(limit or most, most)
        if not limit:
            return CONGESTED_BYTES
        return max(0, min(CONGESTED_BYTES, limit // (2 * len(self.behind) or 1), left // 8))

    def behind_bytes(self, connections: int) -> int:
        """Return the high-water mark of a new transport, of so many: what is below all of them together is not counted."""
        limit = self.limits.peer_bytes_max
        if not limit:
            return BEHIND_BYTES
        return min(BEHIND_BYTES, max(_BEHIND_BYTES_MIN, limit // _UNSEEN_SHARE // max(1, connections)))
