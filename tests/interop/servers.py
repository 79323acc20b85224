"""The broker and name server under test: ours, or RocketMQ's own, which proves that a test asks for the right thing."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from metaq.testing import EmbeddedBroker
from metaq.testing.process import wait_halted
from tests.interop import maven
from tests.support import PATIENCE, environment, eventually, kept_port, metaq_command

READY_SECONDS = PATIENCE
CLUSTER = "DefaultCluster"
DELAY_LEVELS = "1s 2s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s"
"""Quick ones, so that retries (level 3 and up) come after a second."""


class Server(Protocol):
    """A name server and a broker over one data folder; the addresses outlive a restart."""

    namesrv: str
    broker: str
    data: Path

    def start(self) -> None: ...

    def stop(self) -> None:
        """End it as an administrator would."""

    def kill(self) -> None:
        """End it as a crash would."""


class Process:
    """A child process with its output in a file."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(env or {})})

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_for(self, pattern: str, start: int) -> re.Match[str]:
        """The first match in what was logged behind byte `start`."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            text = self.log.read_bytes()[start:].decode(errors="replace")
            text = text[: text.rfind("\n") + 1]  # half a line may be half an address
            if found := re.search(pattern, text, re.MULTILINE):
                return found
            if self._child.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{self._child.args} did not say {pattern!r} in {READY_SECONDS} s: {text[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def halt(self) -> None:
        """SIGSTOP; returns when it stands."""
        self._child.send_signal(signal.SIGSTOP)
        wait_halted(self.pid)

    def go_on(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    def wait(self) -> None:
        """Until it has ended by itself."""
        self._child.wait(PATIENCE)


def launch(
    command: list[str], log: Path, pattern: str, env: dict[str, str] | None = None
) -> tuple[Process, re.Match[str]]:
    start = log.stat().st_size if log.exists() else 0
    process = Process(command, log, env)
    return process, process.wait_for(pattern, start)


class MetaqNamesrv:
    """`metaq namesrv` of this clone, alone."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self._folder, self._options = folder, options
        self.address = f"127.0.0.1:{kept_port(self)}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        command = metaq_command("namesrv", "--data", str(self._folder / "namesrv"))
        command += ["--port", self.address.rpartition(":")[2]]
        command += [word for option in self._options for word in ("-o", option)]
        log = self._folder / "namesrv.log"
        self._process, ready = launch(command, log, r"^ready namesrv (\S+)", environment())
        self.address = ready.group(1)

    def stop(self) -> None:
        self._process.stop()


class MetaqServer:
    """`metaq up` of this clone, or `metaq broker` at the name server `namesrv`; with small files and more `options`."""

    def __init__(self, folder: Path, data: Path | None = None, namesrv: str = "", options: Sequence[str] = ()) -> None:
        self._folder, self._options = folder, options
        self.data = data or folder / "data"
        self._alone = bool(namesrv)
        self.namesrv = namesrv or f"127.0.0.1:{kept_port(self)}"
        self.broker = f"127.0.0.1:{kept_port(self, -2, 1)}"

    def start(self) -> None:
        command = metaq_command("broker" if self._alone else "up", "--data", str(self.data))
        command += ["--port", self.broker.rpartition(":")[2]]
        command += ["-n", self.namesrv] if self._alone else ["--namesrv-port", self.namesrv.rpartition(":")[2]]
        command += ["-o", f"messageDelayLevel={DELAY_LEVELS}", "-o", "mappedFileSizeCommitLog=67108864"]
        command += ["-o", "vipPortEnable=true"]  # as RocketMQ's own
        for option in self._options:
            command += ["-o", option]
        pattern = (
            r"^ready broker \S+ (?P<broker>\S+)"
            if self._alone
            else r"^ready up namesrv=(?P<namesrv>\S+) broker=(?P<broker>\S+)"
        )
        self._process, ready = launch(command, self._folder / "metaq.log", pattern, environment())
        self.broker = ready["broker"]
        if not self._alone:
            self.namesrv = ready["namesrv"]

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()


class RocketmqServer:
    """The broker of RocketMQ 4.9.7 as its jars come, at the name server `namesrv` or one of its own; with small files and
    more `options`. `jvm`: more options of both Java processes."""

    def __init__(
        self,
        folder: Path,
        data: Path | None = None,
        namesrv: str = "",
        options: Sequence[str] = (),
        jvm: Sequence[str] = (),
    ) -> None:
        self._folder, self._jvm = folder, jvm
        self.data = data or folder / "store"
        self._alone = bool(namesrv)
        self._processes: list[Process] = []
        self.namesrv = namesrv or f"127.0.0.1:{kept_port(self)}"
        self._port = kept_port(self, -2, 1)
        self.broker = f"127.0.0.1:{self._port}"
        conf = folder / "conf"
        conf.mkdir(parents=True)
        for name in ("logback_namesrv.xml", "logback_broker.xml"):
            (conf / name).write_text('<configuration><root level="OFF"/></configuration>')
        (folder / "namesrv.properties").write_text(f"listenPort={self.namesrv.rpartition(':')[2]}\n")
        (folder / "broker.properties").write_text(
            f"brokerClusterName={CLUSTER}\nbrokerName=broker-a\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n"
            f"listenPort={self._port}\nnamesrvAddr={self.namesrv}\nstorePathRootDir={self.data}\n"
            f"storePathCommitLog={self.data}/commitlog\nmappedFileSizeCommitLog=67108864\n"
            f"messageDelayLevel={DELAY_LEVELS}\nwarmMapedFileEnable=false\n"
            + "".join(f"{option}\n" for option in options)
        )

    def start_namesrv(self) -> None:
        self._processes.append(self._java("namesrv.NamesrvStartup", "namesrv", "-Xmx128m", r"boot success"))

    def start(self) -> None:
        try:
            if not self._alone:
                self.start_namesrv()
            self._processes.append(self._java("broker.BrokerStartup", "broker", "-Xmx512m", r"boot success"))
        except BaseException:
            self.kill()
            raise

    def _java(self, main: str, name: str, heap: str, pattern: str) -> Process:
        command = [maven.java(), heap, "-XX:TieredStopAtLevel=1", f"-Duser.home={self._folder}", *self._jvm]
        command += [
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
        ]
        command += [
            "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        ]
        command += ["-cp", f"{maven.jars(*maven.SERVER)}/*", f"org.apache.rocketmq.{main}"]
        command += ["-c", str(self._folder / f"{name}.properties")]
        log = self._folder / f"{name}.log"
        return launch(command, log, pattern, {"ROCKETMQ_HOME": str(self._folder)})[0]

    def stop(self) -> None:
        while self._processes:
            self._processes.pop().stop()

    def kill(self) -> None:
        while self._processes:
            self._processes.pop().kill()


def mqadmin(folder: Path, server: Server | EmbeddedBroker, command: str, *arguments: str) -> str:
    """What RocketMQ's own administration tool prints; `folder` is for its configuration and logs.

    Its limit of five seconds for an answer is fixed: what was too slow for it is asked again. All commands of the tests read.
    """
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "logback_tools.xml").write_text('<configuration><root level="OFF"/></configuration>')
    java = [maven.java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}"]
    java += [f"-Dcom.rocketmq.remoting.client.connect.timeout={PATIENCE * 1000:.0f}"]
    java += ["-cp", f"{maven.jars(*maven.SERVER)}/*", "org.apache.rocketmq.tools.command.MQAdminStartup"]

    def printed() -> str:
        done = subprocess.run(
            [*java, command, "-n", server.namesrv, *arguments],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
            env={**os.environ, "ROCKETMQ_HOME": str(folder)},
        )  # fmt: skip
        text = done.stdout + done.stderr
        assert not re.search(r"Remoting\w+Exception|\bconnect to \S+ failed", text), text
        return text

    return eventually(printed, what=f"mqadmin {command}")


def end(server: MetaqServer | RocketmqServer, data: Path, ending: str) -> None:
    """`stop` it, or `kill` it a moment after its last new topic: its tables are whole then (docs/formats/journal.md)."""
    eventually(lambda: not list((data / "config").glob("*.journal.*")))
    getattr(server, ending)()
