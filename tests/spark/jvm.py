"""How the tests' Spark JVMs start: with the quick compiler, and with classes that are already laid out.

Loading and verifying Spark's 15 000 classes takes more than half of a session's start, and a test run starts some twenty.
So the first one writes down what it has loaded (Java's class data sharing), and the others map that. The file is a cache:
Java checks it against its own build and the jars, and starts without it if they differ.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import pathlib
import subprocess
import sys

from tests.support import ROOT, environment

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


@functools.cache
def java_options() -> str:
    """Options for a JVM that runs Spark. The first call in a fresh clone makes the file: some 20 s."""
    archive = _archive()
    return f"{QUICK} -XX:SharedArchiveFile={archive} {_QUIET}" if archive else QUICK


def _archive() -> pathlib.Path | None:
    """The file of laid out classes; None if this Java cannot make one."""
    from metaq.spark import find_java

    java, spark = find_java(), importlib.util.find_spec("pyspark")
    assert spark is not None
    key = hashlib.sha256(f"{java.home} {java.version} {spark.origin} {_TYPICAL}".encode()).hexdigest()[:12]
    archive = ROOT / ".cache" / f"spark-classes-{key}.jsa"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two workers, one makes it
        if not archive.exists():
            new = archive.with_suffix(".new")
            new.unlink(missing_ok=True)
            options = f"{QUICK} -XX:ArchiveClassesAtExit={new} -Xlog:cds=off -Xlog:cds+dynamic=off"
            command = [sys.executable, "-c", _TYPICAL, options]
            subprocess.run(command, env=environment(), capture_output=True, timeout=240, check=False)
            if not new.exists():
                return None
            new.replace(archive)
    return archive
