"""How the tests' Spark JVMs start: with the quick compiler, and with classes that are already laid out.

Loading and verifying Spark's 15 000 classes takes more than half of a session's start, and a test run starts some twenty.
So the first one writes down what it has loaded (Java's class data sharing), and the others map that. The file is a cache:
Java checks it against its own build and the jars, and starts without it if they differ. Jars count as others under another
path, so masters, workers, executors and drivers of clusters get the same SPARK_HOME as sessions on this machine: `home`.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import pathlib
import subprocess
import sys
import time

from tests.support import PATIENCE, ROOT, process

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The quick compiler alone, and no threads for garbage: tests run each plan once, on small data."""

_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"

_TYPICAL = """
import sys, tempfile, pathlib
from metaq.spark import session
spark = session("classes", master="local[2]", conf={"spark.driver.extraJavaOptions": sys.argv[1]})
folder = tempfile.mkdtemp()
rates = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
write = lambda frame, batch: frame.write.mode("overwrite").parquet(f"{folder}/out/{batch}")
query = rates.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint").start()
while not pathlib.Path(folder, "checkpoint", "commits", "1").exists():
    query.awaitTermination(0.1)
query.stop()
spark.read.parquet(f"{folder}/out/1").groupBy("value").count().collect()
spark.stop()
"""


AGAIN_SECONDS = 3600
"""How long a failed try is remembered: no other worker, program or run begins one meanwhile."""


@functools.cache
def java_options() -> str:
    """Options for a JVM that runs Spark. The first call in a fresh clone makes the file: some 20 s."""
    from metaq.spark import find_java

    java, spark = find_java(), importlib.util.find_spec("pyspark")
    assert spark is not None
    key = hashlib.sha256(f"{java.home} {java.version} {spark.origin} {_TYPICAL}".encode()).hexdigest()[:12]
    archive = archived(ROOT / ".cache" / f"spark-classes-{key}.jsa", _TYPICAL)
    return f"{QUICK} -XX:SharedArchiveFile={archive} {_QUIET}" if archive else QUICK


def home() -> str:
    """Return the SPARK_HOME whose jars the archive is made of: that of `metaq.spark.session()`; pip's if there is none."""
    import pyspark  # here: every test process imports this module

    from metaq.spark.engine import spark_home

    return str(spark_home._made() or pathlib.Path(pyspark.__file__).parent)


def archived(archive: pathlib.Path, program: str, seconds: float = PATIENCE) -> pathlib.Path | None:
    """`archive`, made by `program` if it is not there.

    None if this Java cannot make it, or not within `seconds`: then Spark starts without it, only slower.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    failed = archive.with_suffix(".failed")
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two workers, one makes it
        if archive.exists():
            return archive
        if failed.exists() and time.time() - failed.stat().st_mtime < AGAIN_SECONDS:
            return None
        failed.touch()  # first: a worker that is killed meanwhile has failed too
        new = archive.with_suffix(".new")
        new.unlink(missing_ok=True)
        options = f"{QUICK} -XX:ArchiveClassesAtExit={new} -Xlog:cds=off -Xlog:cds+dynamic=off"
        try:
            with process(sys.executable, "-c", program, options, stderr=subprocess.STDOUT) as child:
                child.communicate(timeout=seconds)  # which waits for the JVM: it writes the file when Python has ended
        except subprocess.TimeoutExpired:
            return None
        if child.returncode or not new.exists():
            return None
        new.replace(archive)
        failed.unlink()
        return archive
