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
    str, typer.Argument(metavar="ID", help="the id that its producer gave, or the offset id of its broker")
]
TopicOption = Annotated[
    str | None,
    typer.Option(
        "-t", "--topic", metavar="TOPIC", help="its topic; an offset id needs none", autocompletion=complete_topics
    ),
]


def query_messages(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="where to look", autocompletion=complete_topics)],
    key: Annotated[str | None, typer.Option("-k", "--key", help="only with this key")] = None,
    message_id: Annotated[str | None, typer.Option("-i", "--id", metavar="ID", help="only with this id")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="stored then or later, such as 2026-01-31T08:00:00.250Z"),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="stored before")] = None,
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="the newest so many")] = 32,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Find messages of a topic by key, id and time; the newest 32, oldest first.

    Keys are compared exactly, times to the millisecond, by the clocks of the brokers.
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
                f"There are older ones: these are the newest {len(found.messages)}; see --count and --to",
                file=sys.stderr,
            )
        _warn_of(found.silent)
    if not found.messages:
        if not as_json:
            print(f"no message of topic {topic} is like that", file=sys.stderr)
        raise typer.Exit(EXIT_NOT_FOUND)


def get_message(
    message_id: MessageId,
    topic: TopicOption = None,
    body: Annotated[bool, typer.Option("--body", help="only its body, bytes as they are")] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show everything that is known of one message."""
    from metaq.admin import Admin

    if body and as_json:
        raise typer.BadParameter("--json has the body; leave --body out")
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
    trace_topic: Annotated[str, typer.Option(metavar="TOPIC", help="where its clients trace")] = TRACE_TOPIC,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show who has consumed a message: where every group of its topic stands, and when it was delivered, if clients trace.

    CONSUMED; CONSUMED_BUT_FILTERED: not of a tag that the group wants; NOT_CONSUME_YET; NOT_ONLINE: without members, or without
    any offset yet; PULL: members decide themselves; CONSUME_BROADCASTING: members have offsets of their own; UNKNOWN.
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
        print(f"\n{len(message.body)} bytes that are no text; see --body")


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
        raise typer.BadParameter(f"{text!r} is no time; leave {option} out", param_hint=option)
    return found


def _warn_of(silent: Iterable[str]) -> None:
    if names := ", ".join(silent):
        print(f"WARNING: something may be missing, these brokers could not be asked: {names}", file=sys.stderr)
