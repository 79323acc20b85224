"""Other brokers beside us: had from the machine or their registries, kept in `.cache`, started on fresh files of loopback.

Redis is Debian's package, unpacked without root where it is not installed; NATS is built by Go from its module; Kafka is its
jars, as one node of KRaft. Each function raises RuntimeError with a word why its peer cannot be had.
"""

import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import processes
import rocketmq

sys.path.insert(0, str(processes.ROOT))

FOLDER = processes.ROOT / ".cache" / "peers"
REDIS_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "liblua5.1-0", "lua-cjson", "lua-bitop")
NATS = "github.com/nats-io/nats-server/v2@v2.12.3"
KAFKA = "org.apache.kafka:kafka_2.13:4.4.0"
FETCH_SECONDS = 900

fetching = True
"""Whether what is not here yet is fetched. Not in small runs, which are tests."""


def _run(command: Sequence[str], what: str, folder: Path, **environment: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=FETCH_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"no {what} beside it: {error}") from None
    if done.returncode:
        raise RuntimeError(f"no {what} beside it: {command[0]} says {(done.stdout + done.stderr).strip()[-300:]}")


def _fresh(name: str, what: str) -> Path:
    if not fetching:
        raise RuntimeError(f"no {what} beside it: it is not here, and small runs fetch nothing")
    fresh = FOLDER / f"{name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh


def redis_home() -> Path | None:
    """The folder that Debian's package is unpacked in; None if it is installed."""
    if shutil.which("redis-server") and shutil.which("redis-benchmark"):
        return None
    home = FOLDER / "redis"
    if not home.is_dir():
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            raise RuntimeError("no Redis beside it: redis-server is not installed, and this is no Debian")
        fresh = _fresh("redis", "Redis")
        _run(["apt-get", "download", "-q", *REDIS_PACKAGES], "Redis", fresh)
        for package in sorted(fresh.glob("*.deb")):
            _run(["dpkg", "-x", package.name, "."], "Redis", fresh)
            package.unlink()
        fresh.rename(home)
    return home


def redis_command(name: str) -> tuple[list[str], dict[str, str]]:
    """A program of Redis and the environment it needs."""
    home = redis_home()
    if home is None:
        return [name], dict(os.environ)
    [libraries] = {path.parent for path in home.glob("usr/lib/*/libjemalloc.so.2")}
    return [str(home / "usr" / "bin" / name)], {**os.environ, "LD_LIBRARY_PATH": str(libraries)}


def nats_program() -> Path:
    """The server, built once."""
    home = FOLDER / "nats"
    if not home.is_dir():
        if not shutil.which("go"):
            raise RuntimeError("no NATS beside it: go, which builds it, is not installed")
        fresh = _fresh("nats", "NATS")
        places = {"GOBIN": str(fresh), "GOPATH": str(FOLDER / "go"), "GOCACHE": str(FOLDER / "go-build")}
        _run(
            ["go", "install", NATS],
            "NATS",
            fresh,
            GOFLAGS="-modcacherw",
            GOTOOLCHAIN="local",
            CGO_ENABLED="0",
            **places,
        )
        fresh.rename(home)
    return home / "nats-server"


def kafka_classes() -> str:
    """Its class path."""
    import pytest  # it comes with the tests, whose way to the jars this is
    from tests.interop import maven

    if not fetching and not (maven.CACHE / "jars" / maven.folder_name(KAFKA)).is_dir():
        raise RuntimeError("no Kafka beside it: its jars are not here, and small runs fetch nothing")
    try:
        maven.java()
        return f"{maven.jars(KAFKA)}/*"
    except pytest.skip.Exception as error:
        raise RuntimeError(f"no Kafka beside it: {error}") from None


def rocketmq_classes() -> str:
    """The class path of its servers."""
    from tests.interop import maven

    if not fetching and not (maven.CACHE / "jars" / maven.folder_name(*maven.SERVER)).is_dir():
        raise RuntimeError("no RocketMQ beside it: its jars are not here, and small runs fetch nothing")
    return rocketmq.classpath()


def tcnative_classes() -> str:
    """The class path of netty's OpenSSL for RocketMQ's broker, which has the JDK's own TLS without; "" where it cannot be had."""
    import pytest  # it comes with the tests, whose way to the jars this is
    from tests.interop import maven

    if not fetching and not (maven.CACHE / "jars" / maven.folder_name(*maven.TCNATIVE)).is_dir():
        return ""
    try:
        return f"{maven.jars(*maven.TCNATIVE)}/*"
    except pytest.skip.Exception:
        return ""


def missing() -> dict[str, str]:
    """Peers that cannot be had, each with the reason. Fetches those that can."""
    found = {}
    wanted = (("redis", redis_home), ("nats", nats_program), ("kafka", kafka_classes), ("rocketmq", rocketmq_classes))
    for name, get in wanted:
        try:
            get()
        except RuntimeError as error:
            found[name] = str(error)
    return found


def _answers(process: subprocess.Popen[str], port: int, what: str) -> None:
    deadline = time.monotonic() + processes.READY_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{what} did not start") from None
            time.sleep(0.005)


@contextmanager
def redis(disk: Path, *, fsync: str = "everysec", prefix: Sequence[str] = ()) -> Iterator[processes.Server]:
    """redis-server on a fresh folder, with an append-only file that is synced as `fsync` says. `prefix`: what it runs under."""
    program, environment = redis_command("redis-server")
    folder = tempfile.mkdtemp(prefix="redis-", dir=disk)
    port = processes.free_port()
    command = [*prefix, *program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", fsync]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True, env=environment)
    try:
        _answers(process, port, "redis-server")
        yield processes.Server(process, f"127.0.0.1:{port}", 0)
    finally:
        processes.stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def redis_benchmark(
    server: processes.Server, conns: int, pipeline: int, count: int, body: int, streams: int = 1
) -> dict[str, float]:
    """XADD of one field of `body` bytes to one stream, or spread over so many: {"requests_per_s", "p50_us", "p99_us"}."""
    program, environment = redis_command("redis-benchmark")
    command = [*program, "-h", "127.0.0.1", "-p", server.address.rpartition(":")[2], "--csv"]
    command += ["-c", str(conns), "-P", str(pipeline), "-n", str(count), "-r", str(streams)]
    command += ["XADD", "bench" if streams == 1 else "bench:__rand_int__", "*", "b", "x" * body]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=processes.PATIENCE, check=True, env=environment
    )
    row = next(csv.DictReader(done.stdout.splitlines()))
    return {
        "requests_per_s": float(row["rps"]),
        "p50_us": float(row["p50_latency_ms"]) * 1000,
        "p99_us": float(row["p99_latency_ms"]) * 1000,
    }


@contextmanager
def nats(disk: Path, *, sync: str = "2m") -> Iterator[processes.Server]:
    """nats-server with JetStream on files of a fresh folder, which it syncs as `sync` says (its own default, or "always")."""
    program = nats_program()
    folder = Path(tempfile.mkdtemp(prefix="nats-", dir=disk)).resolve()
    port = processes.free_port()
    settings = f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}", sync_interval: "{sync}" }}\n'
    (folder / "server.conf").write_text(settings)
    process = subprocess.Popen([program, "-c", folder / "server.conf"], stderr=subprocess.DEVNULL, text=True)
    try:
        _answers(process, port, "nats-server")
        yield processes.Server(process, f"127.0.0.1:{port}", 0)
    finally:
        processes.stop(process)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def kafka(folder: Path) -> Iterator[processes.Server]:
    """Kafka over `folder`, which is formatted if it is fresh and kept afterwards: one node, 1 GiB of heap."""
    classes = kafka_classes()
    folder = folder.resolve()  # its own working folder
    folder.mkdir(parents=True, exist_ok=True)
    port, controller = processes.free_port(), processes.free_port()
    settings = {
        "process.roles": "broker,controller", "node.id": 1, "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}", "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "logs", "num.partitions": 4, "offsets.topic.replication.factor": 1,
        "auto.create.topics.enable": "true",
    }  # fmt: skip
    (folder / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    (folder / "log4j2.yaml").write_text("Configuration:\n  Loggers:\n    Root:\n      level: error\n")
    java = ["java", "-Xmx1g", "-Xms1g", f"-Dlog4j2.configurationFile={folder / 'log4j2.yaml'}", "-cp", classes]
    if not (folder / "logs").is_dir():
        storage = [
            *java,
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={_cluster_id()}",  # it may begin with "-"
            "-c",
            str(folder / "server.properties"),
        ]
        _run(storage, "Kafka", folder)
    log = folder / "kafka.out"
    with log.open("a") as output:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(folder / "server.properties")],
            stdout=output,
            stderr=output,
            text=True,
            cwd=folder,
        )
    try:
        try:
            _answers(process, port, "Kafka")
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.read_text()[-500:]}") from None
        yield processes.Server(process, f"127.0.0.1:{port}", 0)
    finally:
        process.send_signal(signal.SIGTERM)
        processes.stop(process)


def _cluster_id() -> str:
    import base64

    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
