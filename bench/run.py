"""Measures every figure that the project promises, in one command. See README.md in this folder.

python bench/run.py [--quick] [--rows send-100,batch] [--runs 5] [--backlog 100M] [--disk DIR] [--output DIR]
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import costs
import peers
import plot
import processes
import report
from row import Bench, Measured, Row
from rows import ROWS

CACHE = processes.ROOT / ".cache" / "bench"


def ceilings(bench: Bench) -> dict[str, dict[str, float]]:
    """What the generator reaches against a server that does nothing, for each kind of request."""
    kinds: dict[str, tuple[str, dict[str, object]]] = {
        "send 100 B, 4 × 64": ("send", {"count": bench.count(1_000_000)}),
        "send 1 KB, 4 × 64": ("send", {"count": bench.count(500_000), "body": 1000}),
        "send 1 × 1": ("send", {"count": bench.count(40_000), "conns": 1, "outstanding": 1}),
        "send 64 × 1": ("send", {"count": bench.count(200_000), "conns": 64, "outstanding": 1}),
        "batch of 100 × 100 B": ("batch", {"count": bench.count(20_000, 100), "outstanding": 16}),
        "pull of 32 × 100 B": ("pull", {"count": bench.count(150_000, 500), "outstanding": 16}),
    }
    with processes.null_server(CACHE, 100) as server:
        found = {
            name: processes.load(CACHE, mode, server.address, verify=0, **options)
            for name, (mode, options) in kinds.items()
        }
        with processes.cores_awake():
            mode, options = kinds["send 1 × 1"]
            found["send 1 × 1, cores awake"] = processes.load(CACHE, mode, server.address, verify=0, **options)
    return found


def measure(rows: list[Row], bench: Bench, runs: int | None) -> tuple[dict[str, list[Measured]], dict[str, str]]:
    """All rows, one run of each in turn, so that a spell of noise is spread over all of them."""
    done: dict[str, list[Measured]] = {row.key: [] for row in rows}
    failures: dict[str, str] = {}
    for bench.run in range(max(row.runs if runs is None else runs for row in rows)):
        for row in rows:
            if row.key in failures or bench.run >= (runs if runs is not None and row.runs > 1 else row.runs):
                continue
            started = time.monotonic()
            try:
                measured = row.measure(bench)
            except (RuntimeError, OSError) as error:
                failures[row.key] = str(error)
                print(f"{row.key}: {error}", file=sys.stderr, flush=True)
                continue
            took = time.monotonic() - started
            for one in measured if isinstance(measured, list) else [measured]:
                done[row.key].append(one)
                beside = f", {row.beside} {one['beside']:.1f}" if "beside" in one else ""
                number = len(done[row.key])
                print(f"{row.key} run {number}: {one['value']:.2f} {row.unit}{beside} ({took:.1f} s)", flush=True)
    return done, failures


def messages(text: str) -> int:
    """A number of messages as people write it: 20000, 500k, 1M."""
    units = {"k": 1_000, "m": 1_000_000}
    unit = units.get(text[-1:].lower(), 1)
    return int(float(text[:-1] if unit > 1 else text) * unit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help=f"comma-separated, of {', '.join(row.key for row in ROWS)}; default all")
    parser.add_argument("--runs", type=int, help="runs of each row; default 5 to 7")
    parser.add_argument("--quick", action="store_true", help="small counts, one run: shows that the benchmarks work")
    parser.add_argument("--alone", action="store_true", help="without the peers that are measured in the same run")
    parser.add_argument(
        "--backlog", type=messages, help="messages of the row backlog: 1M, 100M; default 100M, quick 100k"
    )
    parser.add_argument("--disk", type=Path, default=CACHE / "disk", help="folder on a real disk for the stores")
    parser.add_argument("--output", type=Path, default=CACHE, help="folder for report.json, .md and .png")
    arguments = parser.parse_args()

    wanted = arguments.rows.split(",") if arguments.rows else [row.key for row in ROWS]
    rows = [row for row in ROWS if row.key in wanted]
    if unknown := set(wanted) - {row.key for row in rows}:
        parser.error(f"no such rows: {', '.join(sorted(unknown))}")
    for folder in (CACHE, arguments.disk, arguments.output):
        folder.mkdir(parents=True, exist_ok=True)
    if report.file_system(arguments.disk) == "tmpfs":
        print(f"warning: {arguments.disk} is in memory; first touches of pages cost nothing there", file=sys.stderr)
    if processes.stale_hot_module():
        print("warning: the compiled extension is older than its source: build it with `make hot`", file=sys.stderr)
    try:
        processes.compiled("loadgen", CACHE)
    except FileNotFoundError as error:
        parser.error(str(error))
    peers.fetching = not arguments.quick
    missing = {} if arguments.alone else peers.missing()
    for why in missing.values():
        print(f"warning: {why}", file=sys.stderr)
    scale = 0.01 if arguments.quick else 1.0
    bench = Bench(CACHE, arguments.disk, scale, missing=missing, alone=arguments.alone)
    bench.paired = bench.has("redis")
    bench.backlog = arguments.backlog or (100_000 if arguments.quick else bench.backlog)

    result: dict[str, Any] = {"machine": report.machine(processes.ROOT, arguments.disk)}
    started = time.monotonic()
    result["without"] = list(missing.values()) + (
        [f"{costs.no_counters()}: {costs.INSTEAD}"] if costs.no_counters() else []
    )
    result["ceilings"] = ceilings(bench)
    runs, result["failures"] = measure(rows, bench, 1 if arguments.quick else arguments.runs)
    if not arguments.rows:
        result["hot"] = processes.output_of("hot_bench.py", *(["--quick"] if arguments.quick else []))
    result["rows"] = [report.summary(row, runs[row.key]) for row in rows if runs[row.key]]
    result["runs"] = runs
    result["seconds"] = time.monotonic() - started
    (arguments.output / "report.json").write_text(json.dumps(result, indent=1, ensure_ascii=False))
    plot.draw(result, arguments.output / "report.png")
    text = report.markdown(result)
    (arguments.output / "report.md").write_text(text)
    print(f"\n{text}\n{result['seconds']:.0f} s; written to {arguments.output}")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
