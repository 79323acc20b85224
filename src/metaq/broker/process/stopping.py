"""Requests to stop the broker, passed from servers to the process."""

from __future__ import annotations

from collections.abc import Callable

from metaq.broker.gatekeeper import Gatekeeper
from metaq.errors import Reason, Refused
from metaq.model.access import Caller


class Stopping:
    """Stop requests of one broker. Refused as long as nobody is registered who can stop it (`by`)."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper
        self._stop: Callable[[str], None] | None = None

    def by(self, stop: Callable[[str], None]) -> None:
        """Register who stops the broker. `stop` is called with the reason, and has the broker closed soon."""
        self._stop = stop

    def ask(self, caller: Caller) -> None:
        """Request a clean stop. Raises Refused: the caller may not, or the process does not stop at a request."""
        # `check_administration`, not `check`: without ACL rules, only callers on this machine may stop its processes.
        self._gatekeeper.check_administration(caller, "the process")
        if self._stop is None:
            raise Refused(Reason.INVALID, "this broker does not stop at a request: stop its process")
        self._stop(f"a stop request from {caller.address}")
