"""Staged transactions that several brokers have parts of: what brokers ask each other, and when.

A participant never guesses: it asks what became of a transaction until it has an answer, and what has expired here is rolled
back by the coordinator, or not. A coordinator reminds participants of a commit until each has said that nothing remains. How a
question gets to another broker is said by whoever composes a broker (`metaq.app.peers`).
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
from metaq.model.transactions.staging import Decided, Decision, TransactionState

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
"""Pause before a question is repeated, doubled each time."""
PAUSE_SECONDS_MAX: Final = 300.0
AGE_SECONDS: Final = 10.0
"""A transaction so old is asked about."""
ASKED_MAX: Final = 256
"""Questions under way."""


class StateOf(Struct, frozen=True):
    """Asks the coordinator what became of a transaction; answered with a TransactionState."""

    transaction: str


class Finish(Struct, frozen=True):
    """Has a participant apply a decision for a bounded time; answered with a TransactionState."""

    decision: Decision


class Settle(Struct, frozen=True):
    """Has the coordinator roll a transaction back unless it is decided; answered with what stands, a Decided."""

    transaction: str


class NoAnswer(Struct, frozen=True):
    """The peer was not reached, did not answer in time, refused, or is none of ours: nothing is known."""

    why: str


Question: TypeAlias = StateOf | Finish | Settle
PeerAnswer: TypeAlias = TransactionState | Decided | NoAnswer


class Peers(Protocol):
    """The way to other brokers."""

    def ask(self, broker: str, question: Question, done: Callable[[PeerAnswer], None]) -> None:
        """Ask the broker of that name. `done` is called once, on the broker's thread, perhaps before this returns."""
        ...


class NoPeers:
    """For a broker that knows no others."""

    def ask(self, broker: str, _question: Question, done: Callable[[PeerAnswer], None]) -> None:
        done(NoAnswer(f"the broker {broker} cannot be found: this one has no name servers"))


ALONE: Final = NoPeers()


class Kind(enum.Enum):
    """What is asked."""

    STATE = "what became of it"
    SETTLE = "roll it back, unless it is decided"
    FINISH = "apply the commit"


_Key = tuple[str, str, Kind]


class PeerRequests:
    """The questions of one broker.

    Args:
        learn: takes a coordinator's decision. Raises Refused: it cannot be stored now.
        done: takes a commit of which nothing remains, here or at any other broker.
        is_kept: whether the record at a LogOffset cannot be lost any more: no other broker acts on a decision before that.
    """

    def __init__(
        self,
        clock: Clock,
        peers: Peers,
        staged: Staged,
        learn: Callable[[Decision], None],
        done: Callable[[Transaction], None],
        is_kept: Callable[[int], bool],
    ) -> None:
        self._clock, self._peers, self._staged, self._learn, self._done = clock, peers, staged, learn, done
        self._is_kept = is_kept
        self._due: list[tuple[float, int, _Key]] = []
        self._serial = itertools.count()
        self._pauses: dict[_Key, float] = {}
        """Questions that wait or are under way → seconds until they are repeated."""
        self._asked = 0
        self._log = RateLimitedLog(log, clock)

    # ------------------------------------------------------------------ wishes

    def follow(self, transaction: Transaction, seconds: float = AGE_SECONDS) -> None:
        """Ask the coordinator what became of it, from then on."""
        self._want((transaction.id, transaction.coordinator, Kind.STATE), seconds, AGE_SECONDS)

    def settle(self, transaction: Transaction) -> None:
        """Ask the coordinator to roll it back."""
        self._want((transaction.id, transaction.coordinator, Kind.SETTLE), 0.0, PAUSE_SECONDS)

    def remind(self, transaction: Transaction, seconds: float = PAUSE_SECONDS) -> None:
        """Tell those who have not confirmed the commit, from then on."""
        for broker in transaction.unconfirmed:
            self._want((transaction.id, broker, Kind.FINISH), seconds, PAUSE_SECONDS)

    def _want(self, key: _Key, seconds: float, pause: float) -> None:
        if key not in self._pauses:
            self._pauses[key] = pause
            self._later(key, seconds)

    # ------------------------------------------------------------------ time

    def tick(self) -> None:
        """Ask what is due."""
        self._log.tick()
        now = self._clock.monotonic()
        while self._due and self._due[0][0] <= now and self._asked < ASKED_MAX:
            _, _, key = heapq.heappop(self._due)
            question = self._question(key)
            if question is None:
                del self._pauses[key]
                continue
            if isinstance(question, Finish) and not self._is_kept(self._staged.table[key[0]].place):
                self._later(key, PAUSE_SECONDS)
                continue
            self._asked += 1
            self._ask(key, question)

    def _question(self, key: _Key) -> Question | None:
        """What is to be asked; None: there is nothing to ask any more."""
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
            if isinstance(told, TransactionState) and not told.remaining:
                self.confirmed(transaction, broker, told.missing)
        elif told.decision is not None and told.decision.transaction == name:
            self._learn(told.decision)

    def confirmed(self, transaction: Transaction, broker: str, missing: tuple[str, ...]) -> None:
        """A participant has applied a commit, as far as it has the parts."""
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
        """Ask again later, if there is something to ask."""
        pause = self._pauses[key]
        if self._question(key) is None:
            del self._pauses[key]
            return
        self._pauses[key] = min(2 * pause, PAUSE_SECONDS_MAX)
        self._later(key, pause)

    def _later(self, key: _Key, seconds: float) -> None:
        heapq.heappush(self._due, (self._clock.monotonic() + seconds, next(self._serial), key))
