"""A SPARK_HOME without `pyspark.zip`, for sessions on this machine: Spark's Python processes start half a second sooner.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first on the path of its Pythons. Modules in a zip are compiled at each start:
half a second for each of the five or so processes of a session, and for one more with every streaming query. pip has
installed, and compiled, the same modules in site-packages; they are found if the zip is not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import py4j
import pyspark
from pyspark import SparkContext

from metaq.spark import interpreter
from metaq.spark.engine.java import cache_folder

_LOG = logging.getLogger(__name__)

_HOME = "SPARK_HOME"
_ZIPPED = "python"
"""Folder of SPARK_HOME that has the zip."""
_OTHER_PYTHONS = ("spark.pyspark.python", "spark.pyspark.driver.python")
"""Settings by which workers run another Python."""


@contextlib.contextmanager
def without_zip(master: str | None, conf: Mapping[str, str]) -> Iterator[None]:
    """Set SPARK_HOME for a JVM that is started in this context, if its Pythons find pip's modules without the zip."""
    home = _made() if _is_for_us(master, conf) else None
    if home is None:
        yield
        return
    os.environ[_HOME] = str(home)
    try:
        yield
    finally:
        os.environ.pop(_HOME, None)


def _is_for_us(master: str | None, conf: Mapping[str, str]) -> bool:
    return (
        os.name == "posix"
        and (master or "").partition("[")[0] == "local"
        # A SPARK_HOME that the user has set stays, and so does that of a running JVM.
        and not {_HOME, "PYSPARK_GATEWAY_PORT"}.intersection(os.environ)
        and getattr(SparkContext, "_gateway", None) is None
        # Another Python may have no pyspark but the zip's.
        and (os.environ.get(interpreter.CHOICE) or sys.executable) == sys.executable
        and not set(_OTHER_PYTHONS).intersection(conf)
        and all(_is_installed(module.__file__) for module in (pyspark, py4j))
    )


def _is_installed(file: str | None) -> bool:
    """Return whether a newly started Python finds the package with this `__init__` in site-packages."""
    places = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return file is not None and Path(file).parent.parent in places


def _made() -> Path | None:
    """Return the folder, created if missing: a link to each entry of Spark's own but one. None: it cannot be created."""
    real = Path(pyspark.__file__).parent
    try:
        # The folder's time is part of the name: it changes when an entry is added, such as `conf`.
        name = hashlib.sha256(f"{real} {pyspark.__version__} {real.stat().st_mtime_ns}".encode()).hexdigest()[:16]
        homes = cache_folder() / "spark"
        if (homes / name / "jars").is_dir():
            return homes / name
        homes.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=homes))
        for entry in real.iterdir():
            if entry.name != _ZIPPED:
                (making / entry.name).symlink_to(entry)
        try:
            making.rename(homes / name)
        except OSError:  # Another process has made it meanwhile.
            shutil.rmtree(making, ignore_errors=True)
    except OSError as fault:
        _LOG.info("Spark's Pythons start from its zip: %s", fault)
        return None
    return homes / name if (homes / name / "jars").is_dir() else None
