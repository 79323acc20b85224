"""Synchronous pairs of MetaQ 1.x: the original's samsa and gregor, of a distribution that the environment names, and ours."""

import fcntl
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.interop import maven
from tests.interop.driver import HERE
from tests.interop.metaq1 import (
    SERVER,
    VERSION,
    OriginalServer,
    OurServer,
    Sections,
    TextServer,
    Zookeeper,
    java_command,
)
from tests.interop.servers import launch
from tests.support import WHOLE_PATIENCE, environment, metaq_command

WRAPPER = "METAQ1_SERVER_LIB"
"""Variable that names the folder `lib` of an original distribution 1.4.6.2: its samsa and gregor are in no published jar."""
CLASSES = maven.CACHE / f"metamorphosis-pair-{VERSION}"


def wrapper_jars() -> Path:
    """Folder with the original's jars, its samsa and gregor among them; the test is skipped where there is none."""
    lib = os.environ.get(WRAPPER)
    if not lib:
        pytest.skip(
            f"{WRAPPER} does not name the folder lib of an original distribution: its pair is in no published jar"
        )
    return Path(lib)


def pair_classes(lib: Path) -> Path:
    """Folder with Metaq1Pair, which starts one half of an original pair."""
    maven.CACHE.mkdir(parents=True, exist_ok=True)
    with Path(f"{CLASSES}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not CLASSES.is_dir():
            fresh = Path(f"{CLASSES}.new")
            fresh.mkdir(exist_ok=True)
            command = [maven.java(compiler=True), "-nowarn", "-Xlint:none", "-encoding", "UTF-8", "-d", str(fresh)]
            place = f"{lib}/*:{lib}:{maven.jars(*SERVER)}/*"
            source = str(HERE / "java" / "Metaq1Pair.java")
            subprocess.run([*command, "-cp", place, source], check=True, timeout=WHOLE_PATIENCE)
            fresh.rename(CLASSES)
    return CLASSES


class PairServer(TextServer):
    """A server that is half of a pair; `role` is samsa or gregor, or "" for neither, and may be changed while it is stopped."""

    def __init__(
        self,
        folder: Path,
        zookeeper: Zookeeper,
        topics: Sections | None = None,
        *,
        role: str,
        pair: Mapping[str, object] | None = None,
        registry: Mapping[str, object] | None = None,
    ) -> None:
        # One put thread: the gregor of 1.4.6.2 does not start with more on a JDK of today.
        super().__init__(folder, zookeeper, topics, {"putProcessThreadCount": 1}, registry=registry)
        self.become(role, pair)

    def become(self, role: str, pair: Mapping[str, object] | None = None) -> None:
        """Have this role from the next start on, with these properties."""
        self.role, self.properties = role, self.folder / "conf" / f"{role}.properties"
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in (pair or {}).items()))


class OriginalPairServer(PairServer, OriginalServer):
    """A server 1.4.6.2."""

    def start(self) -> None:
        lib = wrapper_jars()
        classes = pair_classes(lib)
        command = java_command(self.folder, SERVER, self.jvm)
        at = command.index("-cp") + 1
        command[at] = f"{classes}:{lib}/*:{lib}:{command[at]}"
        command += ["Metaq1Pair", str(self.ini), self.role, str(self.properties)]
        self._process, _ = launch(command, self.log, r"^pair is ready")


class OurPairServer(PairServer, OurServer):
    """`metaq broker -f server.ini -Fsamsa=...` of this clone."""

    def start(self) -> None:
        command = metaq_command("broker", "-f", str(self.ini), f"-F{self.role}={self.properties}")
        command += ["--port", self.broker.rpartition(":")[2]]
        self._process, ready = launch(command, self.log, r"^ready broker \S+ (\S+)", environment())
        self.broker = ready.group(1)


PAIR_SERVERS: dict[str, type[PairServer]] = {"original": OriginalPairServer, "ours": OurPairServer}
