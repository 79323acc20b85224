"""Brokers of a streaming query that come and go: which are away, and when they are looked for again (option `brokerAway`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from msgspec import Struct

from metaq.clock import SYSTEM, Clock
from metaq.errors import ConnectionFailed, MetaqError
from metaq.model.offsets import Positions
from metaq.model.queue import MessageQueue
from metaq.spark.cluster.client import TELL_SECONDS, ClusterClient, says_away

_LOG = logging.getLogger(__name__)

WAIT: Final = "wait"
FAIL: Final = "fail"
BROKER_AWAY: Final = (WAIT, FAIL)

FIRST_SECONDS: Final = 2.0
"""Time that a plan waits for a broker that has just gone."""
PAUSE_SECONDS: Final = 1.0
PAUSE_MAX_SECONDS: Final = 10.0
PAUSE_SHARE: Final = 5
"""Pause between two probes of a broker that is away, in multiples of a probe's time: some hosts never answer."""
QUEUES_TOLD: Final = 10
NAME_SERVERS: Final = "name servers"
"""Stands for all brokers where none answers; no broker's name has a space."""


class Look(NamedTuple):
    """Answers of brokers, and faults of the others."""

    ends: Positions
    starts: Positions
    away: dict[str, MetaqError]


class _Absence(Struct):
    since: float
    look_at: float
    pause: float
    fault: str
    told_at: float | None = None


class Watch:
    """Availability of one query's brokers. Plain values only: it is pickled with the query's reader."""

    def __init__(self, how: str, retry_seconds: float, clock: Clock = SYSTEM) -> None:
        self.waits, self._retry_seconds, self._clock = how == WAIT, retry_seconds, clock
        self._absences: dict[str, _Absence] = {}
        self._left: set[MessageQueue] = set()

    def look(
        self, client: ClusterClient, queues: Iterable[MessageQueue], *, patiently: bool, ends: bool = True
    ) -> Look:
        """Where the queues begin, and end if that is asked for, of each broker that answers.

        One that has just gone is tried for FIRST_SECONDS, or if `patiently` for as long as any other question; one that
        has been away only now and then. Raises MetaqError: a broker refuses.
        """
        per_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            per_broker.setdefault(queue.broker, []).append(queue)
        seen = Look({}, {}, {})
        for broker, mine in per_broker.items():
            absence = self._absences.get(broker)
            began = self._clock.monotonic()
            if absence is not None and began < absence.look_at:
                seen.away[broker] = ConnectionFailed(absence.fault)
                continue
            seconds = self._retry_seconds if patiently else min(FIRST_SECONDS, self._retry_seconds)
            if absence is not None or not self.waits:  # Who does not wait tries again as a whole.
                seconds = 0.0
            try:
                found = client.ends(mine, seconds) if ends else {}
                starts = client.starts(mine, seconds)
            except MetaqError as fault:
                if not says_away(fault):
                    raise
                seen.away[broker] = fault
                self._put_off(broker, fault, began)
            else:
                seen.ends.update(found)
                seen.starts.update(starts)
        return seen

    def _put_off(self, broker: str, fault: MetaqError, began: float) -> None:
        """When to look again."""
        if not self.waits:
            return
        now = self._clock.monotonic()
        known = self._absences.get(broker)
        absence = known or _Absence(since=began, look_at=now, pause=PAUSE_SECONDS / 2, fault="")
        absence.fault, absence.pause = str(fault), min(2 * absence.pause, PAUSE_MAX_SECONDS)
        absence.look_at = now + (max(absence.pause, PAUSE_SHARE * (now - began)) if known else absence.pause)
        self._absences[broker] = absence

    def seconds_for_names(self) -> float | None:
        """How long to try to ask name servers for routes; None: not at all for now, they have been away."""
        absence = self._absences.get(NAME_SERVERS)
        if absence is None:
            return self._retry_seconds
        return None if self._clock.monotonic() < absence.look_at else 0.0

    def note_names(self, fault: MetaqError | None, began: float) -> None:
        """Log that name servers are away, because of `fault` since `began`, or back."""
        now, known = self._clock.monotonic(), NAME_SERVERS in self._absences
        if fault is not None:
            self._put_off(NAME_SERVERS, fault, began)
            if not known:
                _LOG.warning("%s. Going on with the brokers that are known", fault)
        elif known:
            _LOG.warning("name servers are back after %.0f s", now - self._absences.pop(NAME_SERVERS).since)

    def now(self) -> float:
        return self._clock.monotonic()

    def note(self, seen: Look, start: Positions) -> None:
        """Log who is away and who is back. `start`: where the query has come."""
        now = self._clock.monotonic()
        for broker, fault in seen.away.items():
            if broker not in self._absences:
                self._put_off(broker, fault, now)
                self._absences[broker].look_at = now  # It has no address: it costs nothing to look as soon as it has.
            absence = self._absences[broker]
            if absence.told_at is None or now - absence.told_at >= TELL_SECONDS:
                absence.told_at = now
                _LOG.warning("%s. Going on without it for now", away_text(broker, fault, start))
        for broker in {queue.broker for queue in seen.starts} & set(self._absences):
            _LOG.warning("the broker %s is back after %.0f s", broker, now - self._absences.pop(broker).since)

    def note_left(self, left: Collection[MessageQueue]) -> None:
        """Log, once, queues that cannot be read although their broker is up, or that the query names no more."""
        fresh = sorted(set(left) - self._left)
        self._left = set(left)
        if fresh:
            named = ", ".join(map(str, fresh[:QUEUES_TOLD]))
            text = "%d queues are not readable, or no longer named by the options, and wait: %s"
            _LOG.warning(text, len(fresh), named)

    def is_away(self, broker: str) -> bool:
        """Whether the broker was away when it was last looked at."""
        return broker in self._absences


def away_text(broker: str, fault: MetaqError, start: Positions) -> str:
    """Brokers that are away, why, and the queues that wait for them."""
    mine = [f"{queue} at {offset}" for queue, offset in sorted(start.items()) if queue.broker == broker]
    more = f" and {len(mine) - QUEUES_TOLD} more" if len(mine) > QUEUES_TOLD else ""
    waiting = f": {len(mine)} queues wait, {', '.join(mine[:QUEUES_TOLD])}{more}" if mine else ""
    return f"the broker {broker} is away ({fault}){waiting}"
