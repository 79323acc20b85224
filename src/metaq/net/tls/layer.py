"""The layer of TLS on one connection: records of the socket on one side, bytes of the stream on the other.

It runs OpenSSL on memory buffers (`ssl.MemoryBIO`) and not the event loop's own TLS, for three reasons. A server's port
takes plain text too, and the loop's `start_tls` cannot take back the first byte, by which the two are told apart. All
records of a read event are decrypted into the stream's buffer at once, so the compiled fast paths see as many requests
at a time as without TLS; the loop's own TLS hands out 16 KiB at a time, or copies. And the server's part of a handshake
runs in a thread. Measured with 100-byte sends, 200 in flight: docs/security.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from typing import Final, Protocol, cast

from metaq.net.peer import LayerTransport
from metaq.net.sweep import send_now

RECORDS_BYTES: Final = 256 * 1024
"""Most bytes of one read event."""
_RECORD_BYTES: Final = 16 * 1024
"""Plain bytes of the largest record."""
_AT_ONCE_BYTES: Final = 32 * 1024
"""Bytes that one of OpenSSL's buffers gets at once: for the connection's life, it stays as large as it ever was."""
_NOTHING: Final = memoryview(b"")


class _RecordBuffer(threading.local):
    """Receives records: one per thread, since it is emptied before any other connection runs."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECORDS_BYTES))


_shared = _RecordBuffer()


class Above(Protocol):
    """The stream, as a layer sees it. The methods of asyncio's are those of `asyncio.BufferedProtocol`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...

    def eof_received(self) -> bool | None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def close(self, why: str = "") -> None:
        """Close after what is written has gone out."""
        ...


class TlsTransport(LayerTransport):
    """Encrypts what the stream writes."""

    def __init__(self, below: asyncio.Transport, layer: TlsLayer) -> None:
        super().__init__(below)
        self._layer = layer

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._layer.tls if name == "ssl_object" else super().get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._layer.write(data)

    def close(self) -> None:
        self._layer.say_goodbye()
        super().close()

    def pause_reading(self) -> None:
        self._layer.paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._layer.go_on()
        super().resume_reading()


class TlsLayer(asyncio.BufferedProtocol):
    """One connection, once its handshake is over or while it goes on; the kinds of `server` and `client` add the latter.

    Args:
        stream: the protocol above.
        context: makes the connection.
        host_name: of a client: the server's name, as it is verified; None: this is a server.
    """

    def __init__(self, stream: Above, context: ssl.SSLContext, host_name: str | None = None) -> None:
        self._stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host_name is None, server_hostname=host_name
        )
        self._records = _shared.view
        self._below: asyncio.Transport | None = None
        self._fd = -1
        """The socket's descriptor, for encrypted bytes while the transport below has none; -1: there is no way to use it."""
        self._is_open = self._said_goodbye = self._draining = False
        self.paused = False
        """The stream takes nothing for now."""

    # -- the stream's side
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and write. No effect behind the end."""
        below, outgoing = self._below, self._outgoing
        if below is None or self._said_goodbye or not len(data):
            return
        try:
            if len(data) <= _RECORD_BYTES:
                self.tls.write(data)
            else:
                rest = memoryview(data)
                while rest:  # a record at a time
                    rest = rest[self.tls.write(rest) :]
                    if outgoing.pending >= _AT_ONCE_BYTES:
                        below.write(outgoing.read())
        except ssl.SSLError as error:
            self._fail(error)
            return
        records, fd = outgoing.read(), self._fd
        # As `Stream.write_now`: uvloop would keep them until the end of the turn, which costs a lone request 3 us.
        if fd >= 0 and not below.get_write_buffer_size() and not below.is_closing():
            assert send_now is not None, "else there is no descriptor"
            sent = send_now(fd, records)
            if sent == len(records):
                return
            records = records[sent:]
        below.write(records)

    def say_goodbye(self) -> None:
        """Tell the peer that nothing follows, so that it can tell the end from a cut."""
        if self._below is None or self._said_goodbye or not self._is_open:
            return
        self._said_goodbye = True
        with contextlib.suppress(ssl.SSLError):  # mostly SSLWantReadError: the peer's answer is not waited for
            self.tls.unwrap()
        self._flush()

    def go_on(self) -> None:
        """The stream takes bytes again: in another turn of the loop, since it may be in the middle of something."""
        self.paused = False
        if not self._draining and (self._incoming.pending or self.tls.pending()):
            asyncio.get_running_loop().call_soon(self._drain_rest)

    def _drain_rest(self) -> None:
        if not self._draining:
            self._drain()

    # -- the loop's side
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the loop's guess is not needed
        return self._records

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_open:
            self._drain(self._records[:nbytes])

    def eof_received(self) -> bool | None:
        # Also without a goodbye: what the protocols above take are whole frames, so that a cut shows without it.
        return self._stream.eof_received() if self._is_open else False

    def pause_writing(self) -> None:
        if self._is_open:
            self._stream.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._stream.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._below, self._fd = None, -1
        if self._is_open:
            self._stream.connection_lost(exc)

    # -- between the two
    def _opened(self, below: asyncio.Transport) -> None:
        """Begin with the stream: the handshake is over."""
        self._is_open = True
        raw = below.get_extra_info("socket")
        if raw is not None and send_now is not None:
            self._fd = raw.fileno()
        self._stream.connection_made(TlsTransport(below, self))

    def _drain(self, came: memoryview = _NOTHING) -> None:
        """Decrypt all that has come, into the stream's own buffer, and give it to the stream."""
        read, incoming, stream = self.tls.read, self._incoming, self._stream
        place, end, more = 0, len(came), True
        self._draining = True
        try:
            while more and not self.paused and self._below is not None:
                room = stream.get_buffer(-1)
                size, filled = len(room), 0
                while filled < size:
                    if place < end and incoming.pending < _AT_ONCE_BYTES:
                        place += incoming.write(came[place : place + _AT_ONCE_BYTES])
                    try:
                        count = cast("int", read(size - filled, room[filled:]))
                    except ssl.SSLWantReadError:
                        if place < end:
                            continue
                        more = False
                        break
                    except ssl.SSLError as error:
                        if filled:
                            stream.buffer_updated(filled)
                        self._fail(error)
                        return
                    if not count:  # the peer's goodbye
                        if filled:
                            stream.buffer_updated(filled)
                        self._peer_ended()
                        return
                    filled += count
                    if place == end and not incoming.pending and filled < size:  # spares the exception
                        more = False
                        break
                if filled:
                    stream.buffer_updated(filled)
        finally:
            self._draining = False
        if place < end:
            incoming.write(came[place:])
        if self._outgoing.pending and self._below is not None:
            self._unasked()

    def _unasked(self) -> None:
        """Handle what OpenSSL itself answers. Only the wish to renegotiate (TLS 1.2) brings that about here."""
        self._flush()
        if self.tls.version() != "TLSv1.3":
            self._end("it wants to renegotiate TLS, which is refused")

    def _peer_ended(self) -> None:
        if self._below is not None and not self._stream.eof_received():
            self.say_goodbye()
            self._below.close()

    def _flush(self) -> None:
        if self._outgoing.pending and self._below is not None:
            self._below.write(self._outgoing.read())

    def _fail(self, error: ssl.SSLError) -> None:
        self._flush()  # the alert that says why
        self._end(f"TLS failed: {in_words(error)}")

    def _end(self, why: str) -> None:
        """End the connection; whoever makes it has the reason logged."""
        self._said_goodbye = True
        self._stream.close(why)


def in_words(error: Exception) -> str:
    """Return what OpenSSL says, without its source files and codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        reason = error.reason.lower().replace("_", " ")
        return _MEANINGS.get(error.reason, reason)
    return str(error) or type(error).__name__


_MEANINGS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server wants a certificate of this client, and it has shown none",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has shown no certificate, and one is required",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not accept the certificate: it does not know who issued it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept the certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side does not accept the certificate: it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the other side does not accept the certificate: it is revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side does not accept the certificate",
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the other side speaks only versions of TLS before 1.2",
    "NO_SHARED_CIPHER": "there is no cipher that both sides have",
    "HTTP_REQUEST": "the other side speaks HTTP without TLS",
}
