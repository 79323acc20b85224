"""How the servers in the background are."""

from __future__ import annotations

import concurrent.futures
import enum
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from metaq.app.addressing.told import from_here
from metaq.app.background.places import Description, Found, Places
from metaq.net.address import split_address
from metaq.net.probe import connect

CONNECT_SECONDS: Final = 2.0


class State(enum.Enum):
    """How a server is."""

    READY = "ready"
    STARTING = "starting"
    NO_ANSWER = "no answer"
    """It runs, and was ready; one of its ports does not take connections."""
    DIED = "died"
    """It has ended without having been told to; its pid file is there."""
    STOPPED = "stopped"

    @property
    def runs(self) -> bool:
        return self in {State.READY, State.STARTING, State.NO_ANSWER}


class Look(Struct, frozen=True):
    """A server as it is now."""

    name: str
    state: State
    pid: int | None
    """None: it does not run. 0: it runs in another container."""
    description: Description | None
    closed: tuple[str, ...] = ()
    """Addresses that do not take connections."""


def look_at(places: Places, names: Sequence[str]) -> list[Look]:
    """Look at servers, all at a time. Raises ConfigError: their files cannot be read."""
    found = [places.find(name) for name in names]
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(len(found), 16) or 1) as threads:
        return list(threads.map(_look, found))


def _look(found: Found) -> Look:
    what = found.description
    if found.pid is None:
        return Look(found.name, State.DIED if found.left else State.STOPPED, None, what)
    if what is None or what.ready_ms is None:
        return Look(found.name, State.STARTING, found.pid, what)
    closed = tuple(address for address in what.addresses.values() if not _open(address)) if found.pid else ()
    return Look(found.name, State.NO_ANSWER if closed else State.READY, found.pid, what, closed)


def _open(address: str) -> bool:
    try:
        connect(*split_address(from_here(address)), CONNECT_SECONDS)
    except OSError:
        return False
    return True
