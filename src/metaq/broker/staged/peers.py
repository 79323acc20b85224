"""Staged transactions with parts at several brokers: requests between the brokers (two-phase commit).

A participant never decides alone: it asks the coordinator for the outcome until it has one, and an expired transaction is rolled
back by the coordinator only. The coordinator sends a commit to participants until each has confirmed that nothing remains. The
transport is `metaq.app.peers`.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from metaq.broker.staged.parts import Staged, Transaction
from metaq.clock import Clock
from metaq.errors import Refused
from metaq.log import RateLimitedLog
from metaq.model.transactions.staging import Decided, TransactionDecision, TransactionState

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
"""Pause before a request is repeated, doubled each time, s."""
PAUSE_SECONDS_MAX: Final = 300.0
AGE_SECONDS: Final = 10.0
"""Age at which a participant first asks about a transaction, s: most clients report the outcome themselves."""
ASKED_MAX: Final = 256
"""Concurrent requests at most."""


class StateOf(Struct, frozen=True):
    """Request to the coordinator for a transaction's outcome; answered with a TransactionState."""

    transaction: str


class Finish(Struct, frozen=True):
    """Request to a participant to apply a commit for a bounded time; answered with a TransactionState."""

    decision: TransactionDecision


class Settle(Struct, frozen=True):
    """Request to the coordinator to roll back an undecided transaction; answered with the decision that stands, a Decided."""

    transaction: str


class NoAnswer(Struct, frozen=True):
    """No answer: the peer was unreachable, too slow, refused, or is a RocketMQ broker. Nothing is known then."""

    why: str


Question: TypeAlias = StateOf | Finish | Settle
PeerAnswer: TypeAlias = TransactionState | Decided | NoAnswer


class Peers(Protocol):
    """Transport to other brokers."""

    def ask(self, broker: str, question: Question, done: Callable[[PeerAnswer], None]) -> None:
        """Send a request to a broker by name. `done` is called once, on this broker's event loop, perhaps before this returns."""
        ...


class NoPeers:
    """Transport of a broker without name servers: it finds no others."""

    def ask(self, broker: str, _question: Question, done: Callable[[PeerAnswer], None]) -> None:
        done(NoAnswer(f"the broker {broker} cannot be found: this one has no name servers"))


ALONE: Final = NoPeers()


class Kind(enum.Enum):
    """Kind of a request."""

    STATE = "what became of it"
    SETTLE = "roll it back, unless it is decided"
    FINISH = "apply the commit"


_Key = tuple[str, str, Kind]


class PeerRequests:
    """Schedules and repeats the requests of one broker.

    Args:
        learn: stores a coordinator's decision. Raises Refused: it cannot be stored now.
        done: called with a commit of which nothing remains, here or at any other broker.
        is_kept: whether the record at a LogOffset is durable (flushed and replicated as configured).
    """

    def __init__(
        self,
        clock: Clock,
        peers: Peers,
        staged: Staged,
        learn: Callable[[TransactionDecision], None],
        done: Callable[[Transaction], None],
        is_kept: Callable[[int], bool],
    ) -> None:
        self._clock, self._peers, self._staged, self._learn, self._done = clock, peers, staged, learn, done
        self._is_kept = is_kept
        self._due: list[tuple[float, int, _Key]] = []
        self._serial = itertools.count()
        self._pauses: dict[_Key, float] = {}
        """Scheduled or running requests → seconds until they are repeated."""
        self._asked = 0
        self._log = RateLimitedLog(log, clock)

    # ------------------------------------------------------------------ wishes

    def follow(self, transaction: Transaction, seconds: float = AGE_SECONDS) -> None:
        """Ask the coordinator for the outcome, after `seconds` and then repeatedly."""
        self._want((transaction.id, transaction.coordinator, Kind.STATE), seconds, AGE_SECONDS)

    def settle(self, transaction: Transaction) -> None:
        """Ask the coordinator to roll it back."""
        self._want((transaction.id, transaction.coordinator, Kind.SETTLE), 0.0, PAUSE_SECONDS)

    def remind(self, transaction: Transaction, seconds: float = PAUSE_SECONDS) -> None:
        """Send the commit to participants that have not confirmed it, after `seconds` and then repeatedly."""
        for broker in transaction.unconfirmed:
            self._want((transaction.id, broker, Kind.FINISH), seconds, PAUSE_SECONDS)

    def _want(self, key: _Key, seconds: float, pause: float) -> None:
        if key not in self._pauses:
            self._pauses[key] = pause
            self._later(key, seconds)

    # ------------------------------------------------------------------ time

    def tick(self) -> None:
        """Send due requests."""
        self._log.tick()
        now = self._clock.monotonic()
        while self._due and self._due[0][0] <= now and self._asked < ASKED_MAX:
            _, _, key = heapq.heappop(self._due)
            question = self._question(key)
            if question is None:
                del self._pauses[key]
                continue
            # A commit must be durable here before others apply it: after a power cut the coordinator would know
            # nothing of it, and might roll back what others have delivered.
            if isinstance(question, Finish) and not self._is_kept(self._staged.table[key[0]].place):
                self._later(key, PAUSE_SECONDS)
                continue
            self._asked += 1
            self._ask(key, question)

    def _question(self, key: _Key) -> Question | None:
        """Return the request; None: it is no longer needed."""
        name, broker, kind = key
        transaction = self._staged.get(name)
        if transaction is None:
            return None
        if kind is Kind.FINISH:
            return Finish(transaction.decision) if transaction.decision and broker in transaction.unconfirmed else None
        if transaction.final:
            return None
        if kind is Kind.SETTLE:
            return Settle(name) if transaction.decision is None else None
        return StateOf(name)

    def _ask(self, key: _Key, question: Question) -> None:
        def done(told: PeerAnswer) -> None:
            self._asked -= 1
            try:
                self._take(key, told)
            except Refused as error:
                self._log.warning("held up", "what a broker says of staged transactions waits: %s", error)
            self._again(key)

        self._peers.ask(key[1], question, done)

    def _take(self, key: _Key, told: PeerAnswer) -> None:
        name, broker, kind = key
        transaction = self._staged.get(name)
        if isinstance(told, NoAnswer):
            self._log.warning(
                ("no answer", broker), "the broker %s does not say what it knows of staged transactions, it is asked again: %s",
                broker, told.why,
            )  # fmt: skip
            return
        if transaction is None:
            return
        if kind is Kind.FINISH:
            # Only when nothing remains: until then the participant depends on being asked again.
            if isinstance(told, TransactionState) and not told.remaining:
                self.confirmed(transaction, broker, told.missing)
        elif told.decision is not None and told.decision.transaction == name:
            self._learn(told.decision)

    def confirmed(self, transaction: Transaction, broker: str, missing: tuple[str, ...]) -> None:
        """Note that a participant has applied a commit, as far as it has the parts."""
        if broker not in transaction.unconfirmed:
            return
        if missing:
            log.error(
                "transaction %s is committed, and the broker %s does not have its parts %s: they were never staged, or are lost",
                transaction.id,
                broker,
                ", ".join(missing),
            )
        transaction.unconfirmed = tuple(other for other in transaction.unconfirmed if other != broker)
        if not transaction.unconfirmed and not transaction.remaining:
            self._done(transaction)

    def _again(self, key: _Key) -> None:
        """Schedule a repetition, if the request is still needed."""
        pause = self._pauses[key]
        if self._question(key) is None:
            del self._pauses[key]
            return
        # A broker may be away for days; its requests must not become a burden.
        self._pauses[key] = min(2 * pause, PAUSE_SECONDS_MAX)
        self._later(key, pause)

    def _later(self, key: _Key, seconds: float) -> None:
        heapq.heappush(self._due, (self._clock.monotonic() + seconds, next(self._serial), key))
