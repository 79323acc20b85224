"""Output of commands: tables for people, JSON for programs; and their exit codes."""

from __future__ import annotations

import datetime as dt
import functools
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from metaq.model import StoredMessage

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
# Shells report a death by signal as 128 and its number.
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

NAMESRV_DEFAULT: Final = "127.0.0.1:9876"
ACL_FILE_VARIABLE: Final = "METAQ_ACL_FILE"

ADDRESS_SERVER: Final = "METAQ_ADDRESS_SERVER"


def _name_servers(context: typer.Context, parameter: typer.CallbackParam, given: str) -> str:
    """Return the name servers to use: those given, else the context's, else those that the address server tells, else the default."""
    if context.resilient_parsing:  # a completion: `metaq.cli.completing` asks for itself
        return given
    source = context.get_parameter_source(parameter.name or "")
    origin = source.name if source is not None else ""
    return chosen_name_servers(given, origin)


def chosen_name_servers(given: str, origin: str) -> str:
    """Return the name servers to use. Args: given: what typer has. origin: from where: COMMANDLINE, ENVIRONMENT or DEFAULT."""
    from metaq.cli.contexts.files import checked_name_servers, name_servers_of_context

    by_hand, from_environment = origin == "COMMANDLINE", origin == "ENVIRONMENT"
    chosen = name_servers_of_context(by_hand=by_hand, from_environment=from_environment, environ=os.environ)
    if chosen is not None:
        return chosen
    url = os.environ.get(ADDRESS_SERVER)
    if by_hand or from_environment:
        return checked_name_servers(given, "-n" if by_hand else "NAMESRV_ADDR")
    if not url:
        return given
    from metaq.admin.address_server import name_servers_at

    return name_servers_at(url)


NameServers = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrv",
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT",
        help="name servers, separated by ;",
        callback=_name_servers,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")]


def ask(question: str) -> None:
    """Ask on standard error, as standard output is for results; end the command unless the answer is yes."""
    print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    if answer.strip().lower() not in {"y", "yes"}:
        raise typer.Abort


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


_LINES: Final = 128
"""Lines per write if a program reads them: a write to a pipe costs as much as making a line."""


def _line(value: Any) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line, flushed: for streams."""
    print(_line(value), flush=True)


def print_json_lines(values: Iterable[Any]) -> None:
    """Print JSON documents, each on one line, many per write if a program reads them."""
    block: list[str] = []
    # A person wants each line at once.
    full = 1 if sys.stdout.isatty() else _LINES
    try:
        for value in values:
            block.append(_line(value))
            if len(block) == full:
                print("\n".join(block), flush=True)
                block.clear()
    finally:  # Documents before a fault are printed, too.
        if block:
            print("\n".join(block), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; columns of numbers are right-aligned. Not wrapped in a file or pipe."""
    from rich.console import Console
    from rich.table import Table

    body = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for row in body:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    # Programs read the columns: in a file or pipe rich would cut them at 80.
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False)
    console.print(table)


def iso_time(ms: int) -> str | None:
    """Return ms since 1970 as ISO 8601 in UTC; None for 0, which means "never"."""
    return f"{_iso_second(ms // 1000)}.{ms % 1000:03}Z" if ms > 0 else None


@functools.lru_cache(maxsize=1024)
def _iso_second(seconds: int) -> str:
    """Return a second as ISO 8601. Cached: consecutive messages are mostly of the same few seconds."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def span(seconds: float | None) -> str:
    """Return a time span for people: `3.2 s`, `12 min`, `5 h`, `2 d`; empty for None."""
    if seconds is None:
        return ""
    for limit, unit, size in ((100, "s", 1), (6000, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def disk_text(used: float | None, step: str) -> str:
    """Return how full a disk is for people: `64%`, and what that has come to: `91% refuse`; empty for None."""
    if used is None:
        return ""
    return f"{used:.0%}" if step in {"", "ok"} else f"{used:.0%} {step}"


def yes_or_no(value: bool | None) -> str:
    """Return `yes` or `no`; empty for None."""
    return "" if value is None else "yes" if value else "no"


@functools.lru_cache(maxsize=1024)
def _host(raw: bytes) -> tuple[str, int]:
    from metaq.model.message import host_of

    return host_of(raw)


def message_json(message: StoredMessage) -> dict[str, Any]:
    """Return a message for JSON output. A body that is UTF-8 text is `body`, any other `body_base64`."""
    host, port = _host(message.born_host_raw)
    shown: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.queue.broker,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_id": message.offset_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "born_time": iso_time(message.born_ms),
        "store_time": iso_time(message.store_ms),
        "born_host": f"{host}:{port}",
        "flag": message.flag,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
    }
    # Only of a body that could not be decompressed.
    fault = getattr(message, "body_fault", "")
    return shown | body_json(message.body) | ({"body_fault": fault} if fault else {})


def body_json(body: bytes) -> dict[str, str]:
    """Return a body for JSON output, as in `message_json`."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        import base64

        return {"body_base64": base64.b64encode(body).decode("ascii")}


def place_of(text: str, option: str) -> str | dt.datetime:
    """Parse a place in a topic: a word, or a time, in this machine's zone unless it has one.

    Raises: typer.BadParameter: neither.
    """
    if text in {"earliest", "latest", "first", "last"}:
        return text
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither earliest, latest nor a time", param_hint=option) from None
    return moment if moment.tzinfo else moment.astimezone()
