"""`metaq cluster`: the brokers of all clusters, and their leaders; `add-broker`, `remove-broker` (`growth`), `move-leader`, `restart` (`rolling`)."""

from __future__ import annotations

import typer

from metaq.cli.cluster import growth, rolling
from metaq.cli.cluster.groups_of_replicas import group_json, print_groups
from metaq.cli.groups import App
from metaq.cli.output import NAMESRV_DEFAULT, AsJson, NameServers, disk_text, iso_time, print_json, print_table

app = App("", invoke_without_command=True, no_args_is_help=False)
app.command("add-broker")(growth.add_broker)
app.command("remove-broker")(growth.remove_broker)
app.command("move-leader")(rolling.move_leader)
app.command("restart")(rolling.restart_cluster)


@app.callback()
def show_cluster(context: typer.Context, namesrv: NameServers = NAMESRV_DEFAULT, as_json: AsJson = False) -> None:
    """List the brokers of all clusters: rates, disks, lag of slaves, leaders.

    Its subcommands add, remove and restart brokers, and move a leader.
    """
    if context.invoked_subcommand is not None:
        return
    from metaq.admin import Admin
    from metaq.admin.brokers import behind

    with Admin(namesrv) as admin:
        brokers = admin.list_brokers()
        groups = admin.list_groups_of_replicas(sorted({one.broker for one in brokers if "METAQ" in one.runtime}))
    if as_json:
        print_json(
            [
                {
                    "cluster": broker.cluster,
                    "broker": broker.broker,
                    "broker_id": broker.broker_id,
                    "address": broker.address,
                    "version": broker.version,
                    "stored_per_second": broker.put_rate,
                    "delivered_per_second": broker.get_rate,
                    "disk_used": broker.disk_used,
                    "disk_step": broker.disk_step or None,
                    "behind_bytes": behind(brokers, broker),
                    "started": iso_time(broker.started_ms),
                    "draining": broker.draining,
                    "error": broker.error or None,
                    "failover": group_json(groups, broker),
                    "runtime": broker.runtime,
                }
                for broker in brokers
            ]
        )
        return
    print_table(
        ("cluster", "broker", "id", "address", "version", "stored/s", "delivered/s", "disk", "behind", "since"),
        (
            (
                broker.cluster,
                broker.broker,
                broker.broker_id,
                broker.address,
                "unknown" if broker.error else broker.version,
                round(broker.put_rate, 1),
                round(broker.get_rate, 1),
                disk_text(broker.disk_used, broker.disk_step),
                "" if (lag := behind(brokers, broker)) is None else f"{lag:,} B",
                iso_time(broker.started_ms),
            )
            for broker in brokers
        ),
    )
    print_groups(groups)
    for broker in brokers:
        if broker.error:
            print(f"{broker.broker}: {broker.error}")
        if broker.draining:
            print(
                f"{broker.broker}: drained: producers do not send to it; `metaq broker drain {broker.broker} --undo` lets them"
            )
        for key in ("metaqTrouble", "unsavedFiles"):
            if trouble := broker.runtime.get(key):
                print(f"{broker.broker}: {trouble}")
