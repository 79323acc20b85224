"""How long pages of the dashboard take at a large cluster: 10 000 topics and 1 000 groups, by HTTP, dashboard and cluster in processes of
their own.

    python bench/dashboard_bench.py [--topics 10000] [--groups 1000] [--rounds 20] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metaq.client.conversation.administration import CreateTopic
from metaq.client.conversation.reading.offsets import SetPosition
from metaq.client.identity.options import client_options
from metaq.client.shared import cores
from metaq.model import MessageQueue

BOUND_MS = 300
"""What a page may take."""
_AT_ONCE = 64


def start(*command: str, ready: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server. Returns it and the line that says that it is ready."""
    environment = {**os.environ, "METAQ_STOP_WITH_STDIN": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", "metaq", *command],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(ready):
            return child, line.strip()
    raise SystemExit(f"{command[0]} has ended with {child.wait()}")


async def fill(namesrv: str, broker: str, topics: int, groups: int) -> None:
    """Make topics with one queue each, and groups that have read nothing of theirs."""
    options = client_options()
    core = cores.acquire(namesrv, options)
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(call: CreateTopic | SetPosition) -> None:
        async with places:
            await core.ask(broker, call, 30.0)

    async def all_of_it() -> None:
        await asyncio.gather(*(one(CreateTopic(f"topic-{number:05}", 1, 6, False)) for number in range(topics)))
        await asyncio.gather(
            *(
                one(SetPosition(f"group-{number:04}", MessageQueue(f"topic-{number % topics:05}", "bench", 0), 0))
                for number in range(groups)
            )
        )
        await cores.release(core, options)

    await core.thread.awaited(all_of_it())


def ask(url: str) -> tuple[float, bytes]:
    """Return the time that a page has taken, ms, and the page."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        body = answer.read()
    return (time.perf_counter() - began) * 1000, body


def measure(url: str, broker: str, topics: int, groups: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return page → median and longest time, ms, and its size, KiB."""
    until = time.monotonic() + 120
    while True:
        found = json.loads(ask(f"{url}?format=json")[1])
        if found["topic_count"] >= topics and found["group_count"] >= groups:
            break
        if time.monotonic() > until:
            raise SystemExit(f"the dashboard has seen {found['topic_count']} topics and {found['group_count']} groups")
        time.sleep(0.5)
    pages = {
        "overview": "", "topics": "topics", "topics, sorted": "topics?sort=-stored&rows=500", "topics, last page": "topics?page=1000000",
        "topics, searched": "topics?q=99", "topics as JSON": "topics?format=json", "topic": "topics/topic-00000", "groups": "groups",
        "groups, 500 rows": "groups?rows=500&sort=group", "group": "groups/group-0000", "brokers": "brokers",
        "broker": f"brokers/{broker.replace(':', '%3A')}", "differences": "brokers/differences", "name servers": "name-servers",
    }  # fmt: skip
    rows = {}
    for name, path in pages.items():
        times, size = [], 0
        for _ in range(rounds):
            took, body = ask(url + path)
            times.append(took)
            size = len(body)
        rows[name] = {
            "median": round(statistics.median(times), 1),
            "longest": round(max(times), 1),
            "kib": round(size / 1024, 1),
        }
    return rows


@contextmanager
def cluster(*options: str) -> Iterator[dict[str, str]]:
    """`metaq up` on a folder of its own, with these options. Yields the addresses of its ready line."""
    with tempfile.TemporaryDirectory() as folder:
        up, line = start(
            "up", "--data", str(Path(folder) / "data"), "--port", "0", "--namesrv-port", "0", "--name", "bench",
            "-o", "diskMaxUsedSpaceRatio=95", "-o", "logLevel=warning", *options, ready="ready up",
        )  # fmt: skip
        try:
            yield dict(word.split("=", 1) for word in line.split() if "=" in word)
        finally:
            up.terminate()
            up.wait(60)


@contextmanager
def dashboard_of(namesrv: str) -> Iterator[str]:
    """A dashboard of a cluster. Yields its URL."""
    dashboard, told = start("dashboard", "-n", namesrv, "--port", "0", ready="ready dashboard")
    try:
        yield told.split()[2]
    finally:
        dashboard.terminate()
        dashboard.wait(30)


def report(rows: dict[str, dict[str, float]], *, as_json: bool) -> int:
    """Print how long pages took. Returns the exit code: 1 if one is above the bound."""
    if as_json:
        print(json.dumps(rows))
    else:
        for name, row in rows.items():
            print(f"{name:20} {row['median']:8.1f} ms  longest {row['longest']:8.1f} ms  {row['kib']:8.1f} KiB")
    return int(any(row["median"] > BOUND_MS for row in rows.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    many = ("autoCreateTopicsPerMinute=1000000", "autoCreateTopicsMax=1000000", "autoCreateGroupsPerMinute=1000000")
    with cluster(*(word for option in many for word in ("-o", option))) as words:
        asyncio.run(fill(words["namesrv"], words["broker"], given.topics, given.groups))
        with dashboard_of(words["namesrv"]) as url:
            rows = measure(url, words["broker"], given.topics, given.groups, given.rounds)
    return report(rows, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
