"""Results of an audit: figures by group, topic, window and key, and the limits that they exceed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from metaq.pipelines.audit.options import AuditOptions

KINDS = {
    "missing": "missing", "dead": "dead letters", "repeated": "repeated", "out_of_order": "out of order", "late": "late",
    "stray": "stray",
}  # fmt: skip
"""Kind of finding → its label in reports."""


class Counts(Struct, frozen=True, kw_only=True):
    """Counts of messages of one group, or of a part of its messages; latencies in ms, None where times are unknown."""

    sent: int = 0
    consumed: int = 0
    missing: int = 0
    dead: int = 0
    """Not consumed: they are dead letters of the group."""
    repeated: int = 0
    """Consumed more than once."""
    extra: int = 0
    """Deliveries after the first, of all messages together."""
    stored_twice: int = 0
    """Repeated messages that are stored more than once, because they were sent again."""
    out_of_order: int = 0
    late: int = 0
    unjudged: int = 0
    """Not consumed, but maybe rightly: the send failed, is undecided, or is due at an unknown time."""
    latency_p50: int | None = None
    latency_p95: int | None = None
    latency_p99: int | None = None
    latency_max: int | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Counts:
        """Make counts from a row of `comparing.totals`, `windows` or `keys`."""
        return cls(**{name: row[name] for name in cls.__struct_fields__ if row[name] is not None})

    @property
    def findings(self) -> int:
        return self.missing + self.dead + self.repeated + self.out_of_order + self.late


class WindowCounts(Struct, frozen=True):
    """Counts of the messages sent in the window that begins at `start_ms`."""

    start_ms: int
    counts: Counts


class TopicCounts(Struct, frozen=True):
    topic: str
    counts: Counts


class KeyCounts(Struct, frozen=True):
    topic: str
    key: str
    counts: Counts


class Finding(Struct, frozen=True, kw_only=True):
    """One finding: a message and what is wrong with it."""

    kind: str
    id: str
    topic: str = ""
    key: str = ""
    lane: str = ""
    place: int | None = None
    sent_ms: int | None = None
    consumed_ms: int | None = None
    latency_ms: int | None = None
    successes: int = 0
    failures: int = 0
    why: str = ""


class GroupFigures(Struct, frozen=True, kw_only=True):
    """Figures of one consumer group."""

    group: str
    evidence: str
    """Source of the evidence of its consumption: `trace`, `ledger` or `progress`."""
    counts: Counts
    stray: int = 0
    topics: list[TopicCounts] = []
    windows: list[WindowCounts] = []
    keys: list[KeyCounts] = []
    """Keys with most findings."""
    findings: list[Finding] = []
    """First findings of each kind."""


class AuditFigures(Struct, frozen=True, kw_only=True):
    """Results of an audit, the content of FOLDER/audit.json."""

    v: int = 1
    made: str
    """Time of the audit, ISO 8601, UTC."""
    topics: list[str]
    sent_by: str
    consumed_by: str
    since_ms: int | None
    until_ms: int
    deadline_ms: int
    window_ms: int
    late_ms: int
    order: str
    sent: int
    """Messages that were sent in the audited time."""
    not_traced: int = 0
    """Messages stored in that time whose sends were not traced: their consumption was not compared."""
    groups: list[GroupFigures] = []
    breaches: list[str] = []
    """Limits that are exceeded; empty: the audit is clean."""
    notes: list[str] = []
    """Limits of this audit that a reader must know."""

    @property
    def clean(self) -> bool:
        return not self.breaches


def breaches(options: AuditOptions, sent: int, groups: Sequence[GroupFigures]) -> list[str]:
    """Return the exceeded limits, a sentence each."""
    found = []
    if sent < options.sent_min:
        found.append(
            f"{messages(sent)} {'was' if sent == 1 else 'were'} sent in this time, and sentMin is {options.sent_min}"
        )
    if sent and not groups:
        found.append("no group has consumed any of it, and none is named by groups: nothing was compared")
    for one in groups:
        counts = one.counts
        for what, count, name, limit in (
            ("missing", counts.missing, "allowMissing", options.allow_missing),
            ("dead letters" if counts.dead != 1 else "a dead letter", counts.dead, "allowDead", options.allow_dead),
            ("consumed more than once", counts.repeated, "allowRepeated", options.allow_repeated),
            ("out of order", counts.out_of_order, "allowOutOfOrder", options.allow_out_of_order),
            ("late", counts.late, "allowLate", options.allow_late),
            ("stray", one.stray, "allowStray", options.allow_stray),
        ):
            if limit is not None and count > limit:
                verb = "is" if count == 1 else "are"
                found.append(f"group {one.group}: {messages(count)} {verb} {what}, and {name} is {limit}")
    return found


def messages(count: int) -> str:
    """Return `1 message`, `3,000 messages`."""
    return f"{count:,} message{'' if count == 1 else 's'}"


LADDER_MS = tuple(
    1000 * seconds for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
)
WINDOWS_MAX = 120


def fitting_window_ms(first_ms: int, last_ms: int) -> int:
    """Return the shortest length of LADDER_MS with at most WINDOWS_MAX windows; several days if the times span years."""
    for length in LADDER_MS:
        if last_ms // length - first_ms // length < WINDOWS_MAX:
            return length
    days = (last_ms - first_ms) // LADDER_MS[-1]
    return LADDER_MS[-1] * (days // (WINDOWS_MAX - 1) + 1)
