"""The servers of a cluster: processes with a folder, a port for all their lives, and a disk and a clock that may be steered."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from metaq.address import split_address
from metaq.errors import ConfigError
from metaq.testing.disk_faults import CUT, DISK, PROGRAM, SEED, DiskFaults
from metaq.testing.faketime import MISSING, FakedClock
from metaq.testing.ports import HeldPort
from metaq.testing.process import ServerDied, ServerProcess, option_flags

PORT_TRIES_MAX: Final = 5
_PROBE_SECONDS: Final = 1.0
_PROBE_PAUSE: Final = 0.05


class Entrance(Protocol):
    """What clients of a server connect to: a network, or a port that several networks share."""

    def refuse(self) -> None: ...

    def accept(self) -> None: ...


class ClusterServer(ServerProcess):
    """A broker or name server, made by `Cluster`.

    Beside what follows: `pid`, `alive`, `kill` (SIGKILL), `stop` (SIGTERM), `pause` and `resume` (SIGSTOP, SIGCONT),
    `wait_ended`, `log_text`. All raise ServerDied, with the last lines of its log, if it has ended by itself.

    `options`: what is set on its command line; a change holds from the next start. `folder`: all its files.
    `timeout`: seconds that a start may take.
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
        self._given_environment = dict(environment or {})
        self.lost_data: pathlib.Path | None = None
        """What its folder held when its power was cut last."""
        self.folder = folder
        self.data = folder / "data"
        """Folder of the store, or of the KV configuration."""
        self.options = dict(options)
        self.port = 0
        """Port on 127.0.0.1, the same after each start. It is held while the server is down, until `close`."""
        self._held: HeldPort | None = None
        self.broker_name = name
        """Of a broker: what replicas of one log have in common."""
        self._clock: FakedClock | None = None
        """Its wall clock, if that can be set (`Cluster(clocks=True)`)."""
        self.extra_ports: tuple[int, ...] = ()
        """Distances of further ports that it listens on."""
        self._more_arguments = arguments
        self._power_cuts = 0
        self._networks: list[Entrance] = []

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

    def cut_power(self) -> None:
        """Kill it, and leave in its folder what a machine without power has on its disk; what was there is kept beside it.

        Raises ConfigError: the cluster has no faulty disks. ServerDied: it does not run.
        """
        self._check_steered()
        process = self._running()
        self._refuse()
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGCONT)
        self.wait_ended()
        self._power_cuts += 1
        self.lost_data = self.data.with_name(f"{self.data.name}.lost-{self._power_cuts}")
        self.data.rename(self.lost_data)
        self.data.with_name(self.data.name + CUT).rename(self.data)

    def set_disk(self, *, room: int | None = None, no_files: bool = False, sync_seconds: float = 0.0) -> None:
        """Change how its disk is: bytes that are left, whether files can be made, how much longer a sync takes.

        Without arguments it is well again. A server that starts has a disk that is well. Raises as `cut_power`.
        """
        self._check_steered()
        faults = DiskFaults(room, no_files, sync_seconds)
        if not self.ready:  # a signal would end a process that does not listen to it yet
            if faults != DiskFaults():
                raise ServerDied(f"{self.name} is not ready yet: its disk is well")
            return
        self.data.with_name(self.data.name + DISK).write_bytes(msgspec.json.encode(faults))
        self._running().send_signal(signal.SIGUSR2)

    def set_clock(self, seconds: float) -> None:
        """Have its wall clock go ahead, or behind (negative); 0: it is right again. Also of a server that does not run.

        Raises ConfigError: the cluster's clocks cannot be set.
        """
        if self._clock is None:
            raise ConfigError(f"the clock of {self.name} cannot be set: start the cluster with clocks=True. {MISSING}")
        self._clock.set(seconds)

    def _check_steered(self) -> None:
        if self.program != PROGRAM:
            raise ConfigError(f"the disk of {self.name} cannot fail: start the cluster with faulty_disks=True")

    def _reached_by(self, networks: Sequence[Entrance]) -> None:
        """Let these networks refuse connections while this server does not run."""
        self._networks = list(networks)

    def launch_on_free_port(self) -> None:
        """Launch it for the first time; `wait_ready_on_free_port` must follow, and `close` at last."""
        before, self._held = self._held, HeldPort(-2, 1)  # a broker may want these for its VIP port and for its slaves
        if before is not None:
            before.close()
        self.port = self._held.port
        self.launch()

    def close(self) -> None:
        """Kill it if it runs, and give its port back."""
        self.end()
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def launch(self) -> None:
        """Make the process and return; `wait_ready` must follow. Raises ServerDied."""
        more = {**(self._clock.environment if self._clock is not None else {}), SEED: f"{self.name} {self._power_cuts}"}
        self._environment = {**self._given_environment, **more}
        super().launch()
        if self._networks:
            threading.Thread(target=self._accept_when_it_listens, args=(self._process,), daemon=True).start()

    def _accept_when_it_listens(self, process: object) -> None:
        """Let clients in as soon as they would be let in without the networks: that may be long before it is ready."""
        pause = threading.Event()
        while self._process is process and self.alive:
            try:
                socket.create_connection(split_address(self.listens), _PROBE_SECONDS).close()
            except OSError:
                pause.wait(_PROBE_PAUSE)
                continue
            with contextlib.suppress(ConfigError):  # a network was closed
                for network in self._networks:
                    network.accept()
                if self._process is not process:
                    self._refuse()
            return

    def wait_ready_on_free_port(self) -> None:
        """As `wait_ready`; on another port if somebody took this one in the meantime."""
        # Who does not ask `HeldPort` may take it before the server listens.
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
        self._refuse()

    def _refuse(self) -> None:
        for network in self._networks:
            network.refuse()
