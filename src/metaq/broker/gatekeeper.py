"""Access control for every server, on fast and slow paths.

A verdict is cached per kind of caller, action and resource: a repeated check costs one look-up, or nothing where a fast path has
a gate of its own. `changed` voids all of them: gates that watch are closed before it returns, the others compare `changes`. So
the next request on any path is judged by the new rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from metaq.errors import Refused
from metaq.model.access import Action, Authorise, Caller, CallerKind, administered_locally, everybody
from metaq.model.topics.topic import RETRY_PREFIX

JUDGEMENTS_MAX: Final = 100_000
"""Cached verdicts at most: a client may ask for any number of invented topics."""


def nobody(_caller: Caller) -> bool:
    """Return False: no caller is exempt from the rules."""
    return False


class Gatekeeper:
    """Checks requests by rules that may change.

    Args:
        authorise: the rules.
        trusted: whether nothing is refused to a caller, as to RocketMQ's `admin` accounts. Only they may use fast paths that do
            not know which resource a request touches.
        administration: the rules of `check_administration` where there are no others.
        compatible: whether any account may what RocketMQ asks no right for (`check_uncovered`).
    """

    def __init__(
        self,
        authorise: Authorise = everybody,
        trusted: Callable[[Caller], bool] = nobody,
        administration: Authorise = administered_locally,
        *,
        compatible: bool = False,
    ) -> None:
        self.unguarded: Final = authorise is everybody
        """Whether there are no rules. For paths on which even the call of `check` is measurable."""
        self.compatible: Final = compatible
        self.changes = 0
        """Number of changes of the rules."""
        self._authorise, self._trusted, self._administration = authorise, trusted, administration
        self._allowed = set[tuple[CallerKind, Action, str]]()
        self._watchers: list[Callable[[], None]] = []

    def check(self, caller: Caller, action: Action, resource: str) -> None:
        """Return if the caller may. Raises Refused NO_PERMISSION or DENIED, with the rules' reason."""
        if self.unguarded:
            return
        judged = caller.kind, action, resource
        if judged in self._allowed:
            return
        self._authorise(caller, action, resource)
        # Emptied instead of evicting the oldest: verdicts in use come back with the next request.
        if len(self._allowed) >= JUDGEMENTS_MAX:
            self._allowed.clear()
        self._allowed.add(judged)

    def check_uncovered(self, caller: Caller, action: Action, resource: str) -> None:
        """`check` of what RocketMQ asks no right for: with `compatible` any account may. Raises Refused."""
        if self.compatible:
            action, resource = Action.OBSERVE, ""
        self.check(caller, action, resource)

    def allows(self, caller: Caller, action: Action, resource: str) -> bool:
        """Return whether `check` passes."""
        try:
            self.check(caller, action, resource)
        except Refused:
            return False
        return True

    def check_consumer(self, caller: Caller, group: str, topics: Iterable[str] = ()) -> None:
        """Check that the caller may consume in a group, and from topics. Raises Refused."""
        if self.unguarded:
            return
        for topic in topics:
            self.check(caller, Action.SUBSCRIBE, topic)
        self.check(caller, Action.SUBSCRIBE, RETRY_PREFIX + group)

    def trusts(self, caller: Caller) -> bool:
        """Return whether nothing is refused to the caller, so that it may use paths that do not name the resource."""
        return self.unguarded or self._trusted(caller)

    def check_administration(self, caller: Caller, resource: str) -> None:
        """Check for requests that affect the machine, not only messages. Without rules, only callers on this machine may, or
        who `administration` says."""
        if self.unguarded:
            self._administration(caller, Action.ADMINISTER, resource)
        self.check(caller, Action.ADMINISTER, resource)

    def watch(self, changed: Callable[[], None]) -> None:
        """Register a callback for changes of the rules. Whoever caches verdicts drops them there."""
        self._watchers.append(changed)

    def changed(self) -> None:
        """Drop every cached verdict after a change of the rules, here and in all watchers."""
        self.changes += 1
        self._allowed.clear()
        for watcher in self._watchers:
            watcher()
