"""The connection over which a broker that has stepped down relays requests to the one that leads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from metaq.net.dialer import dial
from metaq.net.peer import Peer
from metaq.wire.command import LENGTH_BYTES, Command, decode, encode, frame_bytes

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls  # loaded only where it is on

DIAL_SECONDS: Final = 1.0
_OPAQUE_MASK: Final = 0x7FFFFFFF


class RelayLink:
    """A `metaq.net.peer.Session`. Requests leave in the order of `send`; whoever made it pairs answers by their numbers.

    Args:
        peer: the connection.
        address: the leader's.
        answered: gets each answer.
        ended: called once, with the reason, when the connection has ended.
        writable: called when a congested leader takes bytes again.
    """

    def __init__(
        self,
        peer: Peer,
        address: str,
        answered: Callable[[Command], None],
        ended: Callable[[RelayLink, str], None],
        writable: Callable[[], None],
    ) -> None:
        self._peer, self.address, self._answered, self._ended = peer, address, answered, ended
        self._needed = 0
        self._numbers = itertools.count(1)
        peer.on_writable = writable

    @property
    def closed(self) -> bool:
        return self._peer.closed

    @property
    def ready(self) -> bool:
        """Whether the leader takes bytes."""
        return not (self._peer.closed or self._peer.congested)

    def send(self, command: Command) -> int:
        """Send a request with a number of its own, which is returned. Raises LocalProtocolError: it cannot be written."""
        command.opaque = next(self._numbers) & _OPAQUE_MASK
        self._peer.write(encode(command))
        return command.opaque

    def close(self, why: str) -> None:
        self._peer.close(why)

    def data_received(self, data: memoryview) -> int:
        """Take answers. Raises RemoteProtocolError."""
        start, end = 0, len(data)
        while size := frame_bytes(data, start, end):
            if start + size > end:
                break
            command = decode(data[start + LENGTH_BYTES : start + size])
            start += size
            if command.is_response:  # a broker asks its clients; this connection is of none
                self._answered(command)
        self._needed = size
        return start

    def frame_needed(self) -> int:
        return self._needed

    def connection_lost(self, why: str) -> None:
        self._ended(self, why or "it was closed there")


async def link_to(
    address: str,
    answered: Callable[[Command], None],
    ended: Callable[[RelayLink, str], None],
    writable: Callable[[], None],
    tls: ClientTls | None,
) -> RelayLink:
    """Connect to the broker at an address. Raises ConnectionFailed, ConfigError."""
    made = list[RelayLink]()

    def make(peer: Peer) -> RelayLink:
        made.append(RelayLink(peer, address, answered, ended, writable))
        return made[0]

    await dial(address, make, DIAL_SECONDS, tls=tls)
    return made[0]
