"""`metaq broker clean`: what brokers delete in their time, deleted now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.amounts import size
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, Yes, ask, print_json, print_table

if TYPE_CHECKING:
    from metaq.admin.upkeep.cleaning import CleanedBroker

_TOPICS_SHOWN = 3


def clean_broker(
    name: Annotated[str, typer.Argument(metavar="NAME", help="brokerName, or host:port of one broker")],
    log_files: Annotated[
        bool, typer.Option("--log-files", help="delete log files older than fileReservedTime, whatever deleteWhen says")
    ] = False,
    queues: Annotated[
        bool, typer.Option("--queues", help="delete consume-queue files whose messages are deleted")
    ] = False,
    topics: Annotated[
        bool, typer.Option("--topics", help="delete the consume queues of topics that do not exist any more")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be deleted, and delete nothing")] = False,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete now what a broker and its slaves would delete later.

    These are expired log files, queue files without messages, and queues of deleted topics: all three kinds, unless some are named.
    Messages that have not expired stay: `metaq topic trim` is for these.
    """
    wanted = {"log_files": log_files, "queues": queues, "topics": topics}
    if not any(wanted.values()):
        wanted = dict.fromkeys(wanted, True)
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.find_cleanable(name)
        if dry_run:
            _print(name, found, wanted, as_json=as_json, done=False)
            return
        if not yes:
            if not _any(found, wanted):
                _print(name, found, wanted, as_json=as_json, done=True)
                return
            if not as_json:
                _table(found, wanted)
            ask(f"Delete these files at broker {name}?")
        found = admin.clean_broker(name, **wanted)
    _print(name, found, wanted, as_json=as_json, done=True)


def _print(name: str, found: Sequence[CleanedBroker], wanted: dict[str, bool], *, as_json: bool, done: bool) -> None:
    if as_json:
        print_json({"name": name, "dry_run": not done, "brokers": [_row(one, wanted) for one in found]})
        return
    _table(found, wanted)
    if not _any(found, wanted):
        print(f"broker {name} has nothing to delete")
    else:
        print(f"broker {name} is cleaned" if done else "this is what would be deleted")


def _any(found: Sequence[CleanedBroker], wanted: dict[str, bool]) -> bool:
    """Whether there is something to delete, as far as brokers say: RocketMQ's do not."""
    return any(
        one.found is None
        or (wanted["log_files"] and one.found.log_files.files)
        or (wanted["queues"] and one.found.queue_files.files)
        or (wanted["topics"] and one.leads and one.found.topics)
        for one in found
    )


def _row(one: CleanedBroker, wanted: dict[str, bool]) -> dict[str, Any]:
    row: dict[str, Any] = {"broker": one.broker, "broker_id": one.broker_id, "address": one.address}
    if one.found is None:  # a RocketMQ
        return {**row, "known": False}
    row["known"] = True
    if wanted["log_files"]:
        row |= {"log_files": one.found.log_files.files, "log_bytes": one.found.log_files.bytes}
    if wanted["queues"]:
        row |= {"queue_files": one.found.queue_files.files, "queue_bytes": one.found.queue_files.bytes}
    if wanted["topics"] and one.leads:
        row |= {"topics": list(one.found.topics), "topic_bytes": one.found.topic_files.bytes}
    return row


def _table(found: Sequence[CleanedBroker], wanted: dict[str, bool]) -> None:
    heads = {"log_files": "log files", "queues": "queue files", "topics": "topics"}
    print_table(
        ("broker", "id", "address", *(heads[kind] for kind, on in wanted.items() if on)),
        (
            (one.broker, one.broker_id, one.address, *(_cell(one, kind) for kind, on in wanted.items() if on))
            for one in found
        ),
    )


def _cell(one: CleanedBroker, kind: str) -> str:
    if one.found is None:
        return "unknown"
    if kind == "log_files":
        return f"{one.found.log_files.files} ({size(one.found.log_files.bytes)})"
    if kind == "queues":
        return f"{one.found.queue_files.files} ({size(one.found.queue_files.bytes)})"
    if not one.leads:
        return "see the master"
    topics = one.found.topics
    named = ", ".join(topics[:_TOPICS_SHOWN]) + (", …" if len(topics) > _TOPICS_SHOWN else "")
    return f"{len(topics)} ({size(one.found.topic_files.bytes)}){': ' + named if named else ''}"
