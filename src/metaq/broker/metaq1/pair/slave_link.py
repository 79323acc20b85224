"""The connection to the slave of a pair, as its master needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from metaq.errors import Refused
from metaq.model.metaq1.pair import ToSlave
from metaq.store.metaq1.frames import FramesRead


class SlaveLink(Protocol):
    """The connection to the slave."""

    @property
    def congested(self) -> bool:
        """The slave leaves much unread. `Samsa.go_on` is called when it reads again."""
        ...

    def send(self, opaque: int, what: ToSlave) -> None:
        """Send a command. Its answer comes by `Samsa.answered`."""
        ...

    def read(self, job: Callable[[], FramesRead], done: Callable[[FramesRead | Refused], None]) -> None:
        """Run `job` in a thread, and pass its result, or why it failed, to `done` in this one; never after the connection's end."""
        ...

    def drop(self, why: str) -> None:
        """End the connection; another one is tried soon."""
        ...
