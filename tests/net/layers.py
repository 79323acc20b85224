"""A stand-in for TLS: a layer that changes every byte both ways. What is written past it arrives as something else."""

from __future__ import annotations

import asyncio
import socket

from metaq.net.peer import LayerTransport

_OTHER = bytes(byte ^ 0xA5 for byte in range(256))


def changed(data: bytes | bytearray | memoryview) -> bytes:
    """What goes over the wire for these bytes, and the other way round."""
    return bytes(data).translate(_OTHER)


class _Transport(LayerTransport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.below.write(changed(data))


class ChangingLayer(asyncio.Protocol):
    """Between the loop and one stream."""

    def __init__(self, stream: asyncio.BufferedProtocol) -> None:
        self._stream = stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stream.connection_made(_Transport(transport))

    def data_received(self, data: bytes) -> None:
        rest = changed(data)
        while rest:
            room = self._stream.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            self._stream.buffer_updated(size)
            rest = rest[size:]

    def eof_received(self) -> bool | None:
        return self._stream.eof_received()

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream.connection_lost(exc)


class ChangingSocket(socket.socket):
    """The same for threads that block. As a TLS socket does, it takes from the kernel all that is there, and keeps what is more."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__(raw.family, raw.type, raw.proto, fileno=raw.detach())
        self._kept = b""

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        super().sendall(changed(data))

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        if not self._kept:
            self._kept = changed(self.recv(1 << 20))
        size = min(len(buffer), len(self._kept))
        memoryview(buffer)[:size] = self._kept[:size]
        self._kept = self._kept[size:]
        return size
