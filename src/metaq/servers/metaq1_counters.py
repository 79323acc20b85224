"""Counters of the MetaQ 1.x server: commands since the start, and recent traffic of topics with `stat=true`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import Clock
from metaq.model.topics.topic import TOPIC_CHARS_MAX

# The original's period.
RESET_SECONDS: Final = 30 * 60.0
"""Period after which counters of topics begin anew."""
TOPICS_MAX: Final = 10_000
"""Most topics that are counted: without sections in a server.ini a client may name any."""
SHOWN_CHARS_MAX: Final = 256
"""Characters that are shown of a name that is no topic's."""


class Counted(enum.Enum):
    """What is counted. The values are the words of `stats realtime`, in its order."""

    PUT = "put"
    GET = "get"
    OFFSET = "offset"
    GET_MISS = "get_miss"
    PUT_FAILED = "put_failed"
    BYTES = "message_size"


class _Sum(Struct):
    count: int = 0
    value: int = 0


class Counters:
    """Counts events, in all and by topic. Not thread-safe."""

    def __init__(
        self, settings: Metaq1Settings, clock: Clock, puts: Callable[[], Iterable[tuple[str, int, int]]] = tuple
    ) -> None:
        """
        Args:
            settings: say which topics are counted.
            clock: of the period.
            puts: yields (topic, puts, bytes) that came by the fast path since it was last asked.
        """
        self._settings, self._clock, self._puts = settings, clock, puts
        self.totals = dict.fromkeys(Counted, 0)
        """Events since the start or `reset`; for BYTES their sum."""
        self._sums = dict[Counted, dict[str, _Sum]]()
        self._since = clock.monotonic()

    def count(self, what: Counted, topic: str, value: int = 1, count: int = 1) -> None:
        """Count `count` events of a topic, `value` in all: their number, or their bytes."""
        self.totals[what] += value
        rules = self._settings.rules
        # Names come from clients: those that can be no topic's are not kept.
        if len(topic) <= TOPIC_CHARS_MAX and rules.settings(topic).stat and rules.accepts(topic):
            sums = self._sums.setdefault(what, {})
            found = sums.get(topic)
            if found is None:
                if len(sums) >= TOPICS_MAX:
                    return
                found = sums[topic] = _Sum()
            found.count += count
            found.value += value

    def collect(self) -> None:
        """Count what came by the fast path. To be called before anything is shown."""
        for topic, puts, size in self._puts():
            self.count(Counted.PUT, topic, puts, puts)
            self.count(Counted.BYTES, topic, size, puts)

    def tick(self) -> None:
        """Begin anew if the period is over."""
        if self._clock.monotonic() - self._since >= RESET_SECONDS:
            self.collect()
            self._begin()

    def reset(self) -> None:
        """Set all counters to 0."""
        self.collect()
        self.totals = dict.fromkeys(Counted, 0)
        self._begin()

    def _begin(self) -> None:
        # As in the original, counted topics stay, with 0. But not those without an event in the last period: names are clients'.
        self._sums = {
            what: {topic: _Sum() for topic, each in sums.items() if each.count} for what, sums in self._sums.items()
        }
        self._since = self._clock.monotonic()

    def text(self, what: Counted, topic: str | None = None) -> str:
        """`Count=5,Value=25,Value/Count=5,Count/Duration=0.09,Duration=58` of a topic, or of all; `null`: nothing was
        counted."""
        sums = self._sums.get(what)
        if sums is None:
            return "null"
        if topic is None:
            count, value = sum(each.count for each in sums.values()), sum(each.value for each in sums.values())
        elif topic in sums:
            count, value = sums[topic].count, sums[topic].value
        else:
            return f"Invalid keyTwo:{topic[:SHOWN_CHARS_MAX]}"
        seconds = int(self._clock.monotonic() - self._since)
        return (
            f"Count={count},Value={value},Value/Count={_ratio(value, count)},"
            f"Count/Duration={_ratio(count, seconds)},Duration={seconds}"
        )


def _ratio(value: int, by: int) -> str:
    """Return a ratio with two decimals at most; `invalid` by 0."""
    return f"{value / by:.2f}".rstrip("0").rstrip(".") if by else "invalid"
