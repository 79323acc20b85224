"""Instructions and cache misses of a whole server per message, counted by callgrind.

    python bench/cache_misses.py                     # every path, ours and Redis: some minutes
    python bench/cache_misses.py --row send-64x1 --count 2000

For machines whose processor lets nobody count (perf's `<not supported>`, as most virtual ones). The caches are simulated: 32 KiB
first, 8 MiB last, without what the kernel does and without prefetching, so the figures compare builds and servers of one machine
with each other and are no times. A server runs some fifty times slower so, and more on a busy machine: what its timers and threads do
meanwhile is counted too, so take the least of some runs. For one function of ours that is steadier: instruction_counts.py.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import peers
import processes

CACHE = processes.ROOT / ".cache" / "bench"
VALGRIND = (
    "valgrind", "--tool=callgrind", "--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64", "--instr-atstart=no",
    "-q",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What is sent to a server: the generator's mode for ours, and for Redis if it has such a thing."""

    what: str
    mode: str
    options: tuple[tuple[str, object], ...]
    each: int = 1
    times: int = 1
    """As many messages more, where one takes little."""
    redis: bool = False


WORKS = {
    "send": Work("plain sends 4 × 64", "send", (("conns", 4), ("outstanding", 64)), redis=True),
    "send-64x1": Work("plain sends 64 × 1", "send", (("conns", 64), ("outstanding", 1)), redis=True),
    "batch": Work("batch of 100, a message", "batch", (("outstanding", 4),), 100, 10),
    "pull": Work("pull of 32", "pull", (("outstanding", 4),)),
}


def counted(server: processes.Server, output: Path, load: Callable[[int], None], count: int) -> dict[str, float]:
    """What `server` executes for so many messages more. It runs under callgrind, with its files at `output`.

    Loads of that size and of three times that size are counted, and the difference is taken: connections, timers and first
    touches of pages cost the same in both.
    """
    control = ["callgrind_control", str(server.process.pid)]
    sums: list[dict[str, float]] = []
    # Switched on once: at each switch callgrind takes something off its counters, which may even run below zero.
    subprocess.run([*control, "-i", "on"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for times in (1, 1, 3):  # the first has that in it, too
        load(times * count)
        subprocess.run([*control, "-d"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found: dict[str, float] = {}
        for part in output.parent.glob(f"{output.name}*"):
            for name, number in events(part.read_text()).items():
                found[name] = found.get(name, 0) + number
            part.unlink()
        sums.append(found)
    return {name: (sums[2][name] - number) / 2 for name, number in sums[1].items()}


def events(text: str) -> dict[str, float]:
    """The sums of one file of callgrind: its events by their names."""
    names = re.search(r"^events: (.+)$", text, re.MULTILINE)
    sums = re.search(r"^(?:summary|totals): ([\d ]+)$", text, re.MULTILINE)
    if names is None or sums is None:
        return {}
    numbers = (int(word) for word in sums[1].split())  # a counter that ran below zero is written without its sign
    return {
        name: float(number - (1 << 64) if number >> 63 else number)
        for name, number in zip(names[1].split(), numbers, strict=False)
    }


def figures(found: dict[str, float], messages: float) -> dict[str, float]:
    """Per message: instructions, misses of the first data cache, and of the last level."""
    first = found.get("D1mr", 0) + found.get("D1mw", 0)
    last = sum(found.get(name, 0) for name in ("ILmr", "DLmr", "DLmw"))
    return {"instructions": found.get("Ir", 0) / messages, "first": first / messages, "last": last / messages}


def ours(work: Work, disk: Path, count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        output = Path(folder).resolve() / "counts"
        prefix = (*VALGRIND, f"--callgrind-out-file={output}")
        with processes.metaq_up(disk, prefix=prefix) as server:

            def load(mode: str, number: int, **options: object) -> None:
                processes.load(CACHE, mode, server.address, count=number, seconds=300, **options)

            if work.mode == "pull":
                load("batch", max(8, count // 100))
            options, requests = dict(work.options), max(8, count // work.each * work.times)
            load(work.mode, 2 * requests, **options)
            found = counted(server, output, lambda number: load(work.mode, number, **options), requests)
    return figures(found, requests * work.each)


def redis(work: Work, disk: Path, count: int) -> dict[str, float]:
    options = dict(work.options)
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        output = Path(folder).resolve() / "counts"
        with peers.redis(disk, prefix=(*VALGRIND, f"--callgrind-out-file={output}")) as server:

            def load(number: int) -> None:
                processes.load(
                    CACHE, "redis", server.address, generator="pushload", count=number, seconds=300, warm=0, **options
                )

            load(2 * count)
            found = counted(server, output, load, count)
    return figures(found, count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", default=",".join(WORKS), help=f"comma-separated, of {', '.join(WORKS)}")
    parser.add_argument("--count", type=int, default=20_000, help="messages that are counted")
    parser.add_argument("--alone", action="store_true", help="without Redis")
    parser.add_argument("--disk", type=Path, default=CACHE / "disk", help="folder for the stores")
    chosen = parser.parse_args()
    wanted = chosen.row.split(",")
    if unknown := set(wanted) - set(WORKS):
        parser.error(f"no such paths: {', '.join(sorted(unknown))}")
    if shutil.which("valgrind") is None or shutil.which("callgrind_control") is None or shutil.which("cc") is None:
        print("skipped: valgrind or cc is not installed")
        return 77
    for folder in (CACHE, chosen.disk):
        folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, float]] = {}
    print(f"{'per message':40}{'instructions':>14}{'D1 misses':>12}{'LL misses':>12}")
    for key in wanted:
        work = WORKS[key]
        servers: list[tuple[str, Callable[[Work, Path, int], dict[str, float]]]] = [("", ours)]
        if work.redis and not chosen.alone:
            servers.append((", Redis", redis))
        for name, measure in servers:
            try:
                one = found[key + name] = measure(work, chosen.disk, chosen.count)
            except RuntimeError as error:
                if measure is ours:
                    raise
                print(f"{work.what}{name}: {error}")
                continue
            print(
                f"{work.what + name:40}{one['instructions']:14,.0f}{one['first']:12.1f}{one['last']:12.2f}", flush=True
            )
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
