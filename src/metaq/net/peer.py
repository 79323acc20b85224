"""The two sides of a connection: `Peer`, the connection as its session sees it, and `Session`, which handles its bytes.

A *layer* may stand between the socket and the stream and change the bytes both ways, as TLS does: a protocol that the event
loop talks to in the stream's place, and a transport (`LayerTransport`) that it gives to the stream. By that transport's class
the stream knows that nobody may write to the socket past it (`Peer.plain`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

from metaq.net.sweep import Sweep
from metaq.net.turns import JOB_COST, Source

Layer: TypeAlias = Callable[[asyncio.BufferedProtocol], asyncio.BaseProtocol]
"""Makes the protocol that the loop is to talk to, for a stream. It calls the stream's `connection_made` with a `LayerTransport`."""


class LayerTransport(asyncio.Transport):
    """Base of all transports that a layer gives to its stream. Passes everything but `write` to the transport below."""

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
    """Whether bytes go over the wire as they are written to this transport; only then may they be written past it.

    The loop's own TLS is known by its context. A layer's transport is known by its class alone: it has the socket's extra
    information, which says nothing of the layer above.
    """
    return not isinstance(transport, LayerTransport) and transport.get_extra_info("sslcontext") is None


class Peer(Protocol):
    """The other end of a connection, as a session sees it. Not thread-safe: use it on its event loop only."""

    address: tuple[str, int]
    local: tuple[str, int]
    plain: bool
    """Bytes go over the wire as they are written: others may read and write the socket past the stream, and other connections
    to this address need nothing between them and their sockets either. False under TLS, or any other layer."""
    on_writable: Callable[[], None] | None
    """Called when a congested peer takes bytes again."""
    on_half_closed: Callable[[], bool] | None
    """Called when the peer says that it sends no more; it may still read. Returns whether answers are yet to come: then the
    session closes the connection. Without that it ends at once."""

    @property
    def congested(self) -> bool:
        """The peer does not read what we wrote. A session may stop early; the rest of its input comes again later."""
        ...

    @property
    def closed(self) -> bool: ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, or keep until the peer reads. Does nothing on a closed connection."""
        ...

    def write_now(self, data: bytes) -> None:
        """As `write`, and at once if nothing goes before it: a loop may wait for the end of its turn. For what comes from another
        connection's event, whose own answers follow."""
        ...

    def write_from(self, head: bytes, source: Source) -> None:
        """Send `head` and then all of `source`, piece by piece as the peer reads. Other writes wait behind it."""
        ...

    @property
    def turn_is_free(self) -> bool:
        """Nobody's long answers are waiting for a turn to be made or written."""
        ...

    def when_its_turn(self, job: Callable[[], None], cost: int = JOB_COST) -> bool:
        """Call `job` when others had their turns and this peer has read its earlier long answers. It must not raise.

        Args: cost: how much of a turn of the loop it is, in bytes that could be written meanwhile.
        False: too many of this peer's jobs wait already.
        """
        ...

    def pause(self) -> None:
        """Read no more: what the session leaves of its input, and what comes behind it, is presented after `resume`."""
        ...

    def resume(self) -> None:
        """Present what was left, in another turn of the loop, and read on."""
        ...

    @property
    def swept(self) -> bool:
        """A sweep reads this connection: the session gets what the sweep's handler leaves."""
        ...

    def join(self, sweep: Sweep, sender: object) -> bool:
        """Let `sweep` read this connection, with `sender` for its handler to know it by. False: it cannot be."""
        ...

    def leave(self) -> None:
        """Leave the sweep, if it is in one."""
        ...

    def close(self, why: str = "") -> None:
        """Close after what is written has gone out."""
        ...


class Session(Protocol):
    """What a server or a client makes for each connection."""

    def data_received(self, data: memoryview) -> int:
        """Take what is whole and return its bytes; the rest is presented again with more behind it.

        `data` is valid during the call only. Raises RemoteProtocolError: closes this connection.
        """
        ...

    def frame_needed(self) -> int:
        """Bytes of the unfinished frame, its length field included, if it is known; else 0."""
        ...

    def connection_lost(self, why: str) -> None:
        """The last call. `why` is empty if the peer just left."""
        ...
