"""What was seen of a server of MetaQ 1.x, held against limits. What cannot be known is unknown, and never fine."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct


class State(enum.StrEnum):
    """Outcome of one check."""

    OK = "ok"
    ALARM = "alarm"
    UNKNOWN = "unknown"


class Limits(Struct, frozen=True, kw_only=True):
    """Where an alarm begins; the values are those of the monitor of 1.x."""

    put_failed: int = 10
    """Alarm from so many failed puts among the recent ones on."""
    offset_gap: int = 0
    """Bytes that a group may be behind the end of a partition."""
    offset_ahead: int = 0
    """Bytes that it may be ahead of it."""
    load: float = 8.0
    """The machine's load of the last minute may be so high."""
    disk: float = 0.85
    memory: float = 0.80
    """Shares that may be used."""
    connections_per_ip: int = 5
    connections: int = 150
    """So many connections of clients there may be."""
    prepared: int = 10
    """Alarm from so many prepared transactions on."""


class UnknownFigure(Struct, frozen=True):
    """A figure that cannot be known, and why."""

    why: str
    """The reason, for people."""


class Metaq1Gap(Struct, frozen=True):
    """A group in a partition of this server. `behind`: bytes from its offset to the partition's end; negative: it is ahead."""

    group: str
    """The consumer group."""
    topic: str
    """The topic."""
    partition: str
    """The partition, `brokerId-number`."""
    behind: int


class SeenServer(Struct, frozen=True, kw_only=True):
    """What was seen of a server."""

    server: str
    """Its address, as it was given."""
    probe: float | UnknownFigure | None
    """Seconds from the send of a message until it was received; UnknownFigure: nobody has tried; None: it did not come, as `fault` says."""
    fault: str = ""
    """Why there is no answer, or no message; "": nothing is wrong."""
    put_failed: int | UnknownFigure
    """Failed puts among the recent ones."""
    load: float | UnknownFigure
    """The machine's load of the last minute."""
    disk: float | UnknownFigure
    """Share of the disk that is used, 0 to 1."""
    memory: float | UnknownFigure
    """Share of the machine's memory that is used, 0 to 1."""
    connections: int | UnknownFigure
    """Connections of clients."""
    per_ip: dict[str, int] | UnknownFigure
    """Address of a client's machine → its connections."""
    prepared: int | UnknownFigure
    """Prepared transactions."""


class CheckResult(Struct, frozen=True):
    """One check of one server, or of ZooKeeper."""

    server: str
    check: str
    state: State
    text: str
    group: str | None = None
    """The consumer group that it is about."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        return (self.server, self.check, self.group)


def judge(seen: SeenServer, limits: Limits) -> list[CheckResult]:
    """Return a finding for each check of a server."""
    return list(_findings(seen, limits))


def _findings(seen: SeenServer, limits: Limits) -> Iterator[CheckResult]:
    if seen.probe is None:
        yield CheckResult(seen.server, "probe", State.ALARM, seen.fault)
    else:
        yield _finding(seen, "probe", seen.probe, False, lambda value: f"a message was back in {value:.3f} s")
    failed, load, disk, memory = seen.put_failed, seen.load, seen.disk, seen.memory
    yield _finding(
        seen, "put-failed", failed, not isinstance(failed, UnknownFigure) and failed >= limits.put_failed,
        lambda value: f"{value:.0f} puts have failed recently (alarm from {limits.put_failed} on)",
    )  # fmt: skip
    yield _finding(
        seen, "load", load, not isinstance(load, UnknownFigure) and load > limits.load,
        lambda value: f"the load of the machine is {value:.2f} (limit {limits.load:g})",
    )  # fmt: skip
    for check, used, limit in (("disk", disk, limits.disk), ("memory", memory, limits.memory)):
        over = not isinstance(used, UnknownFigure) and used > limit
        yield _finding(seen, check, used, over, _share(limit))
    total, prepared = seen.connections, seen.prepared
    yield _finding(
        seen, "connections", total, not isinstance(total, UnknownFigure) and total > limits.connections,
        lambda value: f"{value:.0f} connections (limit {limits.connections})",
    )  # fmt: skip
    yield _per_ip(seen, limits)
    yield _finding(
        seen, "prepared", prepared, not isinstance(prepared, UnknownFigure) and prepared >= limits.prepared,
        lambda value: f"{value:.0f} transactions are prepared (alarm from {limits.prepared} on)",
    )  # fmt: skip


def _share(limit: float) -> Callable[[float], str]:
    return lambda value: f"{value:.1%} are used (limit {limit:.0%})"


def _finding(
    seen: SeenServer, check: str, value: float | UnknownFigure, over: bool, text: Callable[[float], str]
) -> CheckResult:
    if isinstance(value, UnknownFigure):
        return CheckResult(seen.server, check, State.UNKNOWN, value.why)
    return CheckResult(seen.server, check, State.ALARM if over else State.OK, text(value))


def _per_ip(seen: SeenServer, limits: Limits) -> CheckResult:
    check = "connections-per-ip"
    if isinstance(seen.per_ip, UnknownFigure):
        return CheckResult(seen.server, check, State.UNKNOWN, seen.per_ip.why)
    many = {ip: count for ip, count in sorted(seen.per_ip.items()) if count > limits.connections_per_ip}
    if many:
        text = ", ".join(f"{count} from {ip}" for ip, count in many.items())
        return CheckResult(seen.server, check, State.ALARM, f"{text} (limit {limits.connections_per_ip})")
    return CheckResult(seen.server, check, State.OK, f"none has more than {limits.connections_per_ip}")


def judge_gaps(server: str, gaps: Sequence[Metaq1Gap], limits: Limits) -> list[CheckResult]:
    """Return a finding for each group: its worst partition."""
    found: list[CheckResult] = []
    for group in sorted({gap.group for gap in gaps}):
        mine = [gap for gap in gaps if gap.group == group]
        wrong = [gap for gap in mine if gap.behind > limits.offset_gap or -gap.behind > limits.offset_ahead]
        worst = max(wrong or mine, key=lambda gap: abs(gap.behind))
        side = "behind" if worst.behind >= 0 else "ahead of"
        text = f"{group} is {abs(worst.behind)} bytes {side} the end of partition {worst.partition} of {worst.topic}"
        text += f", and {len(wrong) - 1} others are wrong, too" if len(wrong) > 1 else ""
        found.append(CheckResult(server, "offset-gap", State.ALARM if wrong else State.OK, text, group))
    return found


class Changes:
    """Tells what has changed since the last look: a finding is news when its state is another, or when it begins with an alarm."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str, str | None], State] = {}

    def news(self, findings: Sequence[CheckResult]) -> list[CheckResult]:
        """Return the findings whose state has changed; of those never seen, all that are not OK."""
        found = [one for one in findings if self._states.get(one.key, State.OK) != one.state]
        self._states.update({one.key: one.state for one in findings})
        return found
