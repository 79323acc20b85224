"""The page of an address server: where the name servers are, for clients and brokers that look it up by HTTP (RocketMQ's
`rocketmq.namesrv.domain`)."""

from __future__ import annotations

from typing import Final

from metaq.errors import RemoteProtocolError
from metaq.net.peer import Peer

PATH: Final = "/rocketmq/nsaddr"
"""RocketMQ's clients ask for it, with `-UNIT?nofix=1` behind it where they have a unit name."""
_HEAD_BYTES_MAX: Final = 8192


class AddressPage:
    """The sessions of the page. A `metaq.servers.server.SessionServer`. `text`: `host:port;host:port`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def session(self, peer: Peer) -> PageSession:
        """Make the session of a new connection."""
        return PageSession(peer, self)

    def tick(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Release nothing: it holds nothing."""


class PageSession:
    """A connection: one request, one answer."""

    def __init__(self, peer: Peer, page: AddressPage) -> None:
        self._peer, self._page = peer, page

    def data_received(self, data: memoryview) -> int:
        """Answer once the request's head is there. Raises RemoteProtocolError: it is none, or too long."""
        head, end, _ = bytes(data[:_HEAD_BYTES_MAX]).partition(b"\r\n\r\n")
        if not end:
            if len(data) >= _HEAD_BYTES_MAX:
                raise RemoteProtocolError(f"a request's head of more than {_HEAD_BYTES_MAX} bytes")
            return 0
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise RemoteProtocolError("no request of HTTP/1")
        status, text = self._answer(words[0], words[1])
        body = text.encode()
        lines = (
            f"HTTP/1.1 {status}",
            "Content-Type: text/plain",
            f"Content-Length: {len(body)}",
            "Connection: close",
            "",
            "",
        )
        self._peer.write("\r\n".join(lines).encode() + (b"" if words[0] == "HEAD" else body))
        self._peer.close()
        return len(data)

    def _answer(self, method: str, path: str) -> tuple[str, str]:
        if method not in {"GET", "HEAD"}:
            return "405 Method Not Allowed", ""
        return ("200 OK", self._page.text) if path.startswith(PATH) else ("404 Not Found", "")

    def frame_needed(self) -> int:
        """A head's length is not known before its end."""
        return 0

    def connection_lost(self, why: str) -> None:
        """Nothing was kept for it."""
