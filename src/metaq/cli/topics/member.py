"""`metaq group show --client`: what one running consumer tells of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaq.cli.output import iso_time, print_json, print_table

if TYPE_CHECKING:
    from metaq.admin.members import RunningMember


def show_member(namesrv: str, group: str, client: str, *, stacks: bool, as_json: bool) -> None:
    """Ask a member, and print its state."""
    from metaq.admin import Admin

    with Admin(namesrv) as admin:
        member = admin.consumer_running_info(group, client, stacks=stacks)
    if as_json:
        print_json(_json(member))
        return
    state = member.state
    print(f"member {client} of group {group}, asked through {member.broker}")
    for one in state.subscriptions:
        print(f"  subscribes to {one.topic} ({one.spelling})")
    print_table(("option", "value"), sorted(state.properties.items()))
    print_table(
        ("topic", "broker", "queue", "position", "cached", "locked", "last pull", "last consumed"),
        (
            (
                queue.topic, queue.broker, queue.queue_id, one.position, one.cached, "yes" if one.locked else "",
                iso_time(one.pulled_ms) if one.pulled_ms else "", iso_time(one.consumed_ms) if one.consumed_ms else "",
            )
            for queue, one in sorted(state.queues.items())
        ),
    )  # fmt: skip
    print_table(
        ("topic", "pulled/s", "pull ms", "consumed/s", "handler ms", "failed/s", "failed in an hour"),
        (
            (topic, one.pulled, one.pull_ms, one.consumed, one.consume_ms, one.failed, one.failed_messages)
            for topic, one in sorted(state.rates.items())
        ),
    )
    if state.stacks is not None:
        print(state.stacks)


def _json(member: RunningMember) -> dict[str, object]:
    state = member.state
    return {
        "group": member.group,
        "client_id": member.client_id,
        "broker": member.broker,
        "properties": dict(sorted(state.properties.items())),
        "subscriptions": {one.topic: one.spelling for one in state.subscriptions},
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "position": one.position,
                "cached": one.cached,
                "locked": one.locked,
                "last_pull": iso_time(one.pulled_ms) if one.pulled_ms else None,
                "last_consumed": iso_time(one.consumed_ms) if one.consumed_ms else None,
            }
            for queue, one in sorted(state.queues.items())
        ],
        "rates": {
            topic: {
                "pulled_per_second": one.pulled,
                "pull_milliseconds": one.pull_ms,
                "consumed_per_second": one.consumed,
                "handler_milliseconds": one.consume_ms,
                "failed_per_second": one.failed,
                "failed_in_an_hour": one.failed_messages,
            }
            for topic, one in sorted(state.rates.items())
        },
        "stacks": state.stacks,
    }
