"""Brokers and name servers as processes of their own, and a network between them and their clients that can fail."""

from __future__ import annotations

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
from metaq.testing.embedded import SMALL
from metaq.testing.network import FlakyNetwork, NetworkThread
from metaq.testing.ports import free_port
from metaq.testing.process import START_SECONDS, ServerDied, ServerProcess, option_flags
from metaq.testing.waiting import eventually

BROKERS_MAX: Final = 16
NAME_SERVERS_MAX: Final = 8
PORT_TRIES_MAX: Final = 5
NETWORK_HOST: Final = "127.0.0.2"
"""Address on which the networks to brokers listen.

A broker tells clients this address with its own port, so the network has that port, and only the address differs.
"""

_Way = tuple[str, int, str, int]
"""Way of a network: kind and number of the one that connects, then of what it connects to: ("broker", 0, "namesrv", 1)."""


class ClusterServer(ServerProcess):
    """A broker or name server of a `Cluster`.

    Beside what follows: `pid`, `alive`, `kill` (SIGKILL), `stop` (SIGTERM), `pause` and `resume` (SIGSTOP, SIGCONT),
    `wait_ended`, `log_text`. All raise ServerDied, with the last lines of its log, if it has ended by itself.

    `options`: what is set on its command line; a change holds from the next start. `folder`: all its files.
    """

    def __init__(
        self,
        name: str,
        folder: pathlib.Path,
        options: Mapping[str, object],
        arguments: Callable[[], list[str]],
        environment: Mapping[str, str] | None,
        timeout: float,
    ) -> None:
        super().__init__(name, folder / "log.txt", environment, timeout)
        self.folder = folder
        self.data = folder / "data"
        """Folder of the store, or of the KV configuration."""
        self.options = dict(options)
        self.port = 0
        """Port on 127.0.0.1, the same after each start."""
        self._more_arguments = arguments
        self._networks: list[FlakyNetwork] = []

    @property
    def listens(self) -> str:
        """`host:port` of the process itself, past any network."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it again, on the same port and folder; returns when it is ready. Raises ServerDied."""
        self.launch()
        self.wait_ready()

    def restart(self) -> None:
        """`stop` it if it runs, and `start` it again. Raises ServerDied."""
        if self.alive:
            self.stop()
        self.start()

    def reached_by(self, networks: Sequence[FlakyNetwork]) -> None:
        """Let these networks refuse connections while this server does not run."""
        self._networks = list(networks)

    def launch_on_free_port(self) -> None:
        """Launch it for the first time; `wait_ready_on_free_port` must follow."""
        self.port = free_port(-2, 1)  # a broker may want the neighbours for its VIP port and for its slaves
        self.launch()

    def wait_ready_on_free_port(self) -> None:
        """As `wait_ready`; on another port if somebody took this one in the meantime."""
        # `free_port` has closed the port again, so another process may take it before the server listens.
        for _ in range(PORT_TRIES_MAX - 1):
            try:
                self.wait_ready()
            except ServerDied:
                if f"cannot listen on {self.listens}" not in self.log_tail():
                    raise
                self.launch_on_free_port()
            else:
                return
        self.wait_ready()

    def _arguments(self) -> Sequence[str]:
        fixed = ["--port", str(self.port), "--data", str(self.data)]
        return [*self._more_arguments(), *fixed, *option_flags(self.options)]

    def _is_ready(self, line: str) -> None:  # noqa: ARG002  it has the port that it was told
        for network in self._networks:
            network.accept()

    def _release(self) -> None:
        super()._release()
        for network in self._networks:
            network.refuse()


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

    Args:
        folder: where each process gets a folder of its own; it is kept. By default a temporary one that goes with the
            cluster.
        options: any options of docs/configuration.md for all brokers, over `SMALL`.
        broker_options: for one broker each, over those.
        namesrv_options: for all name servers.
        networks: put a `FlakyNetwork` on every way between clients, brokers and name servers (Linux: it needs a second
            loopback address).
        environment: variables of all processes beside ours.
        timeout: seconds that a start may take.
        program: the module that is run in place of `metaq`, for faults of a test's own.

    Raises: ConfigError: a number out of bounds (up to 16 brokers, 1 to 8 name servers).
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        name_servers: int = 1,
        folder: str | os.PathLike[str] | None = None,
        options: Mapping[str, object] | None = None,
        broker_options: Sequence[Mapping[str, object]] = (),
        namesrv_options: Mapping[str, object] | None = None,
        networks: bool = False,
        environment: Mapping[str, str] | None = None,
        timeout: float = START_SECONDS,
        program: str = "metaq",
    ) -> None:
        if not 0 <= brokers <= BROKERS_MAX or not 1 <= name_servers <= NAME_SERVERS_MAX:
            raise ConfigError(
                f"{brokers} brokers, {name_servers} name servers: a cluster has up to {BROKERS_MAX} and 1 to {NAME_SERVERS_MAX}"
            )
        if len(broker_options) > brokers:
            raise ConfigError(f"options for {len(broker_options)} brokers, but there are {brokers}")
        self._temporary = folder is None
        self.folder = pathlib.Path(folder if folder is not None else tempfile.mkdtemp(prefix="metaq-cluster-"))
        self._timeout = timeout
        self._networks_wanted = networks
        self._thread: NetworkThread | None = None
        self._networks: dict[_Way, FlakyNetwork] = {}

        def server(name: str, options: Mapping[str, object], arguments: Callable[[], list[str]]) -> ClusterServer:
            made = ClusterServer(name, self.folder / name, options, arguments, environment, timeout)
            made.program = program
            return made

        self.name_servers: tuple[ClusterServer, ...] = tuple(
            server(f"namesrv-{number}", namesrv_options or {}, lambda: ["namesrv"]) for number in range(name_servers)
        )
        # Brokers tell name servers this address, and so clients come through the network without knowing it.
        told = {"brokerIP1": NETWORK_HOST} if networks else {}
        self.brokers: tuple[ClusterServer, ...] = tuple(
            server(
                f"broker-{number}",
                {**SMALL, **told, **(options or {}), **dict(*broker_options[number : number + 1])},
                functools.partial(self._broker_arguments, number),
            )
            for number in range(brokers)
        )

    @property
    def namesrv(self) -> str:
        """The name servers' addresses for clients, `host:port;host:port`; through the networks, if there are any."""
        return self._joined("client", 0)

    def address(self, broker: int) -> str:
        """`host:port` of a broker as clients are told it; through the network, if there is one."""
        port = self.brokers[broker].port
        return f"{NETWORK_HOST}:{port}" if self._networks_wanted else f"127.0.0.1:{port}"

    def client_to_broker(self, broker: int) -> FlakyNetwork:
        """The network between all clients and one broker. Raises ConfigError without `networks=True`."""
        return self._network("client", 0, "broker", broker)

    def client_to_namesrv(self, name_server: int) -> FlakyNetwork:
        """The network between all clients and one name server. Raises ConfigError without `networks=True`."""
        return self._network("client", 0, "namesrv", name_server)

    def broker_to_namesrv(self, broker: int, name_server: int) -> FlakyNetwork:
        """The network between one broker and one name server. Raises ConfigError without `networks=True`."""
        return self._network("broker", broker, "namesrv", name_server)

    def mend(self) -> None:
        """End the faults of all networks."""
        for network in self._networks.values():
            network.mend()

    def start(self) -> Self:
        """Start everything. Raises ServerDied: one did not get ready; AssertionError: it does not register.

        Raises ConfigError: it runs, and goes on running.
        """
        if any(server.launched for server in (*self.name_servers, *self.brokers)):
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
        if deaths := self._deaths():
            raise ServerDied("\n".join(deaths))

    def wait_registered(self) -> None:
        """Return when every running broker is registered at every running name server, and answers clients.

        Raises AssertionError: not within the `timeout` of the cluster.
        """
        wanted = {broker.name for broker in self.brokers if broker.alive}
        for name_server in self.name_servers:
            if name_server.alive:
                with Admin(name_server.listens) as admin:
                    what = f"the registration of {', '.join(sorted(wanted))} at {name_server.name}"
                    eventually(functools.partial(_all_answer, wanted, admin), self._timeout, what=what)

    def close(self) -> None:
        """Stop everything that runs, and remove the folder if it was temporary.

        Raises ServerDied: one had ended by itself, or did not stop cleanly. Nothing runs any more all the same.
        """
        failures: list[str] = []
        try:
            # With the faults ended, brokers can take their registrations back, and end in time.
            self.mend()
            # Brokers first: at its end each takes its registration back at the name servers.
            for servers in (self.brokers, self.name_servers):
                failures += _stop(servers)
        finally:
            self._end()
        if failures:
            raise ServerDied("\n".join(failures))

    def _start(self) -> None:
        if self._networks_wanted and self._thread is None:
            self._thread = NetworkThread()
        # Brokers get the name servers' addresses, or those of the networks to them, on their command line.
        _start(self.name_servers)
        for number, name_server in enumerate(self.name_servers):
            ways = [("client", 0, "namesrv", number)]
            ways += [("broker", broker, "namesrv", number) for broker in range(len(self.brokers))]
            self._connect(ways, name_server, "127.0.0.1:0")
        _start(self.brokers)
        for number, broker in enumerate(self.brokers):
            # The network has the broker's port: a broker tells an address of its own, but not another port.
            self._connect([("client", 0, "broker", number)], broker, f"{NETWORK_HOST}:{broker.port}")
        self.wait_registered()

    def _connect(self, ways: Sequence[_Way], server: ClusterServer, listen: str) -> None:
        if self._thread is not None:
            for way in ways:
                self._networks[way] = FlakyNetwork(server.listens, listen=listen, thread=self._thread).start()
            server.reached_by([self._networks[way] for way in ways])

    def _network(self, who: str, which: int, kind: str, number: int) -> FlakyNetwork:
        try:
            return self._networks[who, which, kind, number]
        except KeyError:
            raise ConfigError(
                f"there is no network from {who} to {kind} {number}: start the cluster with networks=True"
            ) from None

    def _broker_arguments(self, broker: int) -> list[str]:
        return ["broker", "--name", self.brokers[broker].name, "-n", self._joined("broker", broker)]

    def _joined(self, who: str, which: int) -> str:
        if not self._networks_wanted:
            return ";".join(server.listens for server in self.name_servers)
        return ";".join(self._network(who, which, "namesrv", j).address for j in range(len(self.name_servers)))

    def _deaths(self) -> list[str]:
        return [server.death for server in (*self.name_servers, *self.brokers) if server.death]

    def _note_deaths(self, error: BaseException) -> None:
        for death in self._deaths():
            error.add_note(death)

    def _end(self) -> None:
        for server in (*self.brokers, *self.name_servers):
            server.reached_by(())  # first: no fault of a network may leave a process behind
            server.end()
        for network in self._networks.values():
            network.close()
        self._networks.clear()
        if self._thread is not None:
            self._thread.close()
            self._thread = None
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


def _stop(servers: Sequence[ClusterServer]) -> list[str]:
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


def _all_answer(names: set[str], admin: Admin) -> bool:
    """Whether the name server knows these brokers, and each answers under the address that it tells."""
    return names <= {status.broker for status in admin.list_brokers() if not status.error}
