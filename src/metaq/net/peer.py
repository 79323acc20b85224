"""The two sides of a connection: `Peer`, the connection as its session sees it, and `Session`, which handles its bytes.

A *layer* may stand between the socket and the stream and change the bytes both ways, as TLS does: a protocol that the
event loop talks to in the stream's place, and a transport (`LayerTransport`) that it gives to the stream. By that
transport's class the stream knows that nobody may write to the socket past it (`Peer.plain`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

from metaq.net.sweep import Watch
from metaq.net.turns import JOB_COST, Source

Layer: TypeAlias = Callable[[asyncio.BufferedProtocol], asyncio.BaseProtocol]
"""Wraps a stream in the protocol that the loop talks to, which calls the stream's `connection_made` with a
`LayerTransport`."""


class LayerTransport(asyncio.Transport):
    """Base of the transports that layers give to their streams. Passes everything but `write` to the transport
    below."""

    def __init__(self, below: asyncio.Transport) -> None:
        super().__init__()
        self.below = below

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.below.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.below.is_closing()

    def close(self) -> None:
        self.below.close()

    def abort(self) -> None:
        self.below.abort()

    def pause_reading(self) -> None:
        self.below.pause_reading()

    def resume_reading(self) -> None:
        self.below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self.below.get_write_buffer_size()


def is_plain(transport: asyncio.BaseTransport) -> bool:
    """Return whether bytes go over the wire as they are written to this transport; only then may they be written past
    it.

    The loop's own TLS shows in the extra information. A layer's transport is known by its class alone: it hands out the
    socket's extra information, which says nothing of the layer.
    """
    return not isinstance(transport, LayerTransport) and transport.get_extra_info("sslcontext") is None


class Peer(Protocol):
    """The other end of a connection, as a session sees it. Not thread-safe: use it on its event loop only."""

    address: tuple[str, int]
    local: tuple[str, int]
    plain: bool
    """Bytes go over the wire as they are written: a sweep may read and write the socket past the stream, and a direct
    link may be dialled to the address. False under TLS or any other layer."""
    on_writable: Callable[[], None] | None
    """Called when a congested peer takes bytes again."""
    on_half_closed: Callable[[], bool] | None
    """Called when the peer has shut its sending side; it may still read. Returns whether answers are still to come:
    then the session closes the connection later. Without a callback it ends at once."""

    on_written: Callable[[int], None] | None
    """Called with the bytes of each write, once they are written or queued."""

    @property
    def congested(self) -> bool:
        """The peer leaves too much unread. A session may return early; the rest of its input is presented again
        later."""
        ...

    @property
    def closed(self) -> bool: ...

    @property
    def busy(self) -> bool:
        """Long answers are being written, or jobs wait for their turn."""
        ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, or keep until the peer reads. No effect on a closed connection."""
        ...

    def write_now(self, data: bytes) -> None:
        """As `write`, but at once if nothing is queued before it, where a loop may wait for the end of its turn.

        For answers that another connection's event brought about, such as those to held pulls.
        """
        ...

    def write_from(self, head: bytes, source: Source) -> None:
        """Send `head` and then all of `source`, piece by piece as the peer reads. Other writes wait behind it."""
        ...

    @property
    def turn_is_free(self) -> bool:
        """No long answer of any connection waits for its turn."""
        ...

    def when_its_turn(self, job: Callable[[], int | None], cost: int = JOB_COST, *, beyond: bool = False) -> bool:
        """Call `job` when others had their turns and this peer has read its earlier long answers.

        Returns False: too many of this peer's jobs wait already.

        Args:
            job: must not raise. May return its cost, if that is known only then.
            cost: its share of a turn of the loop, as the bytes that could be written meanwhile.
            beyond: take it however many wait. For a job of which a connection has one at most.
        """
        ...

    def keep(self, more: int) -> None:
        """Count bytes that the session keeps for this peer, or gives up (below 0).

        The peer that holds the most is closed when all together hold too much: that may be this one. What is still counted
        at the end of the connection is given up by itself.
        """
        ...

    def may_keep(self, more: int) -> bool:
        """Return whether so much more would not get this peer closed."""
        ...

    def pause(self) -> None:
        """Stop reading. What the session left of its input, and what comes behind it, is presented after `resume`."""
        ...

    def resume(self) -> None:
        """In another turn of the loop, present what was left and read on."""
        ...

    def go_on(self) -> None:
        """As `resume`, but at once: for a turn that the session has waited for. Never within a call of the session's own."""
        ...

    @property
    def swept(self) -> bool:
        """A sweep reads this connection; the session gets what the sweep's handler leaves."""
        ...

    def join(self, sweep: Watch, sender: object) -> bool:
        """Let a sweep, or threads (`Lent`), read this connection; its handler gets `sender` with the bytes. Returns False if it cannot."""
        ...

    def leave(self) -> None:
        """Leave the sweep, if it is in one."""
        ...

    def close(self, why: str = "") -> None:
        """Close after what is written has gone out."""
        ...

    def abort(self, why: str) -> None:
        """Close at once; what is not written yet is lost."""
        ...


class Session(Protocol):
    """Handler of one connection's bytes, made by a server or a client."""

    def data_received(self, data: memoryview) -> int:
        """Take the whole frames and return their bytes; the rest is presented again with more behind it.

        `data` is valid during the call only. Raises RemoteProtocolError, which closes this connection.
        """
        ...

    def frame_needed(self) -> int:
        """Return the size of the unfinished frame, its length field included; 0 while unknown."""
        ...

    def connection_lost(self, why: str) -> None:
        """Handle the end; no call follows. `why` is empty if the peer simply closed."""
        ...
