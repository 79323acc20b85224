"""Subscriptions by pattern: topics that match, looked up at the name servers periodically.

A new topic is subscribed to at the next look, so within `poll_name_server_interval`, and consumed from its first message (by
`starting`), so that nothing is missed meanwhile; those of the first look from where the group begins. A
topic that is gone is let go only after some looks in a row: a name server that has just been restarted knows no topic
for a while.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from msgspec import Struct

from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.model.filters.subscription import ALL

log = logging.getLogger("metaq.client")

LOOKS_UNTIL_GONE = 3
"""Consecutive look-ups that must miss a topic before it is dropped: a restarted name server does not know all brokers yet."""
AGAIN_SECONDS = 1.0
"""Seconds to the next look after one that failed."""


class TopicPattern(Struct, frozen=True):
    """Topics whose whole name matches, and what is wanted of them: as the value of a topic in `topics`."""

    pattern: re.Pattern[str]
    wants: Any = ALL


def split_patterns(topics: Any) -> tuple[Any, tuple[TopicPattern, ...]]:
    """The topics by name, in the form in which they were given, and the patterns among them. Raises TypeError."""
    if isinstance(topics, re.Pattern):
        return {}, (_pattern(topics, ALL),)
    if isinstance(topics, Mapping):
        found = tuple(_pattern(key, wants) for key, wants in topics.items() if isinstance(key, re.Pattern))
        return (
            {key: wants for key, wants in topics.items() if not isinstance(key, re.Pattern)} if found else topics
        ), found
    if isinstance(topics, str) or not isinstance(topics, Collection):
        return topics, ()
    found = tuple(_pattern(key, ALL) for key in topics if isinstance(key, re.Pattern))
    return ([key for key in topics if not isinstance(key, re.Pattern)] if found else topics), found


def _pattern(pattern: re.Pattern[Any], wants: Any) -> TopicPattern:
    if not isinstance(pattern.pattern, str):
        raise TypeError(f"the pattern {pattern.pattern!r} is of bytes: topics have names of text")
    return TopicPattern(pattern, wants)


class Subscriber(Protocol):
    """The member that subscribes to what is found."""

    def subscribe_to(self, topics: Mapping[str, Any], *, new: bool) -> None:
        """Subscribe to these topics too. `new`: an earlier look has not found them."""
        ...

    def unsubscribe(self, topics: Collection[str]) -> None:
        """Unsubscribe from topics that are gone."""
        ...


class Discovery:
    """The topics of one member that patterns name. Lives in the background loop."""

    def __init__(
        self, core: ClientCore, group: str, patterns: Mapping[re.Pattern[str], Any], fixed: Collection[str], owner: Subscriber,
        *, topics_max: int, seconds: float,
    ) -> None:  # fmt: skip
        """
        Args:
            patterns: each with what is wanted of its topics; the first that matches decides.
            fixed: topics that are subscribed to by name.
            seconds: between two looks.
        """
        self._core, self._group, self._patterns, self._owner = core, group, patterns, owner
        self._fixed, self._topics_max, self._seconds = frozenset(fixed), topics_max, seconds
        self._found: set[str] = set()
        self._missing: Counter[str] = Counter()
        """Topic → looks in a row that did not find it."""
        self._warned_of_none = self._warned_of_many = self._failed = self._looked = False

    async def run(self) -> None:
        """Look every so often, until cancelled."""
        pause = AGAIN_SECONDS if self._failed else self._seconds
        while True:
            await asyncio.sleep(pause)
            try:
                pause = self._seconds if await self.look() else AGAIN_SECONDS
            except Exception:  # New topics would not be found any more, without a word.
                log.exception("looking for the topics of group %s failed, trying again", self._group)

    async def look(self) -> bool:
        """Look once. Returns False if nobody could be asked; then all stays as it is."""
        try:
            listed = await self._core.consult(self._core.name_servers.topics())
        except FAULTS as error:
            if not self._failed:
                log.warning("the topics of group %s cannot be looked up, trying again: %s", self._group, error)
            self._failed = True
            return False
        self._failed = False
        matching = self._matching(listed)
        if fresh := {topic: wants for topic, wants in matching.items() if topic not in self._found}:
            log.info("group %s consumes %s, by its patterns", self._group, ", ".join(fresh))
            self._found.update(fresh)
            self._owner.subscribe_to(fresh, new=self._looked)
        self._looked = True
        self._let_go(matching)
        if not self._found and not self._warned_of_none:
            self._warned_of_none = True
            names = ", ".join(repr(pattern.pattern) for pattern in self._patterns)
            log.warning("no topic matches %s yet, which group %s waits for", names, self._group)
        return True

    def _let_go(self, matching: Mapping[str, Any]) -> None:
        for topic in self._found & matching.keys():
            self._missing.pop(topic, None)
        self._missing.update(self._found - matching.keys())
        gone = {topic for topic, looks in self._missing.items() if looks >= LOOKS_UNTIL_GONE}
        if gone:
            log.info(
                "group %s lets go of %s, which no name server knows any more", self._group, ", ".join(sorted(gone))
            )
            self._found -= gone
            for topic in gone:
                del self._missing[topic]
            self._owner.unsubscribe(gone)

    def _matching(self, listed: Collection[str]) -> dict[str, Any]:
        namespace, found = self._core.namespace, dict[str, Any]()
        for name in sorted(listed):
            topic = namespace.plain(name)
            # With a namespace only names inside it are meant: other tenants' topics, and system topics, which have no
            # prefix, are not.
            if (
                (namespace and namespace.wrapped(topic) != name)
                or (namespace and topic == name)
                or topic in self._fixed
            ):
                continue
            for pattern, wants in self._patterns.items():
                if pattern.fullmatch(topic):
                    found[topic] = wants
                    break
        if len(found) > self._topics_max:
            # Topics consumed already come first: a new match must not push one of them out.
            kept = [
                *(topic for topic in found if topic in self._found),
                *(topic for topic in found if topic not in self._found),
            ]
            if not self._warned_of_many:
                self._warned_of_many = True
                log.error(
                    "%d topics match the patterns of group %s, of which %d are consumed: a member has at most that many. Let "
                    "consumers of several groups share them", len(found), self._group, self._topics_max,
                )  # fmt: skip
            found = {topic: found[topic] for topic in kept[: self._topics_max]}
        return found
