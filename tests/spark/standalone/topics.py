"""Topics that a cluster reads and writes, and what must be in them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import metaq
from metaq.admin import Admin
from tests.support import WHOLE_PATIENCE, eventually

QUEUES = 4
_names = itertools.count()


class Copies:
    """A topic with messages, one for copies of them, and a folder for what a job's tasks tell."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        number = next(_names)
        self.namesrv, self.folder = namesrv, folder / f"job-{number}"
        self.held = self.folder / "held"
        self.held.mkdir(parents=True)
        self.topic, self.target = f"cluster_in_{number}", f"cluster_out_{number}"
        self.sent: list[str] = []
        with Admin(namesrv) as admin:
            for topic in (self.topic, self.target):
                admin.create_topic(topic, queues=QUEUES)

    def fill(self, rows: int = 2000) -> None:
        """More messages, in all queues."""
        with metaq.Producer(self.namesrv) as producer:
            queues = producer.queues(self.topic)
            bodies = [f"{len(self.sent) + number:06}" for number in range(rows)]
            for future in [
                producer.submit(self.topic, body.encode(), queue=queues[number % len(queues)])
                for number, body in enumerate(bodies)
            ]:
                future.result(WHOLE_PATIENCE)
        self.sent += bodies

    def source(self, **more: str) -> dict[str, str]:
        options = {"nameServers": self.namesrv, "subscribe": self.topic, "startingOffsets": "earliest"}
        return {**options, "held": str(self.held), **more}

    def sink(self, **more: str) -> dict[str, str]:
        return {"nameServers": self.namesrv, "topic": self.target, "held": str(self.held), **more}

    def tasks(self, name: str = "task-*") -> list[Any]:
        """What tasks have told."""
        return [json.loads(path.read_text()) for path in sorted(self.held.glob(name))]

    def held_task(self) -> Any:
        """The first that has stopped, when it has."""
        eventually(lambda: self.tasks("held-0"), WHOLE_PATIENCE, what="a task that stops")
        return self.tasks("held-0")[0]

    def read(self, topic: str) -> list[metaq.Message]:
        with metaq.Reader(self.namesrv, topic, stop_at_end=True) as reader:
            return list(reader)

    def check_rows(self, rows: list[Any]) -> None:
        """`[queue, offset, body]` of each: all that was sent, once, each queue's in its order."""
        assert Counter(body for _, _, body in rows) == Counter(self.sent)
        stored = {(one.queue.queue_id, one.queue_offset): one.body.decode() for one in self.read(self.topic)}
        assert all(stored[queue, offset] == body for queue, offset, body in rows)
        for queue in range(QUEUES):
            mine = [offset for of, offset, _ in rows if of == queue]
            assert mine == list(range(len(mine)))

    def check_copies(self, *, repeats: bool = False) -> None:
        """The target has a copy of each message, once (or with repeats), and each queue's in its order."""
        copies: dict[tuple[int, int], list[int]] = {}
        bodies = []
        for message in self.read(self.target):
            queue, offset, body = message.body.decode().split(":")
            copies.setdefault((message.queue.queue_id, int(queue)), []).append(int(offset))
            bodies.append(body)
        if repeats:
            assert set(bodies) == set(self.sent)
            return
        assert Counter(bodies) == Counter(self.sent)
        assert {source for _, source in copies} == set(range(QUEUES))
        for mine in copies.values():  # One of them for each source: its key chooses the queue.
            assert mine == list(range(len(mine)))
