"""Requests of staged transactions: messages invisible to consumers until one decision delivers all or none (30000-30006).

    Stage(transaction, sections)                      # chunks of parts, at every broker that has some
    SealPart(transaction, part, seal)                 # a part that did not end with its last chunk
    Decide(transaction, DecideBody(DecisionOutcome.COMMIT, manifest))   # at the coordinator, which the id names
    Apply(transaction, decision)                      # at every participant, until nothing remains

`broker`, in all of these: the name of the intended broker. Another one that has taken over its address refuses.

Each may be asked again after a lost answer: ids, numbers and the first decision make it the same. In which order, and what
after which error: `metaq.client.conversation.staged.atomic`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import ClassVar, Final

from metaq.client.conversation.call import Call, Order
from metaq.model.transactions.staging import (
    Chunk,
    Decided,
    DecisionOutcome,
    PartLifetime,
    PartSeal,
    Staged,
    TransactionDecision,
    TransactionRow,
    TransactionState,
)
from metaq.wire import headers, staging
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from metaq.wire.staging import ApplyBody, DecideBody

_DONE: Final[Container[int]] = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)
"""Codes of answers. A SYNC_MASTER whose slaves are away says so of what it has stored, as of plain sends: that is done, and to take it
for a refusal would call something rolled back that is delivered."""


class Stage(Call[Staged], frozen=True, kw_only=True):
    """Stage chunks, and optionally decide in the same request. `born_ms`: the client's time, ms since the epoch."""

    answers: ClassVar[Container[int]] = _DONE

    seconds: ClassVar[float] = 10.0

    transaction: str
    chunks: tuple[Chunk, ...]
    born_ms: int
    lifetime: PartLifetime = PartLifetime.AGE
    expire_after: int = 0
    """With AGE: time until rollback, s; 0: the broker's stagedSecondsMax."""
    decide: DecideBody | None = None
    broker: str | None = None

    @property
    def action(self) -> str:
        return f"stage messages of transaction {self.transaction}"

    def request(self) -> Command:
        header = headers.StageHeader(
            transaction=self.transaction,
            lifetime=self.lifetime.value,
            seconds=self.expire_after,
            born_ms=self.born_ms,
            broker=self.broker,
        )
        return request(RequestCode.STAGE, header, staging.sections(self.chunks, self.decide))

    def read(self, answer: Command) -> Staged:
        return staging.staged_of(answer.body)


class SealPart(Order, frozen=True):
    """Seal a part: no chunk follows."""

    answers: ClassVar[Container[int]] = _DONE

    transaction: str
    part: str
    seal: PartSeal
    broker: str | None = None

    @property
    def action(self) -> str:
        return f"seal part {self.part} of transaction {self.transaction}"

    def request(self) -> Command:
        seal = self.seal
        header = headers.SealPartHeader(
            transaction=self.transaction,
            part=self.part,
            chunks=seal.chunks,
            rows=seal.rows,
            bytes=seal.bytes,
            crc=seal.crc,
            broker=self.broker,
        )
        return request(RequestCode.SEAL, header)


class Decide(Call[Decided], frozen=True):
    """Decide a transaction. The outcome: the decision that stands, perhaps an earlier one."""

    answers: ClassVar[Container[int]] = _DONE

    transaction: str
    decide: DecideBody
    broker: str | None = None

    @property
    def action(self) -> str:
        return f"decide transaction {self.transaction}"

    def request(self) -> Command:
        header = headers.StagedTransactionHeader(transaction=self.transaction, broker=self.broker)
        return request(RequestCode.DECIDE, header, staging.decide_body(self.decide))

    def read(self, answer: Command) -> Decided:
        return staging.decided_of(answer.body)


def end(transaction: str, outcome: DecisionOutcome, broker: str | None = None) -> Decide:
    """Make the request to commit a prepared transaction, or to roll one back."""
    return Decide(transaction, DecideBody(outcome), broker)


class Settle(Call[Decided], frozen=True):
    """A participant's request to the coordinator: roll it back, unless it is decided or prepared. The outcome is what
    stands."""

    answers: ClassVar[Container[int]] = _DONE

    transaction: str
    broker: str | None = None

    @property
    def action(self) -> str:
        return f"settle transaction {self.transaction}"

    def request(self) -> Command:
        header = headers.StagedTransactionHeader(transaction=self.transaction, settle=True, broker=self.broker)
        return request(RequestCode.DECIDE, header)

    def read(self, answer: Command) -> Decided:
        return staging.decided_of(answer.body)


class Apply(Call[TransactionState], frozen=True):
    """Apply a decision for a bounded time: deliver a commit, or drop a rollback. The outcome: what remains.

    `decision`: the coordinator's, for a participant. `confirmed`: for the coordinator, the participants at which nothing
    remains: it would ask each of them. The outcome has no decision and no parts.
    """

    answers: ClassVar[Container[int]] = _DONE

    transaction: str
    decision: TransactionDecision | None = None
    broker: str | None = None
    confirmed: tuple[str, ...] = ()

    @property
    def action(self) -> str:
        return f"apply transaction {self.transaction}"

    def request(self) -> Command:
        header = headers.StagedTransactionHeader(transaction=self.transaction, broker=self.broker)
        return request(RequestCode.APPLY, header, staging.apply_body(ApplyBody(self.decision, self.confirmed)))

    def read(self, answer: Command) -> TransactionState:
        return staging.transaction_state_of(answer.body)


class GetTransaction(Call[TransactionState], frozen=True):
    """State of a transaction at one broker."""

    answers: ClassVar[Container[int]] = _DONE

    transaction: str
    broker: str | None = None

    @property
    def action(self) -> str:
        return f"tell the outcome of transaction {self.transaction}"

    def request(self) -> Command:
        return request(
            RequestCode.STAGED_STATE, headers.StagedSubjectHeader(transaction=self.transaction, broker=self.broker)
        )

    def read(self, answer: Command) -> TransactionState:
        return staging.transaction_state_of(answer.body)


class GetRow(Call[TransactionRow | None], frozen=True):
    """A writer's row at its coordinator; None: unknown."""

    answers: ClassVar[Container[int]] = _DONE

    row: str
    broker: str | None = None

    @property
    def action(self) -> str:
        return f"tell the last transaction of row {self.row}"

    def request(self) -> Command:
        return request(RequestCode.STAGED_STATE, headers.StagedSubjectHeader(row=self.row, broker=self.broker))

    def read(self, answer: Command) -> TransactionRow | None:
        return staging.row_state_of(answer.body)


class ForgetStaged(Order, frozen=True, kw_only=True):
    """Drop what a broker has of a transaction, or a writer's row. For operators, if nobody will end it."""

    answers: ClassVar[Container[int]] = _DONE

    transaction: str | None = None
    row: str | None = None

    @property
    def action(self) -> str:
        return f"forget row {self.row}" if self.row is not None else f"forget transaction {self.transaction}"

    def request(self) -> Command:
        return request(
            RequestCode.FORGET_STAGED, headers.StagedSubjectHeader(transaction=self.transaction, row=self.row)
        )


class ListStaged(Call[list[TransactionState]], frozen=True):
    """Transactions at one broker that are not over, by id, behind `after`."""

    answers: ClassVar[Container[int]] = _DONE

    action = "list staged transactions"

    after: str = ""
    count: int = 100

    def request(self) -> Command:
        return request(RequestCode.LIST_STAGED, headers.ListStagedHeader(after=self.after, count=self.count))

    def read(self, answer: Command) -> list[TransactionState]:
        return staging.transaction_list_of(answer.body)


class ListRows(Call[list[TransactionRow]], frozen=True):
    """Writers' rows at one broker, by key, behind `after`."""

    answers: ClassVar[Container[int]] = _DONE

    action = "list the rows of writers"

    after: str = ""
    count: int = 100

    def request(self) -> Command:
        header = headers.ListStagedHeader(after=self.after, count=self.count, rows=True)
        return request(RequestCode.LIST_STAGED, header)

    def read(self, answer: Command) -> list[TransactionRow]:
        return staging.row_list_of(answer.body)
