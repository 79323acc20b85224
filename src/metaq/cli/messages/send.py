"""`metaq send`: messages from arguments, files and standard input."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Annotated

import typer

from metaq.cli.output import (
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    print_json_line,
)
from metaq.model import Message, SendReceipt

_WINDOW = 2000
"""Most sends of `--lines` in flight."""


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="where to")],
    body: Annotated[str | None, typer.Argument(metavar="[BODY]", help="the text; without it, standard input")] = None,
    tag: Annotated[str | None, typer.Option(help="one word that consumers filter by")] = None,
    key: Annotated[list[str] | None, typer.Option(help="a key to look it up by; may be repeated")] = None,
    prop: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="a property; may be repeated")
    ] = None,
    delay_level: Annotated[int, typer.Option(min=0, max=18, help="deliver later: 1 is 1 s ... 18 is 2 h")] = 0,
    lines: Annotated[bool, typer.Option("--lines", help="each line of standard input is a message")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds for one message, all tries together")] = 3.0,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Send a message, or many, and wait until the broker has stored them."""
    import metaq

    if lines and body is not None:
        raise typer.BadParameter("--lines reads the messages from standard input; leave BODY out")
    properties = dict(_pair(text) for text in prop or ())

    def make(data: bytes) -> Message:
        return Message(topic, data, tag, tuple(key or ()), delay_level=delay_level, properties=dict(properties))

    with metaq.Producer(namesrv, timeout=timeout) as producer:
        if not lines:
            # The bytes that the shell gave, also those that are no UTF-8.
            data = os.fsencode(body) if body is not None else sys.stdin.buffer.read()
            _tell(producer.send(make(data)), as_json=as_json)
            return
        count = 0
        # Empty lines are left out: a broker takes no empty body. Here and not below: a window of them alone would end the loop.
        texts = (text for line in sys.stdin.buffer if (text := line.rstrip(b"\r\n")))
        while pending := [producer.submit(make(text)) for text in itertools.islice(texts, _WINDOW)]:
            for future in pending:
                receipt = future.result()
                count += 1
                if as_json:
                    _tell(receipt, as_json=True)
        if not as_json:
            print(f"{count} messages are stored in topic {topic}")


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
