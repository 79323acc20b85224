"""`metaq topic units`: where in the broker's log the messages of a queue are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.completing import complete_groups, complete_topics
from metaq.cli.messages.places import broker_and_queue
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, print_json, print_table, yes_or_no

if TYPE_CHECKING:
    from metaq.model.filters.subscription import SubscriptionData


def show_units(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="name of the topic", autocompletion=complete_topics)],
    queue: Annotated[str, typer.Option("-p", "--queue", metavar="[BROKER:]ID", help="queue of the topic")],
    start: Annotated[
        int | None, typer.Option("-o", "--from", metavar="OFFSET", help="first offset; -N: the last N entries")
    ] = None,
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="number of entries")] = 10,
    group: Annotated[
        str | None,
        typer.Option(
            help="also show which of these messages the group gets, by its tags", autocompletion=complete_groups
        ),
    ] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show entries (units) of a consume queue: offset of each message in the log, its size, hash of its tag."""
    from metaq.admin import Admin

    broker, number = broker_and_queue(queue, "--queue")
    with Admin(namesrv) as admin:
        at, first, found = admin.queue_units(
            topic, number, broker=broker or None, start=start, count=count, group=group
        )
    wanted = found.subscription
    units = [(offset, unit, _gets(wanted, unit.tags_code)) for offset, unit in enumerate(found.units, first)]
    if as_json:
        print_json(
            {
                "topic": topic,
                "broker": at.broker,
                "queue_id": at.queue_id,
                "min_offset": found.min_offset,
                "max_offset": found.max_offset,
                "group": group,
                "filter": wanted.spelling if wanted is not None else None,
                "units": [
                    {
                        "queue_offset": offset,
                        "log_offset": unit.log_offset,
                        "bytes": unit.size,
                        "tags_code": unit.tags_code,
                        **({"wanted": gets} if group is not None else {}),
                    }
                    for offset, unit, gets in units
                ],
            }
        )
        return
    print(
        f"queue {at.broker}:{at.queue_id} of topic {topic} has the offsets {found.min_offset} to {found.max_offset - 1}"
    )
    if group is not None:
        print(
            f"group {group} subscribes to {wanted.spelling}"
            if wanted is not None
            else f"group {group} has no online members, so its tags are unknown"
        )
    columns = ("offset", "log offset", "bytes", "tags code", *(("wanted",) if group is not None else ()))
    print_table(
        columns,
        (
            (offset, unit.log_offset, unit.size, unit.tags_code, *((yes_or_no(gets),) if group is not None else ()))
            for offset, unit, gets in units
        ),
    )


def _gets(wanted: SubscriptionData | None, tags_code: int) -> bool | None:
    """Return whether a group gets a message, as far as its tag says; None: the group or the filter says nothing of it."""
    if wanted is None or wanted.expression_type != "TAG":
        return None
    return wanted.takes_all or tags_code in wanted.tag_hashes
