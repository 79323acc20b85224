"""Requests to restart the broker's process, passed from servers to whoever runs it."""

from __future__ import annotations

from collections.abc import Callable

from metaq.broker.gatekeeper import Gatekeeper
from metaq.errors import Reason, Refused
from metaq.model.access import Caller


class Restarting:
    """Restart requests of one broker: its process is replaced by a new one of the program as it is installed by then.

    Refused as long as nobody is registered who can do that (`by`): a broker that shares its process cannot replace it.
    """

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper
        self._restart: Callable[[str], None] | None = None

    def by(self, restart: Callable[[str], None]) -> None:
        """Register who restarts the process. `restart` is called with the reason, and has it done soon."""
        self._restart = restart

    def ask(self, caller: Caller) -> None:
        """Request a clean restart. Raises Refused: the caller may not, or the process is not the broker's own."""
        self._gatekeeper.check_administration(caller, "the process")
        if self._restart is None:
            raise Refused(
                Reason.INVALID,
                "this broker shares its process with something else (`metaq up`, a test, or a program that runs it), and does not "
                "restart it: stop and start that one",
            )
        self._restart(f"a restart request from {caller.address}")
