"""What brokers ask each other about staged transactions. Whoever composes a broker says how (`metaq.app.peers`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from metaq.model.transactions.staging import Decided, Decision, TransactionState


class StateOf(Struct, frozen=True):
    """To the coordinator: what became of it? The answer is a TransactionState."""

    transaction: str


class Finish(Struct, frozen=True):
    """To a participant: this was decided, apply it for a bounded time. The answer is a TransactionState."""

    decision: Decision


class Settle(Struct, frozen=True):
    """To the coordinator: roll it back, unless it is decided. The answer is what stands, a Decided."""

    transaction: str


class NoAnswer(Struct, frozen=True):
    """The peer was not reached, did not answer in time, refused, or is none of ours: nothing is known."""

    why: str


Question: TypeAlias = StateOf | Finish | Settle
Told: TypeAlias = TransactionState | Decided | NoAnswer


class Peers(Protocol):
    """The way to other brokers."""

    def ask(self, broker: str, question: Question, done: Callable[[Told], None]) -> None:
        """Ask the broker of that name. `done` is called once, on the broker's thread, perhaps before this returns."""
        ...


class NoPeers:
    """For a broker that knows no others."""

    def ask(self, broker: str, _question: Question, done: Callable[[Told], None]) -> None:
        done(NoAnswer(f"the broker {broker} cannot be found: this one has no name servers"))


ALONE: Final = NoPeers()
