"""A client's wish that the configuration be read again, on its way to whoever runs the process and can do that."""

from __future__ import annotations

from collections.abc import Callable

from metaq.broker.gatekeeper import Gatekeeper
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.reload import Reloaded
from metaq.saved import Pending


class ReloadRequest(Pending):
    """A wish; it ends when the configuration has been read that was there after it was told."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        super().__init__()
        self.outcome: Reloaded | None = None


class Reloading:
    """Of one broker. Without somebody who reads there is nothing to read."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper
        self._read: Callable[[], None] | None = None
        self._waiting: list[ReloadRequest] = []

    def by(self, read: Callable[[], None]) -> None:
        """Have wishes fulfilled: `read` is called for each, and calls `begin` before it reads, and `ended` after."""
        self._read = read

    def ask(self, caller: Caller) -> ReloadRequest:
        """Raises Refused: who asks may not, or there is no file."""
        # Without rules a neighbour in the network still has no business with files of this machine.
        self._gatekeeper.check_administration(caller, "the configuration")
        if self._read is None:
            raise Refused(
                Reason.INVALID, "this broker was started without a configuration file: there is nothing to read again"
            )
        asked = ReloadRequest()
        self._waiting.append(asked)
        self._read()
        return asked

    def begin(self) -> list[ReloadRequest]:
        """Those whose wish is fulfilled by a reading that begins now."""
        taken, self._waiting = self._waiting, []
        return taken


def ended(asked: list[ReloadRequest], outcome: Reloaded | None, error: Refused | None = None) -> None:
    """Tell them what became of it, or why nothing did."""
    for one in asked:
        one.outcome = outcome
        one.finish(error)
