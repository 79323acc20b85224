"""What the tests of pipelines leave out of a standard error is what Spark's own daemon says, word for word."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.commands import chatter, traces
from tests.support import PATIENCE, environment, eventually

PLANNER = "pyspark.sql.worker.plan_data_source_read"
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: the connection ends at once, and the other side's writes fail."""


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T"


def lost_handshake() -> str:
    """The standard error of Spark's daemon when the peer of a planner that it forks is gone before the greeting is answered."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", PLANNER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(PYTHON_WORKER_FACTORY_SECRET="secret"),
    )  # fmt: skip
    try:
        (port,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as jvm:
            (planner,) = struct.unpack("!i", jvm.recv(4, socket.MSG_WAITALL))
            os.kill(planner, signal.SIGSTOP)
            eventually(lambda: stopped(planner))
            jvm.sendall(struct.pack("!i", 6) + b"secret")
            jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        os.kill(planner, signal.SIGCONT)
        eventually(lambda: not Path(f"/proc/{planner}").exists())
        return daemon.communicate(timeout=PATIENCE)[1].decode()
    finally:
        daemon.kill()
        daemon.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="what is read of a connection that was reset differs")
def test_a_planner_whose_jvm_is_gone_before_its_greeting_is_nobody_s_fault() -> None:
    """Its seven lines and no others: a trace beside it is seen."""
    text = lost_handshake()
    assert "outfile.flush()" in text
    assert chatter(text) == traces(text) == []
    assert len(traces(text + text.replace("outfile.flush()", "infile.read()"))) == 3
