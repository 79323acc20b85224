"""`metaq topic trim`: messages of a topic become unreadable before their time is up."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.amounts import count
from metaq.cli.completing import complete_topics
from metaq.cli.messages.places import broker_and_queue
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, Yes, ask, iso_time, place_of, print_json, print_table

if TYPE_CHECKING:
    from metaq.model.upkeep.cleaning import TopicTrim

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def trim_topic(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="name of the topic", autocompletion=complete_topics)],
    before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="TIME", help="trim the messages stored before this time, such as 2026-01-31T08:00:00Z"
        ),
    ] = None,
    keep_last: Annotated[
        str | None,
        typer.Option(
            "--keep-last", metavar="DURATION", help="trim all messages but those of the last 90s, 30m, 12h, 7d or 2w"
        ),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            "-o", "--offset", metavar="OFFSET", help="trim the messages before this offset of each queue, or of --queue"
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("-p", "--queue", metavar="[BROKER:]ID", help="with --offset: trim only this queue")
    ] = None,
    broker: Annotated[str | None, typer.Option(help="only at this broker")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be trimmed, and trim nothing")] = False,
    force: Annotated[bool, typer.Option("--force", help="also trim messages that groups have not consumed")] = False,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make the messages of a topic before a time or an offset unreadable for good.

    The minimum offsets of its queues move up, on slaves too. This frees no disk space at once: all topics share the log files, which are
    deleted after fileReservedTime. Running consumers continue with the messages that are left. Delayed messages that are not due yet
    stay.
    """
    if sum(one is not None for one in (before, keep_last, offset)) != 1:
        raise typer.BadParameter("give one of --before, --keep-last and --offset")
    if queue is not None and offset is None:
        raise typer.BadParameter("--queue needs --offset: a time applies to all queues", param_hint="--queue")
    at, number = ("", None) if queue is None else broker_and_queue(queue, "--queue")
    if at and broker and at != broker:
        raise typer.BadParameter(f"{queue} is not at {broker}", param_hint="--queue")
    where: dict[str, Any] = {
        "before": _moment(before, keep_last), "offset": offset, "queue_id": number,
        "broker": at or broker,
    }  # fmt: skip
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        plan = admin.trim_topic(name, **where, dry_run=True)
        if dry_run or not any(one.messages for trim in plan.values() for one in trim.queues):
            _print(name, plan, done=False, dry_run=dry_run, as_json=as_json)
            return
        if not yes:
            if not as_json:
                _table(plan)
            _tell_unread(plan)
            ask(f"Make {_amount(plan)} of topic {name} unreadable for good?")
        done = admin.trim_topic(name, **where, force=force)
    _print(name, done, done=True, dry_run=False, as_json=as_json)


def _moment(before: str | None, keep_last: str | None) -> dt.datetime | None:
    if before is not None:
        found = place_of(before, "--before")
        if isinstance(found, str):
            raise typer.BadParameter(f"{before!r} is not a time, such as 2026-01-31T08:00:00Z", param_hint="--before")
        return found
    if keep_last is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", keep_last)
    if match is None:
        raise typer.BadParameter(
            f"{keep_last!r} is not a duration: give a number with s, m, h, d or w, such as 7d", param_hint="--keep-last"
        )
    now, seconds = dt.datetime.now(dt.UTC), int(match[1]) * _SECONDS[match[2]]
    if seconds > now.timestamp():
        raise typer.BadParameter(f"{keep_last} ago was before 1970", param_hint="--keep-last")
    return now - dt.timedelta(seconds=seconds)


def _amount(trims: Mapping[str, TopicTrim]) -> str:
    return count(sum(one.messages for trim in trims.values() for one in trim.queues), "message")


def _print(name: str, trims: Mapping[str, TopicTrim], *, done: bool, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": name,
                "dry_run": dry_run,
                "trimmed": done,
                "messages": sum(one.messages for trim in trims.values() for one in trim.queues),
                "queues": [
                    {
                        "broker": broker,
                        "queue_id": one.queue_id,
                        "messages": one.messages,
                        "min_offset": one.min_offset,
                        "new_min_offset": one.new_min,
                        "max_offset": one.max_offset,
                        "oldest": iso_time(one.oldest_ms),
                        "newest": iso_time(one.newest_ms),
                    }
                    for broker, trim in trims.items()
                    for one in trim.queues
                ],
                "unread": [
                    {"broker": broker, "queue_id": one.queue_id, "group": one.group, "messages": one.messages}
                    for broker, trim in trims.items()
                    for one in trim.unread
                ],
            }
        )
        return
    amount = _amount(trims)
    if not done and amount.startswith("0 "):
        print(f"nothing to trim: topic {name} has no messages there")
        return
    _table(trims)
    _tell_unread(trims)
    print(f"{amount} of topic {name} {'cannot be read any more' if done else 'would become unreadable'}")


def _table(trims: Mapping[str, TopicTrim]) -> None:
    print_table(
        ("broker", "queue", "messages", "from offset", "to", "oldest", "newest"),
        (
            (
                broker, one.queue_id, one.messages, one.min_offset, one.new_min - 1, iso_time(one.oldest_ms),
                iso_time(one.newest_ms),
            )
            for broker, trim in trims.items()
            for one in trim.queues
            if one.messages
        ),
    )  # fmt: skip


def _tell_unread(trims: Mapping[str, TopicTrim]) -> None:
    import sys

    from metaq.model.upkeep.cleaning import unread_by_group

    for group, messages in sorted(unread_by_group(trims.values()).items()):
        print(f"group {group} has not consumed {count(messages, 'message')} of them", file=sys.stderr)
