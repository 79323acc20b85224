"""All checks over one history, and the report for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from metaq.testing.checking.groups import at_least_once, progress_is_true
from metaq.testing.checking.history import (
    Committed,
    EndedByItself,
    Event,
    GroupAt,
    Held,
    History,
    LeaderSeen,
    Observed,
    QueueHolds,
    SendBegun,
    SendEnded,
    Trouble,
)
from metaq.testing.checking.index import HistoryIndex
from metaq.testing.checking.leaders import none_ended, one_leader
from metaq.testing.checking.queues import is_whole, one_order, reads_stay, replicas_are_equal
from metaq.testing.checking.sends import acked_is_kept, all_or_none, in_order, not_too_often, refused_is_absent
from metaq.testing.checking.violation import Promises, Violation

Check: TypeAlias = Callable[[HistoryIndex, Promises], Iterator[Violation]]

CHECKS: Final[tuple[Check, ...]] = (
    is_whole, acked_is_kept, refused_is_absent, not_too_often, in_order, all_or_none, one_order, reads_stay, replicas_are_equal,
    at_least_once, progress_is_true, one_leader, none_ended,
)  # fmt: skip
AROUND: Final = 8
"""Events of the same keys and queues that a report shows before and behind a violation."""
_NEAR_SECONDS: Final = 5.0
"""Faults so near are shown as well."""


@dataclass(frozen=True)
class Verdict:
    """What a history shows."""

    violations: tuple[Violation, ...]
    """By their times."""
    counts: Mapping[str, int]
    """`acked`, `ambiguous`, `refused` (messages), `atomic` (sends), `stored`, `seen`, `epochs`, `troubles`."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.violations

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON: `ok`, `counts`, and `violations`, each with `check`, `text`, `at`, `keys`, `queues`."""
        return {
            "ok": self.ok,
            "counts": dict(self.counts),
            "violations": [
                {"check": one.check, "text": one.text, "at": one.at, "keys": one.keys, "queues": one.queues}
                for one in self.violations
            ],
        }


def judge(history: History, promises: Promises | None = None) -> Verdict:
    """Hold a history against all checks. `promises`: what the brokers have promised; None: `Promises()`, all of it."""
    given = promises or Promises()
    index = HistoryIndex(history)
    found = [violation for check in CHECKS for violation in check(index, given)]
    return Verdict(tuple(sorted(found, key=lambda one: one.at)), _counts(index, history))


def _counts(index: HistoryIndex, history: History) -> dict[str, int]:
    sends = Counter[str]()
    for send in index.sends:
        sends[send.outcome] += len(send.begun.keys)
    return {
        **{outcome: sends[outcome] for outcome in ("acked", "ambiguous", "refused")},
        "atomic": sum(send.begun.atomic for send in index.sends),
        "stored": len(index.held),
        "seen": len(index.observed),
        "epochs": len({(event.broker, event.epoch) for event in index.leaders}),
        "troubles": sum(isinstance(event, Trouble) for event in history),
    }


def report(verdict: Verdict, history: History) -> str:
    """Return what was found, for people: the first violation with the events around it, and how many others there are."""
    counts = ", ".join(f"{count} {name}" for name, count in verdict.counts.items())
    if verdict.ok:
        return f"nothing found; {counts}"
    first = verdict.violations[0]
    start = min((event.at for event in history), default=0.0)
    others = Counter(one.check for one in verdict.violations[1:])
    lines = [f"{first.check}: {first.text}", *_around(first, history, start)]
    if others:
        lines.append(f"and {sum(others.values())} more: " + ", ".join(f"{n} × {name}" for name, n in others.items()))
    return "\n".join([*lines, counts])


def _around(violation: Violation, history: History, start: float) -> list[str]:
    """The events about what a violation names, around its time, and the faults near it."""
    ops = {
        (event.process, event.op)
        for event in history
        if isinstance(event, SendBegun) and not set(violation.keys).isdisjoint(event.keys)
    }
    about = [at for at, event in enumerate(history) if _concerns(event, violation, ops)]
    strict = [at for at in about if _names_key(history[at], violation, ops)]
    before = [at for at in about if history[at].at <= violation.at][-AROUND:]
    behind = [at for at in about if history[at].at > violation.at][:AROUND]
    troubles = [
        at
        for at, event in enumerate(history)
        if isinstance(event, Trouble | EndedByItself) and abs(event.at - violation.at) <= _NEAR_SECONDS
    ]
    shown = sorted({*before, *behind, *strict[: 2 * AROUND], *troubles})
    return [f"  {history[at].at - start:9.3f} s  {told(history[at])}" for at in shown]


def _names_key(event: Event, violation: Violation, ops: set[tuple[str, int]]) -> bool:
    match event:
        case SendBegun() | SendEnded():
            return (event.process, event.op) in ops
        case Observed() | Held():
            return event.key in violation.keys
        case _:
            return False


def _concerns(event: Event, violation: Violation, ops: set[tuple[str, int]]) -> bool:
    match event:
        case SendEnded():
            return (event.process, event.op) in ops or any(place.queue in violation.queues for place in event.places)
        case Committed() | GroupAt():
            return event.place.queue in violation.queues
        case QueueHolds():
            return event.queue in violation.queues
        case LeaderSeen():
            return True
        case Observed():
            return event.key in violation.keys or event.place.queue in violation.queues
        case _:
            return _names_key(event, violation, ops)


def told(event: Event) -> str:
    """Return one event as a line of text, without its time."""
    match event:
        case SendBegun():
            kind = "atomically " if event.atomic else ""
            where = f" to {event.queue}" if event.queue else ""
            return f"{event.process} sends {kind}{', '.join(event.keys)}{where} (send {event.op})"
        case SendEnded():
            places = ", ".join(f"{place.offset} of {place.queue}" for place in event.places)
            details = ", ".join(part for part in (places, event.status, event.why) if part)
            return f"{event.process}: send {event.op} is {event.outcome}{f': {details}' if details else ''}"
        case Observed():
            who = f"{event.process} of group {event.group}" if event.group else event.process
            return f"{who} gets {event.key}, {event.place.offset} of {event.place.queue}"
        case Committed():
            return f"{event.process} of group {event.group} has saved {event.place.offset} of {event.place.queue}"
        case GroupAt():
            return f"group {event.group} is at {event.place.offset} of {event.place.queue}"
        case QueueHolds():
            return f"{event.queue} holds [{event.begin}, {event.end})"
        case Held():
            return f"{event.source or 'a reader'} has {event.key} at {event.place.offset} of {event.place.queue}"
        case LeaderSeen():
            return f"{event.leader} leads {event.broker} in epoch {event.epoch}, says {event.source}"
        case Trouble():
            return event.text
        case EndedByItself():
            return f"{event.process} ends by itself: {event.text.splitlines()[0] if event.text else ''}"
