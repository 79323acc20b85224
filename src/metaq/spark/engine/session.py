"""A Spark session without set-up: finds Java, registers `format("metaq")`, quiets the logs."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import zipimport
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import metaq
from metaq.spark import daemon, interpreter
from metaq.spark.data_source import MetaqDataSource
from metaq.spark.engine.java import cache_folder, find_java
from metaq.spark.engine.spark_home import without_zip

_LOG = logging.getLogger(__name__)

# The gateway's level must equal the root's: where they differ, Spark takes the session for a shell and prints its hints.
_LOG4J = """rootLogger.level = {level}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""

_PYTHON_LOGS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers of PySpark that log a query's error as JSON, with the JVM's stack trace, before it is raised."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_STACK = "-Xss16m"
"""Stack of Java's threads, reserved and not used. Spark searches the error of a query that is stopped in the middle of a batch with a
pattern that recurses for every character: 1 MB, the default, ends the query's thread with a StackOverflowError and its trace."""

_UI = "spark.ui.enabled"
_KEPT_FOR_PAGES = ("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions")
"""How much Spark keeps for its web UI, also while that is off: a thousand of each, some 15 MB within hours of a stream."""

LOCAL: Mapping[str, str] = {
    _UI: "false",
    "spark.ui.showConsoleProgress": "false",
    **dict.fromkeys(_KEPT_FOR_PAGES, "50"),
    "spark.driver.memory": "1g",
    # A state store per partition: 200, the default, costs 80 s on a laptop.
    "spark.sql.shuffle.partitions": "2",
    # Up to a quarter more rows per second from the workers.
    "spark.python.unix.domain.socket.enabled": "true",
    # Read buffer for a worker's output: with bodies of 1 KB, 5-10 % more rows per second than with 64 KiB.
    "spark.buffer.size": str(512 * 1024),
    # Renames instead of Hadoop's checksummed file contexts: a micro-batch's floor falls from 150-300 to 120-170 ms. Only for
    # file systems with an atomic rename, so for local sessions.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Defaults of a session on this machine."""

ALWAYS: Mapping[str, str] = {
    # Store dates are UTC; a laptop's zone must not move them.
    "spark.sql.session.timeZone": "UTC",
}


def settled(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return our settings, overridden by the user's. JVM options are joined; a web UI that is on keeps Spark's own limits."""
    both = {**ours, **given}
    if _JAVA_OPTIONS in ours and _JAVA_OPTIONS in given:
        both[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {given[_JAVA_OPTIONS]}"
    if both.get(_UI, "").lower() == "true":
        both = {name: value for name, value in both.items() if name not in _KEPT_FOR_PAGES or name in given}
    return both


def session(
    app: str = "metaq",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    log_level: str = "error",
) -> Any:
    """Return a SparkSession: the one that this process has, or a new one.

    Args:
        app: name shown in Spark's own tools.
        master: `local[*]` by default, or a cluster's URL; None inside `spark-submit`, which sets it.
        conf: Spark settings; they override ours (JVM options are added to ours).
        log_level: of Spark's own log on standard error: off, error, warn, info.

    Raises: ConfigError: no usable Java (`metaq.spark.find_java`), or workers that run a Python without MetaQ.
    """
    running = SparkSession.getActiveSession()
    # A process has one JVM, whose settings are fixed: ours would come too late.
    if running is not None:
        interpreter.check(interpreter.context_of(running))
        return running
    settings = dict(ALWAYS)
    submitted = "spark.master" in (conf or {}) or os.environ.get("PYSPARK_GATEWAY_PORT")
    if master is None and not submitted:
        master = "local[*]"
    if master is not None and master.startswith("local"):
        settings |= LOCAL
        settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={_log4j_file(log_level)} {_STACK}"
        # Driver and workers are on this machine: loopback only.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        interpreter.check_choice()
    settings = settled(settings, conf or {})
    if not os.environ.get("PYSPARK_GATEWAY_PORT"):  # Else spark-submit has started the JVM.
        java = find_java()
        for notice in java.notices:
            _LOG.warning("%s", notice)
        _LOG.info("Spark runs on %s", java)
        os.environ["JAVA_HOME"] = str(java.home)
    # Else workers run the `python3` of the PATH, and fail with "No module named 'pyarrow'" while the driver looks fine.
    os.environ.setdefault(interpreter.CHOICE, sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # The user's settings last: `spark.python.daemon.module` in `conf` wins.
    settings = {**daemon_setting(master), **settings}
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with without_zip(master, settings):
        spark = builder.getOrCreate()
    if log_level == "off":
        for name in _PYTHON_LOGS:
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    hidden = _hidden_package(spark)
    if hidden:
        _LOG.warning(
            "%s came by --py-files, where Spark does not look for the sources of streams: only batch reads and writes will find "
            "MetaQ; start spark-submit with PYTHONPATH=%s as well",
            hidden,
            hidden,
        )
    if hidden or shutil.which("sh") is None:
        # Spark finds data sources by itself (`pyspark_metaq`), but runs `sh` first to see whether there is a Python, and its
        # planners do not find what --py-files brought.
        spark.dataSource.register(MetaqDataSource)
    return spark


def daemon_setting(master: str | None) -> dict[str, str]:
    """Return the setting that has workers forked from `metaq.spark.daemon`, or none if their Python may not find it.

    A daemon that cannot start fails every Python function of the session, so it is set only where it is sure to start.
    """
    if master is None or master.partition("[")[0] != "local":
        # Executors, those of `local-cluster` too, start in folders of their own: a relative PYTHONPATH misleads.
        return {}
    if os.environ.get("PYSPARK_GATEWAY_PORT"):
        # Workers learn only with their first task what `--py-files` brings, after the daemon has started.
        return {}
    environ, gateway = dict(os.environ), getattr(SparkContext, "_gateway", None)
    # A JVM that runs already keeps the environment that it was started with.
    if gateway is not None:
        environ["PYTHONPATH"] = gateway.jvm.System.getenv("PYTHONPATH") or ""
    found = interpreter.has(os.environ.get(interpreter.CHOICE) or sys.executable, daemon.MODULE, environ)
    return {"spark.python.daemon.module": daemon.MODULE} if found else {}


def _hidden_package(spark: Any) -> str:
    """Return the name of the --py-files zip that this module was loaded from, if Spark's planners do not find it; else ""."""
    loader = getattr(metaq.__spec__, "loader", None)
    if not isinstance(loader, zipimport.zipimporter):
        return ""
    paths = spark.sparkContext._jvm.System.getenv("PYTHONPATH") or ""  # noqa: SLF001  what they get is the JVM's
    # Spark loads a copy, in a folder of its own: compare names only.
    name = Path(loader.archive).name
    return "" if name in {Path(path).name for path in paths.split(os.pathsep)} else name


def _log4j_file(level: str) -> Path:
    # Spark reads it while the JVM starts; setLogLevel would come too late for the noise of the start.
    path = cache_folder() / f"log4j2-{level}.properties"
    text = _LOG4J.format(level=level)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def java_end(patience: float) -> int | None:
    """Return how the Java process of this program's session ended: its exit status, or minus a signal's number. None: it runs.

    Args: patience: seconds to wait for its end; a process that has a signal refuses calls some moments before.
    """
    process = getattr(getattr(SparkContext, "_gateway", None), "proc", None)
    if process is None:
        return None
    try:
        return int(process.wait(patience))
    except subprocess.TimeoutExpired:
        return None
