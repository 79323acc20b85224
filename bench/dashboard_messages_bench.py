"""How long pages about messages take: a topic with 100 000 of them, by HTTP, dashboard and cluster in processes of their own.

python bench/dashboard_messages_bench.py [--messages 100000] [--rounds 20] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from urllib.parse import quote

import metaq
from dashboard_bench import ask, cluster, dashboard_of, report
from metaq.admin import Admin

TOPIC = "messages"
KEYS = 1000


def fill(namesrv: str, messages: int) -> None:
    """Send messages of 200 bytes; each of KEYS keys has as many of them as any other."""
    with Admin(namesrv) as admin:
        admin.create_topic(TOPIC, queues=8)
    with metaq.Producer(namesrv) as producer:
        body = b'{"text": "%s"}' % (b"x" * 180)
        sent = [producer.submit(TOPIC, body, tag="t", keys=[f"key-{number % KEYS}"]) for number in range(messages)]
        for one in sent:
            one.result()


def measure(url: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return page → median and longest time, ms, and its size, KiB."""

    def values(path: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(ask(f"{url}{path}&format=json")[1])
        return found

    base = f"messages?topic={TOPIC}"
    first = values(base)
    rows = first["rows"]
    assert isinstance(rows, list), "it is a list of messages"
    older, row = first["older"], rows[0]
    assert isinstance(older, dict), "there are more"
    middle = f"{base}&queue={quote(row['place'].rpartition(':')[0])}&offset=5000"
    pages = {
        "newest": base, "newest, 200 rows": f"{base}&rows=200", "older": f"{base}&before={older['before']}&skip={older['skip']}",
        "by key": f"{base}&key=key-7", "by id": f"{base}&id={row['id']}", "by time": f"{base}&start=2020-01-01&end=2100-01-01",
        "by queue and offset": middle, "message": f"messages/{row['id']}?topic={TOPIC}&place={quote(row['place'])}",
    }  # fmt: skip
    found = {}
    for name, path in pages.items():
        times, size = [], 0
        for _ in range(rounds):
            took, body = ask(url + path)
            times.append(took)
            size = len(body)
        found[name] = {
            "median": round(statistics.median(times), 1), "longest": round(max(times), 1), "kib": round(size / 1024, 1),
        }  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with cluster() as words:
        fill(words["namesrv"], given.messages)
        with dashboard_of(words["namesrv"]) as url:
            rows = measure(url, given.rounds)
    return report(rows, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
