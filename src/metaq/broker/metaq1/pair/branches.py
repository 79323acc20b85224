"""XA branches of a pair's master that are prepared at its slave, too: the one that takes over lists and ends them.

Each message of a branch is sent as it is put, and PREPARE is answered when the slave has prepared its copy. A commit makes messages
visible, which are synced as any others; only when the slave has them does its copy end. So a crash in between leaves a branch that the
transaction manager commits once more: then some messages may come twice, with the same ids, and none is missing.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from metaq.model.metaq1.pair import BranchCopy, BranchStep, Heard, SyncMessage
from metaq.saved import Pending

log = logging.getLogger(__name__)

SUCCESS: Final = 200
BROKEN: Final = -1
UNENDED_MAX: Final = 10_000
"""Ended branches whose copies are to be ended when the slave is back; the newest."""


class Steps(Protocol):
    """The master, which sends steps (`metaq.broker.metaq1.pair.samsa`)."""

    generation: int
    """Number of the connection to the slave."""
    keeps_branches: bool

    @property
    def connected(self) -> bool: ...

    def tell(self, copy: BranchCopy, done: Callable[[Heard | None], None]) -> None:
        """Send a step. `done` gets the answer; None: it did not come."""
        ...

    def when_synced(self, done: Callable[[], None]) -> None:
        """Call `done` when the slave has, or was given up on, all that is in the log now."""
        ...


class BranchCopies:
    """The slave's copies of one master's branches."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._begun: dict[str, int] = {}
        """Key of a branch with messages → connection by which all of them were sent; BROKEN: the slave lacks some."""
        self._unended: OrderedDict[str, None] = OrderedDict()
        """Branches that have ended here, and whose copies may be there."""
        self._said = False

    def put(self, key: str, message: SyncMessage) -> None:
        """Send a message of a branch."""
        steps = self._steps
        if self._begun.setdefault(key, steps.generation) != steps.generation or not steps.keeps_branches:
            self._begun[key] = BROKEN
            return
        steps.tell(BranchCopy(BranchStep.PUT, key, message), lambda heard: self._put(key, heard))

    def _put(self, key: str, heard: Heard | None) -> None:
        if (heard is None or heard.code != SUCCESS) and key in self._begun:
            self._begun[key] = BROKEN

    def prepare(self, key: str) -> Preparation | None:
        """Have the slave prepare its copy. None: it keeps none, as one of 1.4.6.2 does."""
        steps, preparation = self._steps, Preparation()
        if steps.connected and not steps.keeps_branches:
            if not self._said:
                self._said = True
                log.warning("the slave keeps no XA branches: those that are prepared are at this broker alone")
            return None
        if self._begun.get(key) != steps.generation:
            preparation.end("the slave was away while its messages were put")
        else:
            steps.tell(BranchCopy(BranchStep.PREPARE, key), preparation.heard)
        return preparation

    def ended(self, key: str, *, committed: bool) -> None:
        """End the slave's copy, if there is one."""
        self._begun.pop(key, None)
        if self._steps.connected and not self._steps.keeps_branches:
            return
        self._unended[key] = None
        if len(self._unended) > UNENDED_MAX:
            self._unended.popitem(last=False)
        if committed:
            self._steps.when_synced(lambda: self._end(key))
        else:
            self._end(key)

    def connected(self) -> None:
        """End what could not be ended before."""
        for key in list(self._unended):
            self._end(key)

    def _end(self, key: str) -> None:
        def done(heard: Heard | None) -> None:
            if heard is not None and heard.code == SUCCESS:
                self._unended.pop(key, None)

        if self._steps.keeps_branches:
            self._steps.tell(BranchCopy(BranchStep.END, key), done)


class Preparation(Pending):
    """A copy that is being prepared. It always ends well as a `Pending`; `why` says what is wrong, "" if nothing is."""

    __slots__ = ("why",)

    def __init__(self) -> None:
        super().__init__()
        self.why = ""

    def end(self, why: str) -> None:
        self.why = why
        self.finish()

    def heard(self, heard: Heard | None) -> None:
        """Take the slave's answer."""
        if heard is None:
            self.end("the slave does not answer")
        else:
            self.end(
                "" if heard.code == SUCCESS else f"the slave refuses it: {heard.body[:200].decode('utf-8', 'replace')}"
            )
