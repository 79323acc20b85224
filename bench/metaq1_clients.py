"""Clients of MetaQ 1.x in processes of their own: the Java programs of `bench/java`, and the figures that any of them prints."""

import re
import subprocess
from pathlib import Path

from tests.interop import maven
from tests.interop.metaq1 import CLIENT, java_command

import processes


def figure(name: str, command: list[str]) -> float:
    """The figure `name` that a program prints. Raises RuntimeError: it failed."""
    environment = processes.environment()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=processes.PATIENCE, env=environment
    )
    found = re.search(rf"\b{name} (\S+)", done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"{command[-7:]} failed: {(done.stdout + done.stderr)[-1000:]}")
    return float(found.group(1))


def java_program(name: str, home: Path, jvm: tuple[str, ...] = ("-Xmx512m",)) -> list[str]:
    """The command of a program of `bench/java` with the Java client 1.4.6.2, without its arguments; compiled into `home`."""
    command = java_command(home, CLIENT, jvm, "ERROR")
    classes = command[command.index("-cp") + 1]
    source = processes.ROOT / "bench" / "java" / f"{name}.java"
    compiler = [maven.java(compiler=True), "-cp", classes, "-d", str(home), str(source)]
    compiled = subprocess.run(compiler, capture_output=True, text=True, check=False)
    if compiled.returncode:
        raise RuntimeError(f"{source.name} does not compile: {compiled.stderr[-500:]}")
    return [*command, name]
