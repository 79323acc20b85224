"""`metaq transaction`: messages that brokers keep unseen until all of them are delivered, or none."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.amounts import count, size
from metaq.cli.groups import App
from metaq.cli.output import (
    EXIT_FAILED,
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    Yes,
    ask,
    iso_time,
    print_json,
    print_table,
    span,
)
from metaq.model.transactions.staging import DecisionOutcome, TransactionDecision, TransactionRow

if TYPE_CHECKING:
    from metaq.admin import Admin, StagedTransaction

app = App(
    "List staged transactions, and commit or roll them back by hand.\n\n"
    "A staged transaction is an atomic send: brokers hold its messages until all of them are delivered, or none (docs/atomic.md)."
)

Id = Annotated[str, typer.Argument(metavar="ID", help="id of the transaction: UNIQUE@BROKER")]
_ENDED = {
    DecisionOutcome.COMMIT: "committed",
    DecisionOutcome.ROLLBACK: "rolled back",
    DecisionOutcome.PREPARED: "prepared",
}


@app.callback()
def transactions() -> None:
    """List staged transactions, and commit or roll them back by hand."""


@app.command("list")
def list_transactions(
    broker: Annotated[
        str | None, typer.Option(metavar="NAME", help="only transactions of this broker (default: all brokers)")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="list at most this many")] = 1000,
    rows: Annotated[
        bool, typer.Option("--rows", help="list the writers that number their transactions, instead of transactions")
    ] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List staged transactions that are not finished: phase, age, and the messages that brokers hold."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        if rows:
            _list_rows(*admin.list_transaction_rows(broker=broker, limit=limit), as_json=as_json)
            return
        found = admin.list_transactions(broker=broker, limit=limit)
    if as_json:
        print_json(
            {
                "transactions": [_summary(one) for one in found.transactions],
                "complete": found.complete,
                "not_asked": found.unreached,
            }
        )
    else:
        print_table(
            ("transaction", "phase", "age", "parts", "messages", "size", "brokers"),
            (
                (
                    one.transaction,
                    one.phase.value,
                    span(one.age_seconds),
                    len(one.parts),
                    one.rows,
                    size(one.bytes),
                    ", ".join(sorted(one.states)),
                )
                for one in found.transactions
            ),
        )
        if not found.complete:
            print(f"there are more: --limit {limit * 10} lists more of them")
    _warn(found.unreached)


@app.command("show")
def show_transaction(
    transaction: Annotated[
        str, typer.Argument(metavar="ID", help="id of the transaction; with --row, the key of the writer")
    ],
    row: Annotated[bool, typer.Option("--row", help="show the last transaction of a writer that numbers them")] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show a staged transaction: its decision, and what each broker holds of it and has delivered."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        if row:
            _show_row(admin, transaction, as_json=as_json)
            return
        shown, unreached = admin.show_transaction(transaction)
    if as_json:
        print_json(
            {
                **_summary(shown),
                "brokers": {
                    broker: {
                        "phase": state.phase.value,
                        "remaining_chunks": state.remaining,
                        "missing_parts": list(state.missing),
                        "unconfirmed_brokers": list(state.unconfirmed),
                    }
                    for broker, state in sorted(shown.states.items())
                },
                "parts": [
                    {
                        "broker": broker,
                        "part": part.part,
                        "topic": part.topic,
                        "queue_id": part.queue_id,
                        "chunks": part.chunks,
                        "messages": part.rows,
                        "bytes": part.bytes,
                        "sealed": part.sealed,
                        "lifetime": part.lifetime.name.lower(),
                        "staged": iso_time(part.staged_ms),
                        "delivered_chunks": part.applied_chunks,
                    }
                    for broker, part in shown.parts
                ],
                "not_asked": unreached,
            }
        )
    else:
        print(f"transaction {transaction}: {_described(shown)}")
        for broker, state in sorted(shown.states.items()):
            if state.remaining:
                print(f"  {broker}: {count(state.remaining, 'chunk')} still to be delivered")
            if state.missing:
                print(
                    f"  WARNING: {broker} does not have the parts {', '.join(state.missing)}, which were decided about"
                )
            if state.unconfirmed:
                print(f"  {', '.join(state.unconfirmed)} have not confirmed to {broker} yet that they are done")
        print_table(
            ("broker", "part", "topic", "queue", "chunks", "delivered", "messages", "size", "sealed", "staged"),
            (
                (
                    broker,
                    part.part,
                    part.topic,
                    part.queue_id,
                    part.chunks,
                    part.applied_chunks,
                    part.rows,
                    size(part.bytes),
                    "yes" if part.sealed else "no",
                    iso_time(part.staged_ms),
                )
                for broker, part in shown.parts
            ),
        )
    _warn(unreached)


@app.command("commit")
def commit_transaction(
    transaction: Id,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Commit a prepared transaction and deliver its messages.

    A transaction that is not prepared cannot be committed by hand: only its writer knows whether it is complete. Exit code 1: it was
    rolled back before, or a broker has not delivered all of it yet (brokers continue by themselves).
    """
    _end(transaction, DecisionOutcome.COMMIT, namesrv, yes=yes, as_json=as_json)


@app.command("rollback")
def roll_transaction_back(
    transaction: Id,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Roll back a transaction: its messages are dropped, and its writer cannot commit it any more.

    Exit code 1: it was committed before.
    """
    _end(transaction, DecisionOutcome.ROLLBACK, namesrv, yes=yes, as_json=as_json)


@app.command("forget")
def forget_transaction(
    subject: Annotated[
        str, typer.Argument(metavar="ID", help="id of the transaction; with --row, the key of the writer")
    ],
    row: Annotated[
        bool, typer.Option("--row", help="forget the row of a writer that numbers its transactions")
    ] = False,
    broker: Annotated[
        str | None, typer.Option(metavar="NAME", help="only at this broker (default: at all that know it)")
    ] = None,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Drop what brokers keep of a transaction whose coordinator is lost for good; with --row, of a writer.

    The coordinator is the broker in the id. Messages without a decision are deleted; a broker refuses if it has committed messages
    still to deliver. If a forgotten writer repeats an old transaction, it counts as a new one. Use rollback as long as the
    coordinator can be reached.
    """
    from metaq.admin import Admin

    what = f"row {subject}" if row else f"transaction {subject}"
    with Admin(namesrv) as admin:
        if not yes:
            admin.forget_transaction(subject, row=row, broker=broker, dry_run=True)
            ask(f"Forget {what}, and drop what brokers hold of it?")
        names = admin.forget_transaction(subject, row=row, broker=broker)
    if as_json:
        print_json({"row" if row else "transaction": subject, "brokers": names})
    else:
        print(f"{what} is forgotten at {', '.join(names)}")


def _end(transaction: str, outcome: DecisionOutcome, namesrv: str, *, yes: bool, as_json: bool) -> None:
    from metaq.admin import Admin

    commit = outcome is DecisionOutcome.COMMIT
    with Admin(namesrv) as admin:
        if not yes:
            admin.check_end(transaction, commit=commit)
            ask(f"{'Commit' if commit else 'Roll back'} transaction {transaction}, for good?")
        ended = admin.end_transaction(transaction, commit=commit)
    decision = ended.decision
    if as_json:
        print_json(
            {
                "transaction": transaction,
                "decision": _decision(decision),
                "first": ended.first,
                "remaining": ended.remaining,
            }
        )
    else:
        said = f"is {_ENDED[decision.outcome]}"
        if not ended.first:
            said = f"was {_ENDED[decision.outcome]} already, at {iso_time(decision.decided_ms) or 'an unknown time'}"
        print(f"transaction {transaction} {said}")
        for broker, why in ended.remaining.items():
            print(f"  {broker} has not finished it, and continues by itself: {why}")
    # A script must not take another decision, or messages that are still to come, for success.
    if decision.outcome is not outcome or ended.remaining:
        raise typer.Exit(EXIT_FAILED)


def _show_row(admin: Admin, key: str, *, as_json: bool) -> None:
    rows, unreached = admin.transaction_row(key)
    _list_rows({name: [state] for name, state in rows.items()}, unreached, as_json=as_json)


def _list_rows(rows: Mapping[str, Sequence[TransactionRow]], unreached: Mapping[str, str], *, as_json: bool) -> None:
    found = [(name, state) for name, states in sorted(rows.items()) for state in states]
    if as_json:
        shown = [
            {
                "row": state.key,
                "broker": name,
                "sequence": state.sequence,
                "transaction": state.transaction,
                "phase": state.phase.value,
            }
            for name, state in found
        ]
        print_json({"rows": shown, "not_asked": unreached})
    else:
        print_table(
            ("row", "broker", "sequence", "transaction", "phase"),
            ((state.key, name, state.sequence, state.transaction, state.phase.value) for name, state in found),
        )
    _warn(unreached)


def _summary(one: StagedTransaction) -> dict[str, Any]:
    return {
        "transaction": one.transaction,
        "coordinator": one.coordinator,
        "phase": one.phase.value,
        "age_seconds": one.age_seconds,
        "messages": one.rows,
        "bytes": one.bytes,
        "decision": None if one.decision is None else _decision(one.decision),
    }


def _decision(decision: TransactionDecision) -> dict[str, Any]:
    return {
        "outcome": decision.outcome.value,
        "decided": iso_time(decision.decided_ms),
        "row": decision.row or None,
        "sequence": decision.sequence if decision.row else None,
    }


def _described(shown: StagedTransaction) -> str:
    words = [shown.phase.value]
    if shown.decision is not None and shown.decision.decided_ms:
        words.append(f"decided {iso_time(shown.decision.decided_ms)}")
        if shown.decision.row:
            words.append(f"number {shown.decision.sequence} of row {shown.decision.row}")
    words.append(f"{count(shown.rows, 'message')} in {count(len(shown.parts), 'part')} ({size(shown.bytes)}) are held")
    return ", ".join(words)


def _warn(unreached: Mapping[str, str]) -> None:
    for broker, why in unreached.items():
        print(f"metaq: broker {broker} could not be asked: {why}", file=sys.stderr)
