"""Dead letters that a failing consumer has made, redriven; what came of it is read by the plain client."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import metaq
from metaq.errors import NoRoute
from metaq.spark.pipelines import redrive
from tests.support import eventually

_names = itertools.count()


@dataclass
class Shop:
    """A topic, a group whose members reject everything, and a folder to redrive from."""

    namesrv: str
    folder: Path
    topic: str = ""
    group: str = ""
    lines: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        number = next(_names)
        self.topic, self.group = f"redrive_{number}", f"redrivers_{number}"

    def die(self, bodies: Sequence[bytes], **more: Any) -> None:
        """Send messages, and have the group's consumer reject them all."""
        with metaq.Producer(self.namesrv) as producer:
            for number, body in enumerate(bodies):
                properties = {"colour": "red", "number": str(number)}
                producer.send(
                    self.topic,
                    body,
                    tag="paid" if number % 2 else "open",
                    keys=[f"k{number}"],
                    properties=properties,
                    **more,
                )
        self.reject(len(bodies))

    def reject(self, count: int) -> None:
        """As a failing group does. Returns when its dead letters can be read: name servers hear of a new topic afterwards."""
        before, rejected = self._dead_letters(), []
        with metaq.Consumer(self.namesrv, group=self.group, topics=self.topic, start="earliest") as consumer:

            def fail(message):
                rejected.append(message)
                if len(rejected) == count:
                    consumer.stop()
                return metaq.Reject()

            consumer.run(fail)
        eventually(lambda: self._dead_letters() >= before + count, what="the dead letters are there")

    def _dead_letters(self) -> int:
        try:
            return len(self.dead())
        except NoRoute:
            return 0

    def orders(self, count: int) -> None:
        """Dead letters 0 to `count`, every fifth of them no JSON."""
        self.die([b"oops" if number % 5 == 0 else json.dumps({"id": number}).encode() for number in range(count)])

    def config(self, **more: Any) -> dict[str, Any]:
        return {"nameServers": self.namesrv, "group": self.group, "folder": str(self.folder), **more}

    def redrive(self, spark: Any, **more: Any) -> dict[str, Any]:
        """Figures of one run."""
        outcome = redrive(
            spark, self.config(**more), on_batch=lambda line, figures: self.lines.append((line, dict(figures)))
        )
        self.text = outcome.text
        return dict(outcome.figures)

    def read(self, topic: str = "") -> list[Any]:
        with metaq.Reader(self.namesrv, topic or self.topic, stop_at_end=True) as reader:
            return list(reader)

    def dead(self) -> list[Any]:
        return self.read(f"%DLQ%{self.group}")

    def redriven(self, topic: str = "") -> list[Any]:
        """What a redrive has sent."""
        return [message for message in self.read(topic) if "REDRIVE_ID" in message.properties]


JSON = {"decode": "json", "schema": "id bigint"}
