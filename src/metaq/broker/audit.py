"""Which requests an audit log has, and how many of those that are refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from metaq.broker.allowance import Allowances, Rate
from metaq.clock import Clock
from metaq.errors import Reason
from metaq.model.audit import TEXT_CHARS_MAX, AuditOutcome, AuditRecord, shown_values

REFUSED_OF_ONE: Final = Rate(20, 1)
"""Refused requests of one address that are written, each with a line; further ones are counted."""
REFUSED_OF_ALL: Final = Rate(500, 50)
TELL_SECONDS: Final = 10.0
"""Interval in which what was left out of a source is told."""
SOURCES_MAX: Final = 256
"""Sources whose left-out requests are counted apart; those of all others together, under `*`."""
ORDINARY: Final = frozenset(
    {
        Reason.NOT_FOUND, Reason.OFFLINE, Reason.NOT_SUBSCRIBED, Reason.SUBSCRIPTION_OLD, Reason.NO_FILTER, Reason.STALE,
        Reason.BUSY, Reason.UNAVAILABLE, Reason.NOT_LEADING, Reason.NOT_STORED,
    }
)  # fmt: skip
"""Reasons that clients meet who do nothing wrong: no refusals in the sense of an audit."""


class AuditedRequest(Struct, frozen=True):
    """A request, as its server knows it."""

    protocol: str
    request: str
    address: str
    """`host:port` of the peer."""
    code: int = 0
    account: str = ""
    client: str = ""
    topic: str = ""
    group: str = ""
    values: Mapping[str, object] = {}


class PutRecord(Protocol):
    """Writes a record. Returns whether it was taken; one that was not is counted elsewhere."""

    def __call__(self, record: AuditRecord, *, refused: bool) -> bool: ...


class Audit:
    """The audit of one server: administrative requests, each; refused ones, up to a rate for each source.

    Args:
        clock: of records and rates.
        server: its name in the records.
        put: writes them.
    """

    def __init__(self, clock: Clock, server: str, put: PutRecord) -> None:
        self._clock, self._server, self._put = clock, server, put
        self._allowed = Allowances(clock, REFUSED_OF_ONE, REFUSED_OF_ALL)
        self._left_out: dict[str, int] = {}
        self._tell_at = 0.0

    def done(self, request: AuditedRequest) -> None:
        """Note an administrative request that took effect."""
        self._put(self._record(request, AuditOutcome.DONE), refused=False)

    def failed(self, request: AuditedRequest, text: str) -> None:
        """Note an administrative request that met an error."""
        self._put(self._record(request, AuditOutcome.FAILED, text=text), refused=False)

    def refused(self, address: str, reason: Reason | None, text: str, request: Callable[[], AuditedRequest]) -> None:
        """Note a refused request, or count it.

        Args:
            address: host of the peer: who makes many lines.
            reason: None: there is no such request.
            text: what the client is told.
            request: called only if it is written.
        """
        if reason in ORDINARY:
            return
        if not self._allowed.take(address, 1):
            source = address if address in self._left_out or len(self._left_out) < SOURCES_MAX else "*"
            self._left_out[source] = self._left_out.get(source, 0) + 1
            return
        name = reason.name if reason is not None else "NOT_SUPPORTED"
        self._put(self._record(request(), AuditOutcome.REFUSED, name, text), refused=True)

    def tick(self) -> None:
        """Tell what was left out."""
        now = self._clock.monotonic()
        if self._left_out and now >= self._tell_at:
            self._tell_at = now + TELL_SECONDS
            left_out, self._left_out = self._left_out, {}
            for source, count in left_out.items():
                self._put(self._left(source, count), refused=True)

    def dropped(self, count: int) -> AuditRecord:
        """Return the record that says how many found the queue to the file full."""
        return self._left("", count)

    def _left(self, source: str, count: int) -> AuditRecord:
        return AuditRecord(self._time(), self._server, AuditOutcome.LEFT_OUT.value, address=source, count=count)

    def _record(self, of: AuditedRequest, outcome: AuditOutcome, reason: str = "", text: str = "") -> AuditRecord:
        return AuditRecord(
            self._time(), self._server, outcome.value, of.protocol, of.request, of.code, of.address, of.account[:255],
            of.client[:255], of.topic[:255], of.group[:255], shown_values(of.values), reason, text[:TEXT_CHARS_MAX],
        )  # fmt: skip

    def _time(self) -> str:
        time = dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC)
        return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
