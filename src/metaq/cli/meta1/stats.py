"""`metaq meta1 stats`: what a server of MetaQ 1.x tells of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from metaq.amounts import count, size
from metaq.cli.output import EXIT_NOT_FOUND, NAMESRV_DEFAULT, AsJson, print_json, print_table, span, yes_or_no
from metaq.cli.watching import rate_text

if TYPE_CHECKING:
    from metaq.admin import Admin
    from metaq.admin.figures.metaq1 import Metaq1Figures
    from metaq.model.transactions.metaq1 import BranchState

SERVER_DEFAULT: Final = "127.0.0.1:8123"
_BYTES: Final = "message_size"
"""Kind of traffic whose value is in bytes."""


def show_stats(
    address: Annotated[
        str,
        typer.Argument(metavar="[HOST:PORT]", help="address of the server's text protocol (serverPort in server.ini)"),
    ] = SERVER_DEFAULT,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="only figures of this topic")] = None,
    broker: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="remoting server of a broker of ours: show its transactions, too"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the figures of a server of MetaQ 1.x: commands, transactions, topics, partitions, traffic.

    The server may be ours or the original Java one. The figures come from its command `stats`. With --broker, also the numbers of
    open and prepared transactions, which the original shows by JMX only. Traffic is that of topics with stat=true since the last
    reset of the counters, which happens every 30 minutes.
    """
    from metaq.admin import Admin

    with Admin(NAMESRV_DEFAULT) as admin:  # The name servers are not asked: such a server may have none.
        found = admin.metaq1_stats(address, topic)
        if found is None:
            typer.echo(f"metaq meta1 stats: there is no topic {topic} at {address}", err=True)
            raise typer.Exit(EXIT_NOT_FOUND)
        transactions = _transactions(admin, broker) if broker is not None else None
    if as_json:
        print_json(_json(found, transactions))
    else:
        _print(address, found, transactions)


def _transactions(admin: Admin, broker: str) -> dict[str, list[BranchState]]:
    """Return phase → the transactions at our broker. Raises MetaqError: it does not answer."""
    from metaq.errors import ConnectionFailed

    listed = admin.list_branches(broker=broker, limit=1 << 30)
    for why in listed.unreached.values():
        raise ConnectionFailed(f"the transactions of {broker} cannot be listed: {why}")
    found: dict[str, list[BranchState]] = {}
    for states in listed.branches.values():
        for state in states:
            found.setdefault(state.phase.value, []).append(state)
    return found


def _json(found: Metaq1Figures, transactions: dict[str, list[BranchState]] | None) -> dict[str, Any]:
    return {
        "broker": {key: _value(text) for key, text in found.broker.items()},
        "topics": [
            {
                "topic": one.topic,
                "partitions": one.partitions,
                "messages": one.messages,
                "bytes": one.bytes,
                "publish": one.publish,
                "subscribe": one.subscribe,
            }
            for one in found.topics
        ],
        "partitions": [
            {"topic": one.topic, "partition": one.partition, "min_offset": one.low, "max_offset": one.high}
            for one in found.partitions
        ],
        "traffic": {
            kind: None
            if one is None
            else {"events": one.events, "value": one.value, "seconds": one.seconds, "per_second": one.per_second}
            for kind, one in found.traffic.items()
        },
        **(
            {}
            if transactions is None
            else {"transactions": {phase: [one.key for one in states] for phase, states in transactions.items()}}
        ),
    }


def _value(text: str) -> int | bool | str:
    return int(text) if text.isdecimal() else text == "true" if text in {"true", "false"} else text


def _print(address: str, found: Metaq1Figures, transactions: dict[str, list[BranchState]] | None) -> None:
    told = found.broker
    up = told.get("uptime", "")
    print(
        f"broker {told.get('broker_id', '?')} at {address}: version {told.get('version', '?')}, up {span(int(up)) if up.isdecimal() else '?'}, "
        f"{told.get('curr_connections', '?')} connections, {told.get('threads', '?')} threads"
        + (", a slave" if told.get("slave") == "true" else "")
    )
    print(
        f"commands: {told.get('cmd_put', '?')} puts ({told.get('put_failed', '?')} failed), {told.get('cmd_get', '?')} gets "
        f"({told.get('get_miss', '?')} found nothing), {told.get('cmd_offset', '?')} offsets"
    )
    print(
        f"transactions: {told.get('tx_begin', '?')} begun, {told.get('tx_xa_begin', '?')} XA branches, {told.get('tx_commit', '?')} committed, "
        f"{told.get('tx_rollback', '?')} rolled back"
    )
    for phase, states in sorted((transactions or {}).items()):
        print(f"  {phase}: {count(len(states), 'transaction')}, such as {states[0].key}")
    if transactions is not None and not transactions:
        print("  none is open")
    bounds = {one.topic: 0 for one in found.topics}
    for part in found.partitions:
        bounds[part.topic] = max(bounds.get(part.topic, 0), part.high)
    print_table(
        ("topic", "partitions", "messages", "bytes", "publish", "subscribe", "highest offset"),
        (
            (
                one.topic,
                one.partitions,
                one.messages,
                size(one.bytes),
                yes_or_no(one.publish),
                yes_or_no(one.subscribe),
                bounds[one.topic],
            )
            for one in found.topics
        ),
    )
    if any(found.traffic.values()):
        print_table(
            ("recent traffic", "events", "events/s", "bytes", "of the last"),
            (
                (
                    kind,
                    one.events,
                    rate_text(one.per_second),
                    size(one.value) if kind == _BYTES else "",
                    span(one.seconds),
                )
                for kind, one in found.traffic.items()
                if one is not None
            ),
        )
