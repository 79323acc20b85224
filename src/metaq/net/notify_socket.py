"""The socket on which a service manager, such as systemd, is told what a server does (sd_notify(3)): a datagram each."""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import Final

from metaq.errors import ConfigError
from metaq.log import RateLimitedLog

log = logging.getLogger("metaq.net")

_ABSTRACT: Final = "@"


class NotifySocket:
    """Sends to one address: a path, or `@NAME` for a socket of Linux's that is no file. Never waits.

    Raises ConfigError: it is neither.
    """

    def __init__(self, address: str) -> None:
        if not address.startswith(("/", _ABSTRACT)) or len(address) < 2:
            raise ConfigError(f"NOTIFY_SOCKET={address}: only a path, or @ and a name, can be notified")
        self._address = "\0" + address[1:] if address.startswith(_ABSTRACT) else address
        self._faults = RateLimitedLog(log)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, *lines: str) -> None:
        """Tell all lines at once. What cannot be told is in the log."""
        try:
            self._socket.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except OSError as error:
            self._faults.warning("send", "the service manager could not be told %s: %s", lines[0], error)

    def close(self) -> None:
        """Tell nothing any more."""
        with contextlib.suppress(OSError):
            self._socket.close()
