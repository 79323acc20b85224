"""Where reading begins and ends in a topic: words, times, offsets, and the last messages of each queue."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import typer

from metaq.cli.output import place_of
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq import Reader
    from metaq.model import MessageQueue, StoredMessage


class Place(NamedTuple):
    """One of the three."""

    word: str | dt.datetime | None = None
    """earliest or latest, or a time."""
    offset: int | None = None
    last: int | None = None
    """So many messages before the end of each queue."""


def start_place(text: str, option: str) -> Place:
    """Read where to begin: what `place_of` knows, `beginning` and `end`, an offset, `-N` for the last N of each queue.

    Raises: typer.BadParameter.
    """
    if re.fullmatch(r"-[0-9]{1,18}", text):
        return Place(last=int(text[1:]))
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Place(offset=int(text))
    return Place({"beginning": "earliest", "end": "latest"}.get(text) or place_of(text, option))


def end_place(text: str, option: str) -> Place:
    """Read where to end: before an offset of each queue, or before what was stored at a time. Raises: typer.BadParameter."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Place(offset=int(text))
    if text in {"earliest", "first"}:
        raise typer.BadParameter("there is nothing before the beginning", param_hint=option)
    return Place({"end": "latest"}.get(text) or place_of(text, option))


def broker_and_queue(text: str, option: str) -> tuple[str, int]:
    """Read `3` or `broker-a:3`: the broker, "" if none is named, and the queue's id. Raises: typer.BadParameter."""
    broker, _, number = text.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,9}", number):
        raise typer.BadParameter(f"{text!r} is not a queue: give ID or BROKER:ID", param_hint=option)
    return broker, int(number)


def chosen_queues(reader: Reader, wanted: Iterable[str]) -> list[MessageQueue]:
    """Return the queues that `3` (of every broker) or `broker-a:3` name. Raises ConfigError: there is none."""
    have = reader.queues()
    found = []
    for text in wanted:
        broker, _, number = text.rpartition(":")
        some = [one for one in have if str(one.queue_id) == number and broker in {"", one.broker}]
        if not some:
            there = ", ".join(f"{one.broker}:{one.queue_id}" for one in have)
            raise ConfigError(f"the topic has no queue {text}; it has {there}")
        found += some
    return sorted(set(found))


def begin(reader: Reader, start: Place) -> None:
    """Have a reader begin at an offset, or so many messages before the end."""
    if start.offset is None and start.last is None:
        return
    for queue, held in reader.ranges().items():
        at = start.offset if start.offset is not None else held.stop - (start.last or 0)
        reader.seek(queue, offset=min(max(at, held.start), held.stop))


def until(messages: Iterable[StoredMessage], reader: Reader, end: Place) -> Iterator[StoredMessage]:
    """Yield the messages before `end`; a queue that has come there is read no further."""
    over: set[MessageQueue] = set()
    end_ms = round(end.word.timestamp() * 1000) if isinstance(end.word, dt.datetime) else None
    for message in messages:
        queue = message.queue
        if queue in over:
            continue
        if (end.offset is not None and message.queue_offset >= end.offset) or (
            end_ms is not None and message.store_ms >= end_ms
        ):
            over.add(queue)
            reader.seek(queue, offset=reader.ranges()[queue].stop)
            continue
        yield message
