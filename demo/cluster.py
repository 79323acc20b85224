"""`python -m demo.cluster [SET-UP ...]`: clusters of masters and slaves under load, one master killed: what each costs and survives.

The set-ups are those of `conf/`. Exits with 1 if a message is lost that the set-up promises to keep.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from rich.console import Console
from rich.table import Table

import metaq
from metaq.admin import Admin
from metaq.testing import free_port
from metaq.testing.embedded import SMALL
from metaq.testing.process import ServerProcess, option_flags

ROOT: Final = Path(__file__).resolve().parent.parent
CONF: Final = ROOT / "conf"
SET_UPS: Final = ("2m-noslave", "2m-2s-async", "2m-2s-sync")
TOPIC: Final = "orders"
OPTIONS: Final = {
    **SMALL, "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1", "vipPortEnable": "false", "slaveReadEnable": "true",
}  # fmt: skip
PRODUCERS: Final = 4
LOST_SECONDS: Final = 60.0
"""After so long without a message, what has not come is lost."""

console = Console(highlight=False)


class Server(ServerProcess):
    """A name server or a broker, with the `metaq` arguments that start it."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[str]) -> None:
        super().__init__(name, folder / f"{name}.log")
        self._words = tuple(arguments)

    def _arguments(self) -> Sequence[str]:
        return self._words

    def start(self) -> None:
        self.launch()
        self.wait_ready()


class Cluster:
    """A name server, and a broker for each file of a set-up, on free ports of this machine."""

    def __init__(self, set_up: str, folder: Path) -> None:
        self.namesrv = f"127.0.0.1:{free_port()}"
        names = ("namesrv", "--data", str(folder / "namesrv"), "--port", self.namesrv.rpartition(":")[2])
        self.servers = {"namesrv": Server("namesrv", folder, names)}
        for path in sorted((CONF / set_up).glob("*.properties")):
            words = ["broker", "-c", str(path), "--data", str(folder / path.stem), "-n", self.namesrv]
            words += ["--port", str(free_port(1)), *option_flags(OPTIONS)]
            self.servers[path.stem] = Server(path.stem, folder, words)

    def __enter__(self) -> Self:
        try:
            for server in self.servers.values():
                server.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_for_slaves(self) -> None:
        """Return when each master's slave copies from it."""
        masters = [self.servers[name.removesuffix("-s")] for name in self.servers if name.endswith("-s")]
        while not all("copies the log from" in master.log.read_text() for master in masters):
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        for server in reversed(self.servers.values()):
            if server.launched:
                with contextlib.suppress(metaq.MetaqError):
                    server.kill()


class Load:
    """Producers, and a consumer of all that they send."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv, self._over, self._all_sent = namesrv, threading.Event(), threading.Event()
        self.acknowledged: dict[bytes, str] = {}
        """Body → the status that its send was answered with."""
        self.repeated = 0
        """Sends that failed, and were repeated."""
        self.got = collections.Counter[bytes]()
        self.last_got = time.monotonic()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(PRODUCERS)]
        self._consumer = threading.Thread(target=self._consume)

    def start(self) -> None:
        for thread in (*self._threads, self._consumer):
            thread.start()

    def _send(self, number: int) -> None:
        with metaq.Producer(self._namesrv, timeout=3.0) as producer:
            count = 0
            while not self._over.is_set():
                body = b"%d:%d " % (number, count) + b"x" * 1000
                try:
                    self.acknowledged[body] = producer.send(TOPIC, body).status.name
                    count += 1
                except metaq.MetaqError:
                    self.repeated += 1
                    time.sleep(0.05)

    def _consume(self) -> None:
        with metaq.Consumer(self._namesrv, group="readers", topics=TOPIC, start="earliest") as consumer:
            while not (self._all_sent.is_set() and self.missing == 0):
                message = consumer.receive(timeout=1.0)
                if message is not None:
                    with message:
                        self.got[message.body] += 1
                    self.last_got = time.monotonic()
                elif self._all_sent.is_set() and time.monotonic() - self.last_got > LOST_SECONDS:
                    return

    @property
    def missing(self) -> int:
        return len(self.acknowledged.keys() - self.got.keys())

    def stop_sending(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._all_sent.set()

    def wait_for_all(self) -> None:
        self._consumer.join()


def run(set_up: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Kill `broker-a` under load, and bring it back at the end if it has no slave. Returns the figures."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Cluster(set_up, folder) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=4)
        cluster.wait_for_slaves()
        load = Load(cluster.namesrv)
        load.start()
        time.sleep(seconds)
        rate = len(load.acknowledged) / seconds
        cluster.servers["broker-a"].kill()
        time.sleep(seconds)
        load.stop_sending()
        has_slave = "broker-a-s" in cluster.servers
        if not has_slave:  # its messages are safe, and wait for it
            cluster.servers["broker-a"].start()
        load.wait_for_all()
        statuses = collections.Counter(load.acknowledged.values())
        lost = [load.acknowledged[body] for body in load.acknowledged.keys() - load.got.keys()]
        return {
            "set-up": set_up,
            "sends/s": f"{rate:,.0f}",
            "acknowledged": f"{len(load.acknowledged):,}",
            "not SEND_OK": ", ".join(f"{count:,} {name}" for name, count in statuses.items() if name != "SEND_OK")
            or "0",
            "repeated sends": f"{load.repeated:,}",
            "read without broker-a": "yes, from its slave" if has_slave else "no, when it is back",
            "lost": f"{len(lost):,}",
            "broken": sum(status == "SEND_OK" for status in lost) if set_up != "2m-2s-async" else 0,
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.cluster", description=__doc__)
    parser.add_argument("set_ups", nargs="*", choices=[*SET_UPS, []], metavar="SET-UP", help=", ".join(SET_UPS))
    parser.add_argument("--seconds", type=float, default=4.0, help="of load before the kill, and behind it")
    parser.add_argument("--output", type=Path, default=ROOT / "demo-out" / "cluster")
    arguments = parser.parse_args()
    table, broken = Table(title="broker-a is killed under load, and stays away"), 0
    for number, set_up in enumerate(arguments.set_ups or SET_UPS):
        console.print(
            f"{set_up}: two masters{', each with a slave' if set_up != SET_UPS[0] else ''}, {PRODUCERS} producers ..."
        )
        figures = run(set_up, arguments.output / set_up, arguments.seconds)
        broken += figures.pop("broken")
        if number == 0:
            for name in figures:
                table.add_column(name, no_wrap=name == "set-up")
        table.add_row(*figures.values())
    console.print(table)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
