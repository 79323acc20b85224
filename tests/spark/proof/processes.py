"""The processes below a driver: who they are, killing them, and whether they are gone (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.spark.proof.plan import DAEMON, JVM, PLANNER, WORKER

_DAEMONS, _OF_TASKS = {"metaq.spark.daemon", "pyspark.daemon"}, "pyspark.worker"
"""Spark has daemons for what plans queries, too: what tells them apart is the module whose workers they fork."""


@dataclass(frozen=True)
class Process:
    """One process, for ever: a number alone may be given to another one."""

    pid: int
    began: int
    """Clock ticks since the machine's start."""
    parent: int
    words: tuple[str, ...]

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.began

    def __str__(self) -> str:
        return f"{self.pid} ({' '.join(self.words)[:120]})"


def process(pid: int) -> Process | None:
    """None: there is none, or it has ended and its parent has not asked yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    known = tuple(word.decode(errors="replace") for word in words if word)
    return Process(pid, int(fields[19]), int(fields[1]), known or ("?",))


def below(pid: int) -> list[Process]:
    """All that descend from a process, parents first."""
    children: dict[int, list[Process]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (one := process(int(path.name))) is not None:
            children.setdefault(one.parent, []).append(one)
    found, look = [], [pid]
    while look:
        for one in children.get(look.pop(0), ()):
            found.append(one)
            look.append(one.pid)
    return found


def parts(driver: int, found: list[Process]) -> dict[str, list[Process]]:
    """What each process below a driver is to Spark."""
    sorted_out: dict[str, list[Process]] = {JVM: [], DAEMON: [], WORKER: [], PLANNER: []}
    forks = {one.pid for one in found if _is_daemon(one)}  # A worker has the words of the daemon that it is a fork of.
    of_tasks = {one.pid for one in found if _OF_TASKS in one.words and one.parent not in forks}
    for one in found:
        if one.parent == driver and "java" in Path(one.words[0]).name:
            sorted_out[JVM].append(one)
        elif one.pid in of_tasks:
            sorted_out[DAEMON].append(one)
        elif one.parent in of_tasks:
            sorted_out[WORKER].append(one)
        elif "python" in Path(one.words[0]).name and one.parent != driver:
            sorted_out[PLANNER].append(one)
    return sorted_out


def _is_daemon(one: Process) -> bool:
    return bool(_DAEMONS & set(one.words))


def lives(one: Process) -> bool:
    now = process(one.pid)
    return now is not None and now.key == one.key


def kill(one: Process) -> None:
    """kill -9, of this very process."""
    if lives(one):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
