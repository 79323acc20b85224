"""Availability of a streaming query's brokers: which are away, and when they are probed again (option `brokerAway`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from msgspec import Struct

from metaq.clock import SYSTEM, Clock
from metaq.errors import ConnectionFailed, MetaqError
from metaq.model.offsets import Positions
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import LOG_SECONDS, ClusterClient, may_be_away

_LOG = logging.getLogger(__name__)

WAIT: Final = "wait"
FAIL: Final = "fail"
BROKER_AWAY: Final = (WAIT, FAIL)

FIRST_SECONDS: Final = 2.0
"""Time for which a plan retries a broker that has just gone, seconds."""
PAUSE_SECONDS: Final = 1.0
PAUSE_MAX_SECONDS: Final = 10.0
PAUSE_SHARE: Final = 5
"""Pause between two probes of a broker that is away, in multiples of a probe's time: some hosts never answer."""
QUEUES_NAMED: Final = 10
NAME_SERVERS: Final = "name servers"
"""Key of the name servers among the absences; no broker's name has a space."""


class Availability(NamedTuple):
    """Result of asking brokers: ends and starts of the queues of those that answered, broker → fault of the others."""

    ends: Positions
    starts: Positions
    away: dict[str, MetaqError]


class _Absence(Struct):
    since: float
    look_at: float
    pause: float
    fault: str
    logged_at: float | None = None


class Watch:
    """Availability of one query's brokers. Plain values only: it is pickled with the query's reader."""

    def __init__(self, how: str, retry_seconds: float, clock: Clock = SYSTEM) -> None:
        """
        Args:
            how: one of BROKER_AWAY.
            retry_seconds: time to retry a broker.
            clock: monotonic time of pauses.
        """
        self.waits, self._retry_seconds, self._clock = how == WAIT, retry_seconds, clock
        self._absences: dict[str, _Absence] = {}
        self._left: set[MessageQueue] = set()

    def look(
        self, client: ClusterClient, queues: Iterable[MessageQueue], *, patiently: bool, ends: bool = True
    ) -> Availability:
        """Ask each broker for the starts of its queues, and with `ends` for their ends.

        A broker that has just gone is retried for FIRST_SECONDS, with `patiently` for `retry_seconds`; one that has been
        away is probed once, after a growing pause. Raises MetaqError: a broker refuses.
        """
        per_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            per_broker.setdefault(queue.broker, []).append(queue)
        seen = Availability({}, {}, {})
        for broker, mine in per_broker.items():
            absence = self._absences.get(broker)
            began = self._clock.monotonic()
            if absence is not None and began < absence.look_at:
                seen.away[broker] = ConnectionFailed(absence.fault)
                continue
            seconds = self._retry_seconds if patiently else min(FIRST_SECONDS, self._retry_seconds)
            # With brokerAway=fail the caller retries all brokers together.
            if absence is not None or not self.waits:
                seconds = 0.0
            try:
                found = client.ends(mine, seconds) if ends else {}
                starts = client.starts(mine, seconds)
            except MetaqError as fault:
                if not may_be_away(fault):
                    raise
                seen.away[broker] = fault
                self._put_off(broker, fault, began)
            else:
                seen.ends.update(found)
                seen.starts.update(starts)
        return seen

    def _put_off(self, broker: str, fault: MetaqError, began: float) -> None:
        """Set when to probe next. The pause doubles, and is at least PAUSE_SHARE times what the probe took."""
        if not self.waits:
            return
        now = self._clock.monotonic()
        known = self._absences.get(broker)
        # Halved, because it is doubled before its first use.
        absence = known or _Absence(since=began, look_at=now, pause=PAUSE_SECONDS / 2, fault="")
        absence.fault, absence.pause = str(fault), min(2 * absence.pause, PAUSE_MAX_SECONDS)
        absence.look_at = now + (max(absence.pause, PAUSE_SHARE * (now - began)) if known else absence.pause)
        self._absences[broker] = absence

    def seconds_for_names(self) -> float | None:
        """Return the time to retry asking name servers for routes; None: do not ask now, they have been away."""
        absence = self._absences.get(NAME_SERVERS)
        if absence is None:
            return self._retry_seconds
        return None if self._clock.monotonic() < absence.look_at else 0.0

    def note_names(self, fault: MetaqError | None, began: float) -> None:
        """Note and log that name servers are away since `began` because of `fault`, or (None) back."""
        now, known = self._clock.monotonic(), NAME_SERVERS in self._absences
        if fault is not None:
            self._put_off(NAME_SERVERS, fault, began)
            if not known:
                _LOG.warning("%s. Going on with the brokers that are known", fault)
        elif known:
            _LOG.warning("name servers are back after %.0f s", now - self._absences.pop(NAME_SERVERS).since)

    def now(self) -> float:
        return self._clock.monotonic()

    def note(self, seen: Availability, start: Positions) -> None:
        """Log which brokers are away, at once and every LOG_SECONDS, and which are back. `start`: the query's positions."""
        now = self._clock.monotonic()
        for broker, fault in seen.away.items():
            if broker not in self._absences:
                self._put_off(broker, fault, now)
                # Without a route nothing was dialled: probe as soon as it has one.
                self._absences[broker].look_at = now
            absence = self._absences[broker]
            if absence.logged_at is None or now - absence.logged_at >= LOG_SECONDS:
                absence.logged_at = now
                _LOG.warning("%s. Going on without it for now", away_text(broker, fault, start))
        for broker in {queue.broker for queue in seen.starts} & set(self._absences):
            _LOG.warning("the broker %s is back after %.0f s", broker, now - self._absences.pop(broker).since)

    def note_left(self, left: Collection[MessageQueue]) -> None:
        """Log, once, queues that cannot be read although their broker is up, or that the query names no more."""
        fresh = sorted(set(left) - self._left)
        self._left = set(left)
        if fresh:
            named = ", ".join(map(str, fresh[:QUEUES_NAMED]))
            text = "%d queues are not readable, or no longer named by the options, and wait: %s"
            _LOG.warning(text, len(fresh), named)

    def is_away(self, broker: str) -> bool:
        """Return whether the broker was away at the last probe."""
        return broker in self._absences


def away_text(broker: str, fault: MetaqError, start: Positions) -> str:
    """Return a log text: the broker that is away, why, and the queues that wait for it."""
    mine = [f"{queue} at {offset}" for queue, offset in sorted(start.items()) if queue.broker == broker]
    more = f" and {len(mine) - QUEUES_NAMED} more" if len(mine) > QUEUES_NAMED else ""
    waiting = f": {len(mine)} queues wait, {', '.join(mine[:QUEUES_NAMED])}{more}" if mine else ""
    return f"the broker {broker} is away ({fault}){waiting}"
