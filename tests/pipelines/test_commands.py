"""A pipeline that is stopped says nothing of planners that Spark has forked for a JVM that is gone, at whatever moment it goes."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.commands import chatter, traces
from tests.spark.running import python_path
from tests.support import PATIENCE, environment, eventually

pytestmark = pytest.mark.slow

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
SECRET = "secret"
CLOSED, RESET = b"\0" * 8, struct.pack("ii", 1, 0)
"""SO_LINGER. RESET: the connection ends at once, and the other side's reads and writes fail."""
MOMENTS = ("before the fork", "before the greeting", "at the greeting", "afterwards")


@pytest.fixture
def spark_daemon() -> Iterator[subprocess.Popen[bytes]]:
    """Spark's own daemon, with the paths that `commands.pipeline` gives it."""
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", PLANNER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(PYTHON_WORKER_FACTORY_SECRET=SECRET, SPARK_REUSE_WORKER="1", PYTHONPATH=python_path()),
    ) as daemon:  # fmt: skip
        yield daemon
        daemon.kill()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def _halt(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: _state(pid) == "T", what="its halt")


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _lose(daemon: subprocess.Popen[bytes], moment: str, linger: bytes) -> None:
    """Talk with the daemon as Spark's JVM, and be gone at that moment. Returns when the planner has ended."""
    (port,) = struct.unpack("!i", daemon.stdout.read(4))
    if moment == MOMENTS[0]:
        _halt(daemon.pid)
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as jvm:
        if moment != MOMENTS[0]:
            (planner,) = struct.unpack("!i", jvm.recv(4, socket.MSG_WAITALL))
        if moment == MOMENTS[2]:
            _halt(planner)
        if moment in MOMENTS[2:]:
            jvm.sendall(struct.pack("!i", len(SECRET)) + SECRET.encode())
        if moment == MOMENTS[3]:
            assert jvm.recv(6, socket.MSG_WAITALL)[4:] == b"ok"
        jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    if moment == MOMENTS[0]:
        os.kill(daemon.pid, signal.SIGCONT)
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as second:  # is served after the first
            second.recv(4, socket.MSG_WAITALL)
            second.sendall(struct.pack("!i", len(SECRET)) + SECRET.encode())
            assert second.recv(6, socket.MSG_WAITALL)[4:] == b"ok"
            eventually(lambda: len(_children(daemon.pid)) == 1, what="the end of the first planner")
        return
    if moment == MOMENTS[2]:
        os.kill(planner, signal.SIGCONT)
    eventually(lambda: not Path(f"/proc/{planner}").exists(), what="the planner's end")


@pytest.mark.skipif(sys.platform != "linux", reason="what is read of a connection that was reset differs")
@pytest.mark.parametrize("linger", [CLOSED, RESET], ids=["closed", "reset"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_planner_whose_jvm_is_gone_says_nothing(spark_daemon, moment, linger) -> None:
    _lose(spark_daemon, moment, linger)
    said = spark_daemon.communicate(timeout=PATIENCE)[1].decode()
    assert chatter(said) == traces(said) == []


@pytest.mark.skipif(sys.platform != "linux", reason="what is read of a connection that was reset differs")
@pytest.mark.parametrize("linger", [CLOSED, RESET], ids=["closed", "reset"])
@pytest.mark.parametrize("moment", ["before it connects", "before its greeting", "afterwards"])
def test_a_stream_s_planner_whose_jvm_is_gone_says_nothing(moment, linger) -> None:
    """It is no fork: Spark starts a Python for each stream."""
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        named = {"PYTHON_WORKER_FACTORY_SECRET": SECRET, "PYTHON_WORKER_FACTORY_PORT": str(jvm.getsockname()[1])}
        if moment == "before it connects":
            jvm.close()
        with subprocess.Popen(
            [sys.executable, "-m", PLANNER],
            stderr=subprocess.PIPE, env=environment(**named, PYTHONPATH=python_path()),
        ) as planner:  # fmt: skip
            if moment != "before it connects":
                with jvm.accept()[0] as connection:
                    if moment == "afterwards":
                        assert connection.recv(4 + len(SECRET), socket.MSG_WAITALL)[4:] == SECRET.encode()
                        connection.sendall(struct.pack("!i", 2) + b"ok")
                        connection.recv(4, socket.MSG_WAITALL)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            assert planner.communicate(timeout=PATIENCE)[1] == b""


@pytest.mark.parametrize(("fault", "told"), [("ValueError", True), ("EOFError", False)])
def test_another_failure_of_a_stream_s_planner_is_told(fault, told) -> None:
    program = (
        f"import sys; sys.orig_argv[1:] = ['-m', {PLANNER!r}]; from metaq.spark import data_source; raise {fault}(7)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=environment(PYTHON_WORKER_FACTORY_PORT="1"),
    )  # fmt: skip
    assert done.returncode == 1
    assert (f"{fault}: 7" in done.stderr) is told
