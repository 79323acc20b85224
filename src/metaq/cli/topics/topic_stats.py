"""`metaq topic stats`: a topic in figures, queue by queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.amounts import count
from metaq.cli.completing import complete_topics
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, iso_time, print_json, print_json_line, print_table
from metaq.cli.topics.waiting import waiting_json, waiting_text
from metaq.cli.watching import INTERVAL_DEFAULT, Interval, Rates, Watch, rate_text, repeat

if TYPE_CHECKING:
    from metaq.admin.figures.topic_figures import TopicFigures


def show_stats(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="name of the topic", autocompletion=complete_topics)],
    watch: Watch = False,
    interval: Interval = INTERVAL_DEFAULT,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show figures of each queue of a topic: offsets, messages, bytes, time of the last message.

    Bytes with a ~ are estimated from a part of the messages. Queues that no group reads are marked (brokers do not know of readers
    without a group). --watch adds the messages per second that each queue gets.
    """
    from metaq.admin import Admin

    rates = Rates()

    def show(found: TopicFigures) -> None:
        paces = [rates.rate(one.queue, one.end) for one in found.queues]
        if as_json:
            if watch:
                print_json_line(_json(found, paces, watched=True))
            else:
                print_json(_json(found, paces, watched=False))
            return
        print(f"topic {name}: {count(found.messages, 'message')}, {waiting_text(found.size) or '? B'}")
        print(f"  read by {', '.join(found.readers) or 'no group'}", end="")
        print(f"; without members: {', '.join(found.stopped)}" if found.stopped else "")
        print_table(
            (
                "broker", "queue", "begin", "end", "messages", "bytes", "last stored", *(("stored/s",) if watch else ()), "",
            ),
            (
                (
                    one.queue.broker,
                    one.queue.queue_id,
                    one.begin,
                    one.end,
                    one.messages,
                    waiting_text(one.size),
                    iso_time(one.last_ms),
                    *((rate_text(pace),) if watch else ()),
                    "no group reads it" if found.unread(one) else "",
                )
                for one, pace in zip(found.queues, paces, strict=True)
            ),
        )  # fmt: skip

    with Admin(namesrv) as admin:
        repeat(lambda: admin.topic_stats(name), show, watch=watch, seconds=interval)


def _json(found: TopicFigures, paces: list[float | None], *, watched: bool) -> dict[str, object]:
    return {
        "topic": found.topic,
        "time": iso_time(found.now_ms),
        "messages": found.messages,
        **waiting_json(found.size, "bytes"),
        "readers": list(found.readers),
        "groups_without_members": list(found.stopped),
        "queues": [
            {
                "broker": one.queue.broker,
                "queue_id": one.queue.queue_id,
                "begin": one.begin,
                "end": one.end,
                "messages": one.messages,
                **waiting_json(one.size, "bytes"),
                "last_stored": iso_time(one.last_ms),
                "unread": found.unread(one),
                **({"stored_per_second": pace} if watched else {}),
            }
            for one, pace in zip(found.queues, paces, strict=True)
        ],
    }
