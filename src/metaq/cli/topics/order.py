"""`metaq topic order`: the fixed list of queues that strict order needs."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.completing import complete_topics
from metaq.cli.groups import App
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, print_json

app = App("Show, set and delete the fixed queues of a strictly ordered topic.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="name of the topic", autocompletion=complete_topics)]


@app.command("show")
def show_order(name: Name, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Show the fixed queues of a topic, as each name server has them."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        order = admin.topic_order(name)
    if as_json:
        print_json({"topic": name, "order": order.layout, "name_servers": order.layouts, "in_routes": order.in_routes})
        return
    if order.layout is not None:
        print(f"topic {name} has the fixed queues {order.layout}")
    elif any(order.layouts.values()):
        print(
            f"the name servers have different fixed queues of topic {name}; `metaq topic order set` makes them the same:"
        )
        for server, layout in order.layouts.items():
            print(f"  {server}  {layout or '-'}")
    else:
        print(f"topic {name} has no fixed queues")
    if any(order.layouts.values()) and not order.in_routes:
        print("the name servers do not put it into routes (orderMessageEnable=false): Java producers do not use it")


@app.command("set")
def set_order(
    name: Name,
    layout: Annotated[
        str | None,
        typer.Argument(
            metavar="[BROKER:QUEUES;...]",
            help="brokers and their numbers of queues (default: the queues that the topic has now)",
        ),
    ] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Fix the queues of a topic at every name server.

    Strict order needs this: an ordering key then keeps its queue while a broker is down.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        stored = admin.set_topic_order(name, layout)
    if as_json:
        print_json({"topic": name, "order": stored})
    else:
        print(f"topic {name} has the fixed queues {stored}")


@app.command("delete")
def delete_order(name: Name, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Delete the fixed queues of a topic: it has the queues of the running brokers again."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        admin.delete_topic_order(name)
    if as_json:
        print_json({"topic": name, "order": None})
    else:
        print(f"topic {name} has no fixed queues any more")
