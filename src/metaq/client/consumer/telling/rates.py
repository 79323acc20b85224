"""Rates and durations of one member, by topic (RocketMQ's ConsumeStatus). Lives in the background loop, except `timed`.

Messages are not counted one by one: what was pulled and is not unfinished any more was consumed. So consumption is counted
however the program takes its messages; only calls of a handler can be timed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, structs

from metaq.model.inspection import MemberRates

SAMPLE_SECONDS = 10.0
WINDOW_SECONDS = 60.0
HOUR_SECONDS = 3600.0
TIMED_MAX = 10_000
"""Timed calls between two samples at most; newer ones replace the oldest."""


class _Totals(Struct):
    pulls: int = 0
    pull_seconds: float = 0.0
    pulled: int = 0
    gone: int = 0
    """Pulled, but taken from us unfinished."""
    failed: int = 0
    given_back: int = 0
    """Finished without success."""
    calls: int = 0
    call_seconds: float = 0.0
    unfinished: int = 0
    """At the time of the sample."""

    @property
    def consumed(self) -> int:
        return self.pulled - self.gone - self.given_back - self.unfinished


_Sample = tuple[float, dict[str, _Totals]]


class Rates:
    """Counters of one member, and samples of them. `monotonic`: the clock, s."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._totals: dict[str, _Totals] = {}
        self._timed: deque[tuple[str, float]] = deque(maxlen=TIMED_MAX)
        self._minute: deque[_Sample] = deque()
        self._hour: deque[tuple[float, dict[str, int]]] = deque()
        self._begun = monotonic()

    def pulled(self, topic: str, seconds: float, count: int) -> None:
        """Note a pull that found so many messages that somebody here finishes."""
        totals = self._of(topic)
        totals.pulls += 1
        totals.pull_seconds += seconds
        totals.pulled += count

    def gone(self, topic: str, count: int) -> None:
        """Note unfinished messages that are no longer ours to finish."""
        self._of(topic).gone += count

    def failed(self, topic: str, *, given_back: bool) -> None:
        """Note a failed delivery. `given_back`: the message is done with here; otherwise it comes again here."""
        totals = self._of(topic)
        totals.failed += 1
        totals.given_back += given_back

    def timed(self, topic: str, seconds: float) -> None:
        """Any thread: note how long one call of a handler took."""
        self._timed.append((topic, seconds))

    def sample(self, unfinished: Mapping[str, int]) -> None:
        """Keep a sample. Called every `SAMPLE_SECONDS`. `unfinished`: topic → messages in hand or waiting here."""
        now = self._monotonic()
        self._minute.append((now, self._now(unfinished)))
        # One that is older than the window stays: what happened in the window is the difference to it.
        while len(self._minute) > 1 and now - self._minute[1][0] >= WINDOW_SECONDS:
            self._minute.popleft()
        if not self._hour or now - self._hour[-1][0] >= WINDOW_SECONDS:
            self._hour.append((now, {topic: totals.failed for topic, totals in self._totals.items()}))
        while len(self._hour) > 1 and now - self._hour[1][0] >= HOUR_SECONDS:
            self._hour.popleft()

    def of(self, topics: Iterable[str], unfinished: Mapping[str, int]) -> dict[str, MemberRates]:
        """Return the rates of these topics in the last minute, or since the member began."""
        now, totals = self._monotonic(), self._now(unfinished)
        since, before = self._minute[0] if self._minute else (self._begun, {})
        seconds = max(now - since, 1e-3)
        hour = self._hour[0][1] if self._hour and now - self._hour[0][0] >= HOUR_SECONDS else {}
        return {
            topic: _difference(totals.get(topic, _Totals()), before.get(topic, _Totals()), seconds, hour.get(topic, 0))
            for topic in topics
        }

    def _of(self, topic: str) -> _Totals:
        return self._totals.setdefault(topic, _Totals())

    def _now(self, unfinished: Mapping[str, int]) -> dict[str, _Totals]:
        while self._timed:
            topic, seconds = self._timed.popleft()
            totals = self._of(topic)
            totals.calls += 1
            totals.call_seconds += seconds
        return {
            topic: structs.replace(totals, unfinished=unfinished.get(topic, 0))
            for topic, totals in self._totals.items()
        }


def _difference(now: _Totals, before: _Totals, seconds: float, failed_before: int) -> MemberRates:
    pulls, calls = now.pulls - before.pulls, now.calls - before.calls
    return MemberRates(
        pull_ms=_rounded(1000 * (now.pull_seconds - before.pull_seconds) / pulls) if pulls else 0.0,
        pulled=_rounded((now.pulled - before.pulled) / seconds),
        consume_ms=_rounded(1000 * (now.call_seconds - before.call_seconds) / calls) if calls else 0.0,
        # A message counts as given back a moment before it is finished.
        consumed=_rounded(max(0, now.consumed - before.consumed) / seconds),
        failed=_rounded((now.failed - before.failed) / seconds),
        failed_messages=now.failed - failed_before,
    )


def _rounded(value: float) -> float:
    return round(value, 3)
