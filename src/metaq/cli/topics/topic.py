"""`metaq topic`: create, list, show, delete, and `order` (`metaq.cli.topics.order`)."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.completing import complete_topics
from metaq.cli.groups import App
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, Yes, iso_time, print_json, print_table
from metaq.cli.topics import order
from metaq.model import Perm

app = App("Create, list, show and delete topics.")

app.add_typer(order.app, name="order")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="name of the topic", autocompletion=complete_topics)]
_PERMS = {"rw": Perm.READ | Perm.WRITE, "r": Perm.READ, "w": Perm.WRITE}


@app.command("create")
def create_topic(
    name: Name,
    queues: Annotated[int, typer.Option(min=1, max=1024, help="queues at each broker")] = 8,
    perm: Annotated[str, typer.Option(help="rw, r or w")] = "rw",
    cluster: Annotated[str | None, typer.Option(help="only at the brokers of this cluster")] = None,
    broker: Annotated[str | None, typer.Option(help="only at this broker")] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a topic, or change the queues and permission of one that exists."""
    from metaq.admin import Admin

    if perm not in _PERMS:
        raise typer.BadParameter(f"{perm!r} is none of rw, r, w", param_hint="--perm")
    with Admin(namesrv) as admin:
        brokers = admin.create_topic(name, queues=queues, perm=int(_PERMS[perm]), cluster=cluster, broker=broker)
    if as_json:
        print_json({"topic": name, "queues": queues, "perm": perm, "brokers": brokers})
    else:
        print(f"topic {name} has {queues} queues at {', '.join(brokers)}")


@app.command("list")
def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", help="also those of brokers, retries (%RETRY%) and dead letters (%DLQ%)")
    ] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the topics."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        names = admin.list_topics(system=everything)
    if as_json:
        print_json(names)
    else:
        for name in names:
            print(name)


@app.command("show")
def show_topic(name: Name, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Show where a topic's queues are and which offsets they keep."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        details = admin.describe_topic(name)
    if as_json:
        print_json(
            {
                "topic": name,
                "messages": details.messages,
                "brokers": [
                    {
                        "broker": data.broker,
                        "read_queues": data.read_queues,
                        "write_queues": data.write_queues,
                        "perm": data.perm,
                    }
                    for data in details.route.queues
                ],
                "queues": [
                    {
                        "broker": queue.broker,
                        "queue_id": queue.queue_id,
                        "min_offset": stats.min_offset,
                        "max_offset": stats.max_offset,
                        "last_stored": iso_time(stats.last_ms),
                    }
                    for queue, stats in details.queues.items()
                ],
            }
        )
        return
    print_table(
        ("broker", "queue", "min offset", "max offset", "messages", "last stored"),
        (
            (
                queue.broker,
                queue.queue_id,
                stats.min_offset,
                stats.max_offset,
                stats.max_offset - stats.min_offset,
                iso_time(stats.last_ms),
            )
            for queue, stats in details.queues.items()
        ),
    )


@app.command("delete")
def delete_topic(
    name: Name,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and all its messages."""
    from metaq.admin import Admin

    if not yes:
        typer.confirm(f"Delete topic {name} and all its messages?", abort=True)
    with Admin(namesrv) as admin:
        admin.delete_topic(name)
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        print(f"topic {name} is deleted")
