"""Checks of servers: one leader in each epoch, epochs that go up, and nobody who ends by itself."""

from __future__ import annotations

from collections.abc import Iterator

from metaq.testing.checking.history import LeaderSeen
from metaq.testing.checking.index import HistoryIndex
from metaq.testing.checking.violation import Promises, Violation

ZOOKEEPER = "zookeeper"
"""Source of what ZooKeeper's node says."""


def one_leader(index: HistoryIndex, _promises: Promises) -> Iterator[Violation]:
    """In an epoch of a broker name the same one leads, whoever says so; the node's epochs never go back."""
    first: dict[tuple[str, int], LeaderSeen] = {}
    newest: dict[str, LeaderSeen] = {}
    for event in index.leaders:
        other = first.setdefault((event.broker, event.epoch), event)
        if other.leader != event.leader:
            text = (
                f"in epoch {event.epoch} of {event.broker} {other.leader} leads, says {other.source}, and {event.leader}, says "
                f"{event.source}"
            )
            yield Violation("one leader", text, event.at)
        if event.source == ZOOKEEPER:
            before = newest.setdefault(event.broker, event)
            if event.epoch < before.epoch or event.history != before.history:
                text = f"ZooKeeper's node of {event.broker} has epoch {event.epoch} of history {event.history!r} after epoch {before.epoch} of {before.history!r}"
                yield Violation("one leader", text, event.at)
            newest[event.broker] = event


def none_ended(index: HistoryIndex, _promises: Promises) -> Iterator[Violation]:
    """No server has ended by itself."""
    for event in index.dead:
        yield Violation("none ended", f"{event.process} has ended by itself: {event.text}", event.at)
