"""`metaq quota`: limits of what clients, accounts and addresses may take of brokers."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
import typer

from metaq.cli.groups import App
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, print_json, print_table

app = App("Show, set and remove quotas: limits of clients, accounts and addresses.")


class Kind(enum.Enum):
    CLIENT = "client"
    ACCOUNT = "account"
    ADDRESS = "address"


WhoseKind = Annotated[Kind, typer.Argument(metavar="client|account|address", help="what the quota limits")]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="client id, access key or address; '*' for each that has no quota of its own"),
]
Broker = Annotated[
    str | None, typer.Option("--broker", metavar="NAME", help="one broker, by name or host:port (default: all masters)")
]


@app.command("show")
def show_quotas(broker: Broker = None, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """Show the quotas, and the current use by those whom they limit, longest waits first."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.list_quotas(broker)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    print_table(
        ("broker", "kind", "name", "limits", "connections", "held pulls", "requests", "in", "out", "waited", "refused", "wait"),
        (
            (
                name, use.kind, use.name, str(use.limits) or "-", use.connections, use.held_pulls, use.requests,
                f"{use.bytes_in:,} B", f"{use.bytes_out:,} B", use.delayed, use.refused, f"{use.wait_ms:,} ms",
            )
            for name, uses in found.items()
            for use in uses
        ),
    )  # fmt: skip


@app.command("set")
def set_quota(
    kind: WhoseKind,
    name: Name,
    limits: Annotated[
        list[str],
        typer.Argument(
            metavar="LIMIT=NUMBER...",
            help="connections, connectionsPerSecond, requestsPerSecond, bytesInPerSecond, bytesOutPerSecond, heldPulls, topics, "
            "groups; K, M, G may follow the number, 0 is no limit",
        ),
    ],
    broker: Broker = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Set a quota, which holds at once and after restarts. It replaces an earlier one of the same name."""
    from metaq.admin import Admin

    text = ",".join(limits)
    with Admin(namesrv) as admin:
        brokers = admin.set_quota(kind.value, name, text, broker=broker)
    if as_json:
        print_json({"kind": kind.value, "name": name, "limits": text, "brokers": brokers})
    else:
        print(f"the quota of the {kind.value} {name} is {text} at {', '.join(brokers)}")


@app.command("remove")
def remove_quota(
    kind: WhoseKind,
    name: Name,
    broker: Broker = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Remove a quota: the quota of '*' applies then, or else the limits in the broker's options."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        brokers = admin.remove_quota(kind.value, name, broker=broker)
    if as_json:
        print_json({"kind": kind.value, "name": name, "limits": None, "brokers": brokers})
    else:
        print(f"the {kind.value} {name} has no quota of its own any more at {', '.join(brokers)}")
