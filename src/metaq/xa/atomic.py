"""Messages of `producer.atomic()` as a resource: staged transactions at brokers of MetaQ.

`Atomic.prepare` is what two-phase commit needs: everything is stored at every broker, and waits for its decision, for ever, whatever
becomes of the client. No request lists such transactions by a prefix, so the id is noted before it is prepared; then `settle` decides it
from any process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaq.client.producing.atomic import Atomic
from metaq.client.producing.producer import Producer
from metaq.errors import TransactionEnded, TransactionFailed
from metaq.model import TransactionOutcome
from metaq.model.transactions.staging import Phase
from metaq.xa.resource import Branch, BranchName, InDoubt, OtherwiseEnded, checked_name


class AtomicMessages:
    """The messages of a producer; `enlist` returns a `metaq.Atomic`, to send with.

    Args:
        producer: sends, and settles what an earlier run has left.
        name: of the resource.
        timeout: seconds for a step, as of `Producer.atomic`.
        expire_after: seconds after which brokers drop what was sent and not prepared.
    """

    def __init__(
        self, producer: Producer[Any], name: str = "messages", *, timeout: float = 30.0, expire_after: float = 3600.0
    ) -> None:
        self.name, self._producer = checked_name(name), producer
        self._timeout, self._expire_after = timeout, expire_after

    def begin(self, name: BranchName, note: Callable[[str], None]) -> Branch[Atomic[Any]]:  # noqa: ARG002  its id names the broker
        """Begin a branch, an `Atomic`. As `Resource.begin`."""
        return AtomicBranch(self._producer.atomic(timeout=self._timeout, expire_after=self._expire_after), note)

    def in_doubt(self, prefix: str) -> tuple[list[InDoubt], str]:  # noqa: ARG002  they are noted
        """Return `[], ""`: branches are noted before they are prepared. As `Resource.in_doubt`."""
        return [], ""

    def settle(self, text: str, *, commit: bool) -> None:
        """End a prepared branch by its text. As `Resource.settle`. Raises what `Producer.settle` raises, and OtherwiseEnded."""
        if commit and self._producer.outcome(text, timeout=self._timeout) is Phase.UNKNOWN:
            return  # What is prepared stays: so it was committed, so long ago that it is forgotten.
        decided = self._producer.settle(text, commit=commit, timeout=self._timeout)
        if decided is not (TransactionOutcome.COMMIT if commit else TransactionOutcome.ROLLBACK):
            raise OtherwiseEnded(f"staged transaction {text} was ended by hand with {decided.value}")


class AtomicBranch:
    """One staged transaction. `handle`: the `Atomic`."""

    def __init__(self, atomic: Atomic[Any], note: Callable[[str], None]) -> None:
        self.handle, self._note = atomic, note

    @property
    def text(self) -> str:
        return self.handle.id

    def prepare(self) -> bool:
        if not self.handle.messages:
            self.handle.rollback()
            return False
        self._note(self.text)
        self.handle.prepare()
        return True

    def commit(self) -> None:
        try:
            self.handle.commit()
        except TransactionEnded as error:
            raise OtherwiseEnded(str(error)) from error

    def rollback(self) -> None:
        if self.handle.outcome is None:
            self.handle.rollback()
        elif self.handle.outcome is TransactionOutcome.UNKNOWN:
            raise TransactionFailed(f"what became of staged transaction {self.text} is unknown", self.text, "unknown")
