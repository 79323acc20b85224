"""A real HDFS: Hadoop's own name node and data node in one process, and a reader of it that knows nothing of ours or Spark's."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.interop import maven
from tests.support import PATIENCE, process, read_line

HERE = Path(__file__).parent
SUPERUSER = "hdfs"
"""Whom the name node takes for its owner. Spark's sessions are of another user, who may do only what they are let."""


def version() -> str:
    """Of the Hadoop that Spark brings."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    (jar,) = (Path(spec.origin).parent / "jars").glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


class Hdfs:
    """A running cluster."""

    def __init__(self, child: subprocess.Popen[str], uri: str, http: str) -> None:
        self._child = child
        self.uri, self.http = uri, http

    def order(self, *words: object) -> None:
        """Have the cluster do something: see MiniHdfs.java."""
        assert self._child.stdin is not None
        self._child.stdin.write(" ".join(map(str, words)) + "\n")
        self._child.stdin.flush()
        answer = read_line(self._child, ("done", "failed"), PATIENCE)  # type: ignore[arg-type]  str.startswith takes both
        assert answer == "done", answer

    def folder(self, name: str) -> str:
        """A new folder that anybody may write into. Returns its URI."""
        self.order("mkdir", f"/{name}", SUPERUSER, "777")
        return f"{self.uri}/{name}"

    # ---- over HTTP, as the superuser
    def names(self, path: str) -> list[str]:
        """What lies in a folder; nothing where there is none."""
        return [one["pathSuffix"] for one in self._list(path)]

    def files(self, path: str) -> list[str]:
        """Every file below a folder, relative to it."""
        found = []
        for one in self._list(path):
            name = one["pathSuffix"]
            if one["type"] == "DIRECTORY":
                found += [f"{name}/{below}" for below in self.files(f"{path}/{name}")]
            else:
                found.append(name)
        return sorted(found)

    def read(self, path: str) -> bytes:
        with urllib.request.urlopen(self._url(path, "OPEN"), timeout=PATIENCE) as answer:
            return answer.read()

    def copy(self, path: str, target: Path) -> Path:
        """All files below a folder, but what by Hive's rule is no data, as a local folder."""
        for name in (name for name in self.files(path) if not name.startswith(("_", "."))):
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(self.read(f"{path}/{name}"))
        return target

    def _list(self, path: str) -> list[dict]:
        try:
            with urllib.request.urlopen(self._url(path, "LISTSTATUS"), timeout=PATIENCE) as answer:
                return json.load(answer)["FileStatuses"]["FileStatus"]
        except urllib.error.HTTPError as fault:
            if fault.code == 404:
                return []
            raise

    def _url(self, path: str, operation: str) -> str:
        plain = urllib.parse.quote(path.removeprefix(self.uri))
        return f"{self.http}/webhdfs/v1{plain}?op={operation}&user.name={SUPERUSER}"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Hdfs]:
    """A cluster over `folder`, which is empty; skips the test if the jars cannot be had."""
    jars = maven.jars(f"org.apache.hadoop:hadoop-client-minicluster:{version()}")
    classes = folder / "classes"
    classes.mkdir()
    compiler = [maven.java(compiler=True), "-cp", f"{jars}/*", "-d", str(classes), str(HERE / "MiniHdfs.java")]
    subprocess.run(compiler, check=True, timeout=PATIENCE)
    command = [maven.java(), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{classes}:{jars}/*"]
    env = {**os.environ, "HADOOP_USER_NAME": SUPERUSER}
    with (
        (folder / "hdfs.log").open("w") as log,
        process(*command, "MiniHdfs", str(folder / "data"), stdin=subprocess.PIPE, stderr=log, env=env) as child,
    ):
        found = re.fullmatch(r"ready (\S+) (\S+)", read_line(child, "ready"))
        assert found is not None
        yield Hdfs(child, found[1], found[2])
