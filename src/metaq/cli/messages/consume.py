"""`metaq consume`: messages of a topic, for people and programs."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Annotated

import typer

from metaq.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    message_json,
    place_of,
    print_json_line,
)
from metaq.errors import BodyUnreadable, ConfigError
from metaq.model import StoredMessage


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="what to read")],
    group: Annotated[
        str | None,
        typer.Option(help="consume as a member of this group, whose progress is kept; without it, only look"),
    ] = None,
    tag: Annotated[str, typer.Option(help="only messages with these tags: 'a || b'")] = "*",
    filter_: Annotated[
        str | None,
        typer.Option("--filter", help="only messages whose properties fit: \"amount > 10 AND region IN ('eu', 'us')\""),
    ] = None,
    predicate: Annotated[
        str | None, typer.Option(help="only messages that this predicate of the brokers chooses")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="earliest, latest, or a time such as 2026-01-31T08:00:00Z")
    ] = "earliest",
    count: Annotated[int | None, typer.Option("-c", "--count", min=1, help="stop after so many")] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="wait for more at the end (a group always does)")
    ] = False,
    from_archive: Annotated[
        str | None,
        typer.Option(
            "--from-archive",
            metavar="DIR",
            help="what `metaq pipeline run archive` wrote there first, then what the brokers hold behind it",
        ),
    ] = None,
    corrupt: Annotated[
        str,
        typer.Option(
            metavar="WAY",
            help="a body that cannot be decompressed: raise (said on stderr, exit status 1 at the end), skip (no line), or raw (as it is stored)",
        ),
    ] = "raise",
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic, one per line; with --json everything that is known of each.

    A body that is not UTF-8 text is printed with escapes, in JSON as body_base64. One that cannot be decompressed stops
    nothing, see --corrupt. Ctrl-C ends it.
    """
    import metaq

    where = place_of(start, "--from")
    if filter_ is not None and tag != "*":
        raise ConfigError(
            "--tag and --filter: give one of them; a filter can ask for tags: \"TAGS = 'paid' AND amount > 10\""
        )
    if predicate is not None and (tag != "*" or filter_ is not None):
        raise ConfigError("--predicate: not together with --tag or --filter: it sees tag and properties itself")
    if from_archive is not None and group is not None:
        raise ConfigError("--from-archive: not together with --group, whose progress is the brokers'")
    wanted = metaq.Predicate(predicate) if predicate is not None else tag if filter_ is None else metaq.Sql(filter_)
    if group is None:
        with metaq.Reader(
            namesrv, topic, tags=wanted, start=where, stop_at_end=not follow, archive=from_archive, corrupt=corrupt
        ) as reader:
            faults: list[BodyUnreadable] = []
            _print(itertools.islice(_readable(reader, faults), count), as_json=as_json)
        if faults:
            raise typer.Exit(EXIT_FAILED)
        return
    with (
        metaq.Consumer(namesrv, group=group, topics={topic: wanted}, start=where) as consumer,
        _draining(consumer.stop),
    ):
        _print(_acknowledged(itertools.islice(consumer, count)), as_json=as_json)


def _readable(reader: Iterable[StoredMessage], faults: list[BodyUnreadable]) -> Iterator[StoredMessage]:
    """Yield what can be read; tell on stderr of each body that cannot, and add it to `faults`."""
    while True:
        try:
            yield from reader
        except BodyUnreadable as fault:
            print(fault, file=sys.stderr)
            faults.append(fault)
        else:
            return


@contextlib.contextmanager
def _draining(stop: Callable[[], None]) -> Iterator[None]:
    """Handle signals: the first lets the current message finish, so that the next run does not print it again; a second ends."""
    codes = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}
    taken: list[int] = []

    def drain(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  the interpreter's signature
        if taken:
            raise SystemExit(codes[signal.Signals(number)])
        taken.append(number)
        stop()

    before = {number: signal.signal(number, drain) for number in codes}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if taken:
        raise SystemExit(codes[signal.Signals(taken[0])])


def _acknowledged(messages: Iterable[StoredMessage]) -> Iterator[StoredMessage]:
    for message in messages:
        # It is acknowledged when the next one is asked for, so after it was printed.
        with message:  # type: ignore[attr-defined]
            yield message


def _print(messages: Iterable[StoredMessage], *, as_json: bool) -> None:
    for message in messages:
        if as_json:
            print_json_line(message_json(message))
        else:
            print(message.body.decode("utf-8", "backslashreplace"), flush=True)
