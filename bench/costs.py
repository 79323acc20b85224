"""What a server spends on a piece of work: CPU time, and instructions and cache misses where the machine counts them."""

import functools
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import processes

EVENTS = ("instructions", "cache-misses")
INSTEAD = "instruction_counts.py counts the compiled extension's, and cache_misses.py a whole server's, under callgrind"


class Costs(dict[str, float]):
    """`cpu_s`, `instructions`, `cache_misses` of the work; filled when it is over."""

    def each(self, messages: float) -> dict[str, float]:
        """Per message: `cpu_us`, and `instructions` and `cache_misses` where they were counted."""
        found = {name: value / messages for name, value in self.items()}
        return {"cpu_us": found.pop("cpu_s") * 1e6, **found}


@functools.cache
def no_counters() -> str:
    """Why instructions and cache misses cannot be counted here; "" if they can."""
    if shutil.which("perf") is None:
        return "perf is not installed"
    done = subprocess.run(
        ["perf", "stat", "-x", ",", "-e", ",".join(EVENTS), "true"], capture_output=True, text=True, check=False
    )
    if done.returncode or len(_counts(done.stderr)) < len(EVENTS):
        return "perf has no counters of the processor here"
    return ""


def _counts(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[0].isdigit():
            found[fields[2].partition(":")[0].replace("-", "_")] = float(fields[0])
    return found


@contextmanager
def spent(server: processes.Server) -> Iterator[Costs]:
    """What `server` spends while the body runs."""
    costs = Costs()
    perf = None
    if not no_counters():
        command = ["perf", "stat", "-x", ",", "-e", ",".join(EVENTS), "-p", str(server.process.pid)]
        perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    before = server.cpu_seconds()
    try:
        yield costs
    finally:
        costs["cpu_s"] = server.cpu_seconds() - before
        if perf is not None:
            perf.send_signal(signal.SIGINT)
            costs.update(_counts(perf.communicate()[1]))
