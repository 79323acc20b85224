"""The servers and generators of a measurement: started on fresh files, stopped by their own id, always on loopback."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
from metaq.testing import free_port  # noqa: E402, F401  found by the line above; those who start servers take it from here
from metaq.testing.process import option_flags  # noqa: E402

NATIVE = ROOT / "bench" / "native"
PATIENCE = 600
"""Seconds for what comes if all is well, also on a machine with much other work."""
READY_SECONDS = PATIENCE
LOG_FILE_BYTES = 1 << 30
"""As `metaq broker` makes them. The 64 MiB of `metaq up` cost some 4 percent of pipelined sends."""
TICKS = os.sysconf("SC_CLK_TCK")


def compiled(name: str, cache: Path) -> Path:
    """The native program `name`, compiled again only when its source is newer. Raises FileNotFoundError without `cc`."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("no C compiler (cc, gcc or clang): the load generator cannot be built")
    source, program = NATIVE / f"{name}.c", cache / name
    newest = max(path.stat().st_mtime for path in (source, *NATIVE.glob("*.h")))
    if not program.exists() or program.stat().st_mtime < newest:
        cache.mkdir(parents=True, exist_ok=True)
        fresh = cache / f"{name}.{os.getpid()}"
        subprocess.run([compiler, "-O2", "-std=gnu11", "-o", str(fresh), str(source)], check=True)
        fresh.rename(program)
    return program


@dataclass
class Server:
    """A running server. `started_ns` is the monotonic time just before its process was made."""

    process: subprocess.Popen[str]
    address: str
    started_ns: int
    namesrv: str = ""

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_anon_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        return int(found.group(1)) / 1000 if found else float("nan")


def stop(process: subprocess.Popen[str]) -> None:
    """End a child process and wait for it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


_SPIN = """
import os, time
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
parent, end = os.getppid(), time.monotonic() + 120
while os.getppid() == parent and time.monotonic() < end:
    sum(range(2000))
"""


@contextmanager
def cores_awake() -> Iterator[None]:
    """Keep every core busy with work that yields to any other (SCHED_IDLE).

    On a virtual machine a core that goes to sleep between a request and its answer takes 20-40 µs to wake, which would be
    measured instead of the server. With neighbours on the machine the cores never sleep; alone on it, this is why.
    """
    spinners = [subprocess.Popen([sys.executable, "-S", "-c", _SPIN]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def ready(process: subprocess.Popen[str], what: str) -> str:
    """The first line of output that begins with `ready`."""
    watchdog = threading.Timer(READY_SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready"):
                return line
    finally:
        watchdog.cancel()
    process.wait()
    raise RuntimeError(f"{what} was not ready in {READY_SECONDS} s (exit {process.returncode})")


def environment() -> dict[str, str]:
    """This process's, with our sources on PYTHONPATH."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def metaq_up(
    disk: Path,
    *,
    hot: bool = True,
    port: int = 0,
    data: Path | None = None,
    options: Sequence[str] = (),
    prefix: Sequence[str] = (),
) -> Iterator[Server]:
    """`metaq up` with a server's log files on a fresh folder of `disk`, which is removed afterwards; or on `data`,
    which stays. `options`: more flags. `prefix`: a program that it runs under, and its flags.
    """
    folder = str(data) if data else tempfile.mkdtemp(prefix="metaq-", dir=disk)
    env = environment() if hot else {**environment(), "METAQ_HOT": "0"}
    command = [
        *prefix,
        sys.executable,
        "-m",
        "metaq",
        "up",
        "--data",
        folder,
        "--port",
        str(port),
        "--namesrv-port",
        "0",
    ]
    command += ["-o", f"mappedFileSizeCommitLog={LOG_FILE_BYTES}", *options]
    started_ns = time.monotonic_ns()
    with (disk / "metaq.log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env, cwd=folder)
    try:
        if port:  # the caller watches the port itself
            yield Server(process, f"127.0.0.1:{port}", started_ns)
            return
        line = ready(process, "metaq up")
        found = re.search(r"namesrv=(\S+) broker=(\S+)", line)
        if not found:
            raise RuntimeError(f"no addresses in {line!r}")
        yield Server(process, found.group(2), started_ns, found.group(1))
    finally:
        stop(process)
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def metaq_slave(
    disk: Path, namesrv: str, *, data: Path | None = None, options: Mapping[str, object] | None = None
) -> Iterator[Server]:
    """A slave of the master that `metaq_up` has registered at `namesrv`, on a fresh folder of `disk`, or on `data`, which stays."""
    folder = str(data) if data else tempfile.mkdtemp(prefix="metaq-slave-", dir=disk)
    options = {"brokerRole": "SLAVE", "brokerId": 1, "mappedFileSizeCommitLog": LOG_FILE_BYTES, **(options or {})}
    command = [sys.executable, "-m", "metaq", "broker", "--data", folder, "--port", "0", "-n", namesrv]
    command += option_flags(options)
    started_ns = time.monotonic_ns()
    with (disk / "metaq.log").open("a") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(), cwd=folder
        )
    try:
        found = re.search(r"^ready broker \S+ (\S+)", ready(process, "the slave"))
        if not found:
            raise RuntimeError("no address of the slave")
        yield Server(process, found.group(1), started_ns, namesrv)
    finally:
        stop(process)
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def on_core(number: int) -> Iterator[None]:
    """What this thread starts meanwhile runs on one core, as if that were a machine of its own; where there are several."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def null_server(cache: Path, body: int) -> Iterator[Server]:
    """A C server that answers everything at once: what the generator itself can do."""
    process = subprocess.Popen(
        [compiled("nullserver", cache), str(body)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Server(process, ready(process, "nullserver").split()[1], 0)
    finally:
        stop(process)


def load(cache: Path, mode: str, address: str, *, generator: str = "loadgen", **options: object) -> dict[str, float]:
    """One run of a load generator. Raises RuntimeError with what it complained about."""
    command = [str(compiled(generator, cache)), mode, address, *(f"{key}={value}" for key, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])}: {done.stderr.strip()}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def stale_hot_module() -> bool:
    """Whether the compiled extension beside its source was built from an older one (`make hot` builds it again)."""
    folder = ROOT / "src" / "metaq" / "wire" / "hot"
    built = [path.stat().st_mtime for path in folder.glob("_native.*.so")]
    sources = [
        path.stat().st_mtime
        for pattern in ("_native.pyx", "_native*.h", "native/*.pxi")
        for path in folder.glob(pattern)
    ]
    return bool(built) and max(sources, default=0) > min(built)


def output_of(name: str, *arguments: str) -> str:
    """What a benchmark script of this folder prints. Raises RuntimeError with what it complained about."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
        env=environment(),
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def script(name: str, *arguments: str) -> dict[str, float | list[float]]:
    """The last line of a benchmark script of this folder, which is one JSON object."""
    result: dict[str, float | list[float]] = json.loads(output_of(name, *arguments).strip().splitlines()[-1])
    return result
