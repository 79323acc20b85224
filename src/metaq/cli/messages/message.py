"""`metaq message`: its trace, and what `metaq.cli.messages.find` has."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.completing import complete_groups, complete_topics
from metaq.cli.groups import App
from metaq.cli.messages.find import get_message, query_messages, track_message
from metaq.cli.output import EXIT_FAILED, NAMESRV_DEFAULT, AsJson, NameServers, iso_time, print_json, print_table
from metaq.model.topics.system import TRACE_TOPIC

app = App("Find messages, and show who has consumed them.")

app.command("query")(query_messages)
app.command("get")(get_message)
app.command("track")(track_message)


@app.command("resend")
def resend(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="message id, as the send returned it, or offset id")],
    group: Annotated[
        str,
        typer.Option(
            "--group", metavar="GROUP", help="consumer group that gets the message", autocompletion=complete_groups
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="ID", help="client id of the member that gets it (default: any member)"),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="topic of the message (default: the topics of the group are searched)",
            autocompletion=complete_topics,
        ),
    ] = None,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Deliver a stored message to a running consumer of a group now, and show the result.

    The consumer's handler gets the message like any other. The group's progress does not change, and the message is not retried if
    the handler fails. Exit code 1: it was not consumed.
    """
    from metaq.admin import Admin
    from metaq.model.inspection import ConsumeVerdict

    with Admin(namesrv) as admin:
        done = admin.consume_directly(group, message_id, client_id=client, topic=topic)
    outcome = done.outcome
    if as_json:
        print_json(
            {
                "message_id": message_id,
                "offset_id": done.offset_id,
                "topic": done.topic,
                "broker": done.broker,
                "group": group,
                "client_id": done.client_id,
                "result": outcome.verdict.value if outcome.verdict else None,
                "remark": outcome.remark,
                "milliseconds": outcome.spent_ms,
                "order": outcome.order,
            }
        )
    else:
        said = _RESULTS.get(outcome.verdict.name if outcome.verdict else "", "answered with an unknown result")
        why = f": {outcome.remark}" if outcome.remark else ""
        print(f"member {done.client_id} of group {group} {said} ({outcome.spent_ms} ms){why}")
    if outcome.verdict not in {ConsumeVerdict.SUCCESS, ConsumeVerdict.COMMIT}:
        raise typer.Exit(EXIT_FAILED)


_RESULTS = {
    "SUCCESS": "consumed the message",
    "COMMIT": "consumed the message",
    "LATER": "wants the message again later",
    "ROLLBACK": "wants the message again later",
    "EXCEPTION": "failed to consume the message",
    "NOTHING": "did not say what became of the message",
}
"""By the verdict's name."""


@app.command("trace")
def show_trace(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="message id, as the send returned it")],
    trace_topic: Annotated[str, typer.Option(metavar="TOPIC", help="topic that clients write traces to")] = TRACE_TOPIC,
    namesrv: NameServers = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show what happened to a message: sent, stored, each delivery with group, client, duration and result.

    Only clients with tracing switched on write traces (trace=True; in Java enableMsgTrace), about a second after the event.
    """
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        found = admin.message_trace(message_id, trace_topic=trace_topic)
    if as_json:
        print_json(
            {
                "message_id": found.message_id,
                "events": [
                    {
                        "time": iso_time(event.time_ms),
                        "what": event.what,
                        "topic": event.topic or None,
                        "group": event.group or None,
                        "client": event.client or None,
                        "milliseconds": event.cost_ms,
                        "result": event.result or None,
                        "attempt": event.attempt or None,
                        "detail": event.detail or None,
                    }
                    for event in found.events
                ],
                "brokers_not_asked": list(found.silent),
                "unreadable_records": found.unreadable,
                "more_not_shown": found.cut,
            }
        )
        return
    print_table(
        ("time", "what", "topic", "group", "client", "ms", "result", "attempt", ""),
        (
            (
                iso_time(event.time_ms), event.what, event.topic, event.group, event.client,
                "" if event.cost_ms is None else event.cost_ms, event.result, event.attempt or "", event.detail,
            )
            for event in found.events
        ),
    )  # fmt: skip
    if found.silent:
        print(f"WARNING: the result may be incomplete: these brokers could not be asked: {', '.join(found.silent)}")
    if found.cut:
        print("WARNING: some events are not shown: a broker has more traces of this message than one answer holds")
    if found.unreadable:
        print(f"{found.unreadable} further trace records could not be decoded")
