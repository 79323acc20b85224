"""`metaq meta1 tx`: transactions of MetaQ 1.x clients, and XA branches that are ended by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.amounts import size
from metaq.cli.groups import App
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, Yes, ask, iso_time, print_json, print_table, span

app = App("List local transactions and XA branches of MetaQ 1.x clients, and end branches by hand.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="key of the branch: XID:FORMAT:GTRID:BQUAL:QUALIFIER")]
Broker = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="only this broker, by name or HOST:PORT of its remoting server (default: all brokers)"
    ),
]


@app.callback()
def branches() -> None:
    """List local transactions and XA branches of MetaQ 1.x clients, and end branches by hand."""


@app.command("list")
def list_branches(
    broker: Broker = None,
    limit: Annotated[int, typer.Option(min=1, help="list at most this many of each broker")] = 1000,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List local transactions and XA branches that are open, prepared, or ended by hand and not forgotten yet."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.list_branches(broker=broker, limit=limit)
    rows = [(name, state) for name, states in sorted(found.branches.items()) for state in states]
    if as_json:
        shown = [
            {
                "broker": name,
                "key": state.key,
                "phase": state.phase.value,
                "transaction": state.transaction,
                "client": state.client,
                "since": iso_time(state.since_ms),
                "messages": state.messages,
                "bytes": state.bytes,
            }
            for name, state in rows
        ]
        print_json({"transactions": shown, "not_asked": found.unreached})
        return
    print_table(
        ("key", "phase", "age", "messages", "size", "client", "broker"),
        (
            (
                state.key,
                state.phase.value,
                span((found.now_ms - state.since_ms) / 1000 if state.since_ms else None),
                state.messages,
                size(state.bytes),
                state.client,
                name,
            )
            for name, state in rows
        ),
    )
    for name, why in found.unreached.items():
        print(f"{name} could not be asked: {why}")


@app.command("commit")
def commit_branch(
    key: Key, broker: Broker = None, yes: Yes = False, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False
) -> None:
    """Commit a prepared XA branch whose transaction manager is lost.

    If the transaction manager returns, it gets XA_HEURCOM, until it forgets the branch, or `metaq meta1 tx forget` does.
    """
    _end(key, "commit", "committed", broker, namesrv, yes=yes, as_json=as_json)


@app.command("rollback")
def roll_branch_back(
    key: Key, broker: Broker = None, yes: Yes = False, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False
) -> None:
    """Roll back a prepared XA branch whose transaction manager is lost.

    If the transaction manager returns, it gets XA_HEURRB, until it forgets the branch, or `metaq meta1 tx forget` does.
    """
    _end(key, "rollback", "rolled back", broker, namesrv, yes=yes, as_json=as_json)


@app.command("forget")
def forget_branch(
    key: Key, broker: Broker = None, yes: Yes = False, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False
) -> None:
    """Forget an XA branch that was ended by hand, if its transaction manager will not return."""
    _end(key, "forget", "forgotten", broker, namesrv, yes=yes, as_json=as_json)


def _end(key: str, action: str, done: str, broker: str | None, namesrv: str, *, yes: bool, as_json: bool) -> None:
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        if not yes:
            admin.end_branch(key, action, broker=broker, dry_run=True)
            ask(f"{action.capitalize()} the XA branch {key}, for good?")
        names = admin.end_branch(key, action, broker=broker)
    if as_json:
        print_json({"key": key, "action": action, "brokers": names})
    else:
        print(f"the XA branch {key} is {done} at {', '.join(names)}")
