"""Decisions about quotas: how many requests of a read event are taken, and how long their connection waits for them.

What a subject takes is drawn from token buckets, which may go into debt: a request that is taken is charged whole, and the
time until the debt is paid is what its connection waits. So nobody is refused who waits, and over any time T a subject gets no
more than `rate · (BURST_SECONDS + T + wait_max)`, and one request.

Kept fair by two rules. A subject has buckets of its own. And among the connections of one subject, a read event takes, beside
what nobody has used, a share of SLICE_SECONDS of the rate, which is divided by those that wait: so each gets as much in a
turn, however many requests it has written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from metaq.broker.allowance import Bucket, Rate
from metaq.model.quota import QuotaLimits, QuotaUse, Subject

BURST_SECONDS: Final = 1.0
"""What a subject that was silent may take at once, as seconds of its rate."""
SLICE_SECONDS: Final = 0.1
"""What the connections of a subject that wait take in one turn of all of them, as seconds of its rate."""
PAUSE_SECONDS: Final = 0.001
"""Shortest wait of a connection that has more to ask."""


class _Flow:
    """One rate of a subject: requests, bytes in or bytes out."""

    __slots__ = ("_bucket", "rate")

    def __init__(self, per_second: int, now: float) -> None:
        self.rate = Rate(0, 0)
        self._bucket = Bucket(0, now)
        self.limit(per_second, now)
        self._bucket.left = self.rate.burst

    def limit(self, per_second: int, now: float) -> None:
        """Change the rate. What is left, or owed, stays the same in seconds."""
        before = self.rate
        left = self.left(now)
        self.rate = Rate(max(1, round(per_second * BURST_SECONDS)), per_second)
        if before.per_second:
            self._bucket.left = left / before.per_second * per_second

    def wait(self, now: float) -> float:
        """Return the seconds until nothing is owed."""
        return max(0.0, -self.left(now)) / self.rate.per_second

    def left(self, now: float) -> float:
        """Return what nobody has used; below 0: what is owed."""
        return self._bucket.refill(self.rate, now)

    def room(self, now: float, waiting: int) -> float:
        """Return what a read event may take, if that is more than one request. `waiting`: other connections that wait."""
        return max(0.0, self.left(now)) + self.rate.per_second * SLICE_SECONDS / (1 + waiting)

    def take(self, amount: float) -> None:
        self._bucket.left -= amount


class Meter:
    """What one subject takes, and its limits.

    Args: subject: whose. limits: those in force. now: monotonic seconds.
    """

    def __init__(self, subject: Subject, limits: QuotaLimits, now: float) -> None:
        self.subject, self.limits = subject, limits
        self.connections = self.held_pulls = self.waiting = 0
        """`waiting`: connections that wait now."""
        self.requests = self.bytes_in = self.bytes_out = self.delayed = self.refused = 0
        self._requests: _Flow | None = None
        self._bytes_in: _Flow | None = None
        self._bytes_out: _Flow | None = None
        self._flows: tuple[_Flow, ...] = ()
        self.limit(limits, now)

    def limit(self, limits: QuotaLimits, now: float) -> None:
        """Put other limits in force."""

        def flow(present: _Flow | None, per_second: int | None) -> _Flow | None:
            if not per_second:
                return None
            if present is None:
                return _Flow(per_second, now)
            present.limit(per_second, now)
            return present

        self.limits = limits
        self._requests = flow(self._requests, limits.requests_per_second)
        self._bytes_in = flow(self._bytes_in, limits.bytes_in_per_second)
        self._bytes_out = flow(self._bytes_out, limits.bytes_out_per_second)
        flows = self._requests, self._bytes_in, self._bytes_out
        self._flows = tuple(flow for flow in flows if flow is not None)

    def wait(self, now: float) -> float:
        """Return the seconds until the subject owes nothing."""
        return max((flow.wait(now) for flow in self._flows), default=0.0)

    def rows(self, now: float, rows: int, size: int, size_of: Callable[[int], int]) -> int:
        """Return how many of the requests of a read event may be taken, at least one. `size`: bytes of all; `size_of`: of one."""
        if self._requests is not None:
            rows = min(rows, max(1, int(self._requests.room(now, self.waiting))))
        if self._bytes_in is not None:
            room = self._bytes_in.room(now, self.waiting)
            if size > room:
                taken, sum_of = 1, size_of(0)
                while taken < rows and (sum_of := sum_of + size_of(taken)) <= room:
                    taken += 1
                rows = min(rows, taken)
        return rows

    def take(self, rows: int, size: int) -> None:
        """Charge requests that are taken."""
        self.requests += rows
        self.bytes_in += size
        if self._requests is not None:
            self._requests.take(rows)
        if self._bytes_in is not None:
            self._bytes_in.take(size)

    def wrote(self, size: int, now: float) -> None:
        """Charge bytes of answers."""
        self.bytes_out += size
        if self._bytes_out is not None:
            self._bytes_out.left(now)  # refilled first: a full bucket gains nothing
            self._bytes_out.take(size)

    def rested(self, now: float) -> bool:
        """Return whether nothing of the subject would be lost by forgetting its meter."""
        return not (
            self.connections or self.held_pulls or any(flow.left(now) < flow.rate.burst for flow in self._flows)
        )

    def use(self, now: float, *, own: bool) -> QuotaUse:
        """Return what is to be shown."""
        kind, name = self.subject
        return QuotaUse(
            kind.value, name, self.limits, own, self.connections, self.held_pulls, self.requests, self.bytes_in,
            self.bytes_out, self.delayed, self.refused, round(self.wait(now) * 1000),
        )  # fmt: skip


class QuotaVerdict(NamedTuple):
    """What becomes of the requests of a read event."""

    rows: int
    """So many of them are taken; the others come again when the connection has waited. 0: all are refused."""
    wait: float
    """Seconds for which the connection is not read, and answers are held back; at most the bound."""
    meter: Meter | None
    """Whose quota that is; None: nothing is owed."""


def judge(
    meters: Sequence[Meter],
    now: float,
    rows: int,
    size: int,
    size_of: Callable[[int], int],
    wait_max: float,
) -> QuotaVerdict:
    """Decide about the requests of one read event, and charge those that are taken.

    Args:
        meters: of the connection's client, account and address.
        now: monotonic seconds.
        rows: number of requests, at least one.
        size: their bytes, all together.
        size_of: bytes of the request at a place.
        wait_max: longest wait; a subject that owes as much gets nothing more.
    """
    wait, whose = 0.0, None
    for meter in meters:
        if (owed := meter.wait(now)) > wait:
            wait, whose = owed, meter
    if whose is not None and wait >= wait_max:
        whose.refused += rows
        return QuotaVerdict(0, wait_max, whose)
    taken = rows
    for meter in meters:
        taken = meter.rows(now, taken, size, size_of)
    if taken < rows:
        size = sum(size_of(row) for row in range(taken))
    wait, whose = 0.0, None
    for meter in meters:
        meter.take(taken, size)
        if (owed := meter.wait(now)) > wait:
            wait, whose = owed, meter
    if whose is not None:
        whose.delayed += 1
    if taken < rows:  # the others must come again, also if nothing is owed
        wait = max(wait, PAUSE_SECONDS)
    return QuotaVerdict(taken, min(wait, wait_max), whose)
