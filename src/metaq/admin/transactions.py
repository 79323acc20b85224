"""Staged transactions: list, show, end by hand, forget. Brokers without them, such as RocketMQ's, are listed as unreached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from metaq.admin.brokers import BrokerNotFound, masters
from metaq.admin.several import at_each
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.staged.staging import (
    Apply,
    ForgetStaged,
    GetRow,
    GetTransaction,
    ListRows,
    ListStaged,
    end,
)
from metaq.client.identity.names import checked
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError, NotFound
from metaq.model.transactions.staging import (
    DecisionOutcome,
    PartState,
    Phase,
    TransactionDecision,
    TransactionRow,
    TransactionState,
    check_row,
    coordinator_of,
)

T = TypeVar("T")

PAGE: Final = 200
"""Transactions in one answer of a broker."""
_ENDS: Final = (Phase.COMMITTED, Phase.ROLLED_BACK)
APPLY_SECONDS: Final = 60.0
"""How long `decide` waits until brokers have delivered a transaction's messages."""
_NOT_SUPPORTED: Final = 3
UNSUPPORTED: Final = "it knows no staged transactions"
"""Reason for a broker that is not ours, or too old."""
_NOT_REGISTERED: Final = "it is not registered at the name servers"


class TransactionNotFound(NotFound):
    """No broker that could be asked knows the transaction, or the writer's row."""


class StagedTransaction(Struct, frozen=True):
    """A transaction, by the states of the brokers that could be asked."""

    transaction: str
    """Id of the transaction."""
    states: dict[str, TransactionState]
    """Broker → its state, of brokers that know the transaction."""
    now_ms: int
    """When the brokers were asked."""

    @property
    def coordinator(self) -> str:
        """Name of the broker that decides it, which its id has."""
        return self.transaction.partition("@")[2]

    @property
    def phase(self) -> Phase:
        """Phase of the transaction, by its coordinator's state if known, else by the others'.

        COMMITTING as long as some broker has not delivered all of its messages.
        """
        phases = {state.phase for state in self.states.values()}
        own = self.states.get(self.coordinator)
        if Phase.COMMITTING in phases or (Phase.COMMITTED in phases and phases & {Phase.OPEN, Phase.PREPARED}):
            return Phase.COMMITTING
        if own is not None:
            return own.phase
        # What is decided at one broker is decided for all, whatever others have heard of it.
        order = (Phase.COMMITTED, Phase.ROLLED_BACK, Phase.PREPARED, Phase.OPEN)
        return next((phase for phase in order if phase in phases), Phase.UNKNOWN)

    @property
    def decision(self) -> TransactionDecision | None:
        """What was decided: its outcome, and when; None: no broker that was asked knows a decision."""
        own = self.states.get(self.coordinator)
        # The coordinator's comes first: the others have theirs from it.
        states = [own] if own is not None and own.decision else self.states.values()
        return next((state.decision for state in states if state.decision), None)

    @property
    def parts(self) -> list[tuple[str, PartState]]:
        """(broker, part), in the order of brokers and parts' ids."""
        return [
            (broker, part)
            for broker, state in sorted(self.states.items())
            for part in sorted(state.parts, key=lambda part: part.part)
        ]

    @property
    def rows(self) -> int:
        """Number of messages staged at the brokers that could be asked."""
        return sum(part.rows for _, part in self.parts)

    @property
    def bytes(self) -> int:
        """Bytes of these messages."""
        return sum(part.bytes for _, part in self.parts)

    @property
    def age_seconds(self) -> float | None:
        """Seconds since its oldest part was staged, else since it was decided. None: unknown."""
        times = [part.staged_ms for _, part in self.parts] or [self.decision.decided_ms if self.decision else 0]
        return max(0, self.now_ms - min(times)) / 1000 if min(times) > 0 else None


class TransactionList(Struct, frozen=True):
    """A list of transactions, in the order of ids."""

    transactions: list[StagedTransaction]
    """The transactions."""
    complete: bool
    """Whether these are all."""
    unreached: dict[str, str]
    """Brokers that could not be asked, and why."""


class EndedTransaction(Struct, frozen=True):
    """The result of ending a transaction by hand."""

    decision: TransactionDecision
    """The valid decision; perhaps an earlier one with another outcome."""
    first: bool
    """Whether it was decided by this call."""
    remaining: dict[str, str]
    """Broker → reason why it has not yet applied all of the decision."""


async def listing(core: ClientCore, *, broker: str | None, limit: int) -> TransactionList:
    """Return the first `limit` transactions of one broker, or of all. Raises BrokerNotFound."""
    targets = await masters(core, broker=broker)
    found, unreached = await ask_all(targets, lambda _name, address: _pages(core, address, limit))
    by_transaction: dict[str, dict[str, TransactionState]] = {}
    ends: list[str] = []
    for name, (states, more) in found.items():
        if more:
            ends.append(states[-1].transaction)
        for state in states:
            by_transaction.setdefault(state.transaction, {})[name] = state
    # After the end of an incomplete list, that broker's states are unknown: list only what all brokers have answered.
    known = sorted(one for one in by_transaction if not ends or one <= min(ends))
    now_ms = core.clock.now_ms()
    chosen = [StagedTransaction(one, by_transaction[one], now_ms) for one in known[:limit]]
    return TransactionList(chosen, not ends and len(known) <= limit, unreached)


async def _pages(core: ClientCore, address: str, limit: int) -> tuple[list[TransactionState], bool]:
    """Return the first `limit` transactions of one broker, and whether it may have more."""
    states: list[TransactionState] = []
    while len(states) < limit:
        page = await core.ask(address, ListStaged(states[-1].transaction if states else "", min(PAGE, limit)))
        if not page:
            return states, False
        states += page
    return states, True


async def show(core: ClientCore, transaction: str) -> tuple[StagedTransaction, dict[str, str]]:
    """Return a transaction, and broker → reason for those that could not be asked. Raises TransactionNotFound; ConfigError: no id."""
    coordinator = checked(coordinator_of, transaction)
    targets = await masters(core)
    shown, unreached = await _states(core, transaction, targets)
    concerned = _named(shown.decision) | {coordinator}
    unreached |= dict.fromkeys(concerned - targets.keys(), _NOT_REGISTERED)
    if not shown.states:
        raise TransactionNotFound(_nobody(f"transaction {transaction}", unreached))
    return shown, unreached


async def _states(
    core: ClientCore, transaction: str, targets: Mapping[str, str]
) -> tuple[StagedTransaction, dict[str, str]]:
    found, unreached = await ask_all(
        targets, lambda name, address: core.ask(address, GetTransaction(transaction, name))
    )
    states = {name: state for name, state in found.items() if state.phase is not Phase.UNKNOWN}
    return StagedTransaction(transaction, states, core.clock.now_ms()), unreached


async def row(core: ClientCore, key: str) -> tuple[dict[str, TransactionRow], dict[str, str]]:
    """Return broker → a writer's row, and broker → reason for those that could not be asked. Raises TransactionNotFound, ConfigError."""
    checked(check_row, key)
    found, unreached = await ask_all(await masters(core), lambda name, address: core.ask(address, GetRow(key, name)))
    rows = {name: state for name, state in found.items() if state is not None}
    if not rows:
        raise TransactionNotFound(_nobody(f"row {key}", unreached))
    return rows, unreached


async def rows(
    core: ClientCore, *, broker: str | None, limit: int
) -> tuple[dict[str, list[TransactionRow]], dict[str, str]]:
    """Return broker → its first `limit` rows, and broker → reason for those that could not be asked. Raises BrokerNotFound."""

    async def of_broker(address: str) -> list[TransactionRow]:
        states: list[TransactionRow] = []
        while len(states) < limit:
            page = await core.ask(address, ListRows(states[-1].key if states else "", min(PAGE, limit)))
            if not page:
                break
            states += page
        return states[:limit]

    return await ask_all(await masters(core, broker=broker), lambda _name, address: of_broker(address))


async def check_end(core: ClientCore, transaction: str, outcome: DecisionOutcome) -> tuple[str, dict[str, str]]:
    """Return a transaction's coordinator, and broker → address of all masters.

    A transaction that its coordinator does not know can be rolled back: its writer cannot commit it later.

    Raises BrokerNotFound: its coordinator is not there; TransactionNotFound: it knows none that could be committed; ConfigError: no id.
    """
    coordinator = checked(coordinator_of, transaction)
    targets = await masters(core)
    if coordinator not in targets:
        raise BrokerNotFound(
            f"the broker {coordinator}, which decides {transaction}, is not registered at name servers "
            f"{core.name_servers}; registered: {', '.join(targets)}. If it will never come back, `metaq transaction forget` drops "
            "what the others hold"
        )
    if outcome is DecisionOutcome.COMMIT:
        state = await core.ask(targets[coordinator], GetTransaction(transaction, coordinator))
        if state.phase is Phase.UNKNOWN:
            raise TransactionNotFound(
                f"broker {coordinator}, which decides it, does not know transaction {transaction}"
            )
    return coordinator, targets


async def decide(core: ClientCore, transaction: str, outcome: DecisionOutcome) -> EndedTransaction:
    """Commit a transaction as it was prepared, or roll it back, and have every broker apply the decision.

    Raises as `check_end`; BrokerError: it was not prepared, for example.
    """
    coordinator, targets = await check_end(core, transaction, outcome)
    answer = await core.ask(targets[coordinator], end(transaction, outcome, coordinator))
    decision = answer.decision  # The first decision is final: it may be another one than was asked for.
    shown, remaining = await _states(core, decision.transaction, targets)
    named = _named(decision)
    remaining = {name: why for name, why in remaining.items() if why != UNSUPPORTED}  # They cannot have messages of it.
    remaining |= dict.fromkeys(named - targets.keys(), _NOT_REGISTERED)
    concerned = named | {name for name, state in shown.states.items() if state.parts}
    done, failed = await ask_all(
        {name: targets[name] for name in concerned & targets.keys()},
        lambda name, address: _apply(core, name, address, decision),
    )
    left = {name: f"{count} chunks are still to be delivered" for name, count in done.items() if count}
    return EndedTransaction(decision, answer.first, {**remaining, **failed, **left})


async def _apply(core: ClientCore, broker: str, address: str, decision: TransactionDecision) -> int:
    """Have a broker apply a decision, for a bounded time. Returns the number of chunks that remain."""
    # The coordinator has the decision already; other brokers get it with the request.
    brought = None if broker == coordinator_of(decision.transaction) else decision
    call = Apply(decision.transaction, brought, broker)
    until = core.clock.monotonic() + APPLY_SECONDS
    remaining = 1
    while remaining and core.clock.monotonic() < until:
        remaining = (await core.ask(address, call)).remaining
    return remaining


async def forget(core: ClientCore, subject: str, *, row: bool, broker: str | None, dry_run: bool = False) -> list[str]:
    """Remove a transaction, or a writer's row, from one broker or from all that know it. Returns their names.

    `dry_run`: only find these.

    Raises TransactionNotFound, BrokerNotFound, HalfDone; BrokerError: a broker refuses; ConfigError: no id or key.
    """
    targets = await masters(core, broker=broker)
    if row:
        checked(check_row, subject)
        found, unreached = await ask_all(targets, lambda name, address: core.ask(address, GetRow(subject, name)))
        known = [name for name, state in found.items() if state is not None]
    else:
        checked(coordinator_of, subject)
        shown, unreached = await _states(core, subject, targets)
        # A broker where it has ended has nothing left to remove.
        known = [name for name, state in shown.states.items() if state.parts or state.phase not in _ENDS]
        if shown.states and not known:
            ends = ", ".join(f"{state.phase.value} at {name}" for name, state in sorted(shown.states.items()))
            raise TransactionNotFound(
                f"transaction {subject} is over, and there is nothing of it that could be forgotten: {ends}"
            )
    if not known:
        raise TransactionNotFound(_nobody(f"row {subject}" if row else f"transaction {subject}", unreached))
    if not dry_run:
        call = ForgetStaged(transaction=None if row else subject, row=subject if row else None)
        await at_each(core, f"{subject} is forgotten", {name: targets[name] for name in sorted(known)}, call)
    return sorted(known)


def _named(decision: TransactionDecision | None) -> set[str]:
    """Return the brokers in a decision's manifest."""
    return {part.broker for part in decision.parts} if decision is not None else set()


def _nobody(what: str, unreached: Mapping[str, str]) -> str:
    asked = "; ".join(f"{name} could not be asked: {why}" for name, why in unreached.items())
    return f"no broker knows {what}" + (f" ({asked})" if asked else "")


async def ask_all(
    targets: Mapping[str, str], ask: Callable[[str, str], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, str]]:
    """Call `ask(name, address)` for all brokers at once. Returns name → outcome, and name → error."""

    found: dict[str, T] = {}
    failed: dict[str, str] = {}

    async def one(name: str, address: str) -> None:
        try:
            found[name] = await ask(name, address)
        except FAULTS as error:
            unsupported = isinstance(error, BrokerError) and error.code == _NOT_SUPPORTED
            failed[name] = UNSUPPORTED if unsupported else str(error)

    await asyncio.gather(*(one(name, address) for name, address in targets.items()))
    return found, failed
