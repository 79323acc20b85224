"""`metaq group list`: every consumer group, and how far it is behind."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.amounts import count
from metaq.cli.completing import complete_topics
from metaq.cli.output import (
    NAMESRV_DEFAULT,
    AsJson,
    NameServers,
    iso_time,
    print_json,
    print_json_line,
    print_table,
    span,
)
from metaq.cli.topics.waiting import waiting_json, waiting_text
from metaq.cli.watching import INTERVAL_DEFAULT, Interval, Rates, Watch, rate_text, repeat

if TYPE_CHECKING:
    from metaq.admin.groups import GroupProgress


class Sort(enum.StrEnum):
    """What the groups are sorted by: the most first, names from a to z."""

    LAG = "lag"
    BYTES = "bytes"
    SECONDS = "seconds"
    MEMBERS = "members"
    NAME = "name"


def list_groups(
    sort: Annotated[Sort, typer.Option(help="sort by this column, the largest first, names from a to z")] = Sort.LAG,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="only groups of this topic", autocompletion=complete_topics)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="also the groups of the brokers themselves")] = False,
    watch: Watch = False,
    interval: Interval = INTERVAL_DEFAULT,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the consumer groups: members, and how far each is behind in messages, bytes, and time.

    The time is the age of the oldest message that a group has not consumed. Bytes with a ~ are estimated from a part of the
    messages. Groups are marked that are stopped, have no members, or have queues that no member reads. --watch adds the messages per
    second that each group consumes.
    """
    from metaq.admin import Admin

    rates = Rates()

    def show(found: Sequence[GroupProgress]) -> None:
        chosen = _sorted([one for one in found if topic is None or _has(one, topic)], sort)
        paces = {one.group: rates.rate(one.group, sum(queue.consumed for queue in one.queues)) for one in chosen}
        if as_json:
            groups = [_json(one) | ({"consumed_per_second": paces[one.group]} if watch else {}) for one in chosen]
            if watch:
                print_json_line(groups)
            else:
                print_json(groups)
            return
        print_table(
            ("group", "members", "topics", "lag", "bytes", "oldest waiting", *(("consumed/s",) if watch else ()), ""),
            (
                (
                    one.group,
                    len(one.members),
                    len(_topics(one)),
                    one.lag,
                    waiting_text(one.waiting),
                    span(one.lag_seconds) if one.lag else "",
                    *((rate_text(paces[one.group]),) if watch else ()),
                    _mark(one),
                )
                for one in chosen
            ),
        )

    with Admin(namesrv) as admin:
        repeat(lambda: admin.list_groups(system=everything), show, watch=watch, seconds=interval)


def _sorted(groups: Sequence[GroupProgress], sort: Sort) -> list[GroupProgress]:
    """Sort by name, or by a figure, the largest first; what is not known comes last."""

    def figure(one: GroupProgress) -> float:
        if sort is Sort.LAG:
            return one.lag
        if sort is Sort.MEMBERS:
            return len(one.members)
        if sort is Sort.BYTES:
            return one.waiting.bytes if one.waiting is not None else -1
        return one.lag_seconds if one.lag_seconds is not None else -1

    by_name = sorted(groups, key=lambda one: one.group)
    return by_name if sort is Sort.NAME else sorted(by_name, key=figure, reverse=True)


def _topics(group: GroupProgress) -> list[str]:
    """Return the topics that a group has progress in or subscribes to, without its retry topic."""
    from metaq.model.topics.topic import RETRY_PREFIX

    return sorted({*group.subscriptions, *(one.queue.topic for one in group.queues)} - {RETRY_PREFIX + group.group})


def _has(group: GroupProgress, topic: str) -> bool:
    return topic in group.subscriptions or any(one.queue.topic == topic for one in group.queues)


def _mark(group: GroupProgress) -> str:
    """Return what is unusual about a group."""
    marks = ["stopped"] if group.stopped_at else []
    if not group.members:
        marks.append("no members")
    elif unread := group.unread:
        topics = ", ".join(sorted({queue.topic for queue in unread}))
        marks.append(f"no member reads {count(len(unread), 'queue')} of {topics}")
    if group.broadcasting:
        marks.append("broadcasting: each member keeps its own progress")
    if group.differs:
        marks.append("members subscribe differently")
    return "; ".join(marks)


def _json(group: GroupProgress) -> dict[str, object]:
    oldest = [one.oldest_waiting_ms for one in group.queues if one.oldest_waiting_ms is not None]
    return {
        "group": group.group,
        "members": len(group.members),
        "topics": _topics(group),
        "lag": group.lag,
        **waiting_json(group.waiting),
        "lag_seconds": group.lag_seconds,
        "oldest_waiting": iso_time(min(oldest, default=0)),
        "broadcasting": group.broadcasting,
        "stopped_at": list(group.stopped_at),
        "subscriptions_differ": group.differs,
        "unread_queues": [
            {"topic": queue.topic, "broker": queue.broker, "queue_id": queue.queue_id} for queue in group.unread
        ],
    }
