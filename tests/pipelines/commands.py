"""`metaq pipeline run` as a process that a test kills."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.spark.jvm import java_options
from tests.support import PATIENCE, environment, metaq_command


@contextlib.contextmanager
def pipeline(log: Path, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The pipeline on two cores of this machine, with everything it starts; killed -9 at the end.

    Its output can be read from the process, its standard error is added to `log`.
    """
    with log.open("a") as errors:
        running = subprocess.Popen(
            metaq_command("pipeline", "run", name, *words, "--master", "local[2]"),
            env=environment(JDK_JAVA_OPTIONS=java_options()),
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.communicate(timeout=PATIENCE)
