"""`metaq group create|delete|clone|move`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.amounts import count
from metaq.cli.completing import complete_groups, complete_topics
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, Yes, ask, print_json, print_table

if TYPE_CHECKING:
    from metaq.admin.groups import MovedProgress

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="name of the consumer group", autocompletion=complete_groups)
]
Target = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="name of the group that gets the offsets", autocompletion=complete_groups),
]


def create_group(
    name: Group,
    retries: Annotated[
        int | None, typer.Option(min=-1, help="redeliveries of a message before it becomes a dead letter")
    ] = None,
    retry_queues: Annotated[
        int | None, typer.Option(min=1, max=1024, help="number of queues of the group's retry topic")
    ] = None,
    consume: Annotated[
        bool | None, typer.Option("--consume/--stop", help="deliver messages to its members, or stop the group")
    ] = None,
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="allow members in broadcasting mode, or refuse them"),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="only at the brokers of this cluster")] = None,
    broker: Annotated[str | None, typer.Option(help="only at this broker")] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a consumer group, or change the given settings of one that exists.

    --stop keeps its members from getting messages until --consume. A group is also created by its first member, unless brokers have
    autoCreateSubscriptionGroup=false.
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
    print(f"group {name} exists at {count(len(rows), 'broker')}")
    print_table(("broker", "consume", "broadcast", "retries", "retry queues"), (list(row.values()) for row in rows))


def delete_group(
    name: Group,
    keep_progress: Annotated[
        bool, typer.Option("--keep-progress", help="keep the group's offsets and its retry topic")
    ] = False,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="also delete its dead-letter topic")] = False,
    force: Annotated[bool, typer.Option("--force", help="delete the group even if it has members")] = False,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a consumer group with its offsets and its retry topic. Its dead letters stay.

    A group with members is refused: they would create it again.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        delete = functools.partial(
            admin.delete_group, name, keep_progress=keep_progress, dead_letters=dead_letters, force=force
        )
        if not yes:
            delete(dry_run=True)
            what = "" if keep_progress else ", its offsets and its retry topic"
            ask(f"Delete group {name}{what}{' and its dead letters' if dead_letters else ''}?")
        topics = delete()
    if as_json:
        print_json({"group": name, "deleted": True, "topics": topics})
    else:
        print(f"group {name} is deleted{' with ' + ' and '.join(topics) if topics else ''}")


def clone_group(
    name: Group,
    target: Target,
    topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="copy only the offsets of this topic", autocompletion=complete_topics),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be copied, and copy nothing")] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Copy the offsets of a group to another group.

    The other group then continues where the first one is now. It may be new. It must have no members, since they would overwrite the
    offsets; offsets that it has in these queues are overwritten. Messages in the first group's retry topic are not copied.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        queues = admin.clone_group(name, target, topic, dry_run=dry_run)
    if as_json:
        print_json({"group": name, "target": target, "dry_run": dry_run, "queues": _json(queues)})
        return
    print(f"group {target} {'would get' if dry_run else 'has'} the offsets of group {name}")
    _print(queues)


def move_group(
    name: Group,
    target: Target,
    leave_retries: Annotated[
        bool, typer.Option("--leave-retries", help="move it even if messages wait in its retry topic; they stay there")
    ] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Rename a group: the new name gets its settings and offsets, and the old group is stopped.

    Neither group may have members: stop the consumers, move the group, and start them with the new name. Members that come back with the
    old name get no messages (`metaq group create GROUP --consume` starts the old group again). Dead letters and messages that wait in the
    retry topic stay with the old group: without --leave-retries, a group with such waiting messages is refused.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        queues = admin.move_group(name, target, leave_retries=leave_retries)
    if as_json:
        print_json({"group": name, "target": target, "queues": _json(queues)})
        return
    print(f"group {name} is stopped; group {target} has its settings and offsets")
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
        ("topic", "broker", "queue", "old offset", "new offset"),
        ((one.queue.topic, one.queue.broker, one.queue.queue_id, one.consumed, one.offset) for one in queues),
    )
