"""Medians and spreads of the runs, as JSON and as a table for people."""

import os
import platform
import statistics
import subprocess
from pathlib import Path
from typing import Any

from rows import RATIO_GOAL, RATIO_MUST, Measured, Row


def machine(root: Path, disk: Path) -> dict[str, Any]:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    commit = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "disk": file_system(disk),
        "commit": commit.stdout.strip(),
    }


def file_system(folder: Path) -> str:
    """The type of the file system that `folder` is on, as the kernel names it."""
    best, kind = "", "?"
    resolved = str(folder.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        point, type_ = line.split()[1:3]
        if (resolved + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            best, kind = point, type_
    return kind


def summary(row: Row, runs: list[Measured]) -> dict[str, Any]:
    """One row's runs in figures: median, least and most of each thing measured."""
    values = [run["value"] for run in runs]
    result: dict[str, Any] = {
        "key": row.key,
        "work": row.work,
        "unit": row.unit,
        "must": row.must,
        "goal": row.goal,
        "prototype": row.prototype,
        "peers": row.peers,
        "peer": row.beside,
        "times_peer": row.times_peer,
        "runs": len(values),
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
    }
    median = result["median"]
    result["verdict"] = "–" if row.times_peer else _verdict(median, row)
    for name in ("p50_us", "p99_us", "cpu_us", "beside", "send_us", "aio_send_per_s"):
        if all(name in run for run in runs):
            result[name] = statistics.median(run[name] for run in runs)
    if all("beside" in run for run in runs):
        ratios = [run["beside"] / run["value"] if row.lower_is_better else run["value"] / run["beside"] for run in runs]
        result["ratio"] = statistics.median(ratios)
        result["ratio_least"], result["ratio_most"] = min(ratios), max(ratios)
        if row.times_peer:
            result["verdict"] = _verdict(result["ratio"], row)
    return result


def _verdict(value: float, row: Row) -> str:
    """`value`: the median, or where the bounds are multiples of the peer's, the ratio."""

    def reached(bound: float) -> bool:
        return value <= bound if row.lower_is_better else value >= bound

    return "goal" if reached(row.goal) else "must" if reached(row.must) else "below"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def markdown(report: dict[str, Any]) -> str:
    """The whole report as Markdown."""
    where = report["machine"]
    lines = [
        (
            f"{where['cpu']}, {where['cores']} cores, {where['disk']}, Python {where['python']}, kernel {where['kernel']}, "
            f"commit {where['commit']}, load {where['load']:.1f} at the start. Server, generator and peers share the cores."
        ),
        "",
        "| work | unit | must | goal | median | spread | runs | reached | CPU µs | p50/p99 µs | peer beside it | ratio | prototype | peers |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        ratio = f"{row['ratio']:.2f} ({row['ratio_least']:.2f}–{row['ratio_most']:.2f})" if "ratio" in row else "–"
        latency = f"{_number(row.get('p50_us'))}/{_number(row.get('p99_us'))}" if "p50_us" in row else "–"
        bounds = [f"{_number(row[name])}{' ×' if row['times_peer'] else ''}" for name in ("must", "goal")]
        cells = [
            row["work"], row["unit"], *bounds, f"**{_number(row['median'])}**",
            f"{_number(row['least'])}–{_number(row['most'])}", row["runs"], row["verdict"], _number(row.get("cpu_us")),
            latency, f"{row['peer']} {_number(row['beside'])}" if "beside" in row else "–", ratio, _number(row["prototype"]), row["peers"] or "–",
        ]  # fmt: skip
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    lines += ["", f"Ratio of single sends to Redis Streams: must reach {RATIO_MUST}, goal {RATIO_GOAL}.", ""]
    lines += ["| generator against a null server | k requests/s | p50 µs |", "|---|---|---|"]
    lines += [
        f"| {name} | {ceiling['requests_per_s'] / 1000:.0f} | {ceiling['p50_us']:.1f} |"
        for name, ceiling in report["ceilings"].items()
    ]
    for row in report["rows"]:
        if row["key"] == "client-submit" and "send_us" in row:
            lines += ["", f"Python client beside that: one `send` after the other {row['send_us']:.0f} µs each, "]
            lines[-1] += f"1000 asyncio tasks with one `send` each {row['aio_send_per_s'] / 1000:.0f} k/s."
    if "hot" in report:
        lines += ["", "The hot module and its plain twin (`hot_bench.py`):", "", "```", report["hot"].rstrip(), "```"]
    failures = report["failures"]
    if failures:
        lines += ["", "Not measured:", "", *(f"- {key}: {why}" for key, why in failures.items())]
    return "\n".join(lines) + "\n"
