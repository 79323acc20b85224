"""Metrics of producers and consumers, for those that were given `metrics=`: one object of the application's, for any number of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from metaq.client.conversation.sending.sending import Outgoing
from metaq.client.observing.observing import Metrics, Sends
from metaq.client.shared.futures import SendBatch
from metaq.clock import SYSTEM, Clock
from metaq.histogram import Measured
from metaq.metrics import table
from metaq.metrics.metric import Metric, Sample
from metaq.metrics.top import OTHERS
from metaq.model import StoredMessage
from metaq.model.trace import Result

NAMES_MAX: Final = 200
"""Topics that have values of their own; further ones are one, `(others)`."""
BOUNDS: Final = tuple(round(base * 10.0**power, 10) for power in range(-3, 3) for base in (1, 2.5, 5))
"""Seconds, from 1 ms to 500 s: observers measure in milliseconds, and a handler may take minutes."""
_OUTCOMES: Final = {
    Result.SUCCESS: "success",
    Result.TIMEOUT: "timeout",
    Result.EXCEPTION: "exception",
    Result.FAILED: "failed",
}


class ClientMetrics(Metrics):
    """Counts what producers and consumers do. Pass one object to any of them, and register it at `prometheus_client`.

        metrics = metaq.ClientMetrics()
        prometheus_client.REGISTRY.register(metrics)
        producer = metaq.Producer(NAMESRV, metrics=metrics)

    There is no global registry of ours, and clients without `metrics` cost nothing. Safe to use from any thread. See
    docs/monitoring.md, and docs/prometheus.md for the names.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._counts = ClientCounts(clock)

    def collect(self) -> Iterator[Any]:
        """Yield prometheus_client's families: what a registry calls of its collectors. Raises ModuleNotFoundError: it is not installed."""
        from metaq.metrics.exposition import families  # with prometheus_client, which whoever registers this has

        return iter(families(self._counts.samples()))

    def describe(self) -> Sequence[Any]:
        """Return nothing: a registry that is told no names asks for no values when this is registered."""
        return ()

    def _meter(self, group: str) -> ClientMeter:
        return ClientMeter(self._counts, group)


class ClientCounts:
    """The counts of a `ClientMetrics`. Any thread."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._counts: Counter[tuple[Metric, tuple[str, ...]]] = Counter()
        self._times: dict[tuple[Metric, tuple[str, ...]], Measured] = {}
        self._in_flight: Counter[str] = Counter()
        self._lags: dict[tuple[str, str], dict[tuple[str, int], int]] = {}
        self._topics: set[str] = set()

    def samples(self) -> list[Sample]:
        """Return the values of this moment."""
        with self._lock:
            found = [Sample(metric, float(count), labels) for (metric, labels), count in self._counts.items()]
            found += [Sample(metric, times.value(), labels) for (metric, labels), times in self._times.items()]
            found += [Sample(table.CONSUMER_IN_FLIGHT, count, (group,)) for group, count in self._in_flight.items()]
            found += [Sample(table.CONSUMER_LAG, sum(lags.values()), key) for key, lags in self._lags.items()]
        return found

    def sent(self, sends: Sends) -> None:
        """Count a request of a producer whose outcome is known: its messages, bytes and time."""
        batch, count = sends.batch, sends.count
        failed = 0
        if batch.stored is None:
            failed = sum(batch.error(place) is not None for place in range(batch.first, batch.first + count))
        with self._lock:
            topic = self._topic(sends.outgoing.topic)
            self._counts[table.PRODUCER_MESSAGES, (topic, "ok")] += count - failed
            if failed:
                self._counts[table.PRODUCER_MESSAGES, (topic, "failed")] += failed
            self._counts[table.PRODUCER_BYTES, (topic,)] += sends.body_bytes
            self._measure(table.PRODUCER_SECONDS, (), sends.cost_ms / 1000)

    def begun(self, group: str, message: StoredMessage) -> None:
        """Count a message that is handed out."""
        age = (self._clock.now_ms() - message.born_ms) / 1000
        with self._lock:
            topic = self._topic(message.topic)
            self._in_flight[group] += 1
            self._measure(table.CONSUMER_AGE, (group,), age)
            lags = self._lags.setdefault((topic, group), {})
            lags[message.broker, message.queue_id] = max(0, message.max_offset - message.queue_offset - 1)
            if message.reconsume_times:
                self._counts[table.CONSUMER_REPEATED, (topic, group)] += 1

    def ended(self, group: str, message: StoredMessage, result: Result, cost_ms: int) -> None:
        """Count a message whose handling has ended."""
        with self._lock:
            self._in_flight[group] -= 1
            self._counts[table.CONSUMER_MESSAGES, (self._topic(message.topic), group, _OUTCOMES[result])] += 1
            self._measure(table.CONSUMER_SECONDS, (group,), cost_ms / 1000)

    def _topic(self, name: str) -> str:
        if name in self._topics:
            return name
        if len(self._topics) >= NAMES_MAX:
            return OTHERS
        self._topics.add(name)
        return name

    def _measure(self, metric: Metric, labels: tuple[str, ...], seconds: float) -> None:
        key = metric, labels
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = Measured(BOUNDS)
        times.add(seconds)


class ClientMeter:
    """The observer of one client. A `SendObserver` and a `DeliveryObserver`."""

    def __init__(self, counts: ClientCounts, group: str) -> None:
        self._counts, self._group = counts, group

    def start(self) -> None:
        """Begin: there is nothing to do."""

    async def close(self) -> None:
        """End: what was counted stays."""

    def wants(self, outgoing: Outgoing, batch: SendBatch) -> bool:  # noqa: ARG002  all are counted
        return True

    def sent(self, sends: Sends) -> None:
        self._counts.sent(sends)

    def begun(self, message: StoredMessage) -> object:
        self._counts.begun(self._group, message)
        return None

    def ended(self, message: StoredMessage, begun: object, result: Result, cost_ms: int) -> None:  # noqa: ARG002
        self._counts.ended(self._group, message, result, cost_ms)
