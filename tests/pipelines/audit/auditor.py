"""An auditor in plain Python, by the definitions and without Spark: what the audit's frames are held against."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Copy:
    """A stored copy of a message."""

    id: str
    topic: str
    key: str
    lane: str | None
    place: int | None
    time_ms: int
    certain: bool = True
    timed: bool = True

    @property
    def row(self):
        return (
            self.id, self.topic, self.key, self.lane, self.place, self.time_ms, self.certain, self.timed,
            f"{self.lane}:{self.place}:{self.time_ms}",
        )  # fmt: skip


@dataclass(frozen=True)
class Delivery:
    group: str
    id: str
    time_ms: int
    success: bool = True
    ended: bool = True

    @property
    def row(self):
        return (self.group, self.id, self.time_ms, self.success, self.ended)


def first_copies(copies):
    """Of each message the copy that was stored first."""
    found = {}
    for copy in copies:
        rank = (copy.time_ms, -1 if copy.place is None else copy.place, copy.lane or "", copy.topic, copy.key)
        if copy.id not in found or rank < found[copy.id][0]:
            found[copy.id] = rank, copy
    certain = {copy.id for copy in copies if copy.certain}
    return {name: (copy, name in certain) for name, (_, copy) in found.items()}


def overtaken(one, others, moments, order):
    """Whether a message stored behind this one was consumed sooner. Quadratic, by the definition."""
    mine, at = one, moments[one.id]
    for other in others:
        if other.id == mine.id or other.id not in moments or moments[other.id] >= at:
            continue
        placed = None not in (mine.lane, mine.place, other.lane, other.place)
        behind_in_lane = placed and other.lane == mine.lane and other.place > mine.place
        if order == "queue" and behind_in_lane:
            return True
        same_key = mine.key and mine.key == other.key
        if order == "key" and same_key and (behind_in_lane or other.time_ms > mine.time_ms):
            return True
    return False


def audit(copies, deliveries, pairs, since, until, deadline, late_ms, order):
    """Findings: the set of (kind, group, id); and per group the counts."""
    messages = first_copies(copies)
    findings, counts = set(), Counter()
    for group, topic in pairs:
        mine = {
            name: copy for name, (copy, _) in messages.items() if copy.topic == topic and since <= copy.time_ms < until
        }
        well = {}
        for one in deliveries:
            if one.group == group and one.success and one.ended and one.time_ms <= deadline:
                well.setdefault(one.id, []).append(one.time_ms)
        moments = {name: min(times) for name, times in well.items() if name in mine}
        for name, copy in mine.items():
            times = well.get(name, [])
            counts[group, "sent"] += 1
            counts[group, "consumed"] += bool(times)
            if not times:
                if messages[name][1]:
                    findings.add(("missing", group, name))
                else:
                    counts[group, "unjudged"] += 1
                continue
            if len(times) > 1:
                findings.add(("repeated", group, name))
                counts[group, "extra"] += len(times) - 1
            if copy.timed and min(times) - copy.time_ms > late_ms:
                findings.add(("late", group, name))
            if overtaken(copy, mine.values(), moments, order):
                findings.add(("out_of_order", group, name))
    known = set(messages)
    for group in {group for group, _ in pairs}:
        for one in deliveries:
            if one.group == group and one.success and one.ended and one.time_ms <= deadline and one.id not in known:
                findings.add(("stray", group, one.id))
    return findings, counts
