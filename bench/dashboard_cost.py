"""What an open dashboard costs a broker: the rows `send-64x1` and `push` without one and with one that a viewer follows, in turn.

    python bench/dashboard_cost.py            # about ten minutes
    python bench/dashboard_cost.py --idle     # only what it costs a server that has nothing else to do
    python bench/dashboard_cost.py --pairs=60 # the dashboard halted and running in turn, beside one server: two per cent are seen so
    python bench/dashboard_cost.py --quick    # a smoke run

`apart`: the dashboard is a process of its own, as `metaq up` starts it. `within`: it runs in the loop of `metaq up`, which is what
that costs and why it does not. One viewer follows the overview; the cluster has topics and groups to look at. A run of each in a turn,
who goes first alternates. The last line is JSON: of each figure the medians, and the median of the ratios within a turn.
"""

import argparse
import asyncio
import http.client
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import costs
import processes
from metaq.admin import Admin

WAYS = ("none", "apart", "within")
TOPICS = 100
GROUPS = 20
FIGURES = ("idle_ms_s", "send_k_s", "send_cpu_us", "push_p50_us", "push_p99_us", "push_cpu_us")
"""`idle_ms_s`: CPU of the server that has nothing else to do, ms a second. What it is more with a dashboard is taken from a busy one: a
thousandth of its loop for each, and the one figure that neighbours on the machine do not blur."""


@contextmanager
def _dashboard(namesrv: str, log: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A dashboard in a process of its own. Yields its `host:port`, and the process."""
    command = [sys.executable, "-m", "metaq", "dashboard", "-n", namesrv, "--port", "0"]
    with log.open("a") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=processes.environment()
        )
    try:
        assert process.stdout is not None
        yield _place(process.stdout.readline()), process
    finally:
        process.send_signal(signal.SIGCONT)
        processes.stop(process)


def _place(line: str) -> str:
    found = re.search(r"http://([^/ ]+)/", line)
    if not found:
        raise RuntimeError(f"no dashboard in {line!r}")
    return found.group(1)


@contextmanager
def _within(disk: Path) -> Iterator[tuple[processes.Server, str]]:
    """A name server, a broker and a dashboard in one loop. Yields the server, and the dashboard's `host:port`."""
    with tempfile.TemporaryDirectory(prefix="metaq-", dir=disk) as folder:
        command = [sys.executable, __file__, "--serve-within", folder]
        with (disk / "metaq.log").open("a") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=processes.environment()
            )
        try:
            assert process.stdout is not None
            found = re.search(r"namesrv=(\S+) broker=(\S+)", process.stdout.readline())
            if not found:
                raise RuntimeError("the server with a dashboard did not start")
            yield (
                processes.Server(process, found.group(2), 0, found.group(1)),
                _place(process.stdout.readline()),
            )
        finally:
            processes.stop(process)


def _serve_within(folder: str) -> int:
    """Be that server."""
    from metaq.app.runtime import run
    from metaq.app.up import RunningUp, start_up
    from metaq.dashboard.server import start_dashboard
    from metaq.dashboard.settings import DashboardSettings
    from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions

    tasks = set[asyncio.Task[None]]()

    def ready(service: object) -> None:
        assert isinstance(service, RunningUp)
        print(service.ready, flush=True)

        async def show() -> None:
            settings = DashboardSettings(namesrv=service.namesrv.address, port=0)
            print(f"ready dashboard {(await start_dashboard(settings)).url}", flush=True)

        tasks.add(asyncio.ensure_future(show()))

    return run(
        lambda: start_up(
            BrokerOptions(listen_port=0),
            StoreOptions(store_path_root_dir=folder, mapped_file_size_commit_log=processes.LOG_FILE_BYTES),
            NamesrvOptions(listen_port=0, kv_config_path=f"{folder}/kv.json"),
        ),
        None,
        ready,  # type: ignore[arg-type]  it is started as one
    )


class Viewer:
    """Follows the overview, as a browser does that has it open."""

    def __init__(self, place: str) -> None:
        host, _, port = place.rpartition(":")
        self._link = http.client.HTTPConnection(host, int(port), timeout=processes.PATIENCE)
        self._link.request("GET", "/")
        page = self._link.getresponse()
        cookie = (page.getheader("set-cookie") or "").partition(";")[0]
        page.read()
        self._link.request("GET", "/live?of=/", headers={"cookie": cookie})
        self._stream = self._link.getresponse()
        self.parts = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self._stream:
                self.parts += line.startswith(b"event: part")
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return  # the server has ended


def _fill(namesrv: str) -> None:
    with Admin(namesrv) as admin:
        for number in range(TOPICS):
            admin.create_topic(f"topic-{number}", queues=4)
        for number in range(GROUPS):
            admin.set_group(f"group-{number}")


@contextmanager
def _shown(way: str, disk: Path) -> Iterator[tuple[processes.Server, list[Viewer]]]:
    """A server, and who looks at it."""
    if way == "within":
        with _within(disk) as (server, place):
            _fill(server.namesrv)
            yield server, [Viewer(place)]
        return
    with processes.metaq_up(disk) as server:
        _fill(server.namesrv)
        if way == "none":
            yield server, []
            return
        with _dashboard(server.namesrv, disk / "metaq.log") as (place, _):
            yield server, [Viewer(place)]


def measure(way: str, cache: Path, disk: Path, scale: float, *, idle_only: bool) -> dict[str, float]:
    """One run of each row."""
    with _shown(way, disk) as (server, viewers):
        time.sleep(6 * scale)  # the first looks, which are the longest
        began = time.monotonic()
        with costs.spent(server) as spent_idle:
            time.sleep(max(0.5, 20 * scale))
        idle = spent_idle["cpu_s"] * 1000 / (time.monotonic() - began)
        if idle_only:
            return {"idle_ms_s": idle}
        with costs.spent(server) as spent:
            sends = processes.load(
                cache, "rocketmq", server.address, generator="pushload", conns=64, outstanding=1,
                count=max(1000, int(400_000 * scale)), seconds=60, warm=0.5 * scale,
            )  # fmt: skip
        each = spent.each(max(1, sends["requests"]))
        seconds = max(1.0, 12 * scale)
        with costs.spent(server) as spent_push:
            push = processes.load(
                cache, "rocketmq", server.address, generator="pushload", rate=1000, seconds=seconds, warm=seconds / 8, queues=4,
            )  # fmt: skip
        each_push = spent_push.each(max(1, push["requests"]))
        if scale >= 0.5 and any(viewer.parts == 0 for viewer in viewers):
            raise RuntimeError("the viewer got nothing: nothing was measured")
    return {
        "idle_ms_s": idle, "send_k_s": sends["requests_per_s"] / 1000, "send_cpu_us": each["cpu_us"], "push_p50_us": push["p50_us"],
        "push_p99_us": push["p99_us"], "push_cpu_us": each_push["cpu_us"],
    }  # fmt: skip


def pairs(cache: Path, disk: Path, count: int, scale: float) -> dict[str, dict[str, float]]:
    """One server and its dashboard with a viewer, which is halted (SIGSTOP) in every other run, a second long: what the machine does
    otherwise is nearly the same in both runs of a pair. Returns figure → median of the ratios running ÷ halted, and its standard error."""
    found: dict[str, list[float]] = {"send_k_s": [], "send_cpu_us": [], "push_p50_us": []}
    with processes.metaq_up(disk) as server:
        _fill(server.namesrv)
        with _dashboard(server.namesrv, disk / "metaq.log") as (place, process):
            viewer = Viewer(place)
            time.sleep(6 * scale)
            for number in range(count):
                seen: dict[bool, dict[str, float]] = {}
                for running in (number % 2 == 0, number % 2 == 1):
                    process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)
                    with costs.spent(server) as spent:
                        sends = processes.load(
                            cache, "rocketmq", server.address, generator="pushload", conns=64, outstanding=1,
                            count=max(1000, int(60_000 * scale)), seconds=60, warm=0.05 * scale,
                        )  # fmt: skip
                    cpu = spent.each(max(1, sends["requests"]))["cpu_us"]
                    push = processes.load(
                        cache, "rocketmq", server.address, generator="pushload", rate=1000, seconds=max(0.5, scale), warm=0.1 * scale,
                        queues=4,
                    )  # fmt: skip
                    seen[running] = {
                        "send_k_s": sends["requests_per_s"], "send_cpu_us": cpu, "push_p50_us": push["p50_us"],
                    }  # fmt: skip
                for key, ratios in found.items():
                    ratios.append(seen[True][key] / max(seen[False][key], 1e-9))
            process.send_signal(signal.SIGCONT)
            if scale >= 0.5 and viewer.parts == 0:
                raise RuntimeError("the viewer got nothing: nothing was measured")
    return {key: _median_and_error(ratios) for key, ratios in found.items()}


def _median_and_error(ratios: list[float]) -> dict[str, float]:
    ordered = sorted(ratios)
    # Of the median: 1.25 standard errors of a mean, with a deviation that outliers do not blow up.
    spread = (ordered[len(ordered) * 3 // 4] - ordered[len(ordered) // 4]) / 1.35
    return {"ratio": round(statistics.median(ordered), 4), "error": round(1.25 * spread / len(ordered) ** 0.5, 4)}


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--idle", action="store_true", help="only what it costs a server that has nothing else to do")
    parser.add_argument(
        "--pairs", type=int, default=0, help="so many pairs of runs with the dashboard halted and running"
    )
    parser.add_argument("--ways", default=",".join(WAYS), help="which of them")
    parser.add_argument("--disk", type=Path, default=processes.ROOT / ".cache" / "bench" / "disk")
    parser.add_argument("--serve-within", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve_within:
        return _serve_within(asked.serve_within)
    asked.disk.mkdir(parents=True, exist_ok=True)
    cache, ways = processes.ROOT / ".cache" / "bench", asked.ways.split(",")
    turns, scale = (1, 0.01) if asked.quick else (asked.turns, 1.0)
    if asked.pairs:
        print(json.dumps(pairs(cache, asked.disk, asked.pairs, scale)))
        return 0
    found = list[dict[str, dict[str, float]]]()
    for turn in range(turns):
        order = ways if turn % 2 == 0 else list(reversed(ways))
        found.append({way: measure(way, cache, asked.disk, scale, idle_only=asked.idle) for way in order})
        print(turn, {way: {key: round(value, 2) for key, value in found[-1][way].items()} for way in ways}, flush=True)
    report: dict[str, dict[str, float]] = {}
    for way, key in itertools.product(ways, FIGURES[:1] if asked.idle else FIGURES):
        report.setdefault(key, {})[way] = round(statistics.median(one[way][key] for one in found), 3)
        if way != ways[0]:
            ratios = [one[way][key] / one[ways[0]][key] for one in found if one[ways[0]][key]]
            if ratios:  # else the broker was too idle to be measured, as in a quick run
                report[key][f"{way} ÷ {ways[0]}"] = round(statistics.median(ratios), 4)
    print(json.dumps(report, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
