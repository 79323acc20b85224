"""A broker process: its figures, its replicas, and its options, which can be changed while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from metaq.admin import replicas
from metaq.admin.brokers import BrokerNotFound, BrokerStatus
from metaq.admin.configuring import changing, reading
from metaq.admin.configuring.judgement import checked
from metaq.admin.rolling.standing import FailoverGroup, standing_of
from metaq.client.conversation.call import FAULTS
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.brokers import BrokerRow, broker_row
from metaq.dashboard.pages.common import seen
from metaq.errors import ConfigError
from metaq.model.servers.option_state import AT_ONCE, OptionState

OPTIONS_SECONDS: Final = 1.0
CHANGE_SECONDS: Final = 10.0


class BrokerQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`q`: text in an option's name. `changed`: only options that are not as by default. `change`, `to`: an option, and the value that it
    would get."""

    q: str = ""
    changed: bool = False
    change: str = ""
    to: str | None = None


class ReplicaRow(Struct, frozen=True):
    """`epoch`, `role`: None: of a RocketMQ, or away. `behind`: bytes of the leader's log that it lacks; None: it leads, or is not known.
    `member`, `in_sync`: in a group with failover; None: there is none, or nobody leads who could tell."""

    name: str
    address: str
    leads: bool
    role: str | None
    epoch: int | None
    log_end: int | None
    behind: int | None
    disk: float | None
    error: str
    member: int | None
    in_sync: bool | None


class OptionRow(Struct, frozen=True):
    """`hot`: it can be changed here; None: a RocketMQ does not say. `waiting`: value after a restart; None: the same."""

    key: str
    value: str | None
    default: str | None
    origin: str
    changes: str
    hot: bool | None
    waiting: str | None


class Preview(Struct, frozen=True):
    """A change that is looked at before it is done. `refused`: why it would not be taken; "": it would."""

    key: str
    before: str | None
    after: str | None
    refused: str
    is_ours: bool


class Figure(Struct, frozen=True):
    name: str
    value: str


class ReplicaGroup(Struct, frozen=True):
    """The brokers of this name, where leaders change by themselves. `faults`: what is wrong with it."""

    leader: int | None
    epoch: int
    in_sync: list[int]
    minimum: int
    lease_ms: int
    faults: list[str]


class Broker(Struct, frozen=True):
    """`is_ours`: None: its options could not be asked."""

    broker: BrokerRow
    trouble: str
    replicas: list[ReplicaRow]
    group: ReplicaGroup | None
    options: list[OptionRow]
    options_total: int
    is_ours: bool | None
    q: str
    changed: bool
    preview: Preview | None
    figures: list[Figure]
    notes: list[str]


def _status(asked: Asked) -> BrokerStatus:
    """Return the broker that is asked for. Raises BrokerNotFound: nobody else is connected to, whatever a link says."""
    address = asked.path["address"]
    look = seen(asked)
    for one in look.brokers:
        if one.address == address:
            return one
    raise BrokerNotFound(f"no broker at {address[:100]} is registered at these name servers")


async def load(asked: Asked) -> Broker:
    query: BrokerQuery = asked.query
    look, status, core = seen(asked), _status(asked), asked.cluster.core
    notes, rows, options, group = list[str](), list[ReplicaRow](), None, None
    try:
        members = await asked.ask(replicas.replicas(core, status.broker), OPTIONS_SECONDS)
        standing = standing_of(members)
        rows, group = _replica_rows(members, standing), _group(standing)
    except (BrokerNotFound, *FAULTS) as error:
        notes.append(f"replicas: {error}")
    try:
        options = await asked.ask(reading.read(core, status.broker, status.address), OPTIONS_SECONDS)
    except FAULTS as error:
        notes.append(f"options: {error}")
    found = [_option_row(one, options.is_ours) for one in options.options] if options is not None else []
    wanted = query.q.strip().lower()
    shown = [
        one
        for one in found
        if wanted in one.key.lower() and not (query.changed and one.origin in {"default", "derived"})
    ]
    return Broker(
        broker=broker_row(asked, look, status),
        trouble=status.trouble,
        replicas=rows,
        group=group,
        options=shown,
        options_total=len(found),
        is_ours=options.is_ours if options is not None else None,
        q=query.q.strip(),
        changed=query.changed,
        preview=_preview(options, query) if options is not None and query.change else None,
        figures=[Figure(name, value) for name, value in sorted(status.runtime.items())],
        notes=notes,
    )


def _group(standing: FailoverGroup | None) -> ReplicaGroup | None:
    if standing is None:
        return None
    return ReplicaGroup(
        standing.leader, standing.epoch, list(standing.in_sync), standing.minimum, standing.lease_ms, list(standing.troubles()),
    )  # fmt: skip


def _replica_rows(found: list[replicas.Replica], standing: FailoverGroup | None) -> list[ReplicaRow]:
    members = {one.address: one for one in standing.members} if standing is not None else {}
    leader = next((one for one in found if one.leads and not one.error), None)
    return [
        ReplicaRow(
            f"{one.broker}/{one.broker_id}" if one.broker_id else one.broker, one.address, one.leads,
            one.state.role if one.state is not None else None, one.state.epoch if one.state is not None else None, one.log_end,
            None if one is leader or leader is None or leader.log_end is None or one.log_end is None
            else max(0, leader.log_end - one.log_end),
            one.disk_used, one.error, members[one.address].member if one.address in members else None,
            members[one.address].in_sync if one.address in members else None,
        )
        for one in found
    ]  # fmt: skip


def _option_row(one: OptionState, is_ours: bool) -> OptionRow:
    hot = one.changes == AT_ONCE if is_ours else None
    return OptionRow(reading.key_of(one), one.value, one.default, one.origin, one.changes, hot, one.waiting)


def _preview(options: reading.ServerOptions, query: BrokerQuery) -> Preview:
    known = options.by_key().get(query.change)
    before = known.value if known is not None else None
    if query.to is None:
        return Preview(query.change, before, None, "", options.is_ours)
    try:
        checked(options, {query.change: query.to})
    except ConfigError as error:
        return Preview(query.change, before, query.to, str(error), options.is_ours)
    return Preview(query.change, before, query.to, "", options.is_ours)


async def change_option(asked: Asked, form: Mapping[str, str]) -> str:
    """Change one option of the broker."""
    status, key, value = _status(asked), form.get("key", ""), form.get("value", "")
    changed = await asked.ask(changing.change_broker(asked.cluster.core, status.address, {key: value}), CHANGE_SECONDS)
    done = "; ".join(f"{one.key} was {one.before or 'empty'}, is {one.after or 'empty'}" for one in changed)
    return f"Changed at {status.broker}: {done or key}."


PAGE = Page(
    name="broker", path="/brokers/{address}", title="Broker {address}", under="brokers", values=Broker, load=load, query=BrokerQuery,
    changes={"option": change_option},
)  # fmt: skip
