"""Drivers, masters and workers of Spark as processes of a test's own, and who belongs to whom."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pyspark

from metaq.spark import find_java
from metaq.testing.ports import free_port
from tests.spark.jvm import home, java_options
from tests.support import PATIENCE, ROOT, WHOLE_PATIENCE, eventually

SPARK_HOME = Path(pyspark.__file__).parent
END_SECONDS = 60.0
"""How long a driver may take to end by itself."""
HOSTS = "127.0.0.1", "127.0.0.2"
"""Of the workers: Spark starts a speculative attempt on another host only."""


def spark_environment(*paths: Path, **more: str) -> dict[str, str]:
    """For processes of Spark: this test's Python and Java, and the folders given on PYTHONPATH, nothing else there."""
    passed = {name: text for name, text in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **passed,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONUNBUFFERED": "1",
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": HOSTS[0],
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **more,
    }


class Driver:
    """A `tests.spark.standalone.driver` that runs. Not for two threads."""

    def __init__(self, running: subprocess.Popen[str], log: Path) -> None:
        self.running, self.log = running, log

    def begin(self, job: str, **arguments: Any) -> None:
        """Start a job; `result` waits for it."""
        assert self.running.stdin is not None
        self.running.stdin.write(json.dumps([job, arguments]) + "\n")
        self.running.stdin.flush()

    def result(self) -> Any:
        """What the job has come to. Raises AssertionError: it failed."""
        assert self.running.stdout is not None
        for line in self.running.stdout:
            word, _, rest = line.partition(" ")
            if word in {"done", "failed"}:
                assert word == "done", json.loads(rest)
                return json.loads(rest)
        raise AssertionError(f"the driver has ended: {self.log.read_text()[-3000:]}")

    def run(self, job: str, **arguments: Any) -> Any:
        self.begin(job, **arguments)
        return self.result()


@contextlib.contextmanager
def driver(master: str, folder: Path, conf: Mapping[str, str]) -> Iterator[Driver]:
    """A driver with a session on `master`, ended with all it has started."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.default.parallelism": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.host": HOSTS[0],
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": java_options(),
        "spark.executor.extraJavaOptions": java_options(),
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        **conf,
    }
    log = folder / "driver.log"
    command = [sys.executable, "-m", "tests.spark.standalone.driver", master, json.dumps(settings)]
    env = spark_environment(ROOT / "src", ROOT, SPARK_HOME=home(), SPARK_WORKER_DIR=str(folder / "work"))
    with _started(command, folder, log, env, pipes=True) as running:
        assert running.stdout is not None
        if not any(line.strip() == "ready" for line in running.stdout):
            raise AssertionError(f"no session: {log.read_text()[-3000:]}")
        yield Driver(running, log)
        assert running.stdin is not None
        running.stdin.close()
        # So that Spark removes its files; a job that hangs is ended all the same.
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(END_SECONDS)


class Standalone:
    """A master, and a worker on each of `HOSTS`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ends = folder, contextlib.ExitStack()
        self.url = ""
        self._workers: dict[str, contextlib.ExitStack] = {}

    def __enter__(self) -> Self:
        port = free_port()
        self.url = f"spark://{HOSTS[0]}:{port}"
        self._ends.enter_context(
            self._daemon("master", "I have been elected leader", "master.Master", HOSTS[0], port)[0]
        )
        for host in HOSTS:
            self.start(host)
        return self

    def __exit__(self, *fault: object) -> None:
        for host in list(self._workers):
            self.kill(host)
        self._ends.close()

    def start(self, host: str) -> None:
        """A worker on `host`."""
        self._workers[host] = contextlib.ExitStack()
        options = ["-c", "4", "-m", "4g", self.url]
        running, _ = self._daemon(
            f"worker-{host}", "Successfully registered with master", "worker.Worker", host, 0, *options
        )
        self._workers[host].enter_context(running)

    def kill(self, host: str) -> None:
        """kill -9 of a worker with all its executors and their Pythons."""
        self._workers.pop(host).close()

    def _daemon(self, name: str, ready: str, kind: str, host: str, port: int, *more: str) -> Any:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "log.txt"
        log.unlink(missing_ok=True)
        command = [f"{home()}/bin/spark-class", f"org.apache.spark.deploy.{kind}"]
        command += ["--host", host, "--port", str(port), "--webui-port", "0", *more]
        env = spark_environment(
            SPARK_HOME=home(),
            SPARK_WORKER_DIR=str(folder / "work"),
            SPARK_LOCAL_DIRS=str(folder / "local"),
            SPARK_LOCAL_IP=host,
            SPARK_DAEMON_MEMORY="256m",
            SPARK_DAEMON_JAVA_OPTS=java_options(),
        )
        running = _started(command, folder, log, env, until=ready)
        return running, log


@contextlib.contextmanager
def _started(
    command: list[str], folder: Path, log: Path, env: dict[str, str], *, until: str = "", pipes: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed -9 at the end with everything it has started, wherever that belongs by then."""
    pipe = subprocess.PIPE if pipes else subprocess.DEVNULL
    with log.open("a") as output:
        running = subprocess.Popen(
            command, cwd=folder, env=env, stdin=pipe, stdout=pipe if pipes else output, stderr=output, text=True,
            start_new_session=True,
        )  # fmt: skip
    try:
        if until:
            eventually(lambda: until in log.read_text() or running.poll() is not None, WHOLE_PATIENCE, what=until)
            assert running.poll() is None, log.read_text()[-3000:]
        yield running
    finally:
        kill(*descendants(running.pid), running.pid)
        running.wait(PATIENCE)
        for stream in (running.stdin, running.stdout):
            if stream is not None:
                stream.close()


def descendants(pid: int) -> list[int]:
    """All processes that a process has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, new = [], [pid]
    while new:
        new = [child for one in new for child in children.get(one, [])]
        found += new
    return found


def kill(*pids: int) -> None:
    """kill -9, also of those that have gone meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_executor(java: int) -> None:
    """kill -9 of an executor: its Java and all its Pythons."""
    kill(java, *descendants(java))
