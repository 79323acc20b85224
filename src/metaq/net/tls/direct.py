"""TLS on a direct link's socket: a thread encrypts, and waits in the kernel as `metaq.net.direct` says, by SO_RCVTIMEO.

Not Python's own TLS socket: one that blocks does not come back when such a wait is over.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

READ_BYTES: Final = 64 * 1024


class TlsSocket:
    """A connected, blocking socket with TLS, as far as `DirectStream` uses one. For one thread at a time.

    Args: the three last: OpenSSL's side, whose handshake is over.
    """

    def __init__(
        self, raw: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        self._raw, self._tls, self._incoming, self._outgoing = raw, tls, incoming, outgoing
        self._unsent, self._owed = b"", 0
        """Encrypted bytes that the kernel has not taken, and the length of what they encrypt."""
        self.setsockopt, self.shutdown, self.close = raw.setsockopt, raw.shutdown, raw.close

    def send(self, data: bytes | memoryview) -> int:
        """Send all of `data`. Raises BlockingIOError: not all of it yet; call again with the same."""
        if not self._unsent:
            rest = memoryview(data)
            while rest:  # a record at a time
                rest = rest[self._tls.write(rest) :]
            self._unsent, self._owed = self._outgoing.read(), len(data)
        sent = self._raw.send(self._unsent)
        self._unsent = self._unsent[sent:]
        if self._unsent:
            raise BlockingIOError
        return self._owed

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return the next bytes; none: the peer has ended. Raises BlockingIOError: nothing came in time.

        With `flags` only what is there already counts: session tickets, which are no data, are taken from it.
        """
        ready = self._incoming.pending or self._tls.pending()
        while True:
            if ready:
                try:
                    return self._tls.read(size)
                except ssl.SSLWantReadError:
                    pass
            data = self._raw.recv(READ_BYTES, socket.MSG_DONTWAIT if flags else 0)
            if not data:
                return b""
            self._incoming.write(data)
            ready = True


async def shaken(raw: socket.socket, context: ssl.SSLContext, host: str) -> TlsSocket:
    """Make the handshake on a connected socket that does not block, on the event loop. Raises OSError."""
    incoming, outgoing, loop = ssl.MemoryBIO(), ssl.MemoryBIO(), asyncio.get_running_loop()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=host)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await loop.sock_sendall(raw, outgoing.read())
            data = await loop.sock_recv(raw, READ_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection in the TLS handshake") from None
            incoming.write(data)
        else:
            await loop.sock_sendall(raw, outgoing.read())
            return TlsSocket(raw, tls, incoming, outgoing)
