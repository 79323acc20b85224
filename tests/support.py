"""What many tests need: waiting without sleeping blindly, free ports, processes that do not outlive their test."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, TypeVar

from msgspec import structs

import metaq.testing
from metaq.address import split_address
from metaq.cli.servers.flags import SERVERS
from metaq.testing.ports import HeldPort
from metaq.wire.command import LENGTH_BYTES, Command, decode, encode
from tests.forked import forks

Value = TypeVar("Value")

ROOT = pathlib.Path(__file__).parent.parent
MADE_ANEW = ("__pycache__", "*.so", "*.egg-info", "_*.c")
"""Names of what runs and builds leave among the sources; the C is what Cython generates."""

PATIENCE = 300.0
"""Seconds to wait for what comes by itself: so far beyond what a starved machine needs that only a fault ends the wait."""
WHOLE_PATIENCE = 1500.0
"""The same for a whole program: one that starts Spark, builds, installs or downloads."""
TEST_SECONDS, WHOLE_TEST_SECONDS = 900.0, 1800.0
"""When a test is ended because it hangs (conftest.py); those that run Spark, foreign programs or whole programs get more."""


def eventually(probe: Callable[[], Value], timeout: float = PATIENCE, *, what: str = "") -> Value:
    """`metaq.testing.eventually` with our patience."""
    return metaq.testing.eventually(probe, timeout, what=what)


def environment(**more: str) -> dict[str, str]:
    """This process's environment with our sources on PYTHONPATH."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **more}


def metaq_command(*args: str) -> list[str]:
    """The command line of `metaq ARGS` with this interpreter."""
    return [sys.executable, "-m", "metaq", *args]


def run_metaq(*args: str, timeout: float = PATIENCE, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a `metaq` command to its end: a server from its start, others with what they import there already."""
    if args and args[0] not in SERVERS:
        return forks(os.environ.get("METAQ_HOT")).run(args, environment(), stdin, timeout)
    return subprocess.run(
        metaq_command(*args),
        capture_output=True,
        text=True,
        timeout=timeout,
        input=stdin,
        env=environment(),
        check=False,
    )


@contextlib.contextmanager
def process(*command: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A child with text pipes, in its own process group, that is gone when the block is left."""
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **{"stderr": subprocess.PIPE, "env": environment(), **options},
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate(timeout=PATIENCE)


def kept_port(owner: object, *distances: int) -> int:
    """A free port of 127.0.0.1 for a server that is stopped or killed and started again: held as long as `owner` exists."""
    held = HeldPort(*distances)
    weakref.finalize(owner, held.close)
    return held.port


def copy_folder(folder: pathlib.Path, to: pathlib.Path) -> None:
    """Copy the store of a broker that runs, as a kill leaves it. Files that are being written anew (`.tmp`) may be gone while they are copied: a start
    does not look at them."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.tmp"))


def read_line(child: subprocess.Popen[str], start: str, timeout: float = PATIENCE) -> str:
    """The child's first output line that begins with `start`. Raises AssertionError if it ends or takes too long."""
    found: list[str] = []

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(start):
                found.append(line.rstrip("\n"))
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout)
    if not found:
        errors = ""
        if child.poll() is not None and child.stderr is not None:
            errors = child.stderr.read()
        raise AssertionError(f"no line starting with {start!r} within {timeout} s; exit {child.poll()}; {errors}")
    return found[0]


UNDER_WAY_MAX = 200
"""Requests of `exchange` at a time: so few that neither side waits for the other to read."""


def exchange(address: str, requests: Sequence[Command]) -> list[Command]:
    """Ask the server at `host:port`, over a connection of its own. Returns the answers, in the order of the requests."""
    answers: dict[int, Command] = {}
    with socket.create_connection(split_address(address), PATIENCE) as connection, connection.makefile("rb") as stream:
        for first in range(0, len(requests), UNDER_WAY_MAX):
            some = requests[first : first + UNDER_WAY_MAX]
            connection.sendall(
                b"".join(encode(structs.replace(one, opaque=number)) for number, one in enumerate(some, first))
            )
            for _ in some:
                answer = decode(read_frame(stream)[LENGTH_BYTES:])
                answers[answer.opaque] = answer
    return [answers[number] for number in range(len(requests))]


def read_frame(stream: BinaryIO) -> bytes:
    """The next frame of a remoting connection, its length included; empty at the connection's end."""
    size = stream.read(LENGTH_BYTES)
    rest = stream.read(int.from_bytes(size, "big")) if len(size) == LENGTH_BYTES else b""
    return size + rest if len(rest) == int.from_bytes(size, "big") else b""
