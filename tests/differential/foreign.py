"""How each foreign program is made: compiled once, from sources beside this file, into the clone's `.cache`."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.differential.program import ForeignProgram
from tests.interop import golang, maven, npm, wheel
from tests.support import PATIENCE

PROGRAMS = Path(__file__).parent / "programs"
JAVA_3 = ("com.alibaba.rocketmq:rocketmq-client:3.2.6",)


def _compiled(generation: str, classpath: str) -> Path:
    """The folder with the classes of Driver.java for that generation of the client."""
    sources = {
        name: (PROGRAMS / "java" / name).read_text()
        for name in ("Driver.java", f"{generation}/Generation.java")
    }  # fmt: skip
    if generation == "v3":
        sources["Driver.java"] = sources["Driver.java"].replace("org.apache.rocketmq", "com.alibaba.rocketmq")
    digest = hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:16]
    folder = maven.CACHE / "differential" / f"{generation}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            fresh = folder.with_suffix(".new")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            for name, text in sources.items():
                (fresh / Path(name).name).write_text(text)
            files = [str(fresh / Path(name).name) for name in sources]
            compiler = [maven.java(compiler=True), "-XDsuppressNotes", "-nowarn", "-cp", classpath, "-d", str(fresh)]
            subprocess.run([*compiler, *files], check=True, timeout=PATIENCE)
            fresh.rename(folder)
    return folder


def _java(folder: Path, generation: str, classpath: str, *options: str) -> ForeignProgram:
    command = [maven.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Xshare:auto", f"-Duser.home={folder}", *options]
    for module in ("java.lang", "sun.nio.ch", "java.nio"):
        command += [f"--add-opens=java.base/{module}=ALL-UNNAMED"]
    command += ["-cp", f"{_compiled(generation, classpath)}:{classpath}", "Driver"]
    return ForeignProgram(command, folder)


def java_4(folder: Path) -> ForeignProgram:
    """RocketMQ's Java client 4.9.8."""
    offsets = f"-Drocketmq.client.localOffsetStoreDir={folder / 'offsets'}"
    return _java(folder, "v4", f"{maven.jars(*maven.CLIENT)}/*", offsets)


def java_3(folder: Path) -> ForeignProgram:
    """The Java client 3.2.6 of the developer guide, which sends to the VIP port."""
    offsets = f"-Drocketmq.client.localOffsetStoreDir={folder / 'offsets'}"
    return _java(folder, "v3", f"{maven.jars(*JAVA_3)}/*", offsets)


def go(folder: Path) -> ForeignProgram:
    """RocketMQ's Go client v2."""
    return ForeignProgram([str(golang.driver(PROGRAMS / "go" / "driver.go"))], folder, ROCKETMQ_GO_LOG_LEVEL="error")


def cpp(folder: Path) -> ForeignProgram:
    """RocketMQ's C++ client, from its PyPI wheel."""
    return ForeignProgram([sys.executable, str(PROGRAMS / "cpp" / "driver.py"), str(wheel.unpacked())], folder)


def node(folder: Path) -> ForeignProgram:
    """The Node client ali-ons."""
    source = PROGRAMS / "node"
    return ForeignProgram([npm.node(), str(source / "driver.js"), str(npm.installed(source))], folder)


MAKERS = {"java": java_4, "java3": java_3, "go": go, "cpp": cpp, "node": node}
