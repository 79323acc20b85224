"""`metaq group`: members and progress of groups; `group_list` and `group_changes` have more of its commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.amounts import count
from metaq.cli.completing import complete_groups, complete_topics
from metaq.cli.groups import App
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, iso_time, place_of, print_json, print_table, span
from metaq.cli.topics import group_changes, group_list
from metaq.cli.topics.waiting import waiting_json, waiting_text

if TYPE_CHECKING:
    from metaq.admin.groups import MovedProgress
    from metaq.errors import MetaqError

app = App("List, show, move, change and delete consumer groups; list producers.")


@app.callback()
def groups() -> None:
    """List, show, move, change and delete consumer groups; list producers."""


app.command("list")(group_list.list_groups)


@app.command("show")
def show_group(
    name: Annotated[
        str, typer.Argument(metavar="GROUP", help="name of the consumer group", autocompletion=complete_groups)
    ],
    client: Annotated[
        str | None,
        typer.Option(
            "--client", metavar="ID", help="ask this member (its client id) for its options, queues and rates"
        ),
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="with --client: also print the stacks of its threads and tasks")
    ] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show a group's members and, per queue, how far it is behind: in messages, bytes, and time.

    Bytes with a ~ are estimated from a part of the messages. The time is the age of the oldest message that the group has not
    consumed. Members with different subscriptions are marked: a broker keeps one subscription per group, so each of them misses messages.
    A stopped group is marked, too (`metaq group create GROUP --stop`, `metaq group move`): its members get no messages.

    With `--client`, this member is asked: it reports its options by RocketMQ's names, its state in each queue, and its rates of the
    last minute.
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
    """List the running producers of a group, which brokers ask for the outcome of its transactions."""
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
            metavar="TOPIC", help="topic whose unconsumed messages are skipped", autocompletion=complete_topics
        ),
    ],
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Skip the unconsumed messages of a topic for a group.

    The group continues with messages that arrive from now on. Online members are notified and continue there within seconds (Java
    members within ten); they finish the messages that they are processing. `metaq group show GROUP` shows beforehand how many
    messages that skips.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        queues, failure = _moved(lambda: admin.skip_backlog(name, topic))
    total = sum(queue.skipped for queue in queues)
    if as_json:
        print_json({"group": name, "topic": topic, "skipped": total, "queues": _moved_json(queues)})
        _raise(failure)
        return
    told = "its members were notified" if any(one.online for one in queues) else "it has no online members"
    print(f"group {name} skips {count(total, 'message')} of topic {topic}; {told}")
    _print_moved(queues)
    _raise(failure)


@app.command("reset")
def reset_group(
    name: Annotated[
        str, typer.Argument(metavar="GROUP", help="name of the consumer group", autocompletion=complete_groups)
    ],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="topic in which the group is moved", autocompletion=complete_topics)
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="earliest, latest, or a time such as 2026-01-31T08:00:00Z")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be moved, and move nothing")] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Move a group in a topic: to its beginning, its end, or the first message stored at a time or later.

    Online members are notified and continue there within seconds (Java members within ten); they finish the messages that they are
    processing. A group that moves back consumes messages again. Other groups do not change. Times are exact to the millisecond; members
    at a RocketMQ broker continue at the message stored nearest to the time.
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
    told = (
        ("it has online members" if dry_run else "its members were notified") if online else "it has no online members"
    )
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
        ("broker", "queue", "old offset", "new offset"),
        ((one.queue.broker, one.queue.queue_id, one.consumed, one.offset) for one in queues),
    )


def _wants(wants: Mapping[str, str] | None) -> str:
    """Return the subscription of a member, or of all, as text."""
    if wants is None:
        return ""
    return f" subscribes to {', '.join(f'{topic} ({tags})' for topic, tags in wants.items()) or 'nothing'}"


def _age(now_ms: int, stored_ms: int | None) -> str:
    return "" if stored_ms is None else span(max(0, now_ms - stored_ms) / 1000)
