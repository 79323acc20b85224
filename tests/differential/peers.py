"""The two that must not be told apart: RocketMQ 4.9.7's name server and broker, and ours, with one broker.conf."""

import contextlib
import os
import socket
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from metaq.testing import FlakyNetwork
from tests.interop import maven
from tests.interop.servers import CLUSTER, DELAY_LEVELS, Process, launch
from tests.support import environment, kept_port, metaq_command, read_frame

BROKER = "broker-a"


class Peer(ABC):
    """A name server and a broker over one data folder. Addresses and data outlive restarts.

    Clients of `namesrv` reach the broker directly, those of `faulty_namesrv` through `network`, which can be cut.
    """

    name: str

    def __init__(self, folder: Path, settings: dict[str, str], of_namesrv: dict[str, str] | None = None) -> None:
        self.folder = folder
        port = kept_port(self, -2, 1)  # the VIP port and that of replication are taken too
        self.namesrv, self.broker = f"127.0.0.1:{kept_port(self)}", f"127.0.0.1:{port}"
        self._namesrv_process: Process | None = None
        self._broker_process: Process | None = None
        (folder / "conf").mkdir(parents=True, exist_ok=True)
        heads = {"listenPort": self.namesrv.rpartition(":")[2], **(of_namesrv or {})}
        (folder / "namesrv.conf").write_text("".join(f"{key}={value}\n" for key, value in heads.items()))
        lines = {
            "brokerClusterName": CLUSTER,
            "brokerName": BROKER,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": str(port),
            "namesrvAddr": self.namesrv,
            "storePathRootDir": f"{folder}/store",
            "storePathCommitLog": f"{folder}/store/commitlog",
            "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
            "warmMapedFileEnable": "false",
            "messageDelayLevel": DELAY_LEVELS,
            **settings,
        }
        (folder / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.network = FlakyNetwork(self.broker).start()
        self._translator = _Translator(self.namesrv, self.broker, self.network.address)
        self.faulty_namesrv = self._translator.address

    def start(self) -> None:
        try:
            self._namesrv_process = self._start("namesrv")
            self.start_broker()
        except BaseException:
            self.close()
            raise

    def start_broker(self) -> None:
        assert self._broker_process is None
        self._broker_process = self._start("broker")

    @property
    def is_up(self) -> bool:
        return self._broker_process is not None

    def stop_broker(self) -> None:
        """End it as an administrator would."""
        process, self._broker_process = self._broker_process, None
        assert process is not None
        process.stop()

    def kill_broker(self) -> None:
        """End it by kill -9."""
        process, self._broker_process = self._broker_process, None
        assert process is not None
        process.kill()

    def close(self) -> None:
        for process in (self._broker_process, self._namesrv_process):
            if process is not None:
                process.kill()
        self._broker_process = self._namesrv_process = None
        self._translator.close()
        self.network.close()

    @abstractmethod
    def _start(self, what: str) -> Process:
        """Start `namesrv` or `broker`, and wait until it is ready."""


class Metaq(Peer):
    """Ours, as users start them."""

    name = "metaq"

    def _start(self, what: str) -> Process:
        arguments = ["-c", str(self.folder / f"{what}.conf")]
        if what == "namesrv":
            arguments += ["--data", str(self.folder / "namesrv")]
        command = metaq_command(what, *arguments)
        return launch(command, self.folder / f"{what}.log", rf"^ready {what} \S+", environment())[0]


class Rocketmq(Peer):
    """RocketMQ 4.9.7, as its jars come."""

    name = "rocketmq"

    def __init__(self, folder: Path, settings: dict[str, str], of_namesrv: dict[str, str] | None = None) -> None:
        super().__init__(folder, settings, of_namesrv)
        for name in ("namesrv", "broker"):
            (folder / "conf" / f"logback_{name}.xml").write_text('<configuration><root level="OFF"/></configuration>')

    def _start(self, what: str) -> Process:
        command = [maven.java(), "-Xmx384m", "-XX:TieredStopAtLevel=1", f"-Duser.home={self.folder}"]
        for module in ("jdk.internal.ref", "sun.nio.ch", "java.nio"):
            command += [f"--add-opens=java.base/{module}=ALL-UNNAMED"]
        command += ["--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"]
        main = {"namesrv": "namesrv.NamesrvStartup", "broker": "broker.BrokerStartup"}[what]
        command += ["-cp", f"{maven.jars(*maven.SERVER)}/*", f"org.apache.rocketmq.{main}"]
        command += ["-c", str(self.folder / f"{what}.conf")]
        return launch(command, self.folder / f"{what}.log", r"boot success", {"ROCKETMQ_HOME": str(self.folder)})[0]


class _Translator:
    """A way to a name server whose answers name the broker at another address of the same length.

    Brokers register one address, which is their own; this shows clients the one of the network before it.
    """

    def __init__(self, namesrv: str, broker: str, shown: str) -> None:
        assert len(broker) == len(shown)
        self._target = namesrv
        self._broker, self._shown = broker.encode(), shown.encode()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                host, _, port = self._target.rpartition(":")
                try:
                    server = socket.create_connection((host, int(port)))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), source.makefile("rb") as stream:
            while frame := read_frame(stream):
                sink.sendall(frame.replace(self._broker, self._shown))
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def peer_of(name: str, folder: Path, settings: dict[str, str], of_namesrv: dict[str, str]) -> Peer:
    return {"metaq": Metaq, "rocketmq": Rocketmq}[name](folder, settings, of_namesrv)


def recording() -> bool:
    """Are RocketMQ's transcripts to be written anew?"""
    return os.environ.get("METAQ_RECORD", "") == "1"
