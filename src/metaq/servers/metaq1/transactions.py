"""Transactions of the MetaQ 1.x server: steps to calls of `metaq.broker.metaq1.transactions`, faults to codes of XA."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

from metaq.broker.channel import Channel
from metaq.broker.log.acks import Due
from metaq.broker.metaq1.transactions import Metaq1Transactions
from metaq.errors import Refused
from metaq.model.metaq1.partition import PartitionPut
from metaq.model.transactions.metaq1 import BranchRefused, Ended, Fault, Vote
from metaq.saved import Saving
from metaq.wire.metaq1.commands import PutLine, Step, TransactionLine, put_body

XA_CODES: Final[Mapping[Fault, int]] = {
    Fault.NOT_KNOWN: -4,  # XAER_NOTA
    Fault.PROTOCOL: -6,  # XAER_PROTO
    Fault.INVALID: -5,  # XAER_INVAL
    Fault.CANNOT: -3,  # XAER_RMERR
    Fault.ROLLED_BACK: 104,  # XA_RBOTHER
    Fault.RETRY: 4,  # XA_RETRY
    Fault.UNAVAILABLE: -7,  # XAER_RMFAIL
    Fault.COMMITTED_BY_HAND: 7,  # XA_HEURCOM
    Fault.ROLLED_BACK_BY_HAND: 6,  # XA_HEURRB
}
VOTES: Final[Mapping[Vote, bytes]] = {Vote.PREPARED: b"0", Vote.READ_ONLY: b"3"}
"""XA_OK and XA_RDONLY, as the client expects them in the body."""


class TransactionSteps:
    """Handles steps of transactions, and puts into one.

    Args:
        branches: the broker's transactions of 1.x clients.
    """

    def __init__(self, branches: Metaq1Transactions) -> None:
        self._branches = branches

    def step(self, line: TransactionLine, session: Channel) -> bytes | None:
        """Take a step. Return the body of the answer to a success, None: there is no answer.

        Raises Refused, whose text is the body of the answer; Saving.
        """
        try:
            return self._step(line, session)
        except Saving as saving:
            if saving.then is None:
                raise
            # The master of a pair waits for its slave, or for the rest of a commit.
            raise Saving(*saving.pending, then=functools.partial(self._rest, line, saving.then)) from None
        except BranchRefused as error:
            raise _refused(error) from error

    def _rest(self, line: TransactionLine, then: Callable[[], Ended]) -> bytes:
        try:
            ended = then()
        except BranchRefused as error:
            raise _refused(error) from error
        return VOTES[ended.vote] if line.step is Step.PREPARE else b""

    def _step(self, line: TransactionLine, session: Channel) -> bytes | None:
        branches, key, ended = self._branches, line.key, Ended(stored=False)
        match line.step:
            case Step.BEGIN:
                branches.begin(key, line.timeout or 0, session)
            case Step.END:
                return None  # the original gives no answer either
            case Step.PREPARE:
                ended = branches.prepare(key, session)
                return VOTES[ended.vote]
            case Step.COMMIT_ONE_PHASE:
                branches.commit(key, session, one_phase=True)
            case Step.COMMIT_TWO_PHASE:
                branches.commit(key, session, one_phase=False)
            case Step.ROLLBACK:
                branches.rollback(key, session)
            case Step.FORGET:
                branches.forget(key)
            case Step.RECOVER:
                # As in the original: no line end behind the last key, and an empty body for none.
                return "\r\n".join(map(str, branches.recover(line.qualifier))).encode()
        return b""

    def put(self, line: PutLine, put: PartitionPut, session: Channel) -> bytes:
        """Put a message into a transaction. Return the body of the answer to a success: its position is -1, as in the
        original.

        Raises Refused, whose text is the body of the answer; Saving.
        """
        stored = self._branches.put(line.key, put, session)
        return put_body(stored.message_id, stored.partition, stored.position)

    def due(self) -> Due | None:
        """Return what the answers to the steps so far wait for; None: nothing."""
        return self._branches.due()


def _refused(error: BranchRefused) -> Refused:
    return Refused(error.reason, f"XAException:code={XA_CODES[error.fault]},msg={error.text}")
