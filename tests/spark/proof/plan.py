"""What a seed decides: how much is sent, in which pieces it is read, and who is killed when.

Moments are counted in messages (acknowledged, archived, copied), some of them with an edge of a batch to wait for, never in seconds.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Final

MESSAGES: Final = 1_000_000
SEEDS_OF_CI: Final = (9, 10)
"""Of the first forty a pair that comes to every victim, count, edge and choice; each more costs two minutes of CPU."""

ACKNOWLEDGED, ARCHIVED, COPIED = COUNTS = ("acked", "archived", "copied")
"""What is counted: messages that a broker acknowledged, that published batches of the archive hold, that the copying query is done with."""

AT_ONCE, STAGED, PUBLISHED, PLANNED, DELIVERED = EDGES = (
    "at once", "a file is staged", "a batch is published", "a batch is planned", "copies are delivered",
)  # fmt: skip
"""What is waited for once the count is reached: the archive's next file under way, its next manifest; the copying query's next batch,
and that more copies can be read than before, of which Spark does not know yet whether they are done.
"""

BROKER: Final = "broker"
DRIVER: Final = "driver with its JVM"
PYTHON: Final = "driver alone"
JVM: Final = "JVM alone"
WORKER: Final = "worker"
DAEMON: Final = "workers' daemon"
PLANNER: Final = "source's Python"
DRIVERS: Final = (DRIVER, PYTHON, JVM)
WORKERS: Final = (WORKER, DAEMON, PLANNER)


@dataclass(frozen=True, order=True)
class Strike:
    """One kill -9."""

    part: float
    """When: the part of all messages that the count has come to, 0 to 1."""
    count: str
    edge: str
    victims: tuple[str, ...]
    away: float = 0.0
    """Seconds that a broker stays away."""
    mute: float = 0.0
    """Seconds before, in which a broker's answers are lost: what it stores then is stored, and nobody knows."""
    at_start: bool = False
    """Strike the next driver as well, as soon as its JVM is there."""

    def __str__(self) -> str:
        again = ", and again while it starts" if self.at_start else ""
        edge = "" if self.edge == AT_ONCE else f", as soon as {self.edge}"
        mute = f", whose answers are lost for {self.mute:.1f} s before" if self.mute else ""
        away = f", away for {self.away:.1f} s" if self.away else ""
        return f"at {self.part:.0%} {self.count}{edge}: {' and '.join(self.victims)}{mute}{away}{again}"


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    seed: int
    messages: int
    queues: int
    lead: int
    """The producers wait where they are so many messages ahead of the slower query."""
    archive_batch: int
    archive_file: int
    copy_batch: int
    copy_tasks: int
    """Least number of tasks; where it is not more than one a queue, the copies keep the order of each queue."""
    compact_files: int
    """Merge the archive's small files, meanwhile, above so many; 0: never."""
    strikes: tuple[Strike, ...]

    @property
    def ordered(self) -> bool:
        return self.copy_tasks <= 1

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}: {self.messages} messages over {self.queues} queues, at most {self.lead} ahead; archive "
            f"{self.archive_batch} a batch, {self.archive_file} a file, merged above {self.compact_files}; copies {self.copy_batch} a "
            f"batch, {self.copy_tasks} tasks"
        )
        return "\n".join([head, *(f"  {strike}" for strike in self.strikes)])


def plan_of(seed: int, messages: int = MESSAGES) -> Plan:
    """The same for the same seed, always."""
    chance = random.Random(f"proof {seed}")
    about = lambda least, most: round(messages * chance.uniform(least, most))  # noqa: E731
    # Three seeds in a row come to every kind of victim, four to every way of reading.
    drivers = [DRIVERS[(seed + number) % 3] for number in range(chance.randint(2, 3))]
    workers = [WORKER, WORKERS[seed % 3], chance.choice((WORKER, PLANNER))]
    brokers = [BROKER] * chance.randint(2, 4)
    victims = [(one,) for one in (*drivers, *workers, *brokers)]
    chance.shuffle(victims)
    if chance.random() < 0.6:  # Two at one moment.
        victims.append((BROKER, chance.choice((*DRIVERS, *WORKERS))))
    strikes = sorted(_strike(chance, chosen) for chosen in victims)
    first = next(place for place, strike in enumerate(strikes) if BROKER in strike.victims)
    strikes[first] = dataclasses.replace(strikes[first], mute=chance.uniform(0.2, 0.5))
    queues = chance.randint(1, 6)
    return Plan(
        seed, messages, queues,
        lead=about(0.05, 0.4), archive_batch=about(0.04, 0.15), archive_file=about(0.02, 0.1),
        copy_batch=about(0.04, 0.12), copy_tasks=1 if seed % 2 else queues + 2,
        compact_files=2 if seed // 2 % 2 else 0, strikes=tuple(strikes),
    )  # fmt: skip


def _strike(chance: random.Random, victims: tuple[str, ...]) -> Strike:
    drivers = any(victim in DRIVERS for victim in victims)
    return Strike(
        part=chance.uniform(0.02, 0.9),
        count=chance.choice(COUNTS),
        edge=chance.choice(EDGES),
        victims=victims,
        away=chance.choice((0.0, 0.0, chance.uniform(0.2, 4.0))) if BROKER in victims else 0.0,
        mute=chance.choice((0.0, chance.uniform(0.1, 0.5))) if BROKER in victims else 0.0,
        at_start=drivers and chance.random() < 0.25,
    )
