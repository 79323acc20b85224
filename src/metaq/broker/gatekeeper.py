"""One place says who may do what, for every server and every path, fast or slow.

A judgement is kept for all callers of the same kind, action and resource, so that whoever has been judged once costs a look-up, or
nothing where a path keeps a gate of its own. `changed` makes all of them void: gates that watch are closed before it returns, and
counters that it moves close the others (`changes`), so the next request on any path is judged by the new rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from metaq.errors import Refused
from metaq.model.access import Action, Authorise, Caller, CallerKind, administered_locally, everybody

JUDGEMENTS_MAX: Final = 100_000
"""Kept at once: a caller may ask for topics that it makes up."""


def nobody(_caller: Caller) -> bool:
    """Nobody is above the rules."""
    return False


class Gatekeeper:
    """Judges requests by rules that may change.

    Args: authorise: the rules. trusted: to whom nothing at all is refused, such as RocketMQ's `admin` accounts: paths that do not
        know what a request touches are open to them.
    """

    def __init__(self, authorise: Authorise = everybody, trusted: Callable[[Caller], bool] = nobody) -> None:
        self.unguarded: Final = authorise is everybody
        """There are no rules: nobody needs to ask. For paths on which a call would count."""
        self.changes = 0
        """How often the rules have changed."""
        self._authorise, self._trusted = authorise, trusted
        self._allowed = set[tuple[CallerKind, Action, str]]()
        self._watchers: list[Callable[[], None]] = []

    def check(self, caller: Caller, action: Action, resource: str) -> None:
        """Raises Refused NO_PERMISSION, with what the rules say."""
        if self.unguarded:
            return
        judged = caller.kind, action, resource
        if judged in self._allowed:
            return
        self._authorise(caller, action, resource)
        if len(self._allowed) >= JUDGEMENTS_MAX:
            self._allowed.clear()
        self._allowed.add(judged)

    def allows(self, caller: Caller, action: Action, resource: str) -> bool:
        """Whether `check` passes."""
        try:
            self.check(caller, action, resource)
        except Refused:
            return False
        return True

    def trusts(self, caller: Caller) -> bool:
        """Whether nothing is refused to a caller: then a path is open to it that cannot name what it touches."""
        return self.unguarded or self._trusted(caller)

    def check_administration(self, caller: Caller, resource: str) -> None:
        """As `check`, for what reaches beyond messages to the machine. Without rules, callers of this machine only."""
        if self.unguarded:
            administered_locally(caller, Action.ADMINISTER, resource)
        self.check(caller, Action.ADMINISTER, resource)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the rules have changed: whoever keeps a judgement drops it."""
        self._watchers.append(changed)

    def changed(self) -> None:
        """The rules are others now: forget every judgement, here and with all who watch."""
        self.changes += 1
        self._allowed.clear()
        for watcher in self._watchers:
            watcher()
