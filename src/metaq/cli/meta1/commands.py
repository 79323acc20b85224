"""`metaq meta1`: its group of commands, and those that ask a running broker of ours."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from metaq.cli.groups import App
from metaq.cli.meta1 import offsets, partitions, servers, tx
from metaq.cli.meta1.monitor import monitor
from metaq.cli.meta1.slave_status import show_slave_status
from metaq.cli.meta1.stats import show_stats
from metaq.cli.output import EXIT_FAILED, NAMESRV_DEFAULT, AsJson, print_json
from metaq.errors import BrokerError

REMOTING_DEFAULT: Final = "127.0.0.1:10911"

app = App("Operate brokers that serve clients of MetaQ 1.x.")
app.add_typer(tx.app, name="tx")
app.command("stats")(show_stats)
app.command("slave-status")(show_slave_status)
app.command("monitor")(monitor)
servers.add_to(app)
app.command("move-partitions")(partitions.move_partitions)
app.command("delete-partitions")(partitions.delete_partitions)
app.command("show-offset")(offsets.show_offset)
app.command("copy-offsets")(offsets.copy_offsets)
app.command("offset-table")(offsets.offset_table)

Address = Annotated[
    str, typer.Argument(metavar="[HOST:PORT]", help="address of the broker's remoting server (listenPort)")
]


@app.callback()
def meta1() -> None:
    """Operate brokers that serve clients of MetaQ 1.x."""


@app.command("reload")
def reload(address: Address = REMOTING_DEFAULT, as_json: AsJson = False) -> None:
    """Make a broker on this machine read its configuration files again.

    These are server.ini and topic.ini, or the file that it was started with. New topics, more partitions, policies, flush settings
    and flags take effect at once. Changes that need a restart are listed.
    """
    from metaq.admin import Admin

    with Admin(NAMESRV_DEFAULT) as admin:  # The name servers are not asked: the broker may have none.
        try:
            outcome = admin.reload_broker(address)
        except BrokerError as error:
            print(f"metaq meta1 reload: {error.remark or error}", file=sys.stderr)
            raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        print_json(
            {
                "file": outcome.file,
                "changed": outcome.changed,
                "needs_restart": outcome.waiting,
                "warnings": outcome.warnings,
            }
        )
        return
    print(f"{outcome.file} was read again: {'' if outcome.changed else 'nothing changes'}".rstrip())
    for heading, texts in (
        ("in force", outcome.changed),
        ("needs a restart", outcome.waiting),
        ("note", outcome.warnings),
    ):
        for text in texts:
            print(f"  {heading}: {text}")


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="name of the topic")]


@app.command("close-partitions")
def close_partitions(
    topic: Topic,
    first: Annotated[int, typer.Argument(min=0, metavar="FIRST", help="number of the first partition to close")],
    last: Annotated[int, typer.Argument(min=0, metavar="LAST", help="number of the last partition to close")],
    address: Address = REMOTING_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Close partitions of a topic: no client can send to them or read from them.

    This holds for clients of MetaQ 1.x and of RocketMQ, until `metaq meta1 open-partitions` or a restart of the broker.
    """
    _show_closed("close-partitions", topic, (first, last), address, as_json=as_json)


@app.command("open-partitions")
def open_partitions(topic: Topic, address: Address = REMOTING_DEFAULT, as_json: AsJson = False) -> None:
    """Open all partitions of a topic again, so that clients can send to them and read from them."""
    _show_closed("open-partitions", topic, None, address, as_json=as_json)


def _show_closed(command: str, topic: str, numbers: tuple[int, int] | None, address: str, *, as_json: bool) -> None:
    from metaq.admin import Admin

    with Admin(NAMESRV_DEFAULT) as admin:
        try:
            closed = (
                admin.close_partitions(address, topic, *numbers) if numbers else admin.open_partitions(address, topic)
            )
        except BrokerError as error:
            print(f"metaq meta1 {command}: {error.remark or error}", file=sys.stderr)
            raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        print_json({"topic": topic, "closed": closed})
    elif closed:
        print(f"closed partitions of {topic}: {', '.join(map(str, closed))}")
    else:
        print(f"all partitions of {topic} are open")
