"""Foreign jars from Maven's own central repository, kept in the clone's `.cache`."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import WHOLE_PATIENCE

CACHE = Path(__file__).resolve().parents[2] / ".cache"
GROUP = "org.apache.rocketmq"
CLIENT = (f"{GROUP}:rocketmq-client:4.9.8", f"{GROUP}:rocketmq-acl:4.9.8")
SERVER = (f"{GROUP}:rocketmq-broker:4.9.7", f"{GROUP}:rocketmq-namesrv:4.9.7", f"{GROUP}:rocketmq-tools:4.9.7")
TCNATIVE = ("io.netty:netty-tcnative-boringssl-static:2.0.39.Final:alone",)
"""OpenSSL for that server's netty: the version that netty 4.1.65's own build names."""


def java(*, compiler: bool = False) -> str:
    """The `java` (or `javac`) on PATH; skips the test where there is none."""
    name = "javac" if compiler else "java"
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: this test runs the RocketMQ Java client")
    return found


def folder_name(*artifacts: str) -> str:
    return "+".join("-".join(artifact.split(":")[1:]) for artifact in artifacts)


def jars(*artifacts: str) -> Path:
    """Folder with the jars of `group:artifact:version`s and of all they need; skips the test if they cannot be had.

    Of `group:artifact:version:alone` nothing that it needs.
    """
    folder = CACHE / "jars" / folder_name(*artifacts)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(artifacts, folder)
    return folder


def _fetch(artifacts: tuple[str, ...], folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"mvn is not installed: it fetches {', '.join(artifacts)}")
    dependencies = "".join(map(_dependency, artifacts))
    pom = Path(f"{folder}.xml")
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>metaq</groupId><artifactId>foreign</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    fresh = Path(f"{folder}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    command = [maven, "-q", "-B", "-ntp", f"-Dmaven.repo.local={CACHE / 'm2'}", "-f", str(pom)]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={fresh}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False)
    if done.returncode != 0:
        pytest.skip(f"mvn could not fetch {', '.join(artifacts)}: {(done.stdout + done.stderr).strip()[-300:]}")
    fresh.rename(folder)


def _dependency(artifact: str) -> str:
    group, name, version, *alone = artifact.split(":")
    nothing = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"{nothing if alone else ''}</dependency>"
    )
