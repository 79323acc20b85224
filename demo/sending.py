"""Sends every flight once, though the broker is killed half way."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import metaq
from demo.flights import Flight
from metaq.errors import MetaqError
from metaq.testing import EmbeddedBroker

TOPIC = "flights"
EVENT_TIME = "event_time"
LOOK_AGAIN_SECONDS = 0.0005
UNDER_WAY = 20_000
"""Sends that wait for their acknowledgement at a time."""
OUTSTANDING_AT_KILL = 64
KILL_AFTER_SECONDS = 0.25
"""How long the sends go on with 64 outstanding before the kill: long enough that it comes in the middle of them."""
PATIENCE_SECONDS = 300.0

Future = metaq.SendFuture


@dataclass
class Sent:
    """What the producer knows in the end."""

    ids: list[str] = field(default_factory=list)
    """Unique id of every flight, in order; each was acknowledged."""
    seconds: float = 0.0
    """Without the time that the broker was down."""
    down_seconds: float = 0.0
    in_doubt: int = 0
    """Sends, at most 64, whose acknowledgement had not come when the broker died."""
    again: int = 0
    """Sends that had failed for good and were handed in anew, with their id."""


def send_all(
    broker: EmbeddedBroker,
    flights: Sequence[Flight],
    on_sent: Callable[[int], None],
    say: Callable[[str], None],
) -> Sent:
    """Send the flights in order; half way, with 64 sends outstanding, kill -9 the broker and start it again."""
    sent = Sent()
    half = len(flights) // 2
    with metaq.Producer(broker.namesrv) as producer:
        sending = _Sending(producer, sent, on_sent)
        started = time.perf_counter()
        sending.run(flights[:half])
        sent.seconds = time.perf_counter() - started

        killer = threading.Timer(KILL_AFTER_SECONDS, broker.kill)
        killer.start()
        in_flight, next_flight = sending.run_until_dead(flights[half:], OUTSTANDING_AT_KILL, killer)
        killed = time.perf_counter()
        sent.in_doubt = len(in_flight)
        say(
            f"kill -9 of the broker with {OUTSTANDING_AT_KILL} sends outstanding; {sent.in_doubt} had no answer when it died"
        )
        broker.start()
        sent.down_seconds = time.perf_counter() - killed
        say(f"the broker is back after {sent.down_seconds:.1f} s")

        started = time.perf_counter()
        for flight, future in in_flight:
            sending.settle(flight, future)
        sending.run(flights[half + next_flight :])
        sent.seconds += time.perf_counter() - started
    return sent


class _Sending:
    def __init__(self, producer: metaq.Producer, sent: Sent, on_sent: Callable[[int], None]) -> None:
        self._producer, self._sent, self._on_sent = producer, sent, on_sent

    def submit(self, flight: Flight, message_id: str | None = None) -> Future:
        return self._producer.submit(
            TOPIC, flight.body, tag=flight.carrier, keys=[flight.tail] if flight.tail else (),
            properties={EVENT_TIME: flight.scheduled}, message_id=message_id,
        )  # fmt: skip

    def run(self, flights: Sequence[Flight]) -> None:
        """Send these, keeping UNDER_WAY of them under way; returns when all are acknowledged."""
        under_way: deque[tuple[Flight, Future]] = deque()
        for flight in flights:
            under_way.append((flight, self.submit(flight)))
            if len(under_way) >= UNDER_WAY:
                for _ in range(UNDER_WAY // 4):
                    self.settle(*under_way.popleft())
        while under_way:
            self.settle(*under_way.popleft())

    def run_until_dead(
        self, flights: Sequence[Flight], outstanding: int, killer: threading.Thread
    ) -> tuple[deque[tuple[Flight, Future]], int]:
        """Keep `outstanding` sends under way until the killer has done its work.

        Returns: the sends without an answer at that moment, and how many flights were handed in.
        """
        under_way: deque[tuple[Flight, Future]] = deque()
        submitted = 0
        while killer.is_alive():
            while len(under_way) < outstanding and submitted < len(flights):
                under_way.append((flights[submitted], self.submit(flights[submitted])))
                submitted += 1
            while under_way and under_way[0][1].done():
                self.settle(*under_way.popleft())
            killer.join(LOOK_AGAIN_SECONDS)
        return under_way, submitted

    def settle(self, flight: Flight, future: Future) -> None:
        """Wait for the acknowledgement; where the producer gave up, send again under the same id."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                receipt = future.result()
                break
            except MetaqError as fault:
                if not fault.retriable or time.monotonic() > give_up:
                    raise
                self._sent.again += 1
                future = self.submit(flight, future.message_id)
        self._sent.ids.append(receipt.message_id)
        if not len(self._sent.ids) % 1000:
            self._on_sent(len(self._sent.ids))
