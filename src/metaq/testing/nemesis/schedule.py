"""Schedules of faults: values, made of a seed and the shape of a cluster alone. So a seed that has found something finds it again,
as far as time allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from metaq.clock import Chance, seeded
from metaq.errors import ConfigError


class Topology(Struct, frozen=True):
    """The shape of a cluster: how many there are of each."""

    brokers: int = 1
    """Of different names."""
    replicas: int = 1
    """Processes of each broker."""
    name_servers: int = 1
    """Name servers."""
    zookeepers: int = 0
    """Servers of the ZooKeeper ensemble; 0: there is none."""


class Fault(Struct, frozen=True):
    """One fault.

    `target`: whom it meets, found when it begins: `leader 0` and `follower 0` of the broker with that number, `process 2` of all
    broker processes, `zookeeper 0`, `all`. `way`: of a partition, what lies behind the links: `clients`, `brokers`, `name servers`,
    `zookeeper`, `everything`. `how`: what becomes of the links (`cut`, `stall`, `half open`), or of the process (`kill`, `stop`).
    `direction`: `both`, `to it` or `from it`. `amount`: seconds of a delay or of a clock, bytes of room.
    """

    kind: str
    """One of `FAULTS`."""
    target: str
    way: str = ""
    how: str = ""
    direction: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        details = [self.how, self.direction if self.direction != "both" else "", self.way]
        if self.amount:
            details.append(f"{self.amount:g}")
        told = " ".join(part for part in details if part)
        return f"{self.kind} {self.target}{f' ({told})' if told else ''}"


class Step(Struct, frozen=True):
    """A fault from `begins` on until `ends`, seconds after the schedule's beginning."""

    begins: float
    ends: float
    fault: Fault
    """What happens meanwhile."""

    def __str__(self) -> str:
        return f"{self.begins:.1f} to {self.ends:.1f} s: {self.fault}"


class Schedule(Struct, frozen=True):
    """All faults of a run."""

    seed: int
    """What it was drawn from."""
    seconds: float
    """When the last one has ended, at the latest, seconds after the beginning."""
    steps: tuple[Step, ...]
    """The faults, in the order of their beginnings."""

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}, {self.seconds:g} s", *map(str, self.steps)])


Draw = Callable[[Chance, Topology], Fault]

_LENGTHS: Final = (0.05, 0.3, 0.3, 1.0, 1.0, 2.5, 5.0)
"""Seconds of a fault: shorter than any time-out, and longer than most."""
_PAUSES: Final = (0.0, 0.1, 0.5, 1.5)
_BESIDE: Final = 0.35
"""How likely another fault begins while one lasts."""


def _process(chance: Chance, topology: Topology) -> str:
    if topology.replicas == 1:
        return f"process {chance.randrange(topology.brokers)}"
    who = chance.choice(("leader", "leader", "leader", "follower", "follower"))
    return f"{who} {chance.randrange(topology.brokers)}"


def _kill(chance: Chance, topology: Topology) -> Fault:
    return Fault("kill", _process(chance, topology))


def _stop(chance: Chance, topology: Topology) -> Fault:
    return Fault("stop", _process(chance, topology))


def _restart(chance: Chance, topology: Topology) -> Fault:
    return Fault("restart", _process(chance, topology))


def _restart_all(chance: Chance, topology: Topology) -> Fault:  # noqa: ARG001  one of the table's
    return Fault("restart-all", "all", how=chance.choice(("kill", "stop")))


def _links(chance: Chance, topology: Topology) -> str:
    ways = ["clients", "name servers", "everything", "everything"]
    if topology.replicas > 1:
        ways += ["brokers", "brokers"]
    if topology.zookeepers:
        ways += ["zookeeper", "zookeeper"]
    return chance.choice(ways)


def _partition(chance: Chance, topology: Topology) -> Fault:
    target, way = _process(chance, topology), _links(chance, topology)
    how = chance.choice(("cut", "stall", "stall", "stall", "half open"))
    direction = chance.choice(("both", "to it", "from it")) if how == "stall" else "both"
    return Fault("partition", target, way, how, direction)


def _slow_network(chance: Chance, topology: Topology) -> Fault:
    return Fault(
        "slow-network", _process(chance, topology), _links(chance, topology), amount=chance.choice((0.005, 0.05, 0.3))
    )


def _slow_disk(chance: Chance, topology: Topology) -> Fault:
    return Fault("slow-disk", _process(chance, topology), amount=chance.choice((0.02, 0.2, 1.0)))


def _full_disk(chance: Chance, topology: Topology) -> Fault:
    return Fault(
        "full-disk", _process(chance, topology), how=chance.choice(("", "no files")), amount=chance.randrange(1 << 19)
    )


def _power(chance: Chance, topology: Topology) -> Fault:
    return Fault("power", _process(chance, topology))


def _clock(chance: Chance, topology: Topology) -> Fault:
    seconds = chance.choice((0.4, 3.0, 30.0, 3600.0, 86_400.0)) * chance.choice((1, -1))
    return Fault("clock", _process(chance, topology), amount=seconds)


def _zookeeper(chance: Chance, topology: Topology) -> Fault:
    # One of three may be away for long; of one alone that is ZooKeeper being away.
    return Fault("zookeeper", f"zookeeper {chance.randrange(topology.zookeepers)}", how=chance.choice(("kill", "stop")))


FAULTS: Final[dict[str, Draw]] = {
    "kill": _kill,
    "stop": _stop,
    "partition": _partition,
    "slow-network": _slow_network,
    "restart": _restart,
    "restart-all": _restart_all,
    "slow-disk": _slow_disk,
    "full-disk": _full_disk,
    "power": _power,
    "clock": _clock,
    "zookeeper": _zookeeper,
}
"""Kind → what draws one."""
ALWAYS: Final = ("kill", "stop", "partition", "slow-network", "restart", "restart-all")
"""Those that every cluster with networks has; the others need faulty disks, clocks, a ZooKeeper."""


def checked_faults(kinds: Iterable[str], topology: Topology) -> tuple[str, ...]:
    """Return the kinds, each once. Raises ConfigError: an unknown one, one that the cluster cannot have, or none."""
    found = tuple(dict.fromkeys(kinds))
    unknown = [kind for kind in found if kind not in FAULTS]
    if unknown or not found:
        raise ConfigError(f"faults {', '.join(unknown) or 'are missing'}: need some of {', '.join(FAULTS)}")
    if "zookeeper" in found and not topology.zookeepers:
        raise ConfigError("faults of ZooKeeper: the cluster has no ZooKeeper of its own")
    return found


def make_schedule(seed: int, topology: Topology, kinds: Sequence[str], seconds: float) -> Schedule:
    """Draw a schedule. The same arguments give the same one. Raises ConfigError: `checked_faults`, or no time for any.

    Args:
        seed: decides everything that is left to chance.
        topology: of the cluster, by `topology_of`.
        kinds: of `FAULTS`; a kind that is named twice is no likelier.
        seconds: how long it lasts at most, from 1 on.
    """
    wanted = checked_faults(kinds, topology)
    if seconds < 1:
        raise ConfigError(f"a schedule of {seconds:g} s: need 1 s at least")
    chance = seeded(f"nemesis {seed}")
    steps: list[Step] = []
    at = chance.uniform(0.1, min(1.0, seconds / 4))
    while at < seconds - 0.2:
        ends = min(at + chance.choice(_LENGTHS), seconds)
        steps.append(Step(round(at, 3), round(ends, 3), FAULTS[chance.choice(wanted)](chance, topology)))
        at = chance.uniform(at, ends) if chance.random() < _BESIDE else ends + chance.choice(_PAUSES)
    return Schedule(seed, seconds, tuple(steps))
