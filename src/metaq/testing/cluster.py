"""Brokers and name servers as processes of their own, and a network between them and their clients that can fail."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from metaq.admin import Admin
from metaq.errors import ConfigError
from metaq.model.leadership import SLAVE, SYNC_MASTER, ReplicaState
from metaq.testing.disk_faults import PROGRAM
from metaq.testing.embedded import SMALL
from metaq.testing.faketime import MISSING, FakedClock, find_faketime
from metaq.testing.network import FlakyNetwork, NetworkLink
from metaq.testing.process import START_SECONDS, ServerDied
from metaq.testing.servers import ClusterServer
from metaq.testing.waiting import eventually
from metaq.testing.ways import BROKER, CLIENT, NAMESRV, ZOOKEEPER, NetworkWay, Ways
from metaq.testing.zookeeper import ZookeeperServer, configure, ensemble

BROKERS_MAX: Final = 16
NAME_SERVERS_MAX: Final = 8
NETWORK_HOST: Final = "127.0.0.2"
"""Address on which the networks to brokers listen.

A broker tells clients this address with its own port, so the network has that port, and only the address differs.
"""

AnyServer = ClusterServer | ZookeeperServer


class Cluster:
    """`brokers` brokers and `name_servers` name servers, each a process of the real command, on free ports of 127.0.0.1.

        with Cluster(brokers=2, name_servers=2, networks=True) as cluster:
            with metaq.Producer(cluster.namesrv) as producer:
                cluster.brokers[0].kill()
                ...
                cluster.brokers[0].start()
                cluster.client_to_broker(1).delay(0.2)

    They start side by side. The block is entered when all accept connections and every broker is registered at every name
    server. When it is left, every process is ended; one that had ended by itself raises ServerDied with its last log lines,
    or adds them to the exception on its way.

    With `replicas` each of the brokers is several processes that hold one log: `cluster.brokers` has them all, those of one
    broker beside each other. They are a master and its slaves, or with the option `failover=zookeeper` members that elect
    their leader, each with a number of its own from 1 on.

    Args:
        replicas: processes of each broker.
        zookeeper: True or 1 starts a ZooKeeper, 3 an ensemble; a text is the address of one that runs (docs/testing.md says what
            is needed). Brokers with `failover=zookeeper` are told where it is.
        zookeeper_home: folder of its jars; by default the environment's METAQ_ZOOKEEPER_HOME, or those that PySpark brings.
        faulty_disks: have the brokers run on disks whose power can be cut, that fill up and become slow: `cut_power`, `set_disk`.
            Nothing is really synced, and files should be small.
        clocks: have the wall clocks of brokers be settable, `set_clock`; needs libfaketime.
        folder: where each process gets a folder of its own; it is kept. By default a temporary one that goes with the
            cluster.
        options: any options of docs/configuration.md for all brokers, over those that keep files small, as of `EmbeddedBroker`.
        broker_options: for one broker each, over those.
        namesrv_options: for all name servers.
        networks: put a `FlakyNetwork` on every way between clients, brokers and name servers (Linux: it needs a second
            loopback address).
        environment: variables of all processes beside ours.
        timeout: seconds that a start may take, 120 by default.
        program: the module that is run in place of `metaq`, for faults of a test's own.

    Raises: ConfigError: a number out of bounds (up to 16 brokers with their replicas, 1 to 8 name servers); what a ZooKeeper or
        clocks need is missing.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        replicas: int = 1,
        name_servers: int = 1,
        zookeeper: bool | int | str = False,
        zookeeper_home: str | os.PathLike[str] | None = None,
        faulty_disks: bool = False,
        clocks: bool = False,
        folder: str | os.PathLike[str] | None = None,
        options: Mapping[str, object] | None = None,
        broker_options: Sequence[Mapping[str, object]] = (),
        namesrv_options: Mapping[str, object] | None = None,
        networks: bool = False,
        environment: Mapping[str, str] | None = None,
        timeout: float = START_SECONDS,
        program: str = "metaq",
    ) -> None:
        count = brokers * replicas
        if not 0 <= count <= BROKERS_MAX or replicas < 1 or not 1 <= name_servers <= NAME_SERVERS_MAX:
            raise ConfigError(
                f"{brokers} brokers with {replicas} replicas, {name_servers} name servers: a cluster has up to {BROKERS_MAX} and 1 "
                f"to {NAME_SERVERS_MAX}"
            )
        if len(broker_options) > count:
            raise ConfigError(f"options for {len(broker_options)} brokers, but there are {count}")
        library = find_faketime() if clocks else None
        if clocks and library is None:
            raise ConfigError(f"clocks=True: {MISSING}")
        self.replicas = replicas
        self._temporary = folder is None
        self.folder = pathlib.Path(folder if folder is not None else tempfile.mkdtemp(prefix="metaq-cluster-"))
        self._timeout = timeout
        self._networks_wanted = networks
        self._ways: Ways | None = None

        def server(
            name: str, options: Mapping[str, object], arguments: Callable[[], list[str]], runs: str
        ) -> ClusterServer:
            made = ClusterServer(name, self.folder / name, options, arguments, environment, timeout)
            made.program = runs
            return made

        self.name_servers: tuple[ClusterServer, ...] = tuple(
            server(f"namesrv-{number}", namesrv_options or {}, lambda: ["namesrv"], program)
            for number in range(name_servers)
        )
        # Brokers tell name servers this address, and so clients come through the network without knowing it.
        told = {"brokerIP1": NETWORK_HOST} if networks else {}
        self.brokers: tuple[ClusterServer, ...] = tuple(
            server(
                self._name_of(number),
                {
                    **SMALL,
                    **told,
                    **self._role_of(number, options or {}),
                    **(options or {}),
                    **self._number_of(number, options or {}),
                    **dict(*broker_options[number : number + 1]),
                },
                functools.partial(self._broker_arguments, number),
                PROGRAM if faulty_disks else program,
            )
            for number in range(count)
        )
        for number, broker in enumerate(self.brokers):
            broker.broker_name = f"broker-{number // replicas}"
            if library is not None:
                broker.folder.mkdir(parents=True, exist_ok=True)
                broker._clock = FakedClock(library, broker.folder / "clock")  # noqa: SLF001  parts of one cluster
        self.zookeepers: tuple[ZookeeperServer, ...] = ()
        """The servers of its ensemble, if it has one of its own."""
        self._zookeeper = zookeeper if isinstance(zookeeper, str) else ""
        if zookeeper and not self._zookeeper:
            self.zookeepers = ensemble(self.folder, int(zookeeper), zookeeper_home, timeout)

    @property
    def namesrv(self) -> str:
        """The name servers' addresses for clients, `host:port;host:port`; through the networks, if there are any."""
        return self._joined("client", 0)

    def address(self, broker: int) -> str:
        """`host:port` of a broker as clients are told it; through the network, if there is one."""
        port = self.brokers[broker].port
        return f"{NETWORK_HOST}:{port}" if self._networks_wanted else f"127.0.0.1:{port}"

    @property
    def zookeeper(self) -> str:
        """`host:port,host:port` of its ZooKeeper, past all networks; "": it has none."""
        return self._zookeeper or ",".join(server.listens for server in self.zookeepers)

    def client_to_broker(self, broker: int) -> FlakyNetwork:
        """The network between all clients and one broker. Raises ConfigError without `networks=True`."""
        return self._network(NetworkWay(CLIENT, 0, BROKER, broker))

    def client_to_namesrv(self, name_server: int) -> FlakyNetwork:
        """The network between all clients and one name server. Raises ConfigError without `networks=True`."""
        return self._network(NetworkWay(CLIENT, 0, NAMESRV, name_server))

    def broker_to_namesrv(self, broker: int, name_server: int) -> FlakyNetwork:
        """The network between one broker and one name server. Raises ConfigError without `networks=True`."""
        return self._network(NetworkWay(BROKER, broker, NAMESRV, name_server))

    def broker_to_broker(self, broker: int, other: int) -> NetworkLink:
        """The networks on which one broker asks another one, and copies its log. Raises ConfigError without `networks=True`."""
        return self.link(NetworkWay(BROKER, broker, BROKER, other))

    def broker_to_zookeeper(self, broker: int, server: int) -> FlakyNetwork:
        """The network between one broker and one server of the ensemble. Raises ConfigError without networks, or a ZooKeeper."""
        return self._network(NetworkWay(BROKER, broker, ZOOKEEPER, server))

    def ways(self) -> tuple[NetworkWay, ...]:
        """All ways that have networks: between clients, brokers, name servers and ZooKeeper; empty without `networks=True`."""
        return self._ways.all() if self._ways is not None else ()

    def link(self, way: NetworkWay) -> NetworkLink:
        """All networks of a way. Raises ConfigError: there is none."""
        return self._known_ways(way).link(way)

    def mend(self) -> None:
        """End the faults of all networks."""
        if self._ways is not None:
            self._ways.mend()

    def start(self) -> Self:
        """Start everything. Raises ServerDied: one did not get ready; AssertionError: it does not register.

        Raises ConfigError: it runs, and goes on running.
        """
        if any(server.launched for server in self.servers):
            raise ConfigError(
                "the cluster is started already: start a server of it that was stopped by its own `start`"
            )
        try:
            self._start()
        except BaseException as error:
            self._note_deaths(error)
            self._end()
            raise
        return self

    def check(self) -> None:
        """Raises ServerDied, with its exit code and last log lines, if a process has ended by itself."""
        if deaths := self.deaths():
            raise ServerDied("\n".join(deaths.values()))

    def wait_registered(self) -> None:
        """Return when every running broker is registered at every running name server, and answers clients.

        Raises AssertionError: not within the `timeout` of the cluster.
        """
        running = [number for number, broker in enumerate(self.brokers) if broker.alive]
        # Replicas have one name, and their numbers change with the leader.
        wanted = {self.brokers[at].name if self.replicas == 1 else self.address(at) for at in running}
        for name_server in self.name_servers:
            if name_server.alive:
                with Admin(name_server.listens) as admin:
                    what = f"the registration of {', '.join(sorted(wanted))} at {name_server.name}"
                    eventually(functools.partial(_all_answer, wanted, admin), self._timeout, what=what)

    def states(self, broker: int = 0, admin: Admin | None = None) -> dict[int, ReplicaState]:
        """Return which processes of a broker answer, number in `brokers` → what each says of itself. Past all networks.

        Args: admin: to ask with; by default one is made for it.
        """
        with contextlib.ExitStack() as stack:
            asks = admin or stack.enter_context(Admin(self.name_servers[0].listens))
            found = {}
            for number in range(broker * self.replicas, (broker + 1) * self.replicas):
                if self.brokers[number].alive and not self.brokers[number].paused:
                    (replica,) = asks.list_replicas(self.brokers[number].listens)
                    if replica.state is not None:
                        found[number] = replica.state
            return found

    def leader(self, broker: int = 0) -> int | None:
        """Return the number in `brokers` of the process that leads a broker; None: none of them, or more than one says so."""
        leading = [number for number, state in self.states(broker).items() if state.leads]
        return leading[0] if len(leading) == 1 else None

    def wait_in_sync(self, timeout: float | None = None) -> None:
        """Return when every broker has one leader, its other processes have the log that it has now, and clients read all of that.

        Raises AssertionError: not within `timeout` seconds, by default that of the cluster.
        """
        for broker in range(len(self.brokers) // self.replicas):
            wanted: dict[int, int] = {}
            probe = functools.partial(self._is_even, broker, wanted)
            eventually(probe, timeout or self._timeout, what=f"broker-{broker} is in sync")

    def _is_even(self, broker: int, wanted: dict[int, int]) -> bool:
        """Args: wanted: epoch → log end to reach; where the log ended when the leader was first seen in that epoch."""
        states = self.states(broker)
        told = "; ".join(
            f"{self.brokers[at].name} {'leads' if state.leads else 'follows'} in epoch {state.epoch}, log end {state.log_end}"
            for at, state in states.items()
        )
        leaders = [state for state in states.values() if state.leads]
        if len(states) != self.replicas or len(leaders) != 1:
            raise AssertionError(told or "no process of it answers")
        end = wanted.setdefault(leaders[0].epoch, leaders[0].log_end)
        if any(state.epochs != leaders[0].epochs or state.log_end < end for state in states.values()):
            raise AssertionError(told)
        # Consumers of a leader with followers read what these have reported.
        if leaders[0].slaves and not any(slave.copied >= end for slave in leaders[0].slaves):
            raise AssertionError(
                f"{told}; followers have reported up to {max(slave.copied for slave in leaders[0].slaves)}"
            )
        # A leader in doubt acknowledges nothing, whatever they have reported.
        if (role := leaders[0].group) is not None and (role.doubt or role.acknowledged < end):
            raise AssertionError(f"{told}; acknowledged is all up to {role.acknowledged}; {role.doubt}")
        return True

    def close(self) -> None:
        """Stop everything that runs, and remove the folder if it was temporary.

        Raises ServerDied: one had ended by itself, or did not stop cleanly. Nothing runs any more all the same.
        """
        failures: list[str] = []
        try:
            # With the faults ended, brokers can take their registrations back, and end in time.
            self.mend()
            # Brokers first: at its end each takes its registration back at the name servers.
            for servers in (self.brokers, self.name_servers, self.zookeepers):
                failures += _stop(servers)
        finally:
            self._end()
        if failures:
            raise ServerDied("\n".join(failures))

    def _start(self) -> None:
        if self._networks_wanted and self._ways is None:
            self._ways = Ways(self._running_brokers)
        configure(self.zookeepers)
        for server in self.zookeepers:
            server.launch()
        # Brokers get the name servers' addresses, or those of the networks to them, on their command line.
        _start(self.name_servers)
        for number, name_server in enumerate(self.name_servers):
            self._connect([NetworkWay(CLIENT, 0, NAMESRV, number), *self._from_brokers(NAMESRV, number)], name_server)
        for zookeeper in self.zookeepers:
            zookeeper.wait_ready()
        for number, zookeeper in enumerate(self.zookeepers):
            zookeeper.wait_serving()
            self._connect(self._from_brokers(ZOOKEEPER, number), zookeeper)
        # A slave asks its master who else has its number: so that is there first.
        for member in range(self.replicas):
            started = range(member, len(self.brokers), self.replicas)
            _start([self.brokers[number] for number in started])
            for number in started:
                if self._ways is not None:
                    broker = self.brokers[number]
                    ports = [broker.port, *([broker.port + 1] if self.replicas > 1 else [])]
                    self._ways.connect_broker(number, broker, NETWORK_HOST, ports, len(self.brokers))
        self.wait_registered()

    def _running_brokers(self) -> dict[int, int]:
        """Process id → number, for the thread of the networks: meanwhile another one stops and starts them."""
        found = {}
        for number, broker in enumerate(self.brokers):
            with contextlib.suppress(ServerDied):
                found[broker.pid] = number
        return found

    def _from_brokers(self, kind: str, number: int) -> list[NetworkWay]:
        return [NetworkWay(BROKER, broker, kind, number) for broker in range(len(self.brokers))]

    def _connect(self, ways: Sequence[NetworkWay], server: AnyServer) -> None:
        if self._ways is not None:
            self._ways.connect(ways, server)

    def _network(self, way: NetworkWay) -> FlakyNetwork:
        return self._known_ways(way).network(way)

    def _known_ways(self, way: NetworkWay) -> Ways:
        if self._ways is None:
            raise ConfigError(f"there is no network from {way}: start the cluster with networks=True")
        return self._ways

    # ------------------------------------------------------------------ what brokers are told

    def _name_of(self, number: int) -> str:
        broker, member = divmod(number, self.replicas)
        return f"broker-{broker}" if self.replicas == 1 else f"broker-{broker}-{member + 1}"

    def _role_of(self, number: int, options: Mapping[str, object]) -> dict[str, object]:
        is_pair = self.replicas > 1 and options.get("failover") != ZOOKEEPER
        return {"brokerRole": SYNC_MASTER} if is_pair and number % self.replicas == 0 else {}

    def _number_of(self, number: int, options: Mapping[str, object]) -> dict[str, object]:
        member = number % self.replicas
        if options.get("failover") == ZOOKEEPER:
            return {"brokerId": member + 1}
        return {"brokerRole": SLAVE, "brokerId": member} if member else {}

    def _broker_arguments(self, number: int) -> list[str]:
        broker = self.brokers[number]
        told = ["broker", "--name", broker.broker_name, "-n", self._joined(BROKER, number)]
        if self.replicas > 1:
            told += ["-o", f"haListenPort={broker.port + 1}"]
        if broker.options.get("failover") == ZOOKEEPER and "failoverZookeeper" not in broker.options and self.zookeeper:
            told += ["-o", f"failoverZookeeper={self._zookeeper_for(number)}"]
        return told

    def _zookeeper_for(self, broker: int) -> str:
        if not self._networks_wanted or self._zookeeper:
            return self.zookeeper
        return ",".join(self.broker_to_zookeeper(broker, at).address for at in range(len(self.zookeepers)))

    def _joined(self, who: str, which: int) -> str:
        if not self._networks_wanted:
            return ";".join(server.listens for server in self.name_servers)
        ways = [NetworkWay(who, which, NAMESRV, number) for number in range(len(self.name_servers))]
        return ";".join(self._network(way).address for way in ways)

    # ------------------------------------------------------------------ ends

    @property
    def servers(self) -> tuple[AnyServer, ...]:
        """All processes, in the order in which they start."""
        return (*self.zookeepers, *self.name_servers, *self.brokers)

    def deaths(self) -> dict[str, str]:
        """Return the processes that have ended by themselves: name → exit code and last log lines."""
        return {server.name: server.death for server in self.servers if server.death}

    def _note_deaths(self, error: BaseException) -> None:
        for death in self.deaths().values():
            error.add_note(death)

    def _end(self) -> None:
        for server in reversed(self.servers):
            # First: no fault of a network may leave a process behind.
            server._reached_by(())  # noqa: SLF001  parts of one cluster
            server.close()
        ways, self._ways = self._ways, None
        if ways is not None:
            ways.close()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ServerDied as died:
            if error is None:
                raise
            error.add_note(str(died))


def _start(servers: Sequence[ClusterServer]) -> None:
    for server in servers:
        server.folder.mkdir(parents=True, exist_ok=True)
        # All are launched before the first is waited for, so that they start at the same time.
        server.launch_on_free_port()
    for server in servers:
        server.wait_ready_on_free_port()


def _stop(servers: Sequence[AnyServer]) -> list[str]:
    """Stop those that run, beside each other. Returns what went wrong."""
    failures, stopping = [], []
    for server in servers:
        try:
            if server.alive or server.death:
                server.ask_to_stop()
                stopping.append(server)
        except ServerDied as error:
            failures.append(str(error))
    for server in stopping:
        try:
            server.wait_stopped()
        except ServerDied as error:
            failures.append(str(error))
    return failures


def _all_answer(wanted: set[str], admin: Admin) -> bool:
    """Whether the name server knows these brokers, names or addresses, and each answers under the address that it tells."""
    answering = [status for status in admin.list_brokers() if not status.error]
    return wanted <= {name for status in answering for name in (status.broker, status.address)}
