"""Whether a broker takes messages of 1.x clients: a slave leaves to its master whatever changes something."""

from __future__ import annotations

from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.errors import Reason, Refused
from metaq.model.transactions.metaq1 import BranchKey, BranchRefused, Fault, TransactionKey
from metaq.store.log.parts import State


class Leading:
    """The standing of one broker for clients of MetaQ 1.x."""

    def __init__(self, state: State, settings: Metaq1Settings) -> None:
        self._state, self._settings = state, settings

    @property
    def refusal(self) -> str | None:
        """Why it takes nothing, because it is a slave; None: it is the master.

        The slave of a log has its master's records, that of the text protocol its master's messages, in a log of its own.
        """
        return self._state.follows or self._settings.follows

    def check(self, key: TransactionKey | None = None) -> None:
        """Return if it leads. Raises Refused NOT_LEADING; for the key of a branch BranchRefused UNAVAILABLE: its transaction manager
        asks again where the master is."""
        if (why := self.refusal) is None:
            return
        if isinstance(key, BranchKey):
            raise BranchRefused(Fault.UNAVAILABLE, why)
        raise Refused(Reason.NOT_LEADING, why)
