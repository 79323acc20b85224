"""Requests to reload the configuration, passed from servers to the process, which reads the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from metaq.broker.gatekeeper import Gatekeeper
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.reload import ReloadedFile
from metaq.saved import Pending, PendingOutcome

ReloadRequest: TypeAlias = PendingOutcome[ReloadedFile]
"""A pending reload. Done when a reload that began after the request has ended."""


class Reloading:
    """Reload requests of one broker. Refused as long as no reader is registered (`by`).

    Args: saves: returns the changes of the broker's tables that are being saved.
    """

    def __init__(self, gatekeeper: Gatekeeper, saves: Callable[[], list[Pending]] = list) -> None:
        self._gatekeeper, self.saves = gatekeeper, saves
        self._read: Callable[[], None] | None = None
        self._waiting: list[ReloadRequest] = []

    def by(self, read: Callable[[], None]) -> None:
        """Register the reader. `read` is called for each request; it calls `begin` before it reads, and `ended` after."""
        self._read = read

    def ask(self, caller: Caller) -> ReloadRequest:
        """Request a reload. Raises Refused: the caller may not, or the broker has no configuration file."""
        # `check_administration`, not `check`: without ACL rules, only callers on this machine may have its files read.
        self._gatekeeper.check_administration(caller, "the configuration")
        if self._read is None:
            raise Refused(
                Reason.INVALID, "this broker was started without a configuration file: there is nothing to read again"
            )
        asked: ReloadRequest = PendingOutcome()
        # Before `_read`, which may begin at once and takes what waits.
        self._waiting.append(asked)
        self._read()
        return asked

    def again(self) -> None:
        """Have the configuration read again: the process itself has written it."""
        if self._read is not None:
            self._read()

    def begin(self) -> list[ReloadRequest]:
        """Take the requests that a reload beginning now satisfies."""
        taken, self._waiting = self._waiting, []
        return taken


def ended(asked: list[ReloadRequest], outcome: ReloadedFile | Refused) -> None:
    """Finish requests with the outcome, or refuse them."""
    for one in asked:
        if isinstance(outcome, Refused):
            one.finish(outcome)
        else:
            one.succeed(outcome)
