"""`metaq consume`: messages of a topic, for people and programs."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.completing import complete_groups, complete_topics
from metaq.cli.messages.formats import formatter
from metaq.cli.messages.places import begin, chosen_queues, end_place, start_place, until
from metaq.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    message_json,
    print_json_line,
)
from metaq.errors import BodyUnreadable, ConfigError

if TYPE_CHECKING:
    from metaq.model import StoredMessage


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="topic to read", autocompletion=complete_topics)],
    group: Annotated[
        str | None,
        typer.Option(
            help="consume as a member of this group and save its progress; without it, only read",
            autocompletion=complete_groups,
        ),
    ] = None,
    tag: Annotated[str, typer.Option(help="only messages with these tags: 'a || b'")] = "*",
    filter_: Annotated[
        str | None,
        typer.Option(
            "--filter",
            help="only messages whose properties match this SQL filter: \"amount > 10 AND region IN ('eu', 'us')\"",
        ),
    ] = None,
    predicate: Annotated[
        str | None,
        typer.Option(
            help="only messages that this predicate accepts, a Python function at the broker (docs/predicates.md)"
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "-o",
            "--from",
            metavar="WHERE",
            help="where to begin: earliest, latest, a time such as 2026-01-31T08:00:00Z, an offset, or -N: the last N of each queue",
        ),
    ] = "earliest",
    end: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="WHERE", help="where to end: before this time, or before this offset of each queue"
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("-p", "--queue", metavar="[BROKER:]ID", help="only this queue; may be repeated"),
    ] = None,
    count: Annotated[int | None, typer.Option("-c", "--count", min=1, help="stop after this many messages")] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="wait for new messages at the end (always with --group)")
    ] = False,
    from_archive: Annotated[
        str | None,
        typer.Option(
            "--from-archive",
            metavar="DIR",
            help="first read the archive that `metaq pipeline run archive` wrote there, then the later messages at the brokers",
        ),
    ] = None,
    corrupt: Annotated[
        str,
        typer.Option(
            metavar="WAY",
            help="for a body that cannot be decompressed: raise (report it on stderr, exit code 1 at the end), skip it, or print it raw",
        ),
    ] = "raise",
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEXT",
            help=r"print each message in this format, with kcat's letters: %s body, %S its size, %k keys, %g tag, %h properties, %t topic, %b broker, %p queue, "
            r"%o offset, %T time stored in ms, %D as ISO 8601, %i id, \n \t",
        ),
    ] = None,
    headers: Annotated[bool, typer.Option("--headers", help="print the properties before each body")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="print the keys before each body")] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic, one per line; with --json, all fields of each.

    A body that is not UTF-8 text is printed with escapes, and in JSON as body_base64. A body that cannot be decompressed does not
    stop the command, see --corrupt. Ctrl-C ends it.
    """
    import metaq

    where = start_place(start, "--from")
    stop = end_place(end, "--to") if end is not None else None
    show = _shown(format_, headers=headers, keys=keys, as_json=as_json)
    if filter_ is not None and tag != "*":
        raise ConfigError(
            "--tag and --filter: give one of them; a filter can ask for tags: \"TAGS = 'paid' AND amount > 10\""
        )
    if predicate is not None and (tag != "*" or filter_ is not None):
        raise ConfigError(
            "--predicate cannot be combined with --tag or --filter: a predicate sees the tag and the properties itself"
        )
    if from_archive is not None and group is not None:
        raise ConfigError(
            "--from-archive cannot be combined with --group: a group reads from the brokers, at its stored offsets"
        )
    if group is not None and (where.word is None or stop is not None or queue):
        raise ConfigError(
            "an offset, --to and --queue cannot be combined with --group: a group continues at its stored offsets"
        )
    if follow and stop is not None:
        raise ConfigError("--follow waits for more, --to ends: give one of them")
    wanted = metaq.Predicate(predicate) if predicate is not None else tag if filter_ is None else metaq.Sql(filter_)
    if group is None:
        queues = None
        if queue:
            with metaq.Reader(namesrv, topic) as looking:
                queues = chosen_queues(looking, queue)
        with metaq.Reader(
            namesrv, topic, tags=wanted, start=where.word or "earliest", queues=queues, stop_at_end=not follow,
            archive=from_archive, corrupt=corrupt,
        ) as reader:  # fmt: skip
            begin(reader, where)
            faults: list[BodyUnreadable] = []
            messages = _readable(reader, faults)
            if stop is not None:
                messages = until(messages, reader, stop)
            _print(itertools.islice(messages, count), show)
        if faults:
            raise typer.Exit(EXIT_FAILED)
        return
    with (
        metaq.Consumer(namesrv, group=group, topics={topic: wanted}, start=where.word or "earliest") as consumer,
        _draining(consumer.stop),
    ):
        _print(_acknowledged(itertools.islice(consumer, count)), show)


def _shown(format_: str | None, *, headers: bool, keys: bool, as_json: bool) -> Callable[[StoredMessage], None]:
    """Return what prints a message. Raises: typer.BadParameter."""
    if as_json:
        if format_ is not None or headers or keys:
            raise typer.BadParameter("--json has everything; leave --format, --headers and --keys out")
        return lambda message: print_json_line(message_json(message))
    if format_ is not None:
        if headers or keys:
            raise typer.BadParameter("--format has %h and %k for --headers and --keys")
        make = formatter(format_)

        def write(message: StoredMessage) -> None:
            sys.stdout.write(make(message))
            sys.stdout.flush()

        return write
    make = formatter(("%h\t" if headers else "") + ("%k\t" if keys else "") + "%s")
    return lambda message: print(make(message), flush=True)


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


def _print(messages: Iterable[StoredMessage], show: Callable[[StoredMessage], None]) -> None:
    for message in messages:
        show(message)
