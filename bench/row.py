"""What a row of the series is, and how it is measured beside a peer."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import processes
import rocketmq


@dataclass
class Bench:
    """Where and how much: `scale` 1.0 is the full series, smaller ones only show that everything still works."""

    cache: Path
    disk: Path
    scale: float = 1.0
    paired: bool = True
    """Whether Redis is there to be measured beside."""
    alone: bool = False
    """No peer beside it at all."""
    backlog: int = 100_000_000
    """Messages that the row `backlog` reads from the beginning; `scale` does not touch it."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Peers that cannot be had here, and why."""
    run: int = 0
    kept: dict[tuple[str, int], "Measured"] = field(default_factory=dict)
    """What one run has measured for several rows."""
    client_runs: dict[int, dict[str, float | list[float]]] = field(default_factory=dict)
    spark_figures: dict[str, list[float]] = field(default_factory=dict)

    def has(self, peer: str) -> bool:
        """Whether "redis", "nats", "kafka" or "rocketmq" is measured beside us."""
        return not self.alone and peer not in self.missing

    def count(self, full: int, least: int = 1000) -> int:
        return max(least, int(full * self.scale))


Measured = dict[str, float]
"""`value` in the row's unit, and whatever else is worth keeping: `beside` (the peer's, in the same unit), `p99_us`, `cpu_us`, ..."""


@dataclass(frozen=True)
class Row:
    key: str
    work: str
    unit: str
    must: float
    goal: float
    measure: Callable[[Bench], Measured | list[Measured]]
    """One run, or all of them at once where a start is dear (Spark)."""
    prototype: float | None = None
    peers: str = ""
    lower_is_better: bool = False
    runs: int = field(default=5)
    beside: str = "Redis"
    """The peer that is measured in the same run, if any is."""
    times_peer: bool = False
    """`must` and `goal` are multiples of what that peer reaches, or takes."""


def once(bench: Bench, name: str, measure: Callable[[], dict[str, Measured]]) -> dict[str, Measured]:
    """What this run has measured under that name, measured if it was not yet."""
    kept = bench.kept.setdefault((name, bench.run), {})
    if not kept:
        kept.update(measure())  # type: ignore[arg-type]  a dict of them
    return kept  # type: ignore[return-value]


def in_turn(bench: Bench, ours: Callable[[], Measured], theirs: Callable[[], float]) -> Measured:
    """Both, one right after the other; who goes first alternates, so that a drift of the machine favours nobody."""
    if bench.run % 2:
        measured = ours()
        return {**measured, "beside": theirs()}
    rate = theirs()
    return {**ours(), "beside": rate}


def paired(bench: Bench, ours: Callable[[], Measured], theirs: Callable[[], float]) -> Measured:
    """With Redis, where it is installed."""
    return in_turn(bench, ours, theirs) if bench.paired else ours()


def beside_rocketmq(
    bench: Bench, options: Mapping[str, object], work: Callable[[processes.Server], Measured]
) -> Measured:
    """`work` on `metaq up` and on RocketMQ 4.9.7, both with these keys of `broker.conf`, in turn as in `in_turn`.

    Where RocketMQ cannot be had, ours alone.
    """

    def ours() -> Measured:
        flags = [flag for key, value in options.items() for flag in ("-o", f"{key}={value}")]
        with processes.metaq_up(bench.disk, options=flags) as server:
            before = server.cpu_seconds()
            measured = work(server)
            return {"cpu_s": server.cpu_seconds() - before, **measured}

    def theirs() -> float:
        with rocketmq.running(bench.disk, **options) as server:
            return work(server)["value"]

    if bench.alone:
        return ours()
    try:
        rocketmq.classpath()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return ours()
    return in_turn(bench, ours, theirs)
