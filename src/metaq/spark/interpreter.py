"""Which Python runs Spark's workers. Works without pyspark.

Spark starts workers, and the process that looks for data sources, as `python3` from the PATH, unless PYSPARK_PYTHON named
another one when its JVM was started. In a virtual environment that is not activated that is a Python without MetaQ: the
driver looks fine, and `format("metaq")` is not found. So importing `metaq.spark` sets PYSPARK_PYTHON to the Python that
imports it, and warns where that comes too late.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from metaq.errors import ConfigError

_LOG = logging.getLogger(__name__)

CHOICE = "PYSPARK_PYTHON"
_TRY_SECONDS = 60
_TRY = "import sys, numpy, pyarrow, metaq.spark; print(*sys.version_info[:2], sep='.')"


def choose(environ: Mapping[str, str], *, jvm_runs: bool = False) -> str | None:
    """Return the value to set PYSPARK_PYTHON to; None: leave it alone.

    It is left alone where it is set, where `spark-submit` started the JVM (PYSPARK_GATEWAY_PORT; it knows its cluster's
    Python), where a JVM runs already, and where `python3` on the PATH is this Python.
    """
    if environ.get(CHOICE) or environ.get("PYSPARK_GATEWAY_PORT") or jvm_runs or not sys.executable:
        return None
    return None if is_this_python("python3", environ) else sys.executable


def prefer_this_python() -> None:
    """Set PYSPARK_PYTHON on import of `metaq.spark`, or warn if a session of this process runs another Python already."""
    choice = choose(os.environ, jvm_runs=getattr(_context_class(), "_gateway", None) is not None)
    if choice is not None:
        os.environ[CHOICE] = choice
    fault = fault_of(running_context())
    if fault is not None:
        _LOG.warning("%s", fault)


def check(context: Any) -> None:
    """Check that a session's workers can read from MetaQ. Raises ConfigError, in one line with the remedy."""
    fault = fault_of(context)
    if fault is not None:
        raise ConfigError(fault)


def check_choice() -> None:
    """Check PYSPARK_PYTHON for a local session. Raises ConfigError: it names a Python that cannot read from MetaQ."""
    chosen = os.environ.get(CHOICE)
    if chosen and not is_this_python(chosen, os.environ) and (fault := _tried(chosen)) is not None:
        raise ConfigError(f"{CHOICE} is {chosen}, where Spark's workers cannot read from MetaQ: {fault}. {_remedy()}")


def fault_of(context: Any) -> str | None:
    """Reason why the workers of a SparkContext cannot read from MetaQ. None: they can, or run on other machines."""
    if context is None or not str(context.master).startswith("local"):
        return None
    python = context.pythonExec
    if is_this_python(python, os.environ) or (fault := _tried(python)) is None:
        return None
    return (
        f"the workers of this Spark session run {shutil.which(python) or python}, which cannot read from MetaQ: {fault}. "
        f"{_remedy()}"
    )


def _remedy() -> str:
    return (
        f"Import metaq.spark before the session is made, or set {CHOICE}={sys.executable}; a session that runs has to be "
        "made anew, in a new process"
    )


def running_context() -> Any:
    """Return the SparkContext of this process, None if there is none."""
    return getattr(_context_class(), "_active_spark_context", None)


def context_of(session: Any) -> Any:
    """Return a session's SparkContext. None: a Spark Connect session, whose workers run at the server."""
    return None if is_remote(session) else session.sparkContext


def is_remote(session: Any) -> bool:
    """Return whether a session is a client of a Spark Connect server."""
    # By the module's name: importing pyspark.sql.connect needs grpcio, which only Connect's users have.
    return type(session).__module__.startswith("pyspark.sql.connect.")


def _context_class() -> Any:
    # Not imported: `metaq doctor`, for one, uses this module where there is no pyspark.
    return getattr(sys.modules.get("pyspark"), "SparkContext", None)


def is_this_python(command: str, environ: Mapping[str, str]) -> bool:
    """Return whether a command is this process's Python: the same program, started from the same folder."""
    found = shutil.which(command, path=environ.get("PATH"))
    if found is None or not sys.executable:
        return False
    # A virtual environment's python is a link to the system's, so the program alone does not tell the two apart.
    places = [(os.path.realpath(os.path.dirname(path)), os.path.realpath(path)) for path in (found, sys.executable)]  # noqa: PTH120
    return places[0] == places[1]


def has(python: str, module: str, environ: Mapping[str, str]) -> bool:
    """Return whether a Python that is started with this environment finds a module. Starts that Python."""
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    command = [python, "-c", program, module]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, timeout=_TRY_SECONDS, check=False)  # noqa: S603  what Spark will run
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


# Cached: it starts a Python with these imports, and every session and pipeline asks.
@functools.cache
def _tried(python: str) -> str | None:
    """Run a Python and return why it cannot serve as a worker; None: it can."""
    try:
        done = subprocess.run([python, "-c", _TRY], capture_output=True, text=True, timeout=_TRY_SECONDS, check=False)  # noqa: S603  what Spark would run
    except (OSError, subprocess.SubprocessError) as fault:
        return str(fault)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it fails"])[-1].removeprefix("ModuleNotFoundError: ")
    # Spark refuses workers of another minor version than the driver's.
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return None if done.stdout.strip() == ours else f"it is Python {done.stdout.strip()}, this one is {ours}"
