"""Repairs of this broker's log from another replica's, as an administrator asks for them: who may, and how much at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from metaq.broker.gatekeeper import Gatekeeper
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.scrub import DAMAGE_BYTES_MAX, Mended
from metaq.saved import PendingOutcome

Mending: TypeAlias = PendingOutcome[Mended]
"""A repair that was asked for. Done when the log is whole there, durably."""


class RepairRequests:
    """Takes them, one at a time. Only on the thread that owns the broker. `metaq.app.role.mending` carries them out."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper
        self._mend: Callable[[Mending, int, int, str], None] | None = None
        self._under_way: Mending | None = None

    def by(self, mend: Callable[[Mending, int, int, str], None] | None) -> None:
        """Register who repairs: (repair, log offset, size, address of the replica that has it right). None: nobody any more."""
        self._mend = mend

    def ask(self, caller: Caller, log_offset: int, size: int, source: str) -> Mending:
        """Have damaged records from `log_offset` on, `size` bytes, replaced by those of the broker at `source`.

        Raises Refused: the caller may not, another repair is under way, or that is no place of a log.
        """
        self._gatekeeper.check_administration(caller, "the log of the broker")
        if log_offset < 0 or not 0 < size <= DAMAGE_BYTES_MAX:
            raise Refused(
                Reason.INVALID,
                f"{size} bytes from log offset {log_offset} on: one request repairs 1 to {DAMAGE_BYTES_MAX} bytes of the log",
            )
        if self._mend is None:
            raise Refused(Reason.UNAVAILABLE, "this broker is not started yet, or is stopping")
        if self._under_way is not None and not self._under_way.done:
            raise Refused(
                Reason.BUSY, "another place of this broker's log is being repaired; try again when that is done"
            )
        mending = self._under_way = PendingOutcome()
        self._mend(mending, log_offset, size, source)
        return mending
