"""Hadoop's own S3 client, S3A, and a server for it: moto, which answers conditional writes as S3 does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.testing import free_port
from tests.hadoop.hdfs import version
from tests.interop import maven
from tests.support import PATIENCE, WHOLE_PATIENCE, eventually, process

MOTO = "moto[s3,server]==5.2.5"
SDK = "2.35.4"
"""The one that S3A of Hadoop 3.5.0 is built with. Its parts, 17 MB; the bundle that S3A names has 686."""
ARTIFACTS = (
    *(f"software.amazon.awssdk:{name}:{SDK}" for name in ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")),
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.0:alone",
)  # fmt: skip
_SPARKS_OWN = re.compile(r"(slf4j|netty-(?!nio-client)|commons-)")
"""Spark brings these itself."""


def jars() -> list[Path]:
    """What a Spark session needs for `s3a:`; skips the test if it cannot be had."""
    folder = maven.jars(f"org.apache.hadoop:hadoop-aws:{version()}:alone", *ARTIFACTS)
    return sorted(path for path in folder.glob("*.jar") if not _SPARKS_OWN.match(path.name))


def _moto() -> Path:
    """A folder for PYTHONPATH that holds moto; skips the test where it cannot be had."""
    folder = maven.CACHE / re.sub(r"\W+", "-", MOTO)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            fresh = Path(f"{folder}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(fresh), MOTO]
            done = subprocess.run(pip, capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False)
            if done.returncode != 0:
                pytest.skip(f"pip could not fetch {MOTO}: {done.stderr.strip()[-300:]}")
            fresh.rename(folder)
    return folder


class S3:
    """A running server with one bucket, `bucket`."""

    def __init__(self, port: int) -> None:
        self._http = f"http://127.0.0.1:{port}"

    @property
    def settings(self) -> dict[str, str]:
        """Of a Spark session."""
        return {
            "spark.jars": ",".join(map(str, jars())),
            "spark.hadoop.fs.s3a.endpoint": self._http,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "anybody",
            "spark.hadoop.fs.s3a.secret.key": "anything",
            "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }

    def names(self) -> list[str]:
        """Every object's."""
        found, after = [], ""
        while True:
            query = f"list-type=2&encoding-type=url&start-after={urllib.parse.quote(after, safe='')}"
            text = self._get(f"/bucket?{query}").decode()
            names = [urllib.parse.unquote_plus(name) for name in re.findall(r"<Key>(.*?)</Key>", text)]
            found += names
            if "<IsTruncated>true" not in text:
                return found
            after = names[-1]

    def copy(self, folder: str, target: Path) -> Path:
        """All objects below a folder, but what by Hive's rule is no data, as a local folder."""
        for name in self.names():
            below = name.removeprefix(f"{folder}/")
            if name != below and not below.startswith(("_", ".")) and not name.endswith("/"):
                place = target / below
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(self._get(f"/bucket/{urllib.parse.quote(name)}"))
        return target

    def _get(self, path: str) -> bytes:
        # Whose signature it is, moto does not ask; only for one.
        asked = urllib.request.Request(self._http + path, headers={"Authorization": "AWS anybody:anything"})
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            return answer.read()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[S3]:
    """A server that keeps everything in memory; skips the test if it cannot be had."""
    port = free_port()
    env = {**os.environ, "PYTHONPATH": str(_moto())}
    with (
        (folder / "moto.log").open("w") as log,
        process(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), stderr=log, env=env),
    ):

        def answers() -> bool:
            made = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
            try:
                return urllib.request.urlopen(made, timeout=PATIENCE).status == 200
            except (urllib.error.URLError, ConnectionError):
                return False

        eventually(answers, what="the bucket")
        yield S3(port)
