"""`metaq topic order`: the fixed list of queues that strict order needs."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.completing import complete_topics
from metaq.cli.groups import App
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, print_json

app = App("The fixed queues of a strictly ordered topic: show, set, delete.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="name of the topic", autocompletion=complete_topics)]


@app.command("show")
def show_order(name: Name, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Show a topic's fixed queues, as every name server has them."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        order = admin.topic_order(name)
    if as_json:
        print_json({"topic": name, "order": order.layout, "name_servers": order.layouts, "in_routes": order.in_routes})
        return
    if order.layout is not None:
        print(f"topic {name} has the fixed queues {order.layout}")
    elif any(order.layouts.values()):
        print(f"the name servers differ over topic {name}; set its order again:")
        for server, layout in order.layouts.items():
            print(f"  {server}  {layout or '-'}")
    else:
        print(f"topic {name} has no fixed queues")
    if any(order.layouts.values()) and not order.in_routes:
        print("routes do not tell it (orderMessageEnable=false): Java producers do not know of it")


@app.command("set")
def set_order(
    name: Name,
    layout: Annotated[
        str | None, typer.Argument(metavar="[BROKER:QUEUES;...]", help="by default the queues that the topic has now")
    ] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Fix a topic's queues at every name server: keys are hashed over them also while a broker is down."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        stored = admin.set_topic_order(name, layout)
    if as_json:
        print_json({"topic": name, "order": stored})
    else:
        print(f"topic {name} has the fixed queues {stored}")


@app.command("delete")
def delete_order(name: Name, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Let a topic's queues be those of the brokers that are up."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        admin.delete_topic_order(name)
    if as_json:
        print_json({"topic": name, "order": None})
    else:
        print(f"topic {name} has no fixed queues any more")
