"""`metaq xa`: the folder of a coordinator, in which transactions over databases and brokers wait for their end."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from metaq.amounts import count
from metaq.cli.groups import App
from metaq.cli.output import EXIT_FAILED, EXIT_NOT_FOUND, AsJson, Yes, ask, iso_time, print_json
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.xa import Recovered
    from metaq.xa.decisions import Open

app = App(
    "List and finish unfinished transactions over databases and brokers, in the folder of their coordinator (docs/xa.md)."
)

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="folder of the coordinator", exists=True, file_okay=False)
]
Id = Annotated[str, typer.Argument(metavar="ID", help="id of the transaction")]
Resources = Annotated[
    str,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="function that returns the coordinator's resources, or a context manager of them; modules are found from the working directory, too",
    ),
]


@app.callback()
def xa() -> None:
    """List and finish unfinished transactions over databases and brokers, in the folder of their coordinator (docs/xa.md)."""


@app.command("list")
def list_transactions(folder: Folder, as_json: AsJson = False) -> None:
    """List the transactions that are not finished: decision, age, branches, and what prevented the last attempt.

    The coordinator's program may be running: then some of them are in progress.
    """
    from metaq.xa.decisions import look

    coordinator, found = look(folder)
    if as_json:
        print_json({"coordinator": coordinator, "transactions": [_json(name, one) for name, one in found.items()]})
        return
    print(f"coordinator {coordinator}: {count(len(found), 'unfinished transaction')}")
    for name, one in found.items():
        print(f"{name}: {_described(one)}")
        for branch in one.branches:
            print(f"  branch {branch.text} at {branch.resource}")
        for reason in one.reasons:
            print(f"  not finished because: {reason}")


@app.command("retry")
def retry_transaction(
    folder: Folder, transaction: Id, resources: Resources, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Finish a transaction at its resources as it was decided; one without a decision is rolled back.

    The coordinator's program must be stopped; while it runs, Coordinator.recover() does the same. Exit code 1: the transaction could not
    be finished.
    """
    from metaq.xa import Coordinator

    _confirm(
        folder,
        transaction,
        "{end} it now at all resources that still have it? No other transaction is touched.",
        yes=yes,
    )
    with _resources_of(resources) as found, Coordinator(folder, found) as coordinator:
        done = coordinator.recover(only=transaction)
        left = transaction in coordinator.open
    if as_json:
        print_json({"transaction": transaction, "over": not left, "pending": done.pending, "otherwise": done.otherwise})
    else:
        _tell(transaction, done, left=left)
    if left:
        raise typer.Exit(EXIT_FAILED)


@app.command("drop")
def drop_transaction(folder: Folder, transaction: Id, yes: Yes = False, as_json: AsJson = False) -> None:
    """Forget a transaction that can never be finished, for instance because its database is lost.

    A branch that a system still holds prepared is rolled back by the next recovery, whatever was decided: end such branches by hand
    first, by the names that `metaq xa list` shows. The coordinator's program must be stopped.
    """
    from metaq.xa.decisions import Decisions

    meaning = (
        "Forget it, for good? Branches above that are still prepared will be rolled back by the next recovery; branches that were committed "
        "stay committed, and the systems disagree then. End prepared branches by hand first."
    )
    _confirm(folder, transaction, meaning, yes=yes)
    with contextlib.closing(Decisions(folder)) as decisions:
        gone = decisions.open.get(transaction)
        if gone is None or not decisions.drop(transaction):
            _refuse(folder, transaction)
    if as_json:
        print_json({"dropped": _json(transaction, gone)})
    else:
        print(f"{transaction}, which was {_described(gone)}, is forgotten")


def _confirm(folder: Path, transaction: str, question: str, *, yes: bool) -> None:
    """Ask, with what is known of the transaction. Raises Exit: it is not there; Abort: no."""
    from metaq.xa.decisions import look

    one = look(folder)[1].get(transaction)
    if one is None:
        _refuse(folder, transaction)
    if yes:
        return
    print(f"{transaction} is {_described(one)}, with the branches", file=sys.stderr)
    for branch in one.branches:
        print(f"  {branch.text} at {branch.resource}", file=sys.stderr)
    end = "Roll back" if one.committed is None else "Commit"
    ask(question.format(end=end))


def _refuse(folder: Path, transaction: str) -> NoReturn:
    print(f"metaq xa: {folder} has no unfinished transaction {transaction}", file=sys.stderr)
    raise typer.Exit(EXIT_NOT_FOUND)


@contextlib.contextmanager
def _resources_of(text: str) -> Iterator[Any]:
    module, _, name = text.partition(":")
    if not module or not name:
        raise ConfigError(f"--resources {text}: need MODULE:FUNCTION, as shop.transactions:resources")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"--resources {text} cannot be used: {error}") from None
    with found if hasattr(found, "__enter__") else contextlib.nullcontext(found) as resources:
        yield resources


def _tell(transaction: str, done: Recovered, *, left: bool) -> None:
    said = "is still unfinished" if left else "is finished"
    how = "committed" if transaction in done.committed else "rolled back" if transaction in done.rolled_back else ""
    print(f"{transaction} {said}{f': {how}' if how and not left else ''}")
    for text in (*done.pending, *done.otherwise):
        print(f"  not finished because: {text}")


def _described(one: Open) -> str:
    state = "not decided, and will be rolled back" if one.committed is None else "decided to be committed"
    return f"{state}, since {iso_time(one.since_ms) or 'an unknown time'}"


def _json(name: str, one: Open) -> dict[str, Any]:
    return {
        "transaction": name,
        "committed": one.committed is not None,
        "since": iso_time(one.since_ms),
        "branches": [{"resource": branch.resource, "branch": branch.text} for branch in one.branches],
        "in_the_way": list(one.reasons),
    }
