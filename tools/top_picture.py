"""Draw docs/top.svg, the screen of `metaq top` over a small cluster: `python -m tools.top_picture > docs/top.svg`."""

from __future__ import annotations

import io
import sys
import threading
import time
from contextlib import ExitStack

from rich.console import Console

import metaq
from metaq.admin import Admin
from metaq.cli.cluster.top_screen import View, screen_of
from metaq.testing import Cluster
from tools.terminal_picture import svg_of

COLUMNS, LINES = 100, 24
SECONDS = 25.0
"""Of traffic before the picture: brokers sample what topics get each ten seconds."""
# Topic → messages a second, and the groups that read it.
TOPICS = {
    "orders": (400, ("billing", "shipping")),
    "payments": (150, ("ledger",)),
    "clicks": (900, ("reports",)),
    "mails": (20, ("mailer",)),
    "logins": (60, ()),
}
SLOW = {"reports": 0.004}
"""Group → seconds that a message takes it, more than it has."""


def main() -> None:
    stop, threads = threading.Event(), []
    with Cluster(brokers=2) as cluster, ExitStack() as opened, Admin(cluster.namesrv) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, queues=2)
        for topic, (rate, groups) in TOPICS.items():
            producer = opened.enter_context(metaq.Producer(cluster.namesrv, group=f"{topic}-source"))
            threads.append(threading.Thread(target=_send, args=(producer, topic, rate, stop)))
            for group in groups:
                consumer = opened.enter_context(
                    metaq.Consumer(cluster.namesrv, group=group, topics=topic, start="earliest")
                )
                threads.append(threading.Thread(target=_consume, args=(consumer, SLOW.get(group, 0.0), stop)))
        for thread in threads:
            thread.start()
        time.sleep(SECONDS)
        before = admin.activity()
        time.sleep(2)
        found = admin.activity(before)
        console = Console(width=COLUMNS, height=LINES, record=True, file=io.StringIO(), force_terminal=True)
        console.print(screen_of(found, View(), COLUMNS, LINES))
        stop.set()
        for thread in threads:
            thread.join()
    sys.stdout.write(svg_of(console, "metaq top"))


def _send(producer: metaq.Producer, topic: str, rate: int, stop: threading.Event) -> None:
    while not stop.wait(0.05):
        for _ in range(max(1, rate // 20)):
            producer.send(topic, b"x" * 200)


def _consume(consumer: metaq.Consumer, seconds: float, stop: threading.Event) -> None:
    while not stop.is_set():
        message = consumer.receive(1)
        if message is not None:
            stop.wait(seconds)
            message.ack()


if __name__ == "__main__":
    main()
