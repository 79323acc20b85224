"""Transactions: staged ones, half messages, and those of MetaQ 1.x; what is undecided, and why; ended by hand where that can be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from metaq.admin import branches, transactions
from metaq.admin.brokers import BrokerNotFound
from metaq.admin.undelivered import halves
from metaq.client.conversation.call import FAULTS
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.messages.rows import place_text
from metaq.dashboard.rendering.filters import age, count
from metaq.errors import BadRequest, MetaqError
from metaq.model.transactions.metaq1 import BRANCH, BranchPhase, BranchState
from metaq.model.transactions.staging import DecisionOutcome, PartLifetime, Phase

STAGED_MAX: Final = 200
BRANCHES_MAX: Final = 200
HALVES_SHOWN: Final = 200
TOPICS_MAX: Final = 8
PART_SECONDS: Final = 1.8
END_SECONDS: Final = 60.0
_UNDECIDED: Final = (Phase.OPEN, Phase.PREPARED)


class TransactionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be ended, looked at first. `kind`: "staged" or "branch". `subject`: its id or key. `broker`: of a branch."""

    kind: Annotated[str, Meta(pattern="^(staged|branch)?$")] = ""
    subject: str = ""
    broker: str = ""
    outcome: Annotated[str, Meta(pattern="^(commit|rollback|forget)?$")] = ""


class End(Struct, frozen=True):
    """What ending a transaction would do. `text`: "": it is not there, or cannot be ended so."""

    kind: str
    subject: str
    broker: str
    outcome: str
    text: str


class StagedRow(Struct, frozen=True):
    """A staged transaction. `why`: why it is where it is. `may_commit`, `may_roll_back`: by hand."""

    transaction: str
    phase: str
    decided: bool
    age_seconds: float | None
    messages: int
    bytes: int
    brokers: list[str]
    topics: list[str]
    why: str
    may_commit: bool
    may_roll_back: bool


class HalfRow(Struct, frozen=True):
    """A half message. `checks`: how often its producers were asked. `producers`: of its group that are connected; None: unknown."""

    broker: str
    id: str
    place: str
    topic: str
    group: str
    born_ms: int
    age_seconds: float
    checks: int
    producers: int | None
    why: str


class HalfCount(Struct, frozen=True):
    """Half messages of a broker that are open. `open`: None: it does not tell, as a RocketMQ; `certain`: as of `BrokerHalves`."""

    broker: str
    open: int | None
    listed: int
    complete: bool
    certain: bool


class BranchRow(Struct, frozen=True):
    """A transaction of a client of MetaQ 1.x. `kind`: "XA" or "local"."""

    broker: str
    key: str
    kind: str
    phase: str
    client: str
    since_ms: int
    messages: int
    bytes: int
    why: str
    may_end: bool
    may_forget: bool


class Transactions(Struct, frozen=True):
    """`end`: what is looked at. `staged`, `branches`: None: no broker has such. `staged_complete`: the list has them all. `unreached`: broker → why it could not be asked."""

    end: End | None
    staged: list[StagedRow] | None
    staged_complete: bool
    counts: list[HalfCount]
    halves: list[HalfRow]
    halves_more: int
    branches: list[BranchRow] | None
    unreached: dict[str, str]
    notes: list[str]


async def load(asked: Asked) -> Transactions:
    core, notes = asked.cluster.core, list[str]()
    staged, half, branch = await asyncio.gather(
        asked.ask(transactions.listing(core, broker=None, limit=STAGED_MAX), PART_SECONDS),
        asked.ask(halves.listing(core), PART_SECONDS),
        asked.ask(branches.listing(core, broker=None, limit=BRANCHES_MAX), PART_SECONDS),
        return_exceptions=True,
    )
    if all(isinstance(one, MetaqError) for one in (staged, half, branch)):
        assert isinstance(staged, MetaqError), "all are"
        raise staged
    unreached: dict[str, str] = {}
    staged_rows, complete = None, True
    if isinstance(staged, transactions.TransactionList):
        staged_rows = [_staged_row(one) for one in staged.transactions]
        complete = staged.complete
        unreached |= {name: why for name, why in staged.unreached.items() if why != transactions.UNSUPPORTED}
        if not staged_rows and staged.unreached and set(staged.unreached.values()) == {transactions.UNSUPPORTED}:
            staged_rows = None
    else:
        notes.append(_failed("staged transactions", staged))
    branch_rows = None
    if isinstance(branch, branches.BranchList):
        found = [
            _branch_row(name, one, branch.now_ms) for name, some in sorted(branch.branches.items()) for one in some
        ]
        branch_rows = found if branch.branches else None
    else:
        notes.append(_failed("transactions of MetaQ 1.x", branch))
    half_rows, counts = list[HalfRow](), list[HalfCount]()
    if isinstance(half, BaseException):
        notes.append(_failed("half messages", half))
    else:
        unreached |= half[1]
        for name, some in half[0].items():
            counts.append(HalfCount(name, some.count, len(some.halves), some.complete, some.certain))
            half_rows += [_half_row(name, one, asked.now_ms) for one in some.halves]
    half_rows.sort(key=lambda row: (row.born_ms, row.broker, row.id))
    query: TransactionsQuery = asked.query
    end = _end(query, staged_rows or [], branch_rows or []) if query.kind and query.outcome else None
    return Transactions(
        end,
        staged_rows,
        complete,
        counts,
        half_rows[:HALVES_SHOWN],
        max(0, len(half_rows) - HALVES_SHOWN),
        branch_rows,
        unreached,
        notes,
    )


def _end(query: TransactionsQuery, staged: Iterable[StagedRow], found: Iterable[BranchRow]) -> End:
    text = ""
    if query.kind == "staged":
        for row in staged:
            if row.transaction == query.subject and query.outcome == "commit" and row.may_commit:
                text = f"its messages ({count(row.messages)}) are delivered to {', '.join(row.topics) or 'their topics'}, and consumers get them"
            elif row.transaction == query.subject and query.outcome == "rollback" and row.may_roll_back:
                text = f"its messages ({count(row.messages)}) are dropped, and its writer can commit it no more"
    else:
        for one in found:
            if (one.key, one.broker) != (query.subject, query.broker):
                continue
            if query.outcome == "forget" and one.may_forget:
                text = "its transaction manager will not hear what an operator has decided"
            elif query.outcome == "commit" and one.may_end:
                text = f"its messages ({count(one.messages)}) are delivered, whatever its transaction manager decides elsewhere"
            elif query.outcome == "rollback" and one.may_end:
                text = f"its messages ({count(one.messages)}) are dropped, whatever its transaction manager decides elsewhere"
    return End(query.kind, query.subject, query.broker, query.outcome, text)


def _failed(what: str, error: BaseException | object) -> str:
    if not isinstance(error, (BrokerNotFound, *FAULTS)):
        assert isinstance(error, BaseException), "it is no outcome"
        raise error
    return f"{what}: {error}"


def _staged_row(one: transactions.StagedTransaction) -> StagedRow:
    parts = [part for _, part in one.parts]
    return StagedRow(
        transaction=one.transaction, phase=one.phase.value, decided=one.phase not in _UNDECIDED, age_seconds=one.age_seconds,
        messages=one.rows, bytes=one.bytes, brokers=sorted(one.states), topics=sorted({part.topic for part in parts})[:TOPICS_MAX],
        why=_why_staged(one), may_commit=one.phase is Phase.PREPARED, may_roll_back=one.phase in _UNDECIDED,
    )  # fmt: skip


def _why_staged(one: transactions.StagedTransaction) -> str:
    lifetimes = {part.lifetime for _, part in one.parts}
    if one.phase is Phase.OPEN:
        unsealed = sum(not part.sealed for _, part in one.parts)
        how = f"{unsealed} of its parts are still being written" if unsealed else "all of its parts are written"
        end = {
            PartLifetime.AGE: "its broker rolls it back after a time", PartLifetime.CONNECTION: "it ends with the connection of its writer",
            PartLifetime.PREPARED: "it never ends by itself",
        }  # fmt: skip
        return f"its writer has not decided: {how}; " + ", ".join(
            end[lifetime] for lifetime in sorted(lifetimes, key=lambda each: each.value)
        )
    if one.phase is Phase.PREPARED:
        return f"it is prepared: its transaction manager has to decide, and {one.coordinator} waits for that for ever"
    if one.phase is Phase.COMMITTING:
        left = sum(state.remaining for state in one.states.values())
        return f"it is committed, and {left} chunks are still to be delivered: brokers go on by themselves"
    return ""


def _half_row(broker: str, half: halves.OpenHalf, now_ms: int) -> HalfRow:
    message = half.message
    if half.producers == 0:
        why = f"no producer of its group is connected to {broker}: there is nobody to ask"
    elif half.checks:
        why = "its producers were asked, and have not said how it ended"
    else:
        why = "its producers have not said how it ended, and were not asked yet"
    return HalfRow(
        broker, message.message_id, place_text(message), half.topic, half.group, message.born_ms, max(0.0, (now_ms - message.born_ms) / 1000), half.checks,
        half.producers, why,
    )  # fmt: skip


def _branch_row(broker: str, one: BranchState, now_ms: int) -> BranchRow:
    is_branch = one.key.startswith(f"{BRANCH}:")
    waited = age(max(0, now_ms - one.since_ms) / 1000) if one.since_ms else "an unknown time"
    why = {
        BranchPhase.OPEN: f"its client has written to it for {waited}, and neither prepared nor ended it",
        BranchPhase.PREPARED: f"it is prepared since {waited}: its transaction manager has to decide",
        BranchPhase.COMMITTED_BY_HAND: "an operator has committed it, and its transaction manager has not heard of it yet",
        BranchPhase.ROLLED_BACK_BY_HAND: "an operator has rolled it back, and its transaction manager has not heard of it yet",
    }[one.phase]
    by_hand = one.phase in {BranchPhase.COMMITTED_BY_HAND, BranchPhase.ROLLED_BACK_BY_HAND}
    return BranchRow(
        broker, one.key, "XA" if is_branch else "local", one.phase.value, one.client, one.since_ms, one.messages, one.bytes, why,
        one.phase is BranchPhase.PREPARED, by_hand,
    )  # fmt: skip


async def end_staged(asked: Asked, form: Mapping[str, str]) -> str:
    """Commit or roll back a staged transaction."""
    transaction, outcome = form.get("subject", ""), _outcome(form)
    ended = await asked.ask(transactions.decide(asked.cluster.core, transaction, outcome), END_SECONDS)
    word = {
        DecisionOutcome.COMMIT: "committed",
        DecisionOutcome.ROLLBACK: "rolled back",
        DecisionOutcome.PREPARED: "prepared",
    }[ended.decision.outcome]
    text = f"Transaction {transaction} {'is' if ended.first else 'was already'} {word}."
    if ended.remaining:
        left = "; ".join(f"{broker}: {why}" for broker, why in ended.remaining.items())
        text += f" Brokers that are not done yet go on by themselves: {left}"
    return text


def _outcome(form: Mapping[str, str]) -> DecisionOutcome:
    found = {"commit": DecisionOutcome.COMMIT, "rollback": DecisionOutcome.ROLLBACK}.get(form.get("outcome", ""))
    if found is None:
        raise BadRequest("say whether it is to be committed or rolled back")
    return found


async def end_branch(asked: Asked, form: Mapping[str, str]) -> str:
    """Commit, roll back or forget a transaction of a client of MetaQ 1.x."""
    key, action = form.get("subject", ""), form.get("outcome", "")
    if action not in {"commit", "rollback", "forget"}:
        raise BadRequest("say whether it is to be committed, rolled back or forgotten")
    names = await asked.ask(
        branches.end(asked.cluster.core, key, action, broker=form.get("broker") or None), END_SECONDS
    )
    done = {"commit": "committed", "rollback": "rolled back", "forget": "forgotten"}[action]
    return f"{key[:200]} is {done} at {', '.join(names)}."


PAGE: Final = Page(
    name="undelivered/transactions", path="/transactions", title="Transactions", menu="Transactions", key="x", values=Transactions,
    load=load, query=TransactionsQuery, changes={"staged": end_staged, "branch": end_branch},
)  # fmt: skip
