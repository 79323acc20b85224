"""The departure boards: a consumer group that takes every message and tells of each, in traces, that it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import metaq
from demo.sending import TOPIC
from metaq.spark.engine.slow_start import run_through

GROUP = "boards"
TRACE_RATE = 1_000_000
"""Messages a second: all of them, however fast they are taken."""
BATCH = 32


def take_all(namesrv: str, stored: int, on_taken: Callable[[int], None]) -> float:
    """Take all messages that are stored. Returns the seconds that it took."""
    started, taken = time.perf_counter(), 0
    with metaq.Consumer(
        namesrv, group=GROUP, topics=TOPIC, start="earliest", trace=True, trace_rate=TRACE_RATE
    ) as consumer:

        def show(messages: list[Any]) -> None:
            nonlocal taken
            taken += len(messages)
            on_taken(taken)
            if taken >= stored:
                consumer.stop()

        consumer.run(show, batch=BATCH)
    return time.perf_counter() - started


def audit(spark: Any, namesrv: str, folder: str) -> Any:
    """Hold what is stored against what the boards have taken. Returns the Outcome.

    A flight that was stored twice is taken twice, as the report says. The boards keep no order, so none is looked at; and they
    begin when all is sent, so nothing is late.
    """
    from metaq.spark.pipelines import audit

    options = {
        "nameServers": namesrv,
        "topics": TOPIC,
        "groups": GROUP,
        "folder": folder,
        "graceSeconds": 0,
        "order": "off",
        "lateSeconds": 86_400,
    }
    return run_through(lambda: audit(spark, options), lambda outcome: outcome)
