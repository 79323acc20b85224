"""`metaq group create|delete|clone|move`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.completing import complete_groups, complete_topics
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, Yes, count, print_json, print_table

if TYPE_CHECKING:
    from metaq.admin.groups import MovedProgress

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="name of the consumer group", autocompletion=complete_groups)
]
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="name of the other group", autocompletion=complete_groups)
]


def create_group(
    name: Group,
    retries: Annotated[
        int | None, typer.Option(min=-1, help="deliveries after the first one, before it is a dead letter")
    ] = None,
    retry_queues: Annotated[int | None, typer.Option(min=1, max=1024, help="queues of its retry topic")] = None,
    consume: Annotated[bool | None, typer.Option("--consume/--stop", help="members get messages, or none")] = None,
    broadcast: Annotated[
        bool | None, typer.Option("--broadcast/--no-broadcast", help="members may broadcast, or not")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="only at the brokers of this cluster")] = None,
    broker: Annotated[str | None, typer.Option(help="only at this broker")] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a consumer group, or change what is given of one that exists. --stop keeps its members from getting messages.

    Groups come into being with their first member, too, unless brokers have autoCreateSubscriptionGroup=false.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        settings = admin.set_group(
            name,
            consume=consume,
            broadcast=broadcast,
            retries=retries,
            retry_queues=retry_queues,
            cluster=cluster,
            broker=broker,
        )
    rows = [
        {
            "broker": at,
            "consume": one.consume_enable,
            "broadcast": one.consume_broadcast_enable,
            "retries": one.retry_max,
            "retry_queues": one.retry_queues,
        }
        for at, one in settings.items()
    ]
    if as_json:
        print_json({"group": name, "brokers": rows})
        return
    print(f"group {name} is at {count(len(rows), 'broker')}")
    print_table(("broker", "consume", "broadcast", "retries", "retry queues"), (list(row.values()) for row in rows))


def delete_group(
    name: Group,
    keep_progress: Annotated[
        bool, typer.Option("--keep-progress", help="leave its progress and what waits to be retried")
    ] = False,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="delete its dead letters, too")] = False,
    force: Annotated[bool, typer.Option("--force", help="also if it has members")] = False,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a consumer group, its progress, and what waits to be retried. Dead letters stay.

    A group with members is refused: they would make it anew.
    """
    from metaq.admin import Admin

    if not yes:
        what = "" if keep_progress else ", its progress and its retry topic"
        typer.confirm(f"Delete group {name}{what}{' and its dead letters' if dead_letters else ''}?", abort=True)
    with Admin(namesrv) as admin:
        topics = admin.delete_group(name, keep_progress=keep_progress, dead_letters=dead_letters, force=force)
    if as_json:
        print_json({"group": name, "deleted": True, "topics": topics})
    else:
        print(f"group {name} is deleted{' with ' + ' and '.join(topics) if topics else ''}")


def clone_group(
    name: Group,
    target: Target,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="only in this topic", autocompletion=complete_topics)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be copied, and copy nothing")] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give another group the progress of a group: it goes on where that one is now.

    The other group may be new. It may have no members, which would overwrite the progress with theirs; what it had in these queues is
    overwritten. What waits in the group's retry topic is not copied.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        queues = admin.clone_group(name, target, topic, dry_run=dry_run)
    if as_json:
        print_json({"group": name, "target": target, "dry_run": dry_run, "queues": _json(queues)})
        return
    print(f"group {target} {'would go' if dry_run else 'goes'} on where group {name} is")
    _print(queues)


def move_group(
    name: Group,
    target: Target,
    leave_retries: Annotated[
        bool, typer.Option("--leave-retries", help="also if messages wait in its retry topic: they stay there")
    ] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let a group go on under another name: that one gets its settings and progress, and the old group is left stopped.

    Neither may have members: stop the consumers, move the group, and start them with the new name. Members that come back with the
    old name get nothing (`metaq group create GROUP --consume` undoes that). Dead letters stay with the old group, and so does what
    waits to be retried, which is why a group that has such messages is refused.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        queues = admin.move_group(name, target, leave_retries=leave_retries)
    if as_json:
        print_json({"group": name, "target": target, "queues": _json(queues)})
        return
    print(f"group {name} is stopped; group {target} goes on where it was")
    _print(queues)


def _json(queues: Iterable[MovedProgress]) -> list[dict[str, object]]:
    return [
        {
            "topic": one.queue.topic,
            "broker": one.queue.broker,
            "queue_id": one.queue.queue_id,
            "was": one.consumed,
            "offset": one.offset,
        }
        for one in queues
    ]


def _print(queues: Iterable[MovedProgress]) -> None:
    print_table(
        ("topic", "broker", "queue", "was at", "goes on at"),
        ((one.queue.topic, one.queue.broker, one.queue.queue_id, one.consumed, one.offset) for one in queues),
    )
