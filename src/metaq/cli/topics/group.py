"""`metaq group`: members and progress of groups; `group_list` and `group_changes` have more of its commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.completing import complete_groups, complete_topics
from metaq.cli.groups import App
from metaq.cli.output import (
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    count,
    iso_time,
    place_of,
    print_json,
    print_table,
    span,
)
from metaq.cli.topics import group_changes, group_list
from metaq.cli.topics.waiting import waiting_json, waiting_text

if TYPE_CHECKING:
    from metaq.admin.groups import MovedProgress
    from metaq.errors import MetaqError

app = App("Groups of consumers and producers: look at them, move, change and delete them.")


@app.callback()
def groups() -> None:
    """Groups of consumers and producers: look at them, move, change and delete them."""


app.command("list")(group_list.list_groups)


@app.command("show")
def show_group(
    name: Annotated[
        str, typer.Argument(metavar="GROUP", help="name of the consumer group", autocompletion=complete_groups)
    ],
    client: Annotated[
        str | None, typer.Option("--client", metavar="ID", help="ask this member for its options, queues and rates")
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="with --client: also the stacks of its threads and tasks")
    ] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show a group's members and, per queue, how far it is behind: in messages, bytes, and time.

    Bytes with a ~ are estimated from a part of the messages. The time is the age of the oldest message that the group has not consumed. Members that subscribe to different
    things are marked: a broker keeps one subscription per group, so that each of them misses messages.

    With `--client` the member itself answers: its options by RocketMQ's names, what it has of each queue, and its rates
    of the last minute.
    """
    from metaq.admin import Admin

    if client is not None:
        from metaq.cli.topics.member import show_member

        show_member(namesrv, name, client, stacks=stacks, as_json=as_json)
        return
    if stacks:
        raise typer.BadParameter("name the member whose stacks are wanted: --client ID", param_hint="--stacks")
    with Admin(namesrv) as admin:
        group = admin.group_progress(name)
    if as_json:
        print_json(
            {
                "group": name,
                "lag": group.lag,
                "lag_seconds": group.lag_seconds,
                **waiting_json(group.waiting),
                "consumed_per_second": group.rate,
                "broadcasting": group.broadcasting,
                "stopped_at": list(group.stopped_at),
                "subscriptions": group.subscriptions,
                "subscriptions_differ": group.differs,
                "members": [
                    {
                        "client_id": member.client_id,
                        "address": member.address,
                        "language": member.language,
                        "subscriptions": member.wants,
                    }
                    for member in group.members
                ],
                "queues": [
                    {
                        "topic": progress.queue.topic,
                        "broker": progress.queue.broker,
                        "queue_id": progress.queue.queue_id,
                        "consumed": progress.consumed,
                        "max_offset": progress.max_offset,
                        "lag": progress.lag,
                        **waiting_json(progress.waiting),
                        "oldest_waiting": iso_time(progress.oldest_waiting_ms or 0),
                    }
                    for progress in group.queues
                ],
            }
        )
        return
    late = f" ({span(group.lag_seconds) or '?'}, {waiting_text(group.waiting) or '?'})" if group.lag else ""
    print(f"group {name}: {count(len(group.members), 'member')}, {count(group.lag, 'message')} behind{late}")
    if group.stopped_at:
        print(
            f"  stopped: members get no messages from {', '.join(group.stopped_at)}; `metaq group create {name} --consume` starts it again"
        )
    if group.subscriptions and not group.differs:
        print(f" {_wants(group.subscriptions)}")
    if group.broadcasting:
        print(
            "  broadcasting: each member keeps its own progress, which no broker knows; the figures here are not theirs"
        )
    for member in group.members:
        print(f"  member {member.client_id} at {member.address} ({member.language}){_wants(member.wants)}")
    if group.differs:
        print(
            "WARNING: the members subscribe differently. A broker keeps one subscription per group, so that each of them "
            "misses messages: give all members of a group the same topics and tags, or each its own group."
        )
    print_table(
        ("topic", "broker", "queue", "consumed", "max offset", "lag", "bytes", "oldest waiting"),
        (
            (
                progress.queue.topic,
                progress.queue.broker,
                progress.queue.queue_id,
                progress.consumed,
                progress.max_offset,
                progress.lag,
                waiting_text(progress.waiting),
                _age(group.now_ms, progress.oldest_waiting_ms),
            )
            for progress in group.queues
        ),
    )


@app.command("producers")
def show_producers(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="name of the producer group")],
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the processes that produce for a group: those that are asked what became of its transactions."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        instances = admin.group_producers(name)
    if as_json:
        print_json(
            [
                {
                    "client_id": one.client_id,
                    "language": one.language,
                    "version": one.version,
                    "addresses": dict(one.addresses),
                }
                for one in instances
            ]
        )
        return
    print_table(
        ("client", "language", "version", "broker", "address"),
        (
            (one.client_id, one.language, one.version, broker, address)
            for one in instances
            for broker, address in one.addresses.items()
        ),
    )


@app.command("skip")
def skip_backlog(
    name: Annotated[
        str, typer.Argument(metavar="GROUP", help="name of the consumer group", autocompletion=complete_groups)
    ],
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="topic in which everything that waits is skipped", autocompletion=complete_topics
        ),
    ],
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Skip everything that waits for a group in a topic: it goes on with what comes from now on.

    Members that are online are told and go on there within seconds (Java members within ten). What they have in hand is
    finished. `metaq group show GROUP` tells how much that is before you do it.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        queues, failure = _moved(lambda: admin.skip_backlog(name, topic))
    total = sum(queue.skipped for queue in queues)
    if as_json:
        print_json({"group": name, "topic": topic, "skipped": total, "queues": _moved_json(queues)})
        _raise(failure)
        return
    told = "its members were told" if any(one.online for one in queues) else "nobody is online in it"
    print(f"group {name} skips {count(total, 'message')} of topic {topic}; {told}")
    _print_moved(queues)
    _raise(failure)


@app.command("reset")
def reset_group(
    name: Annotated[
        str, typer.Argument(metavar="GROUP", help="name of the consumer group", autocompletion=complete_groups)
    ],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="topic in which it goes on elsewhere", autocompletion=complete_topics)
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="earliest, latest, or a time such as 2026-01-31T08:00:00Z")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be moved, and move nothing")] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let a group go on elsewhere in a topic: at its beginning, its end, or what was stored at a time or later.

    Members that are online are told and go on there within seconds (Java members within ten). What they have in hand is
    finished. A group that goes back gets messages again. No other group is touched. Times count to the millisecond; members at a
    RocketMQ broker go on at the message stored nearest to it.
    """
    from metaq.admin import Admin

    where = place_of(to, "--to")
    with Admin(namesrv) as admin:
        queues, failure = _moved(lambda: admin.reset_group(name, topic, where, dry_run=dry_run))
    again, skipped = sum(one.repeated for one in queues), sum(one.skipped for one in queues)
    if as_json:
        print_json(
            {
                "group": name,
                "topic": topic,
                "dry_run": dry_run,
                "repeated": again,
                "skipped": skipped,
                "queues": _moved_json(queues, told=not dry_run),
            }
        )
        _raise(failure)
        return
    online = any(one.online for one in queues)
    told = ("it has members" if dry_run else "its members were told") if online else "nobody is online in it"
    gets, skips = ("would get", "skip") if dry_run else ("gets", "skips")
    print(f"group {name} {gets} {count(again, 'message')} of topic {topic} again and {skips} {skipped:,}; {told}")
    _print_moved(queues)
    _raise(failure)


app.command("create")(group_changes.create_group)
app.command("delete")(group_changes.delete_group)
app.command("clone")(group_changes.clone_group)
app.command("move")(group_changes.move_group)


def _moved(move: Callable[[], list[MovedProgress]]) -> tuple[list[MovedProgress], MetaqError | None]:
    """Return what was moved, to be printed in any case, and the error if that is not all."""
    from metaq.admin.groups import PartlyMoved

    try:
        return move(), None
    except PartlyMoved as error:
        return error.moved, error


def _raise(failure: MetaqError | None) -> None:
    if failure is not None:
        raise failure


def _moved_json(queues: Iterable[MovedProgress], *, told: bool = True) -> list[dict[str, object]]:
    return [
        {
            "broker": one.queue.broker,
            "queue_id": one.queue.queue_id,
            "consumed": one.consumed,
            "offset": one.offset,
            "members_told": one.online and told,
        }
        for one in queues
    ]


def _print_moved(queues: Iterable[MovedProgress]) -> None:
    print_table(
        ("broker", "queue", "was at", "goes on at"),
        ((one.queue.broker, one.queue.queue_id, one.consumed, one.offset) for one in queues),
    )


def _wants(wants: Mapping[str, str] | None) -> str:
    """Return the subscription of a member, or of all, as text."""
    if wants is None:
        return ""
    return f" subscribes to {', '.join(f'{topic} ({tags})' for topic, tags in wants.items()) or 'nothing'}"


def _age(now_ms: int, stored_ms: int | None) -> str:
    return "" if stored_ms is None else span(max(0, now_ms - stored_ms) / 1000)
