"""`metaq broker drain`, `metaq cluster add-broker|remove-broker`, `metaq topic move`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from metaq.amounts import count
from metaq.cli.completing import complete_topics
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, Yes, ask, print_json
from metaq.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from metaq.admin.growth.drain import DrainProgress
    from metaq.admin.growth.moving import MoveProgress

Name = Annotated[str, typer.Argument(metavar="NAME", help="brokerName, or host:port of its master")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="name of the topic", autocompletion=complete_topics)]
Quiet = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="time without a send after which clients count as moved away (they refresh routes every 30 s)",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="SECONDS", help="longest wait; then print what is still open and fail (default: no limit)"
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show what would be done, and do nothing")]
QUIET_DEFAULT = 40.0
TOLD_SECONDS = 10.0
"""Time between two lines about one phase, which counts seconds."""


def drain_broker(
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="let producers send to it again")] = False,
    quiet_seconds: Quiet = QUIET_DEFAULT,
    stop: Annotated[bool, typer.Option("--stop", help="stop the broker when it is empty, its slaves first")] = False,
    mend_order: Annotated[
        bool, typer.Option("--mend-order", help="remove it from the fixed queues of strictly ordered topics")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="drain it even if a topic has no other broker for sends: sends to the topic will fail"
        ),
    ] = False,
    timeout: Timeout = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Drain a broker: make producers leave it, and wait until it is empty.

    A broker is empty when groups have consumed its messages, and its delayed messages and transactions are finished. No send fails: the
    broker accepts what is still sent to it. Progress is printed on standard error (with --json one document per line).
    After Ctrl-C the broker stays drained, also over a restart: run the command again to continue, or --undo it.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        if undo:
            place = admin.undo_drain(name)
            if as_json:
                print_json({"broker": place.broker, "drained": False})
            else:
                print(f"producers send to broker {place.broker} again")
            return
        if not as_json:
            print(f"draining broker {name}: producers leave it when they next refresh routes ...", file=sys.stderr)
        with _interrupted(
            f"broker {name} stays drained, and is not empty yet: run the same command to continue, or `metaq broker drain {name} --undo`"
        ):
            done = admin.drain_broker(
                name, quiet_seconds=quiet_seconds, timeout=timeout, force=force, mend_order=mend_order, stop=stop,
                progress=_told(as_json),
            )  # fmt: skip
    if as_json:
        print_json({"broker": done.broker, "drained": True, **_without_name(done)})
        return
    print(
        f"broker {done.broker} is drained: producers do not send to it, and nothing is left to do there{', and it has stopped' if stop else ''}"
    )
    _print_layouts(done.layouts)
    if done.work.unread:
        print(f"no group has ever read {done.work.unread_text()} there")
    if not stop:
        print(f"you can stop it now; `metaq broker drain {done.broker} --undo` lets producers send to it again")


def add_broker(
    name: Annotated[str, typer.Argument(metavar="NEW", help="brokerName of the new broker, which must be running")],
    like: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="copy the topics and groups of this broker (default: of all brokers of its cluster)"
        ),
    ] = None,
    dry_run: DryRun = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create the topics and consumer groups of a cluster at a new broker.

    Clients use the broker when they next refresh routes. Groups begin at the first message there, also groups that have no members
    now. Not copied: accounts (servers do not give out their secrets), quotas, options, messages, dead letters, fixed queues of
    strictly ordered topics.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        done = admin.add_broker(name, like=like, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, **msgspec.to_builtins(done)})
        return
    gets = "would get" if dry_run else "has got"
    print(
        f"broker {done.broker} {gets} {count(len(done.topics), 'topic')} and {count(len(done.groups), 'group')} of {', '.join(done.like)}"
    )
    for what, names in (("topic", done.topics), ("group", done.groups)):
        for one in names:
            print(f"  {what} {one}")
    for one in done.different:
        print(
            f"topic {one} exists there with other queues or permissions, and is not changed: see `metaq topic show {one}`, `topic update`"
        )
    for one in done.fixed:
        print(
            f"topic {one} has fixed queues, none of them at this broker: `metaq topic order set {one}` adds its queues, and moves ordering keys"
        )
    print("not copied: accounts, quotas, options; see docs/growth.md")


def remove_broker(
    name: Name,
    quiet_seconds: Quiet = QUIET_DEFAULT,
    force: Annotated[
        bool, typer.Option("--force", help="remove it even if groups have not read all messages there")
    ] = False,
    timeout: Timeout = None,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Drain a broker, wait until it is empty, and stop it. No message is lost; its store folder stays.

    Its queues leave the routes and the fixed queues of strictly ordered topics. Refused without --force if messages there were never read
    by any group.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        if not yes:
            admin.remove_broker(name, force=force, dry_run=True)
            ask(f"Drain broker {name} and stop it when it is empty?")
        with _interrupted(
            f"broker {name} stays drained, and was not removed: run the same command to continue, or `metaq broker drain {name} --undo`"
        ):
            done = admin.remove_broker(
                name, quiet_seconds=quiet_seconds, timeout=timeout, force=force, progress=_told(as_json)
            )
    if as_json:
        print_json({"broker": done.broker, **_without_name(done)})
        return
    ended = (
        "is stopped, and registered at no name server any more"
        if done.stopped
        else "is drained; it is a RocketMQ broker: stop it on its machine"
    )
    print(f"broker {done.broker} {ended}")
    left = [*done.left.sentences(), *([f"nobody has read {text}"] if (text := done.left.unread_text()) else [])]
    print(
        f"left behind in its folder: {'; '.join(left)}"
        if left
        else "nothing is left behind: groups have read all that was there"
    )
    _print_layouts(done.layouts)


def move_topic(
    name: Topic,
    source: Annotated[str, typer.Option("--from", metavar="BROKER", help="broker that the topic leaves")],
    target: Annotated[str, typer.Option("--to", metavar="BROKER", help="broker that the topic goes to")],
    quiet_seconds: Quiet = QUIET_DEFAULT,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="also move a topic with fixed queues, and delete messages that groups have not read"
        ),
    ] = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Move a topic to another broker.

    New messages go there, and the queues at the old broker are deleted once groups have read them. No send fails. After Ctrl-C the
    topic is at both brokers: run the same command to continue.
    """
    from metaq.admin import Admin

    with (
        Admin(namesrv) as admin,
        _interrupted(
            f"topic {name} has moved in part: producers send to it at {target}; run the same command to continue"
        ),
    ):
        done = admin.move_topic(
            name, source, target, quiet_seconds=quiet_seconds, timeout=timeout, force=force, dry_run=dry_run,
            progress=_told(as_json),
        )  # fmt: skip
    if as_json:
        print_json({"dry_run": dry_run, **msgspec.to_builtins(done)})
        return
    if dry_run or not done.steps:
        print(
            "\n".join(done.steps)
            or f"topic {done.topic} is at {done.target} and not at {done.source}: there is nothing to do"
        )
        return
    print(
        f"topic {done.topic} is at {done.target}, and no longer at {done.source}"
        if not done.left
        else _left(done.topic, done.source)
    )


def _left(topic: str, source: str) -> str:
    return (
        f"topic {topic} has moved; {source} still has it, empty and read-only, because a name server is a RocketMQ, which could only "
        "forget the whole topic"
    )


def _told(as_json: bool, clock: Clock = SYSTEM) -> Callable[[DrainProgress | MoveProgress], None]:
    phase, due = "", 0.0

    def told(now: DrainProgress | MoveProgress) -> None:
        nonlocal phase, due
        if as_json:
            print_json_line_to_stderr(msgspec.to_builtins(now))
        elif now.phase != "done" and (now.phase != phase or clock.monotonic() >= due):
            phase, due = now.phase, clock.monotonic() + TOLD_SECONDS
            print(f"{now.phase}: {now.text()}", file=sys.stderr, flush=True)

    return told


def print_json_line_to_stderr(value: Any) -> None:
    """Print one JSON document on one line of standard error."""
    print(msgspec.json.encode(value).decode(), file=sys.stderr, flush=True)


@contextmanager
def _interrupted(text: str) -> Iterator[None]:
    """Say what a signal leaves behind."""
    try:
        yield
    except SystemExit:
        print(f"metaq: interrupted: {text}", file=sys.stderr)
        raise


def _without_name(done: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(done)
    found.pop("broker")
    return found


def _print_layouts(layouts: dict[str, str]) -> None:
    for topic, layout in layouts.items():
        print(
            f"the fixed queues of topic {topic} were {layout}: `metaq topic order set {topic} '{layout}'` restores them"
        )
