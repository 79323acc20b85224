"""Counters of the broker and of its groups, and the TPS rates that tools show (`putTps`, `getTransferedTps` and the like).

Rates are differences of the counters over samples taken once a second, so counting costs one addition.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from metaq.broker.part import BrokerPart
from metaq.broker.statistics.counts import KeyedCounts
from metaq.clock import Clock
from metaq.histogram import Measured
from metaq.log import RateLimitedLog
from metaq.model.facts import Mornings, PutLatencies, Rates
from metaq.wire.hot import QueueTail

log = logging.getLogger(__name__)

WINDOWS_SECONDS = (10, 60, 600)
LATENCIES_MAX = 6000
"""Newest sends whose latency is known: of the last ten minutes, where one in each tick is timed."""


class Sample(NamedTuple):
    """The counters at one moment."""

    at: float
    puts: int
    get_hits: int
    get_misses: int
    got: int


class Times:
    """Histograms, seconds, each of a sample."""

    def __init__(self) -> None:
        self.put, self.pull, self.to_store, self.to_consumer = Measured(), Measured(), Measured(), Measured()
        self.held = Measured()
        """How long pulls waited for a message, of one in eight."""


class Stats(BrokerPart):
    """Counters since the start. `put_*` count messages and log bytes, `got_*` messages and bytes handed out."""

    leads = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_ms = clock.now_ms()
        self.put_messages = self.put_bytes = self.put_failures = 0
        self.get_hits = self.get_misses = self.got_messages = self.got_bytes = 0
        self.times_appends = True
        """Whether a send is answered when it is appended; else `took` is told how long answers wait for the disk."""
        self.timing = False
        """The next append is to be timed: one in each tick, so that the others pay for one look at this."""
        warnings = RateLimitedLog(log, clock)
        self.measuring_pull = self.measuring_delivery = False
        """The next pull, one in each second, is to be timed; and of the next messages that are given to a consumer, one batch in each
        tick, it is to be measured how long they were on their way."""
        self.times = Times()
        self.topic_puts = KeyedCounts[str]("topics", warnings)
        """Filled by `metaq.broker.statistics.sampling`, from the ends of the queues."""
        self.group_gets = KeyedCounts[tuple[str, str]]("topics of groups", warnings)
        """(topic, group) → pulls that have found messages."""
        self.sent_back = KeyedCounts[tuple[str, str]]("topics with messages sent back by groups", warnings)
        self.put_mornings = self.got_mornings = Mornings(0, 0)
        self._day = self._today()
        self._put_seconds: deque[float] = deque(maxlen=LATENCIES_MAX)
        # One more than the longest window, so that a difference over all of it is there.
        self._samples: deque[Sample] = deque([self._now()], maxlen=WINDOWS_SECONDS[-1] + 1)

    def grew(self, _queues: Sequence[QueueTail], messages: int, size: int, _log_start: int, _log_end: int) -> None:
        """Count appended messages (`metaq.broker.log.appender.Growth`)."""
        self.put_messages += messages
        self.put_bytes += size

    def missed(self) -> None:
        """Count a pull that was answered without messages."""
        self.get_misses += 1

    def got(self, group: str, topic: str, pulls: int, messages: int, size: int) -> None:
        """Count pulls of a group that were answered with messages."""
        self.get_hits += pulls
        self.got_messages += messages
        self.got_bytes += size
        self.group_gets.add((topic, group), pulls, messages, size)

    def gave_back(self, group: str, topic: str) -> None:
        """Count a message of a topic that a group has sent back."""
        self.sent_back.add((topic, group), 1, 1, 0)

    def took(self, seconds: float) -> None:
        """Count how long a send has taken here, from its append to its answer."""
        self.timing = False
        self._put_seconds.append(seconds)
        self.times.put.add(seconds)

    def pulled(self, seconds: float) -> None:
        """Count how long the store took to find what a pull gets."""
        self.measuring_pull = False
        self.times.pull.add(seconds)

    def delivered(self, born_ms: int, stored_ms: int) -> None:
        """Count how long a message that is given to a consumer was on its way: to the store, and from there."""
        self.measuring_delivery = False
        self.times.to_store.add((stored_ms - born_ms) / 1000)
        self.times.to_consumer.add((self._clock.now_ms() - stored_ms) / 1000)

    def put_latencies(self) -> PutLatencies:
        """Return the latencies of the newest sends that were timed."""
        taken = sorted(self._put_seconds)
        if not taken:
            return PutLatencies(0.0, 0.0, 0.0)
        last = len(taken) - 1
        return PutLatencies(taken[last * 99 // 100], taken[last * 999 // 1000], taken[last])

    def tick(self) -> None:
        """Take a sample if a second has passed, and have the next append timed."""
        self.timing, self.measuring_delivery = self.times_appends, True
        if self._clock.monotonic() - self._samples[-1].at >= 1:
            self._samples.append(self._now())
            self.measuring_pull = True
            if (today := self._today()) != self._day:
                self._day = today
                self.put_mornings = Mornings(self.put_mornings.today, self.put_messages)
                self.got_mornings = Mornings(self.got_mornings.today, self.got_messages)

    def _today(self) -> int:
        # Local time, as RocketMQ's: an administrator's day.
        return datetime.fromtimestamp(self._clock.now_ms() / 1000).toordinal()  # noqa: DTZ006

    def _now(self) -> Sample:
        return Sample(self._clock.monotonic(), self.put_messages, self.get_hits, self.get_misses, self.got_messages)

    def rates(self, counter: str) -> Rates:
        """Return one counter's rates per second over 10 s, 1 min and 10 min (or since the start)."""
        now = self._now()
        result = []
        for seconds in WINDOWS_SECONDS:
            # The oldest sample within the window, or the only one: the rate over a shorter time then.
            first = next(
                sample for sample in self._samples if sample.at >= now.at - seconds or sample is self._samples[-1]
            )
            passed = now.at - first.at
            result.append((getattr(now, counter) - getattr(first, counter)) / passed if passed > 0 else 0.0)
        return Rates(*result)
