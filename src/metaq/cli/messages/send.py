"""`metaq send`: messages from arguments, files and standard input."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from metaq.cli.completing import complete_topics
from metaq.cli.messages.pace import Pace, Progress
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, print_json_line
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq import Producer, SendFuture
    from metaq.model import Message, SendReceipt

_WINDOW = 2000
"""Most sends in flight."""


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="topic to send to", autocompletion=complete_topics)],
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="body of the message; without it, standard input is the body")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="tag: one word that consumers can filter by")] = None,
    key: Annotated[list[str] | None, typer.Option(help="key to find the message by; may be repeated")] = None,
    prop: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="user property; may be repeated")
    ] = None,
    delay_level: Annotated[
        int, typer.Option(min=0, max=18, help="deliver later: level 1 is 1 s ... level 18 is 2 h")
    ] = 0,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "-F",
            "--file",
            metavar="FILE",
            help="send the content of this file as a message; may be repeated; - is standard input",
        ),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="send each line of standard input, or of the files, as a message")
    ] = False,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "-K",
            "--key-separator",
            metavar="TEXT",
            help="with --lines: the text before this separator is the key of the message",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "-c", "--count", min=1, help="send the message this many times; with --lines: stop after this many"
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="send at most N messages per second")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds for one message, retries included")] = 3.0,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Send one message or many, and wait until the broker has stored them.

    Of many messages it prints how many were stored (with --json a line for each), and shows progress on a terminal. Empty
    lines are skipped.
    """
    import metaq
    from metaq.model import Message

    if body is not None and (lines or files):
        raise typer.BadParameter(f"{'--lines' if lines else '--file'} names the source of the messages: leave BODY out")
    if key_separator is not None and not lines:
        raise typer.BadParameter("--key-separator needs --lines")
    if key_separator == "":
        raise typer.BadParameter("the separator is empty", param_hint="--key-separator")
    properties = dict(_pair(text) for text in prop or ())
    keys = tuple(key or ())

    def make(line: tuple[tuple[str, ...], bytes]) -> Message:
        return Message(topic, line[1], tag, (*keys, *line[0]), delay_level=delay_level, properties=dict(properties))

    texts: Iterator[tuple[tuple[str, ...], bytes]]
    if lines:
        texts = itertools.islice(_lines(files or ["-"], key_separator), count)
        total = None
    else:
        # The bytes that the shell gave, also those that are no UTF-8.
        bodies = [os.fsencode(body)] if body is not None else [_whole(name) for name in files or ["-"]]
        texts = (((), one) for one in itertools.chain.from_iterable(itertools.repeat(bodies, count or 1)))
        total = len(bodies) * (count or 1)
    with metaq.Producer(namesrv, timeout=timeout) as producer:
        if total == 1:
            _tell(producer.send(make(next(iter(texts)))), as_json=as_json)
            return
        sending = _Sending(producer, total, as_json=as_json)
        sending.send(map(make, texts), Pace(rate))
    if not as_json:
        print(f"{sending.stored} messages are stored in topic {topic}")


class _Sending:
    """Sends many messages, a window of them at a time."""

    def __init__(self, producer: Producer, total: int | None, *, as_json: bool) -> None:
        self._producer, self._as_json = producer, as_json
        self._progress = Progress(total, "are stored")
        self._pending: deque[SendFuture] = deque()
        self.stored = 0

    def send(self, messages: Iterable[Message], pace: Pace) -> None:
        """Send them. Raises MetaqError: one could not be sent; how many were is said first."""
        try:
            for message in messages:
                pace.before_next(self._take_all)
                self._pending.append(self._producer.submit(message))
                while len(self._pending) >= _WINDOW or (self._pending and self._pending[0].done()):
                    self._take()
            self._take_all()
        except BaseException:
            self._progress.end()
            for future in self._pending:
                with contextlib.suppress(Exception):
                    future.result()
                    self.stored += 1
            print(f"{self.stored} messages are stored", file=sys.stderr)
            raise
        self._progress.end()

    def _take_all(self) -> None:
        while self._pending:
            self._take()

    def _take(self) -> None:
        receipt = self._pending.popleft().result()
        self.stored += 1
        if self._as_json:
            _tell(receipt, as_json=True)
        self._progress.show(self.stored)


def _lines(names: Iterable[str], separator: str | None) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Yield the key, if there is one, and the body of each line."""
    cut = None if separator is None else separator.encode()
    for name in names:
        with _opened(name) as file:
            for line in file:
                text = line.rstrip(b"\r\n")
                if not text:  # a broker takes no empty body
                    continue
                key, found, rest = text.partition(cut) if cut is not None else (b"", b"", b"")
                if not found:
                    yield (), text
                elif rest:
                    yield (key.decode("utf-8", "replace"),) if key else (), rest


def _whole(name: str) -> bytes:
    with _opened(name) as file:
        return file.read()


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = pathlib.Path(name).open("rb")  # noqa: SIM115  closed below; faults of its user are none of opening it
    except OSError as fault:
        raise ConfigError(f"{name} cannot be read: {fault.strerror}") from None
    with file:
        yield file


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


def _tell(receipt: SendReceipt, *, as_json: bool) -> None:
    if as_json:
        print_json_line(
            {
                "status": receipt.status.name,
                "message_id": receipt.message_id,
                "broker": receipt.queue.broker,
                "queue_id": receipt.queue.queue_id,
                "offset": receipt.offset,
            }
        )
    else:
        print(f"{receipt.status.name} {receipt.message_id} in {receipt.queue} at offset {receipt.offset}")
