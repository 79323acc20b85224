"""Messages per second that RocketMQ's Java client 4.9.8 takes from 8 queues in order: on our broker and on RocketMQ 4.9.7.

    python bench/java_orderly_bench.py [--count 200000] [--runs 3]

The client is the same program on both; which broker goes first alternates.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

import orderly_bench
import processes
import rocketmq

SOURCE = processes.ROOT / "bench" / "java" / "OrderlyRate.java"


def rate(server: processes.Server, count: int) -> float:
    """Raises RuntimeError: no Java, no client, or the program failed."""
    classes = rocketmq.classpath(client=True)
    total = orderly_bench.fill(server.namesrv, "java-orderly", count, b"x" * 100)
    with tempfile.TemporaryDirectory() as folder:
        compiled = subprocess.run(
            ["javac", "-cp", classes, "-d", folder, str(SOURCE)], capture_output=True, text=True, check=False
        )
        if compiled.returncode:
            raise RuntimeError(f"{SOURCE.name} does not compile: {compiled.stderr[-500:]}")
        done = subprocess.run(
            ["java", "-Xmx512m", "-Drocketmq.client.logLevel=ERROR", f"-Duser.home={folder}", "-cp", f"{folder}:{classes}",
             "OrderlyRate", server.namesrv, "java-orderly", str(total)],
            capture_output=True, text=True, check=False, timeout=processes.PATIENCE,
        )  # fmt: skip
    found = re.search(r"rate (\S+)", done.stdout)
    if not found:
        raise RuntimeError(f"the Java consumer failed: {(done.stdout + done.stderr)[-500:]}")
    return float(found.group(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    arguments = parser.parse_args()
    arguments.disk.mkdir(parents=True, exist_ok=True)
    rates: dict[str, list[float]] = {"ours": [], "rocketmq": []}
    for run in range(arguments.runs):
        for name in sorted(rates, reverse=bool(run % 2)):
            place = processes.metaq_up if name == "ours" else rocketmq.running
            with place(arguments.disk) as server:
                rates[name].append(rate(server, arguments.count))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(json.dumps({**medians, "ratio": medians["ours"] / medians["rocketmq"], "all": rates}))


if __name__ == "__main__":
    main()
