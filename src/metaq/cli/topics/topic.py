"""`metaq topic`: create, list, show, update, delete, `stats` (`topic_stats`), `trim`, `units`, `order` and `move` (`growth`)."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.cluster import growth
from metaq.cli.completing import complete_topics
from metaq.cli.groups import App
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, Yes, ask, iso_time, print_json, print_table
from metaq.cli.topics import order, topic_stats
from metaq.cli.topics.trim import trim_topic
from metaq.cli.topics.units import show_units
from metaq.model import Perm

app = App("Create, list, show, change and delete topics.")

app.add_typer(order.app, name="order")
app.command("units")(show_units)
app.command("move")(growth.move_topic)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="name of the topic", autocompletion=complete_topics)]
_PERMS = {"rw": Perm.READ | Perm.WRITE, "r": Perm.READ, "w": Perm.WRITE}
_PERM_NAMES = {int(perm): name for name, perm in _PERMS.items()}


@app.command("create")
def create_topic(
    name: Name,
    queues: Annotated[int, typer.Option(min=1, max=1024, help="number of queues at each broker")] = 8,
    perm: Annotated[str, typer.Option(help="permission: rw, r or w")] = "rw",
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
        bool,
        typer.Option(
            "--all", help="also the brokers' own topics, retry topics (%RETRY%) and dead-letter topics (%DLQ%)"
        ),
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
    """Show the queues of a topic at each broker: permission, offsets, messages, time of the last one."""
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
    for data in details.route.queues:
        perm = _PERM_NAMES.get(data.perm, str(data.perm))
        print(f"{data.broker}: permission {perm}, {data.read_queues} read queues, {data.write_queues} write queues")
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


app.command("trim")(trim_topic)
app.command("stats")(topic_stats.show_stats)


@app.command("update")
def update_topic(
    name: Name,
    queues: Annotated[
        int | None, typer.Option(min=1, max=1024, help="number of read and write queues at each broker")
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option(min=1, max=1024, help="number of queues at each broker that consumers read")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option(min=1, max=1024, help="number of queues at each broker that producers send to")
    ] = None,
    perm: Annotated[str | None, typer.Option(help="permission: rw, r or w")] = None,
    cluster: Annotated[str | None, typer.Option(help="only at the brokers of this cluster")] = None,
    broker: Annotated[str | None, typer.Option(help="only at this broker")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="change it even if unconsumed messages would reach no consumer")
    ] = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change the number of queues or the permission of a topic. What is not given stays as it is.

    Reduce the number of queues in two steps, so that no message is missed: lower --write-queues first, and --read-queues when the groups
    have consumed the other queues.
    """
    from metaq.admin import Admin

    if perm is not None and perm not in _PERMS:
        raise typer.BadParameter(f"{perm!r} is none of rw, r, w", param_hint="--perm")
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise typer.BadParameter("not together with --read-queues and --write-queues", param_hint="--queues")
    if perm is None and queues is None and read_queues is None and write_queues is None:
        raise typer.BadParameter("nothing is to be changed: give --queues, --read-queues, --write-queues or --perm")
    with Admin(namesrv) as admin:
        changed = admin.update_topic(
            name,
            read_queues=read_queues if queues is None else queues,
            write_queues=write_queues if queues is None else queues,
            perm=None if perm is None else int(_PERMS[perm]),
            cluster=cluster,
            broker=broker,
            force=force,
        )
    rows = [
        {
            "broker": one.broker,
            "read_queues": one.read_queues,
            "write_queues": one.write_queues,
            "perm": _PERM_NAMES.get(one.perm, str(one.perm)),
        }
        for one in changed
    ]
    if as_json:
        print_json({"topic": name, "brokers": rows})
    else:
        print_table(("broker", "read queues", "write queues", "permission"), (list(row.values()) for row in rows))


@app.command("delete")
def delete_topic(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="delete it even while members of groups read it")] = False,
    yes: Yes = False,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and all its messages. Refused while members of groups read it, unless --force is given."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        if not yes:
            admin.delete_topic(name, force=force, dry_run=True)
            ask(f"Delete topic {name} and all its messages?")
        admin.delete_topic(name, force=force)
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        print(f"topic {name} is deleted")
