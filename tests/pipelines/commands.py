"""`metaq pipeline run`: as a process that a test kills, and in the test's own process for what it says and leaves behind."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaq.cli import commands as cli
from tests.spark.jvm import java_options
from tests.spark.running import kept_running, python_path
from tests.support import PATIENCE, environment, eventually, metaq_command

LAST_WORDS = 10.0
"""Seconds for what a pipeline that has ended has started: more than any needs, and no test fails if it is too short."""


@contextlib.contextmanager
def pipeline(log: Path, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The pipeline on two cores of this machine, with everything it starts; killed -9 at the end.

    Its output can be read from the process, its standard error is added to `log`.
    """
    with log.open("a") as errors:
        running = subprocess.Popen(
            metaq_command("pipeline", "run", name, *words, "--master", "local[2]"),
            env=environment(JDK_JAVA_OPTIONS=java_options(), PYTHONPATH=python_path()),
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            yield running
        finally:
            if (running.poll() or 0) >= 0 and running.returncode is not None:
                # Spark's daemon, in a group of its own, may be in the middle of its last words.
                with contextlib.suppress(AssertionError):
                    eventually(lambda: not _left_of(running.pid), LAST_WORDS, what="the end of what it has started")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.communicate(timeout=PATIENCE)


def _left_of(session: int) -> list[str]:
    """The processes of a session that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, _group, of = stat.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(stat.parent.name)
    return found


def chatter(text: str) -> list[str]:
    """Lines of a standard error that nobody needs who did nothing wrong: all but those that the JVM itself prints."""
    own = ("WARNING: Using incubator modules: jdk.incubator.vector", "NOTE: Picked up JDK_JAVA_OPTIONS:")
    return [line for line in text.splitlines() if not line.startswith(own)]


def traces(text: str) -> list[str]:
    """Lines of stack traces, of Python and of the JVM: what goes wrong beside a pipeline is told in a line."""
    return [line for line in text.splitlines() if line.startswith(("Traceback", "  File ", "\tat "))]


def run_here(spark: Any, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command to its end, in this process and on a test's session: what it printed, and the exit status that it would have.

    Only what kills it, sends it signals or looks at its JVM needs a process, which costs ten seconds of CPU.
    """
    loudness = logging.getLogger("metaq.spark.cluster.client")
    level, handlers = loudness.level, {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    out, err = io.StringIO(), io.StringIO()
    try:
        with kept_running(spark) as ended, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.run(["pipeline", "run", name, *words])
    finally:
        loudness.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert len(ended) <= 1, "the command ends its session once"
    return subprocess.CompletedProcess(
        ["metaq", "pipeline", "run", name, *words], status, out.getvalue(), err.getvalue()
    )
