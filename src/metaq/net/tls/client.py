"""A client's side of TLS, for event loops and for threads that block."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from metaq.errors import ConnectionFailed
from metaq.net.tls.contexts import LIST_EXPIRED, NO_LIST, REVOKED
from metaq.net.tls.layer import Above, TlsLayer, in_words


class ClientTls:
    """How a client makes its connections.

    Args: context: with what it trusts, and what it shows.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context

    def layer(self, stream: Above, host: str) -> ClientLayer:
        """Return the protocol of a connection to `host`."""
        return ClientLayer(stream, self.context, host)

    def wrap(self, raw: socket.socket, host: str, address: str) -> socket.socket:
        """Return TLS on a connected socket that blocks. Raises ConnectionFailed: the handshake failed."""
        try:
            return self.context.wrap_socket(raw, server_hostname=host)
        except TimeoutError:
            raw.close()
            raise
        except (OSError, ValueError) as error:
            raw.close()
            raise ConnectionFailed(refused(address, error)) from error


class ClientLayer(TlsLayer):
    """A connection to a server. `opened` ends with the handshake: with ConnectionFailed if it fails."""

    def __init__(self, stream: Above, context: ssl.SSLContext, host: str) -> None:
        super().__init__(stream, context, host)
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._why: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._step()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_open:
            super().buffer_updated(nbytes)
        elif self._below is not None and self._why is None:
            self._incoming.write(self._records[:nbytes])
            self._step()

    def _step(self) -> None:
        below = self._below
        assert below is not None, "it is connected"
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._why = error
            self._flush()  # the alert that says why
            asyncio.get_running_loop().call_soon(below.close)
            return
        self._flush()
        self._opened(below)
        if not self.opened.done():
            self.opened.set_result(None)
        self._drain()

    def give_up(self) -> None:
        """End a connection whose handshake is not waited for any more."""
        self.opened.cancel()
        if self._below is not None and not self._is_open:
            self._below.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            why = (
                self._why
                or exc
                or ConnectionResetError("it closed the connection in the TLS handshake; does this port take TLS?")
            )
            self.opened.set_exception(why)
        super().connection_lost(exc)


def refused(address: str, error: Exception) -> str:
    """Return the text of a handshake that failed, with what to do."""
    text = f"no TLS with {address}: {in_words(error)}"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return text
    remedy = _REMEDIES.get(
        error.verify_code, "ca= names the file of those whom this client trusts; tls_verify= how much it checks"
    )
    return f"{text} ({remedy})"


_REMEDIES: Final = {
    REVOKED: "its issuer has withdrawn it, as the list in crl= says: the server needs another one",
    NO_LIST: "crl= needs a list of the issuer of the server's certificate, too",
    LIST_EXPIRED: "the list in crl= is too old: get its successor, and make the client anew",
}
"""OpenSSL's number of what is wrong with a certificate → what to do."""
