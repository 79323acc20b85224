"""A history, looked up by sends, keys and places: made once for all checkers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from metaq.testing.checking.history import (
    Committed,
    EndedByItself,
    GroupAt,
    Held,
    History,
    LeaderSeen,
    Observed,
    Outcome,
    Place,
    QueueHolds,
    SendBegun,
    SendEnded,
)


@dataclass(frozen=True, slots=True)
class SendRecord:
    """One send, from both its ends."""

    begun: SendBegun
    ended: SendEnded | None
    """None: it was never answered, or its producer was killed."""

    @property
    def outcome(self) -> Outcome:
        return self.ended.outcome if self.ended is not None else "ambiguous"

    @property
    def ends_at(self) -> float:
        return self.ended.at if self.ended is not None else float("inf")

    def placed(self) -> Iterator[tuple[str, Place]]:
        """Yield each key with the place that the acknowledgement tells."""
        if self.ended is not None:
            yield from zip(self.begun.keys, self.ended.places, strict=False)


class HistoryIndex:
    """What checkers look up."""

    def __init__(self, history: History) -> None:
        begun: dict[tuple[str, int], SendBegun] = {}
        ended: dict[tuple[str, int], SendEnded] = {}
        self.observed: list[Observed] = []
        self.committed: list[Committed] = []
        self.groups: list[GroupAt] = []
        self.holds: dict[str, QueueHolds] = {}
        self.held: dict[Place, str] = {}
        """What readers of the cluster get in the end."""
        self.replicas: dict[str, dict[Place, str]] = {}
        """The same, of the files of each replica."""
        self.held_twice: list[tuple[Held, str]] = []
        """A message that was found where another one of the same source had been found."""
        self.leaders: list[LeaderSeen] = []
        self.dead: list[EndedByItself] = []
        self.end = max((event.at for event in history), default=0.0)
        for event in history:
            match event:
                case SendBegun():
                    begun[event.process, event.op] = event
                case SendEnded():
                    ended[event.process, event.op] = event
                case Observed():
                    self.observed.append(event)
                case Committed():
                    self.committed.append(event)
                case GroupAt():
                    self.groups.append(event)
                case QueueHolds():
                    self.holds[event.queue] = event
                case Held():
                    found = self.held if not event.source else self.replicas.setdefault(event.source, {})
                    if (other := found.setdefault(event.place, event.key)) != event.key:
                        self.held_twice.append((event, other))
                case LeaderSeen():
                    self.leaders.append(event)
                case EndedByItself():
                    self.dead.append(event)
        self.sends = [SendRecord(one, ended.get(name)) for name, one in begun.items()]
        self.sends.sort(key=lambda one: one.begun.at)
        self.by_key: dict[str, list[SendRecord]] = defaultdict(list)
        for send in self.sends:
            for key in send.begun.keys:
                self.by_key[key].append(send)
        self.places: dict[str, list[Place]] = defaultdict(list)
        """Key → where it is in the end, in the order of queues and offsets."""
        for place, key in sorted(self.held.items()):
            self.places[key].append(place)
        self.unanswered = [event for name, event in ended.items() if name not in begun]
        """Answers to sends that nobody has begun: the history is not whole."""

        self._first_seen: dict[str, dict[str, float]] = {}

    def expired(self, place: Place) -> bool:
        """Whether retention may have taken what was there."""
        holds = self.holds.get(place.queue)
        return holds is not None and place.offset < holds.begin

    def seen_by(self, group: str) -> dict[str, float]:
        """Return key → when the group got it first."""
        if group not in self._first_seen:
            seen = self._first_seen[group] = {}
            for event in self.observed:
                if event.group == group:
                    seen.setdefault(event.key, event.at)
        return self._first_seen[group]
