"""Performs a schedule on a cluster, and undoes all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from metaq.errors import MetaqError
from metaq.testing.checking import EndedByItself, Ledger
from metaq.testing.cluster import AnyServer, Cluster
from metaq.testing.nemesis.schedule import Fault, Schedule, Step, Topology
from metaq.testing.network import NetworkLink
from metaq.testing.process import ServerDied
from metaq.testing.servers import ClusterServer
from metaq.testing.ways import BROKER, CLIENT, NAMESRV, ZOOKEEPER, NetworkWay

KINDS_OF_WAYS: Final = {"clients": CLIENT, "brokers": BROKER, "name servers": NAMESRV, "zookeeper": ZOOKEEPER}
SETTLE_SECONDS: Final = 10.0
"""How long a power cut waits for replicas to be in sync: only one of them may lose what is not on its disk at a time."""

Undo = Callable[[], None]


def topology_of(cluster: Cluster) -> Topology:
    """Return the shape of a cluster, for `make_schedule`."""
    return Topology(
        len(cluster.brokers) // cluster.replicas, cluster.replicas, len(cluster.name_servers), len(cluster.zookeepers)
    )


class Nemesis:
    """Performs one schedule. Leaving the block undoes every fault, also those of a schedule that was broken off.

    A server that ends by itself is noted in the ledger, and started again.
    """

    def __init__(
        self, cluster: Cluster, ledger: Ledger, schedule: Schedule, over: threading.Event | None = None
    ) -> None:
        """Args: cluster: is harmed. ledger: gets what happens. schedule: says when. over: ends `run` when it is set."""
        self._cluster, self._ledger, self._schedule = cluster, ledger, schedule
        self._undo: dict[int, Undo] = {}
        """Step → what ends it."""
        self._full: set[str] = set()
        """Servers whose disks are full: one may end if it cannot go on."""
        self._starts: dict[str, threading.Thread] = {}
        """Servers that were started, by name: a broker is ready only when it is registered, which other faults may hold up."""
        self._over = over or threading.Event()
        self._faults: dict[str, Callable[[Fault], Undo | None]] = {
            "kill": lambda fault: self._killed(fault, ClusterServer.kill),
            "restart": lambda fault: self._killed(fault, ClusterServer.stop),
            "power": self._without_power,
            "stop": self._stopped,
            "restart-all": self._all_restarted,
            "partition": self._partitioned,
            "slow-network": lambda fault: self._on_links(fault, lambda link: link.delay(fault.amount)),
            "slow-disk": lambda fault: self._on_disk(fault, sync_seconds=fault.amount),
            "full-disk": lambda fault: self._on_disk(fault, room=int(fault.amount), no_files=fault.how == "no files"),
            "clock": self._clock_set,
            "zookeeper": self._on_zookeeper,
        }

    def run(self) -> None:
        """Perform the schedule; returns at its end, or when `over` is set."""
        moments = [(step.begins, 1, number) for number, step in enumerate(self._schedule.steps)]
        moments += [(step.ends, 0, number) for number, step in enumerate(self._schedule.steps)]
        began = self._ledger.now()
        for at, begins, number in sorted(moments):
            if self._over.wait(max(0.0, began + at - self._ledger.now())):
                return
            self._look_for_deaths()
            if begins:
                self._begin(number, self._schedule.steps[number])
            else:
                self._end(number)
        self._over.wait(max(0.0, began + self._schedule.seconds - self._ledger.now()))

    def heal(self) -> None:
        """Undo every fault, and wait until everything runs and is registered. Raises AssertionError: it does not get well."""
        for number in list(self._undo):
            self._end(number)
        self._cluster.mend()
        for server in self._cluster.servers:
            if server.alive and server.paused:
                server.resume()
        for _ in range(2):  # one that has ended in its start is started once more, when nothing is in its way
            self._wait_for_starts()
            self._look_for_deaths()
            for server in self._cluster.servers:
                if not server.alive and not self._is_starting(server):
                    self._start(server)
        self._wait_for_starts()
        self._ledger.tell("all faults are undone")
        self._cluster.wait_registered()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()

    # ------------------------------------------------------------------ steps

    def _begin(self, number: int, step: Step) -> None:
        try:
            undo = self._faults[step.fault.kind](step.fault)
        except MetaqError as error:
            self._ledger.tell(f"{step.fault}: left out, {str(error).splitlines()[0]}")
            return
        if undo is None:
            self._ledger.tell(f"{step.fault}: left out, as it does not run or another fault is in the way")
        else:
            self._undo[number] = undo

    def _end(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            try:
                undo()
            except ServerDied as error:
                self._ledger.tell(f"the end of {self._schedule.steps[number].fault}: {str(error).splitlines()[0]}")

    def _look_for_deaths(self) -> None:
        for server in self._cluster.servers:
            if not self._is_starting(server) and (death := server.death):
                if server.name in self._full:
                    self._ledger.tell(f"{server.name} has ended by itself, without room on its disk")
                else:
                    self._ledger.write(EndedByItself(self._ledger.now(), server.name, death))
                server.wait_ended()
                self._start(server)

    def _start(self, server: AnyServer) -> None:
        def start() -> None:
            try:
                server.start()
            except ServerDied as error:
                self._ledger.write(EndedByItself(self._ledger.now(), server.name, str(error)))

        self._ledger.tell(f"start {server.name}")
        thread = self._starts[server.name] = threading.Thread(target=start, name=f"start-{server.name}", daemon=True)
        thread.start()

    def _is_starting(self, server: AnyServer) -> bool:
        return server.name in self._starts and self._starts[server.name].is_alive()

    def _wait_for_starts(self) -> None:
        for thread in self._starts.values():
            thread.join()

    def _runs(self, server: AnyServer) -> bool:
        return server.alive and not self._is_starting(server)

    def _target(self, fault: Fault) -> ClusterServer:
        return self._cluster.brokers[self._number(fault)]

    def _number(self, fault: Fault) -> int:
        who, _, text = fault.target.partition(" ")
        number = int(text)
        if who == "process":
            return number
        first = number * self._cluster.replicas
        leader = self._cluster.leader(number)
        leader = first if leader is None else leader
        if who == "leader":
            return leader
        return first + (leader - first + 1) % self._cluster.replicas

    def _tell(self, fault: Fault, whom: str) -> None:
        self._ledger.tell(f"{fault}" + (f": {whom}" if whom not in fault.target else ""))

    # ------------------------------------------------------------------ faults: each returns what ends it, or None: it cannot be

    def _killed(self, fault: Fault, end: Callable[[ClusterServer], None]) -> Undo | None:
        server = self._target(fault)
        if not self._runs(server):
            return None
        self._tell(fault, server.name)
        end(server)
        return lambda: self._started(server)

    def _started(self, server: AnyServer) -> None:
        if not server.alive and not self._is_starting(server):
            self._start(server)

    def _without_power(self, fault: Fault) -> Undo | None:
        if self._cluster.replicas > 1:
            try:
                self._cluster.wait_in_sync(SETTLE_SECONDS)
            except AssertionError:
                return None
        return self._killed(fault, ClusterServer.cut_power)

    def _stopped(self, fault: Fault) -> Undo | None:
        return self._paused(fault, self._target(fault))

    def _paused(self, fault: Fault, server: AnyServer) -> Undo | None:
        if not self._runs(server) or server.paused:
            return None
        self._tell(fault, server.name)
        server.pause()

        def resume() -> None:
            if server.alive and server.paused:
                self._ledger.tell(f"resume {server.name}")
                server.resume()

        return resume

    def _all_restarted(self, fault: Fault) -> Undo | None:
        running = [server for server in self._cluster.brokers if self._runs(server)]
        if not running:
            return None
        self._ledger.tell(str(fault))
        for server in running:
            if fault.how == "kill":
                server.kill()
            else:
                server.stop()

        def start() -> None:
            for server in running:
                self._started(server)

        return start

    def _partitioned(self, fault: Fault) -> Undo | None:
        def harm(link: NetworkLink) -> None:
            if fault.how == "cut":
                link.cut()
            else:
                link.half_open()

        if fault.how != "stall":
            return self._on_links(fault, harm)
        number = self._number(fault)

        def stall(link: NetworkLink, *, to_it: bool) -> None:
            # Bytes to a broker go to the server where others connect to it, and to the client where it connects.
            if fault.direction == "both":
                link.stall()
            else:
                link.stall("to server" if to_it == (fault.direction == "to it") else "to client")

        return self._harm(fault, number, stall)

    def _on_links(self, fault: Fault, harm: Callable[[NetworkLink], None]) -> Undo | None:
        return self._harm(fault, self._number(fault), lambda link, to_it: harm(link))  # noqa: ARG005

    def _harm(self, fault: Fault, number: int, harm: Callable[..., None]) -> Undo | None:
        incoming, outgoing = self._links(fault.way, number)
        if not incoming and not outgoing:
            return None
        self._tell(fault, self._cluster.brokers[number].name)
        for link in incoming:
            harm(link, to_it=True)
        for link in outgoing:
            harm(link, to_it=False)

        def mend() -> None:
            self._ledger.tell(f"mend {fault}")
            for link in (*incoming, *outgoing):
                link.mend()

        return mend

    def _links(self, way: str, number: int) -> tuple[list[NetworkLink], list[NetworkLink]]:
        """The links on which others connect to a broker, and those on which it connects to others."""
        kinds = set(KINDS_OF_WAYS.values()) if way == "everything" else {KINDS_OF_WAYS[way]}

        def links(chosen: Iterable[NetworkWay]) -> list[NetworkLink]:
            return [self._cluster.link(one) for one in chosen]

        ways = self._cluster.ways()
        incoming = links(one for one in ways if (one.kind, one.number) == (BROKER, number) and one.who in kinds)
        outgoing = links(one for one in ways if (one.who, one.which) == (BROKER, number) and one.kind in kinds)
        return incoming, outgoing

    def _on_disk(
        self, fault: Fault, *, room: int | None = None, no_files: bool = False, sync_seconds: float = 0.0
    ) -> Undo | None:
        server = self._target(fault)
        if not self._runs(server):
            return None
        self._tell(fault, server.name)
        server.set_disk(room=room, no_files=no_files, sync_seconds=sync_seconds)
        if room is not None:
            self._full.add(server.name)

        def heal() -> None:
            self._look_for_deaths()
            self._full.discard(server.name)
            if server.alive:
                self._ledger.tell(f"the disk of {server.name} is well again")
                server.set_disk()

        return heal

    def _clock_set(self, fault: Fault) -> Undo | None:
        server = self._target(fault)
        self._tell(fault, server.name)
        server.set_clock(fault.amount)

        def right() -> None:
            self._ledger.tell(f"the clock of {server.name} is right again")
            server.set_clock(0)

        return right

    def _on_zookeeper(self, fault: Fault) -> Undo | None:
        server = self._cluster.zookeepers[int(fault.target.partition(" ")[2])]
        if fault.how == "stop":
            return self._paused(fault, server)
        if not self._runs(server):
            return None
        self._tell(fault, server.name)
        server.kill()
        return lambda: self._started(server)
