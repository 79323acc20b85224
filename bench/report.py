"""Medians and spreads of the runs, as JSON and as a table for people."""

import os
import platform
import statistics
import subprocess
from pathlib import Path
from typing import Any

from row import Measured, Row
from rows import RATIO_GOAL, RATIO_MUST

KEPT = (
    "p50_us", "p99_us", "cpu_us", "instructions", "cache_misses", "beside", "beside_cpu_us", "nats", "nats_cpu_us", "redis", "rocketmq", "rocketmq_cpu_us",
    "rocketmq_without_tls", "rocketmq_tcnative", "send_us", "aio_send_per_s",
)  # fmt: skip
"""Of what was measured beside the value: what the report has medians of."""


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
        "lower_is_better": row.lower_is_better,
        "runs": len(values),
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
    }
    median = result["median"]
    result["verdict"] = "–" if row.times_peer else _verdict(median, row)
    for name in KEPT:
        if all(name in run for run in runs):
            result[name] = statistics.median(run[name] for run in runs)
    if all(run.get("beside") and run["value"] for run in runs):
        # of the peer's time where that is what the bounds say; else as many times better
        turned = row.lower_is_better and not row.times_peer
        ratios = [
            run["beside"] / run["value"] if turned else run["value"] / run["beside"] for run in runs if run["value"]
        ]
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


def _peers(row: dict[str, Any]) -> str:
    """What was measured in the same run: each peer's figure, and CPU of its server where that was measured too."""
    found = [
        (row["peer"], "beside"), ("NATS", "nats"), ("Redis", "redis"), (f"RocketMQ{_tls_of(row)}", "rocketmq"),
        ("RocketMQ without TLS", "rocketmq_without_tls"),
    ]  # fmt: skip
    texts = [
        f"{name} {_number(row[key])}" + (f" ({_number(row[f'{key}_cpu_us'])})" if f"{key}_cpu_us" in row else "")
        for name, key in found
        if key in row
    ]
    return ", ".join(texts) or "–"


def _tls_of(row: dict[str, Any]) -> str:
    """What a RocketMQ encrypts with, in the rows where it does."""
    if "rocketmq_tcnative" not in row:
        return ""
    return " with TLS by netty's tcnative" if row["rocketmq_tcnative"] == 1 else " with the JDK's TLS"


def markdown(report: dict[str, Any]) -> str:
    """The whole report as Markdown."""
    where = report["machine"]
    lines = [
        (
            f"{where['cpu']}, {where['cores']} cores, {where['disk']}, Python {where['python']}, kernel {where['kernel']}, "
            f"commit {where['commit']}, load {where['load']:.1f} at the start. Server, generator and peers share the cores."
        ),
        "",
        "| work | unit | must | goal | median | spread | runs | reached | CPU µs | instructions/cache misses | p50/p99 µs | peer beside it (its CPU µs) | ratio | prototype | peers |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        ratio = f"{row['ratio']:.2f} ({row['ratio_least']:.2f}–{row['ratio_most']:.2f})" if "ratio" in row else "–"
        latency = f"{_number(row.get('p50_us'))}/{_number(row.get('p99_us'))}" if "p50_us" in row else "–"
        bounds = [f"{_number(row[name])}{' ×' if row['times_peer'] else ''}" for name in ("must", "goal")]
        counted = f"{_number(row['instructions'])}/{_number(row.get('cache_misses'))}" if "instructions" in row else "–"
        cells = [
            row["work"], row["unit"], *bounds, f"**{_number(row['median'])}**",
            f"{_number(row['least'])}–{_number(row['most'])}", row["runs"], row["verdict"], _number(row.get("cpu_us")),
            counted, latency, _peers(row), ratio, _number(row["prototype"]), row["peers"] or "–",
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
        lines += [
            "",
            "The compiled extension and its pure-Python fallback (`hot_bench.py`):",
            "",
            "```",
            report["hot"].rstrip(),
            "```",
        ]
    if report.get("without"):
        lines += ["", "Without:", "", *(f"- {why}" for why in report["without"])]
    failures = report["failures"]
    if failures:
        lines += ["", "Not measured:", "", *(f"- {key}: {why}" for key, why in failures.items())]
    return "\n".join(lines) + "\n"
