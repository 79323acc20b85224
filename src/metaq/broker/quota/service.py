"""The quotas of one server: those that are set, what their subjects take, and the connections that are charged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from metaq.broker.allowance import Bucket, Rate
from metaq.broker.part import BrokerPart
from metaq.broker.quota.meter import BURST_SECONDS, Meter
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model import DataVersion
from metaq.model.quota import EVERY, NO_LIMITS, QuotaKind, QuotaLimits, QuotaUse, Subject, parse_limits
from metaq.saved import Pending, SavedTable, at_once
from metaq.saved_file import TableFile
from metaq.server_options import QuotaOptions

QUOTAS_MAX: Final = 10_000
"""Quotas that may be set."""
METERS_MAX: Final = 20_000
"""Subjects without connections whose use is remembered. Beyond that those are forgotten that owe nothing and have all."""
SHOWN_MAX: Final = 1000
"""Subjects that `show` tells, those that wait longest first; and all that have a quota of their own."""

Later = Callable[[float, Callable[[], None]], object]
QuotaFile = TableFile[Subject, QuotaLimits, DataVersion]


class Charged(Protocol):
    """A connection that quotas may hold for."""

    @property
    def meters(self) -> Sequence[Meter]: ...

    def refresh(self) -> None:
        """Look its meters up again: the quotas have changed."""
        ...


def defaults_of(options: QuotaOptions) -> dict[QuotaKind, QuotaLimits]:
    """Return kind → limits of each of it, by a server's options. Raises ConfigError."""
    texts = {
        QuotaKind.CLIENT: ("quotaPerClient", options.quota_per_client),
        QuotaKind.ACCOUNT: ("quotaPerAccount", options.quota_per_account),
        QuotaKind.ADDRESS: ("quotaPerAddress", options.quota_per_address),
    }
    return {kind: parse_limits(text, kind, name) for kind, (name, text) in texts.items()}


class Quotas(BrokerPart):
    """Quotas by kind and name, durable, and the meters of those who have some.

    A subject has the limits of its own quota, where that says nothing those of the quota `*` of its kind, and then those of the
    options. Whoever has no limits has no meter, and costs nothing.

    Args:
        clock: monotonic time.
        defaults: kind → limits by option.
        wait_max: longest wait for a quota, s.
        file: of the quotas that are set; None: none can be set.
        call_soon: brings a call from another thread to the event loop.
    Raises:
        ConfigError: the file cannot be read.
    """

    leads: ClassVar[bool] = False  # on slaves, too

    def __init__(
        self,
        clock: Clock,
        defaults: Mapping[QuotaKind, QuotaLimits],
        wait_max: float,
        file: QuotaFile | None = None,
        call_soon: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        self.clock, self.wait_max, self._defaults = clock, wait_max, defaults
        self._saved: SavedTable[Subject, QuotaLimits, DataVersion] | None = None
        self._table: Mapping[Subject, QuotaLimits] = {}
        if file is not None:
            version, table = file.read(DataVersion(clock.now_ms(), 0))
            self._saved = SavedTable(file, table, version, clock=clock, call_soon=call_soon, shown=self._changed)
            self._table = self._saved.table
        self.active = False
        """Whether anything is limited."""
        self.connections: dict[Hashable, Charged] = {}
        """Connection → what it is charged to."""
        self._meters: dict[Subject, Meter] = {}
        self._arrivals: dict[str, Bucket] = {}
        """Address → connections that it may still open now."""
        self._watchers: list[Callable[[bool], None]] = []
        self._refused: dict[QuotaKind, int] = dict.fromkeys(QuotaKind, 0)
        """What was refused to those whose meters are forgotten."""
        self.later: Later | None = None
        """Calls back after so many seconds; None: the running event loop does."""
        self._look()

    # -- what is set
    def limits_of(self, subject: Subject) -> QuotaLimits:
        """Return the limits of a subject."""
        kind, table = subject[0], self._table
        general = table.get((kind, EVERY), NO_LIMITS).over(self._defaults.get(kind, NO_LIMITS))
        return table.get(subject, NO_LIMITS).over(general)

    def set(self, subject: Subject, limits: QuotaLimits) -> Pending:
        """Save a quota, then put it in force. Raises Refused INVALID: there are too many."""
        saved = self._store
        if saved.count >= QUOTAS_MAX and saved.coming(subject) is None:
            raise Refused(Reason.INVALID, f"there are {QUOTAS_MAX} quotas already, the limit; remove some")
        return saved.change(subject, limits)

    def remove(self, subject: Subject) -> Pending:
        """Remove a quota. Raises Refused NOT_FOUND."""
        if self._store.coming(subject) is None:
            raise Refused(Reason.NOT_FOUND, f"the {subject[0].value} {subject[1]} has no quota of its own")
        return self._store.change(subject, None)

    @property
    def _store(self) -> SavedTable[Subject, QuotaLimits, DataVersion]:
        if self._saved is None:
            raise Refused(Reason.UNAVAILABLE, "this server keeps no quotas: it has those of its options alone")
        return self._saved

    @property
    def failing(self) -> str:
        """Why the last save failed; "" if it did not."""
        return self._saved.failing if self._saved is not None else ""

    def show(self) -> list[QuotaUse]:
        """Return all quotas, and what those take who have one."""
        now, table = self.clock.monotonic(), self._table
        uses = [self._use(subject, now) for subject in table]
        others = [meter.use(now, own=False) for subject, meter in self._meters.items() if subject not in table]
        others.sort(key=lambda use: (use.wait_ms, use.refused, use.connections), reverse=True)
        by_option = [
            QuotaUse(kind.value, EVERY, limits)
            for kind, limits in self._defaults.items()
            if limits.limited and (kind, EVERY) not in table
        ]
        return [*by_option, *uses, *others[:SHOWN_MAX]]

    def _use(self, subject: Subject, now: float) -> QuotaUse:
        meter = self._meters.get(subject)
        if meter is None:
            return QuotaUse(subject[0].value, subject[1], self.limits_of(subject), own=True)
        return meter.use(now, own=True)

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Call `changed` now and whenever quotas have changed, with whether anything is limited."""
        self._watchers.append(changed)
        changed(self.active)

    def _changed(self, _subject: Subject) -> None:
        self._look()
        now = self.clock.monotonic()
        for subject, meter in list(self._meters.items()):
            meter.limit(self.limits_of(subject), now)
        for connection in list(self.connections.values()):
            connection.refresh()
        self._keep({subject: meter for subject, meter in self._meters.items() if meter.limits.limited})
        for watcher in self._watchers:
            watcher(self.active)

    def _look(self) -> None:
        all_limits = [*self._defaults.values(), *self._table.values()]
        self.active = any(limits.limited for limits in all_limits)

    # -- who takes what
    def meter(self, kind: QuotaKind, name: str) -> Meter | None:
        """Return the meter of a subject; None: nothing limits it."""
        if not self.active or not name:
            return None
        subject = kind, name
        found = self._meters.get(subject)
        if found is not None:
            return found if found.limits.limited else None
        limits = self.limits_of(subject)
        if not limits.limited:
            return None
        now = self.clock.monotonic()
        if len(self._meters) >= METERS_MAX + len(self.connections) * len(QuotaKind):
            self._forget(now)
        meter = self._meters[subject] = Meter(subject, limits, now)
        return meter

    def may_arrive(self, address: str) -> str:
        """Return "" if an address opens no more connections a second than it may; else what refuses this one."""
        meter = self.meter(QuotaKind.ADDRESS, address) if self.active else None
        per_second = meter.limits.connections_per_second if meter is not None else None
        if meter is None or not per_second:
            return ""
        now, rate = self.clock.monotonic(), Rate(max(1, round(per_second * BURST_SECONDS)), per_second)
        bucket = self._arrivals.setdefault(address, Bucket(rate.burst, now))
        if bucket.refill(rate, now) < 1:
            meter.refused += 1
            return f"the address {address} opens more than {per_second} connections a second, its quota"
        bucket.left -= 1
        return ""

    def may_connect(self, address: str) -> str:
        """Return "" if an address may have another connection open; else what refuses it."""
        meter = self.meter(QuotaKind.ADDRESS, address) if self.active else None
        most = meter.limits.connections if meter is not None else None
        if meter is None or not most or meter.connections < most:
            return ""
        meter.refused += 1
        return f"the address {address} has {meter.connections} connections open, its quota is {most}"

    def may_make(self, what: str, client: str, made: int) -> str:
        """Return "" if a client may make one more topic or group; else what refuses it.

        Args:
            what: `topics` or `groups`.
            client: `Caller.client`, an account or an address.
            made: those that it has made.
        """
        if self.active and client:
            for kind in (QuotaKind.ACCOUNT, QuotaKind.ADDRESS):
                meter = self.meter(kind, client)
                most = getattr(meter.limits, what) if meter is not None else None
                if meter is not None and most and made >= most:
                    meter.refused += 1
                    return f"the {kind.value} {client} has made {made} {what}, its quota is {most}"
        return ""

    def holders(self, channel: Any) -> Sequence[Meter]:
        """Return the meters that a held pull of a connection counts for."""
        connection = self.connections.get(channel)
        return connection.meters if connection is not None else ()

    def tick(self) -> None:
        """Save again what could not be saved."""
        if self._saved is not None:
            self._saved.tick()

    def close(self) -> None:
        """Refuse further changes, and wait for a running save."""
        if self._saved is not None:
            self._saved.close()

    def _forget(self, now: float) -> None:
        used = {subject: meter for subject, meter in self._meters.items() if not meter.rested(now)}
        if len(used) >= METERS_MAX:
            # Whoever has so many addresses owes with each of them: what holds then are the limits of all peers together.
            used = {subject: meter for subject, meter in used.items() if meter.connections or meter.held_pulls}
        self._keep(used)
        self._arrivals = {name: one for name, one in self._arrivals.items() if now - one.since < BURST_SECONDS}

    def _keep(self, meters: dict[Subject, Meter]) -> None:
        for subject, meter in self._meters.items():
            if subject not in meters:
                self._refused[subject[0]] += meter.refused
        self._meters = meters

    def refused(self) -> dict[QuotaKind, int]:
        """Return how many requests and connections were refused since the start, by the kind of the quota."""
        found = dict(self._refused)
        for subject, meter in self._meters.items():
            found[subject[0]] += meter.refused
        return found
