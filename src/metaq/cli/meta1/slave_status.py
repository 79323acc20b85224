"""`metaq meta1 slave-status`: how far a slave is behind its master."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from metaq.amounts import size
from metaq.cli.output import EXIT_FAILED, NAMESRV_DEFAULT, AsJson, print_json, print_table, yes_or_no

if TYPE_CHECKING:
    from metaq.admin.figures.metaq1_slaves import SlaveStatus

_SHOWN: Final = 50


def show_slave_status(
    slave: Annotated[
        str, typer.Argument(metavar="SLAVE", help="HOST:PORT of the slave's text protocol (serverPort in server.ini)")
    ],
    master: Annotated[str, typer.Argument(metavar="MASTER", help="HOST:PORT of the text protocol of its master")],
    as_json: AsJson = False,
) -> None:
    """Show how many bytes of each partition a slave of MetaQ 1.x lacks.

    Slave and master may be ours or the original. Exit codes: 0 it is a slave of that broker and lacks nothing, 1 it is not a slave of
    it, or lacks something, if only messages stored during this check. A slave that has more than its master copies nothing: its log
    says why.
    """
    from metaq.admin import Admin
    from metaq.admin.figures.metaq1_slaves import slave_status

    with Admin(NAMESRV_DEFAULT) as admin:  # The name servers are not asked: such servers may have none.
        at_master, at_slave = admin.metaq1_stats(master), admin.metaq1_stats(slave)
    assert at_master is not None, "only a topic may be unknown"
    assert at_slave is not None, "only a topic may be unknown"
    found = slave_status(at_master, at_slave)
    if as_json:
        print_json(
            {
                "slave": found.is_slave,
                "same_broker": found.same_broker,
                "replicates": found.replicates,
                "lacks": found.lacks,
                "partitions": [
                    {
                        "topic": one.topic,
                        "partition": one.partition,
                        "master": one.master,
                        "slave": one.slave,
                        "lacks": one.lacks,
                    }
                    for one in found.partitions
                ],
            }
        )
    else:
        _print(slave, master, found)
    if not found.replicates:
        raise typer.Exit(EXIT_FAILED)


def _print(slave: str, master: str, found: SlaveStatus) -> None:
    if not found.is_slave:
        print(f"{slave} is no slave")
    if not found.same_broker:
        print(f"{slave} and {master} have different broker ids: the one is no slave of the other")
    # As the original's tool, where these lines stand among others.
    print(f"Replicate partitions: {len(found.partitions)}")
    print(f"Replicate status: {yes_or_no(found.replicates)}, {size(found.lacks)} to come")
    behind = [one for one in found.partitions if one.lacks]
    if behind:
        print_table(
            ("topic", "partition", "at the master", "at the slave", "lacks"),
            (
                (one.topic, one.partition, one.master, "-" if one.slave is None else one.slave, one.lacks)
                for one in behind[:_SHOWN]
            ),
        )
    if len(behind) > _SHOWN:
        print(f"and {len(behind) - _SHOWN} more (--json has all)")
