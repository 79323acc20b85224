"""What a service manager is told of a server that it has started with `Type=notify` (systemd's sd_notify(3)).

Its start is over when clients are served, not when the process runs; a start that replays a log may take long, and is not given up as
long as it gets on; a server whose event loop stands still is ended and started anew, if the unit has `WatchdogSec`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final, Self, TypeAlias

from metaq.clock import SYSTEM
from metaq.errors import ConfigError
from metaq.net.notify_socket import NotifySocket

log = logging.getLogger(__name__)

Told: TypeAlias = Callable[[str], None]
"""Gets how far a start is, every second while it takes long."""

START_SECONDS: Final = 60
"""How long a start may take after each of its signs of life, s. They come every second."""
STATUS_CHARS_MAX: Final = 500
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def nobody(_status: str) -> None:
    """Tell nobody."""


class ServiceManager:
    """Tells it. In the event loop of the server.

    Args:
        notify: its socket.
        watchdog_seconds: time after which it ends a server that has given no sign of life; 0: never.
    """

    def __init__(self, notify: NotifySocket, watchdog_seconds: float = 0.0) -> None:
        self._notify, self._watchdog_seconds = notify, watchdog_seconds
        self.environment: Mapping[str, str] = {}
        """What it has put into this process's environment: a process that takes this one's place needs it again."""
        self._timer: asyncio.Handle | None = None
        self._status = ""

    @classmethod
    def of(cls, environment: MutableMapping[str, str] = os.environ) -> Self | None:
        """Return that of this process's environment, and take it out of it: processes that this one starts are not the server.

        None: there is none, or it cannot be told anything, which the log says then.
        """
        given = {name: environment.pop(name) for name in _VARIABLES if name in environment}
        address = given.get("NOTIFY_SOCKET", "")
        microseconds, pid = given.get("WATCHDOG_USEC", ""), given.get("WATCHDOG_PID", "")
        if not address:
            return None
        watched = microseconds.isascii() and microseconds.isdigit() and pid in {"", str(os.getpid())}
        try:
            manager = cls(NotifySocket(address), int(microseconds) / 1e6 if watched else 0.0)
        except ConfigError as error:
            log.warning("%s", error)
            return None
        manager.environment = given
        return manager

    def start(self) -> None:
        """Give signs of life from now on."""
        if self._watchdog_seconds > 0:
            self._live()

    def _live(self) -> None:
        self._notify.send("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._watchdog_seconds / 2, self._live)

    def starting(self, status: str) -> None:
        """The start gets on; `status` says how far it is."""
        self._status = status[:STATUS_CHARS_MAX].replace("\n", " ")
        self._notify.send(f"STATUS={self._status}", f"EXTEND_TIMEOUT_USEC={START_SECONDS * 1_000_000}")

    def ready(self, status: str) -> None:
        """Clients are served."""
        self._status = status.replace("\n", " ")
        self._notify.send("READY=1", f"STATUS={self._status}")

    def restarting(self, status: str) -> None:
        """The process is replaced by a new one of the same number, which says when it is ready: to systemd, a reload."""
        self._notify.send(
            "RELOADING=1",
            f"MONOTONIC_USEC={int(SYSTEM.monotonic() * 1_000_000)}",
            f"STATUS={status[:STATUS_CHARS_MAX]}".replace("\n", " "),
            f"EXTEND_TIMEOUT_USEC={START_SECONDS * 1_000_000}",
        )

    def stopping(self, status: str) -> None:
        """The server ends."""
        self._notify.send("STOPPING=1", f"STATUS={status[:STATUS_CHARS_MAX]}".replace("\n", " "))

    def close(self) -> None:
        """Give no sign of life any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._notify.close()
