"""What needs somebody's attention, the worst first: found in a look at the cluster, without asking it anything more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from metaq.admin.brokers import BrokerStatus, behind
from metaq.admin.figures.activity import Activity, GroupActivity
from metaq.dashboard.rendering.filters import age, count, share, size
from metaq.dashboard.sampling.concerns import Concerns
from metaq.dashboard.sampling.sampler import Sampler
from metaq.model.topics.route import MASTER_ID

SHOWN_MAX: Final = 50
DISK_BAD: Final = 0.85
"""RocketMQ deletes old files whatever the hour from here on; at 0.9 it refuses sends."""
DISK_WARN: Final = 0.75
BEHIND_BYTES: Final = 64 * 1024 * 1024
LAG_MIN: Final = 1000
"""Messages that a group must be behind before its growth matters."""
GROWTH_LOOKS: Final = 12
"""Looks over which a lag must have grown by a tenth: a minute."""
UNDECIDED_SECONDS: Final = 600.0


class Attention(Struct, frozen=True):
    """`level`: "bad" or "warn". `subject`: what it is about. `pages`, `name`: the page about it, as "groups" and the group; "": none."""

    level: str
    subject: str
    text: str
    pages: str = ""
    name: str = ""


def attention(sampler: Sampler) -> list[Attention]:
    """Return all of it, the worst first."""
    found = list[Attention]()
    look = sampler.look
    if sampler.error:
        found.append(Attention("bad", "Cluster", sampler.error))
    if look is not None:
        for one in look.brokers:
            found += _of_broker(look, one)
        for group in look.groups:
            found += _of_group(sampler, group)
    if sampler.concerns is not None:
        found += _of_concerns(sampler.concerns)
    return sorted(found, key=lambda one: one.level != "bad")


def called(broker: str, number: int) -> str:
    """Return how a broker process is called: slaves with their number."""
    return broker if number == MASTER_ID else f"{broker}/{number}"


def _of_broker(look: Activity, one: BrokerStatus) -> Iterator[Attention]:
    name, link = called(one.broker, one.broker_id), ("brokers", one.address)
    if one.error:
        yield Attention("bad", f"Broker {name}", f"does not answer: {one.error}", *link)
        return
    if not one.registered:
        yield Attention("warn", f"Broker {name}", "answers, but no name server knows it: clients do not find it", *link)
    if one.trouble:
        yield Attention("bad", f"Broker {name}", one.trouble, *link)
    used = one.disk_used or 0.0
    if one.disk_step == "refuse":
        yield Attention("bad", f"Broker {name}", f"refuses sends: {share(used)} of its disk are used", *link)
    elif used >= DISK_BAD:
        yield Attention("bad", f"Broker {name}", f"{share(used)} of its disk are used", *link)
    elif used >= DISK_WARN:
        yield Attention("warn", f"Broker {name}", f"{share(used)} of its disk are used", *link)
    lacks = behind(look.brokers, one)
    if lacks is not None and lacks > BEHIND_BYTES:
        yield Attention("warn", f"Broker {name}", f"lacks {size(lacks)} of its master's log", *link)


def _of_group(sampler: Sampler, group: GroupActivity) -> Iterator[Attention]:
    link = ("groups", group.group)
    if group.lag and group.members == 0:
        text = f"has no members, and {count(group.lag)} messages wait for it"
        yield Attention("warn", f"Group {group.group}", text, *link)
    elif group.lag >= LAG_MIN and (grown := grown_by(sampler.groups.of(group.group))) is not None:
        text = f"falls behind: {count(group.lag)} messages wait, {count(grown)} more than a minute ago"
        yield Attention("warn", f"Group {group.group}", text, *link)


def grown_by(points: list[float | None]) -> float | None:
    """Return by how much a lag has grown in a minute; None: not by so much that it matters."""
    if len(points) <= GROWTH_LOOKS:
        return None
    now, before = points[-1], points[-1 - GROWTH_LOOKS]
    if now is None or before is None or now <= before * 1.1 + 10:
        return None
    return now - before


def _of_concerns(concerns: Concerns) -> Iterator[Attention]:
    for one in concerns.dead.values():
        if one.more:
            text = f"has {count(one.more)} new dead letters, {count(one.stored)} altogether"
            yield Attention("bad", f"Group {one.group}", text, "groups", one.group)
    old = [one for one in concerns.undecided or () if (one.age_seconds or 0) > UNDECIDED_SECONDS]
    if old:
        longest = max(one.age_seconds or 0 for one in old)
        yield Attention(
            "warn",
            "Transactions",
            f"{count(len(old))} are undecided for more than {age(UNDECIDED_SECONDS)}, the oldest for {age(longest)}",
        )
