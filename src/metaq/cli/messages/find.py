"""`metaq message query|get|track`: messages by id, key and time, and who has consumed one."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from metaq.cli.completing import complete_topics
from metaq.cli.output import (
    EXIT_NOT_FOUND,
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    iso_time,
    message_json,
    place_of,
    print_json,
    print_table,
)
from metaq.model.topics.system import TRACE_TOPIC

if TYPE_CHECKING:
    from metaq.admin.tracks import GroupTrack
    from metaq.model import StoredMessage

_BODY_SHOWN: Final = 40

MessageId = Annotated[
    str, typer.Argument(metavar="ID", help="message id (from the producer) or offset id (from the broker)")
]
TopicOption = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topic",
        metavar="TOPIC",
        help="topic of the message; not needed with an offset id",
        autocompletion=complete_topics,
    ),
]


def query_messages(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="topic to search", autocompletion=complete_topics)],
    key: Annotated[str | None, typer.Option("-k", "--key", help="only messages with this key")] = None,
    message_id: Annotated[
        str | None, typer.Option("-i", "--id", metavar="ID", help="only messages with this id")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="only messages stored at this time or later, such as 2026-01-31T08:00:00.250Z",
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="only messages stored before this time")
    ] = None,
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="print at most this many, the newest")] = 32,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Find messages of a topic by key, id and store time: the newest 32, oldest first.

    A key matches only as a whole. Store times are those of the brokers' clocks, to the millisecond.
    """
    from metaq.admin import Admin

    first, last = _time(start, "--from"), _time(end, "--to")
    with Admin(namesrv) as admin:
        found = admin.find_messages(topic, key=key, message_id=message_id, start=first, end=last, limit=count)
    if as_json:
        print_json(
            {
                "messages": [message_json(one) for one in found.messages],
                "more": found.more,
                "brokers_not_asked": list(found.silent),
            }
        )
    else:
        _print_messages(found.messages)
        if found.more:
            print(
                f"There are older matches: these are the newest {len(found.messages)}; --count prints more, --to ends earlier",
                file=sys.stderr,
            )
        _warn_of(found.silent)
    if not found.messages:
        if not as_json:
            print(f"no message of topic {topic} matches", file=sys.stderr)
        raise typer.Exit(EXIT_NOT_FOUND)


def get_message(
    message_id: MessageId,
    topic: TopicOption = None,
    body: Annotated[bool, typer.Option("--body", help="print only the body, as raw bytes")] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show all fields and the body of one message."""
    from metaq.admin import Admin

    if body and as_json:
        raise typer.BadParameter("--json prints the body, too: leave --body out")
    with Admin(namesrv) as admin:
        found = admin.get_message(message_id, topic)
    if body:
        sys.stdout.buffer.write(found.body)
    elif as_json:
        print_json(message_json(found))
    else:
        _print_whole(found)


def track_message(
    message_id: MessageId,
    topic: TopicOption = None,
    trace_topic: Annotated[str, typer.Option(metavar="TOPIC", help="topic that clients write traces to")] = TRACE_TOPIC,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show which groups have consumed a message.

    It prints the state and offset of every group of its topic, and the last delivery if clients write traces. The states are those of
    RocketMQ's mqadmin. CONSUMED; CONSUMED_BUT_FILTERED: the group does not subscribe to its tag; NOT_CONSUME_YET; NOT_ONLINE: the
    group has no members, or no offset yet; PULL: members pull by themselves; CONSUME_BROADCASTING: each member keeps its own offset;
    UNKNOWN.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.track_message(message_id, topic, trace_topic=trace_topic)
    message = found.message
    if as_json:
        print_json(
            {
                "message_id": message.message_id,
                "topic": message.topic,
                "broker": message.broker,
                "queue_id": message.queue_id,
                "queue_offset": message.queue_offset,
                "store_time": iso_time(message.store_ms),
                "groups": [_track_json(one) for one in found.groups],
                "brokers_not_asked": list(found.silent),
            }
        )
        return
    print(
        f"{message.message_id}, topic {message.topic}, queue {message.broker}:{message.queue_id}, offset {message.queue_offset}, "
        f"stored {iso_time(message.store_ms)}"
    )
    rows = []
    for one in found.groups:
        last = one.deliveries[-1] if one.deliveries else None
        delivered = (iso_time(last.time_ms), last.client, last.result) if last is not None else ("", "", "")
        rows.append((one.group, one.state.value, "" if one.offset is None else one.offset, *delivered, one.detail))
    print_table(("group", "state", "offset", "delivered", "client", "result", ""), rows)
    _warn_of(found.silent)


def _track_json(one: GroupTrack) -> dict[str, Any]:
    return {
        "group": one.group,
        "state": one.state.value,
        "offset": one.offset,
        "detail": one.detail or None,
        "deliveries": [
            {
                "time": iso_time(event.time_ms),
                "client": event.client or None,
                "milliseconds": event.cost_ms,
                "result": event.result or None,
                "attempt": event.attempt or None,
            }
            for event in one.deliveries
        ],
    }


def _print_whole(message: StoredMessage) -> None:
    from metaq.address import join_address
    from metaq.cli.messages.formats import headers_of

    rows = (
        ("topic", message.topic), ("queue", f"{message.broker}:{message.queue_id}"), ("offset", message.queue_offset),
        ("message id", message.message_id), ("offset id", message.offset_id), ("tag", message.tag or ""),
        ("keys", " ".join(message.keys)), ("properties", headers_of(message)),
        ("born", f"{iso_time(message.born_ms)} at {join_address(*message.born_host)}"),
        ("stored", iso_time(message.store_ms) or ""), ("flag", message.flag), ("retries", message.reconsume_times),
    )  # fmt: skip
    for name, value in rows:
        print(f"{name:11} {_printable(str(value))}".rstrip())
    try:
        print(f"\n{message.body.decode()}")
    except UnicodeDecodeError:
        print(f"\n{len(message.body)} bytes that are not UTF-8 text; --body prints them")


def _print_messages(messages: Iterable[StoredMessage]) -> None:
    print_table(
        ("stored", "id", "queue", "offset", "tag", "keys", "body"),
        (
            (
                iso_time(one.store_ms), _printable(one.message_id), f"{one.broker}:{one.queue_id}", one.queue_offset,
                _printable(one.tag or ""), _printable(" ".join(one.keys)), _beginning(one.body),
            )
            for one in messages
        ),
    )  # fmt: skip


def _beginning(body: bytes) -> str:
    line = _printable(body[: 4 * _BODY_SHOWN].decode("utf-8", "backslashreplace"))
    return line if len(line) <= _BODY_SHOWN else f"{line[: _BODY_SHOWN - 1]}…"


def _printable(text: str) -> str:
    """Return a text as one line: what a terminal would obey is escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _time(text: str | None, option: str) -> dt.datetime | None:
    if text is None:
        return None
    found = place_of(text, option)
    if isinstance(found, str):
        raise typer.BadParameter(f"{text!r} is not a time, such as 2026-01-31T08:00:00Z", param_hint=option)
    return found


def _warn_of(silent: Iterable[str]) -> None:
    if names := ", ".join(silent):
        print(f"WARNING: the result may be incomplete: these brokers could not be asked: {names}", file=sys.stderr)
