"""What may stand between a socket and a stream and change the bytes both ways, as TLS does.

A *layer* is the protocol that the event loop talks to in the stream's place, and a transport (`LayerTransport`) that it gives to
the stream. The stream knows by the transport's class that nobody may write to the socket past it (`Peer.plain`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

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
