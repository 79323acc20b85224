"""A home of Spark without its zip of Python modules, for the JVM of a session on this machine.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` in front of what its Pythons search. What lies in a zip Python compiles anew each
time: half a second for each of the five or so that a session starts, and for one more with every streaming query. pip has
installed the same modules beside the zip, and compiled them. They are found where the zip is not.
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
"""The folder of a home with the zip in it."""
_OTHER_PYTHONS = ("spark.pyspark.python", "spark.pyspark.driver.python")


@contextlib.contextmanager
def without_zip(master: str | None, conf: Mapping[str, str]) -> Iterator[None]:
    """A JVM that is started meanwhile has such a home, if the Pythons that it starts find pip's modules without it."""
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
        # What somebody has chosen stays; of a JVM that runs already, too.
        and not {_HOME, "PYSPARK_GATEWAY_PORT"}.intersection(os.environ)
        and getattr(SparkContext, "_gateway", None) is None
        and (os.environ.get(interpreter.CHOICE) or sys.executable) == sys.executable
        and not set(_OTHER_PYTHONS).intersection(conf)
        and all(_is_installed(module.__file__) for module in (pyspark, py4j))
    )


def _is_installed(file: str | None) -> bool:
    """Whether a fresh start of this Python finds the package whose `__init__` that is."""
    places = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return file is not None and Path(file).parent.parent in places


def _made() -> Path | None:
    """The folder, made if it is not there yet: a link to each thing in Spark's own. None: it cannot be."""
    real = Path(pyspark.__file__).parent
    try:
        # With the time, since it changes when something is added, such as a folder `conf`.
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
