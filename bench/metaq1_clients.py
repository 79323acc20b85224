"""A server of MetaQ 1.x and clients of it in processes of their own: ours, and the Java programs of `bench/java`."""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import processes

sys.path.insert(0, str(processes.ROOT))

from tests.interop import maven
from tests.interop.metaq1 import CLIENT, OriginalServer, OurServer, TextServer, Zookeeper, java_command

KINDS: dict[str, type[TextServer]] = {"original": OriginalServer, "ours": OurServer}
PARTITIONS = 4
TOPIC = "bench"


@contextlib.contextmanager
def serving(disk: Path, kind: str, *loads: dict[str, int]) -> Iterator[Zookeeper]:
    """A server that has taken messages by `textload`, as each of `loads` says; ZooKeeper is where clients find it.

    It has 4 partitions, its files in the page cache (unflushThreshold=1000), and if it is the original a heap of 1 GiB.
    """
    folder = Path(tempfile.mkdtemp(prefix="metaq1-", dir=disk))
    system = {
        "unflushThreshold": 1000,
        "unflushInterval": 1000,
        "maxSegmentSize": 1 << 30,
        "numPartitions": PARTITIONS,
        "stat": "false",
    }
    try:
        with Zookeeper(folder) as zookeeper:
            server = KINDS[kind](folder / "server", zookeeper, {TOPIC: {}}, system)
            if isinstance(server, OriginalServer):
                server.jvm = ("-Xmx1g", "-Xms1g")
            with server:
                cache = processes.ROOT / ".cache" / "bench"
                for load in loads:
                    processes.load(cache, "put", server.text, generator="textload", partitions=PARTITIONS, **load)
                yield zookeeper
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rate(command: list[str]) -> float:
    """The messages a second that a client tells. Raises RuntimeError: it failed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=processes.PATIENCE,
        env=processes.environment(),
    )
    found = re.search(r"\brate (\S+)", done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"{command[-7:]} failed: {(done.stdout + done.stderr)[-1000:]}")
    return float(found.group(1))


def java_program(name: str, home: Path) -> list[str]:
    """The command of a program of `bench/java` with the Java client 1.4.6.2, without its arguments; compiled into `home`."""
    command = java_command(home, CLIENT, ("-Xmx512m",), "ERROR")
    classes = command[command.index("-cp") + 1]
    source = processes.ROOT / "bench" / "java" / f"{name}.java"
    compiler = [maven.java(compiler=True), "-cp", classes, "-d", str(home), str(source)]
    compiled = subprocess.run(compiler, capture_output=True, text=True, check=False)
    if compiled.returncode:
        raise RuntimeError(f"{source.name} does not compile: {compiled.stderr[-500:]}")
    return [*command, name]
