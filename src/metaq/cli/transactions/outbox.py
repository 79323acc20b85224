"""`metaq outbox`: messages that wait in a table of an application's database."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from metaq.amounts import count
from metaq.cli import origins
from metaq.cli.databases import PASSWORD_VARIABLE, PasswordFile, password_of
from metaq.cli.groups import App
from metaq.cli.output import EXIT_NOT_FOUND, AsJson, Yes, ask, iso_time, print_json, print_table
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.outbox import Entry, Outbox

app = App("List, resend and delete messages in the outbox table of an application's database (docs/outbox.md).")

_VARIABLE: Final = "METAQ_DATABASE"
_BATCH: Final = 200
"""Messages of one transaction."""


def _database(context: typer.Context, parameter: typer.CallbackParam, given: str) -> str:
    source = context.get_parameter_source(parameter.name or "")
    if source is not None and source.name == "ENVIRONMENT":
        origins.note("--database", _VARIABLE)
    return given


Database = Annotated[
    str,
    typer.Option(
        envvar=_VARIABLE,
        callback=_database,
        metavar="URL",
        help=f"mysql://user@host:port/database, postgresql://..., or sqlite:///path; its password by {PASSWORD_VARIABLE} or --password-file",
    ),
]
Table = Annotated[str, typer.Option(metavar="NAME", help="table of the outbox")]
State = Annotated[str | None, typer.Option(metavar="waiting|parked|sent", help="only messages of this state")]
Topic = Annotated[str | None, typer.Option(metavar="NAME", help="only messages of this topic")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="ids of messages")]


@app.command("list")
def list_messages(
    database: Database,
    state: State = None,
    topic: Topic = None,
    number: Annotated[int, typer.Option("-c", "--count", min=1, max=10_000, help="list at most this many")] = 100,
    after: Annotated[
        int, typer.Option(min=0, help="only messages after this position, which ends the previous page")
    ] = 0,
    table: Table = "metaq_outbox",
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """List the messages of an outbox in the order in which they were added, without their bodies."""
    with _opened(database, password_file, table) as (outbox, connection):
        found = outbox.listed(connection, state=state, topic=topic, after=after, count=number)
    if as_json:
        print_json({"messages": [_json(entry) for entry in found]})
        return
    print_table(
        ("position", "id", "topic", "state", "tries", "added", "due", "error"),
        (
            (entry.position, entry.message_id, entry.topic, entry.state, entry.tries, iso_time(entry.added_ms), iso_time(entry.due_ms), entry.error[:80])
            for entry in found
        ),
    )  # fmt: skip


@app.command("resend")
def resend_messages(
    database: Database,
    ids: Ids = None,
    parked: Annotated[bool, typer.Option("--parked", help="all parked messages, instead of ids")] = False,
    topic: Topic = None,
    table: Table = "metaq_outbox",
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Mark messages of an outbox to be sent again under their ids, with all their tries.

    The application's senders send them. Exit code 3: one of the ids does not exist, or is being sent at this moment.
    """
    _change(
        "resend",
        lambda outbox: outbox.resend,
        database,
        password_file,
        table,
        ids,
        topic,
        parked=parked,
        as_json=as_json,
    )


@app.command("drop")
def drop_messages(
    database: Database,
    ids: Ids = None,
    parked: Annotated[bool, typer.Option("--parked", help="all parked messages, instead of ids")] = False,
    topic: Topic = None,
    table: Table = "metaq_outbox",
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete messages of an outbox for good, unsent ones too.

    Exit code 3: one of the ids does not exist, or is being sent at this moment.
    """
    _check_which(ids, topic, parked=parked)
    if not yes:
        with _opened(database, password_file, table) as (outbox, connection):
            there = (
                outbox.listed(connection, state="parked", topic=topic, count=1)
                if parked
                else outbox.existing(connection, set(ids or []))
            )
        if there:
            ask(f"Drop {'all parked messages' if parked else count(len(there), 'message')}, for good?")
    _change(
        "drop", lambda outbox: outbox.drop, database, password_file, table, ids, topic, parked=parked, as_json=as_json
    )


def _change(
    verb: str,
    act: Callable[[Outbox], Callable[[Any, list[str]], int]],
    database: str,
    password_file: Path | None,
    table: str,
    ids: list[str] | None,
    topic: str | None,
    *,
    parked: bool,
    as_json: bool,
) -> None:
    _check_which(ids, topic, parked=parked)
    done = 0
    with _opened(database, password_file, table) as (outbox, connection):
        for some in _parked(outbox, connection, topic) if parked else _pieces(ids or []):
            done += act(outbox)(connection, some)
            connection.commit()
            if sys.stderr.isatty():
                print(f"\r{count(done, 'message')}", end="", file=sys.stderr, flush=True)
    wanted = None if parked else len(set(ids or []))
    if as_json:
        print_json({"done": done, "asked": wanted})
    else:
        print(f"{count(done, 'message')} {'will be sent again' if verb == 'resend' else 'dropped'}")
    if wanted is not None and done < wanted:
        raise typer.Exit(EXIT_NOT_FOUND)


def _check_which(ids: list[str] | None, topic: str | None, *, parked: bool) -> None:
    if bool(ids) == parked or (topic is not None and not parked):
        raise ConfigError("give the ids of messages, or --parked (with --topic: those of one topic)")


def _parked(outbox: Outbox, connection: Any, topic: str | None) -> Iterator[list[str]]:
    """Pages of parked messages; those that fail again meanwhile come no second time."""
    after = 0
    while found := outbox.listed(connection, state="parked", topic=topic, after=after, count=_BATCH):
        after = found[-1].position
        yield [entry.message_id for entry in found]


def _pieces(ids: list[str]) -> Iterator[list[str]]:
    wanted = list(dict.fromkeys(ids))
    for start in range(0, len(wanted), _BATCH):
        yield wanted[start : start + _BATCH]


@contextlib.contextmanager
def _opened(database: str, password_file: Path | None, table: str) -> Iterator[tuple[Outbox, Any]]:
    from metaq.outbox import Outbox
    from metaq.sql.opening import opened

    outbox = Outbox(table=table)
    with opened(database, password=password_of(password_file), option="--database") as connection:
        yield outbox, connection


def _json(entry: Entry) -> dict[str, Any]:
    return {
        "position": entry.position,
        "message_id": entry.message_id,
        "protocol": entry.protocol,
        "topic": entry.topic,
        "lane": entry.lane or None,
        "state": entry.state,
        "tries": entry.tries,
        "added": iso_time(entry.added_ms),
        "due": iso_time(entry.due_ms),
        "ended": iso_time(entry.ended_ms),
        "bytes": len(entry.content),
        "error": entry.error or None,
    }
