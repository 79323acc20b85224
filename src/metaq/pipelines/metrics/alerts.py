"""Begin and end of alerts. An alert is reported at both, not for each window in between."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from msgspec import Struct

from metaq.pipelines.metrics.rules import Rule
from metaq.pipelines.metrics.windows import MetricSeries

BEGIN, END = "begin", "end"


class Alert(Struct, frozen=True, kw_only=True):
    """A rule that began or ceased to hold for a series."""

    id: str
    """Id common to begin and end of one alert."""
    state: str
    """`begin` or `end`."""
    rule: str
    metric: str
    column: str
    value: float | None
    """Value in the deciding window. None: nothing was measured in it, or the rule was removed."""
    threshold: float
    topic: str = ""
    group: str = ""
    broker: str = ""
    since_ms: int
    """Begin of the first window in which the condition was true."""
    window_ms: int
    """Begin of the deciding window."""

    def __str__(self) -> str:
        where = " ".join(f"{name}={value}" for name in ("topic", "group", "broker") if (value := getattr(self, name)))
        value = "nothing measured" if self.value is None else f"{self.value:g}"
        return f"alert {'begins' if self.state == BEGIN else 'ends'}: {self.rule} ({where}: {value})"


class RuleState(Struct):
    """State of one rule for one series."""

    rule: str
    series: MetricSeries
    streak: int = 0
    """Consecutive windows in which the condition was true; capped at what the rule asks for."""
    since_ms: int = 0
    on: bool = False


class RuleStates:
    """States of all rules for all series."""

    def __init__(self, rules: Iterable[Rule], watched: Iterable[RuleState] = ()) -> None:
        """Args: watched: states of an earlier run; `removed` ends those whose rule is gone."""
        self._rules = {str(rule): rule for rule in rules}
        self._watched = {(one.rule, one.series): one for one in watched}

    @property
    def watched(self) -> list[RuleState]:
        """Return the states that the next run needs."""
        # A series whose condition is false is as one that was never seen.
        return [one for one in self._watched.values() if one.streak]

    @property
    def on(self) -> list[RuleState]:
        return [one for one in self._watched.values() if one.on]

    def about(self, metric: str) -> list[Rule]:
        return [rule for rule in self._rules.values() if rule.metric == metric]

    def removed(self) -> list[Alert]:
        """End alerts whose rule was removed, and return them, each once."""
        gone = [key for key in self._watched if key[0] not in self._rules]
        found = [self._watched.pop(key) for key in gone]
        return [_removed(one) for one in found if one.on]

    def window(self, series: MetricSeries, start_ms: int, columns: Mapping[str, float | None]) -> list[Alert]:
        """Evaluate the rules on a series' next closed window, in order. Returns the alerts that begin or end."""
        found = []
        for text, rule in self._rules.items():
            if rule.metric != series.metric or not rule.fits(series.labels):
                continue
            one = self._watched.setdefault((text, series), RuleState(text, series))
            value = columns[rule.column]
            if rule.holds(value):
                if not one.streak:
                    one.since_ms = start_ms
                one.streak = min(one.streak + 1, rule.windows)
                if one.streak == rule.windows and not one.on:
                    one.on = True
                    found.append(_alert(BEGIN, rule, one, value, start_ms))
            else:
                if one.on:
                    found.append(_alert(END, rule, one, value, start_ms))
                one.streak, one.on = 0, False
        return found


def _alert(state: str, rule: Rule, one: RuleState, value: float | None, start_ms: int) -> Alert:
    return Alert(
        id=_id(one), state=state, rule=one.rule, metric=rule.metric, column=rule.column, value=value,
        threshold=rule.threshold, topic=one.series.topic, group=one.series.group, broker=one.series.broker,
        since_ms=one.since_ms, window_ms=start_ms,
    )  # fmt: skip


def _removed(one: RuleState) -> Alert:
    series = one.series
    return Alert(
        id=_id(one), state=END, rule=one.rule, metric=series.metric, column="", value=None, threshold=0.0,
        topic=series.topic, group=series.group, broker=series.broker, since_ms=one.since_ms, window_ms=one.since_ms,
    )  # fmt: skip


def _id(one: RuleState) -> str:
    series = one.series
    # By rule, series and beginning: a step that is done again after a crash gives the same id.
    text = "\0".join((one.rule, series.metric, series.topic, series.group, series.broker, str(one.since_ms)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
