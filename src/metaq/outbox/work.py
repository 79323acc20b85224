"""One round of a sender, without threads and event loops: what is leased, in which steps it is sent, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from metaq.client.identity.options import check_whole, checked_seconds
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, InvalidMessage
from metaq.outbox import table as tables
from metaq.outbox.entry import Entry
from metaq.sql.statements import Statements, statements_of

_EXPIRE_ROWS = 1000


class Rules(Struct, frozen=True, kw_only=True):
    """How a sender works. Durations in seconds. Raises ConfigError, TypeError."""

    poll: float = 1.0
    """Longest time until something new is seen of which nobody told."""
    batch: int = 100
    """Most messages that are leased at a time."""
    lease: float = 60.0
    """After it another sender may send what a sender that died had leased."""
    timeout: float = 15.0
    """Longest time for a message to be sent; less than half of the lease."""
    pause: float = 1.0
    """Before the second try; it doubles with each."""
    pause_max: float = 300.0
    """Longest pause between two tries."""
    tries_max: int | None = 30
    """Failed tries after which a message is parked; None: never. With the pauses above 30 tries take two hours."""
    keep: float = 0.0
    """How long rows of sent messages are kept; 0: they are deleted at once."""

    def __post_init__(self) -> None:
        for name, least in (
            ("poll", 0.01),
            ("lease", 1.0),
            ("timeout", 0.1),
            ("pause", 0.0),
            ("pause_max", 0.0),
            ("keep", 0.0),
        ):
            checked_seconds(name, getattr(self, name), least=least)
        check_whole("batch", self.batch)
        if self.tries_max is not None:
            check_whole("tries_max", self.tries_max)
        if self.batch < 1 or (self.tries_max is not None and self.tries_max < 1):
            raise ConfigError(f"batch={self.batch}, tries_max={self.tries_max}: need at least 1")
        if self.timeout * 2 > self.lease:
            raise ConfigError(f"timeout={self.timeout:g}: need at most half of lease={self.lease:g}")

    def pause_after(self, tries: int) -> float:
        """Return the pause after so many failed tries, seconds."""
        return min(self.pause * 2.0 ** min(tries - 1, 60), self.pause_max)


class Database:
    """What a sender has asked its database, once."""

    def __init__(self) -> None:
        self._skips_locked: bool | None = None

    def skips_locked(self, on: Statements) -> bool:
        if self._skips_locked is None:
            self._skips_locked = on.skips_locked()
        return self._skips_locked


class Work:
    """What one lease holds, and how far it has come. Its calls with a connection commit.

    Args: protocols: of the messages that the sender can send. database: of the sender, for all of its rounds.
    """

    def __init__(
        self, table: str, rules: Rules, protocols: Sequence[str], database: Database, clock: Clock = SYSTEM
    ) -> None:
        self._table, self._rules, self._protocols, self._clock = table, rules, list(protocols), clock
        self._database = database
        self._owner = clock.token()
        self._ends = 0.0
        self._left: list[Entry] = []
        self.sent = self.failed = self.parked = 0

    def begin(self, target: Any) -> bool:
        """Lease messages. Returns False: there are none to be sent now."""
        self._ends = self._clock.monotonic() + self._rules.lease
        on, rules = statements_of(target), self._rules
        found = tables.lease(
            on, self._table, self._protocols, self._owner, rules.lease, rules.batch,
            skips_locked=self._database.skips_locked(on),
        )  # fmt: skip
        target.commit()
        if found:
            # In a transaction of its own: it must see what other senders have committed meanwhile.
            self._left = tables.leased(statements_of(target), self._table, self._owner)
            target.commit()
        return found

    def step(self) -> list[Entry]:
        """Return what is sent at the same time: of each lane its first message. []: nothing is left, or no time for it."""
        if self._clock.monotonic() + self._rules.timeout > self._ends:
            return []
        lanes: set[str] = set()
        step = []
        for entry in self._left:
            if entry.lane not in lanes:
                step.append(entry)
            if entry.lane:
                lanes.add(entry.lane)
        return step

    def settle(self, target: Any, outcomes: Sequence[tuple[Entry, Exception | None]]) -> None:
        """Record what became of a step. A lane whose message failed is given back, unless it is parked: then it goes on."""
        on, rules = statements_of(target), self._rules
        done = {entry.position for entry, _ in outcomes}
        left = [entry for entry in self._left if entry.position not in done]
        good = [entry.position for entry, error in outcomes if error is None]
        tables.sent(on, self._table, self._owner, good, keep=rules.keep > 0)
        stopped, parked = set(), 0
        for entry, error in outcomes:
            if error is None:
                continue
            tries = entry.tries + 1
            park = isinstance(error, InvalidMessage) or (rules.tries_max is not None and tries >= rules.tries_max)
            text = f"{type(error).__name__}: {error}"
            tables.failed(on, self._table, self._owner, entry.position, text, rules.pause_after(tries), park=park)
            parked += park
            if entry.lane and not park:
                stopped.add(entry.lane)
        back = [entry.position for entry in left if entry.lane in stopped]
        tables.release(on, self._table, self._owner, back)
        target.commit()
        self._left = [entry for entry in left if entry.lane not in stopped]
        self.sent, self.parked = self.sent + len(good), self.parked + parked
        self.failed += len(outcomes) - len(good)

    def end(self, target: Any) -> None:
        """Give back what was not sent, and delete some rows of sent messages that are too old."""
        if self._left:
            tables.release(statements_of(target), self._table, self._owner, [entry.position for entry in self._left])
            target.commit()
            self._left = []
        if self._rules.keep > 0:
            # Read first: the DELETE finds its rows by their key, and locks no others.
            on = statements_of(target)
            if old := tables.expired(on, self._table, self._rules.keep, _EXPIRE_ROWS):
                tables.delete_sent(on, self._table, old)
            target.commit()
