"""Draining a broker: producers go elsewhere, consumers read what is there, delays and transactions end; nothing is refused meanwhile.

A broker of ours is drained by its option `draining`, which outlives restarts, its own and those of name servers: every registration
says that no topic is writable, and what is sent all the same is taken. A RocketMQ is drained by its `brokerPermission`, which refuses
ordered sends and retries; clients of both send these elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Literal

from msgspec import Struct

from metaq.admin import order
from metaq.admin.brokers import BrokerNotFound
from metaq.admin.growth.places import (
    BrokerReplicas,
    Refusal,
    Tables,
    Unfinished,
    announced_at,
    at_name_servers,
    each,
    find,
    orders,
    tables_of,
    writable_elsewhere,
)
from metaq.admin.growth.work import OpenWork, look, readers_elsewhere
from metaq.client.conversation.administration import ChangeOptions
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.drain import StopBroker, WipeWritePermission
from metaq.client.conversation.routes import GetCluster
from metaq.client.shared.core import ClientCore
from metaq.errors import MetaqError, NoRoute
from metaq.model import Route
from metaq.model.topics.route import OrderLayout
from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.model.topics.topic import Perm

QUIET_SECONDS: Final = 40.0
"""Longer than clients need to notice: they ask for routes every 30 s."""
PAUSE_SECONDS: Final = 1.0
"""Between two looks; more if a look takes long."""
SILENT_SECONDS: Final = 30.0
"""After so long without an answer the broker is taken to be dead."""
GONE_SECONDS: Final = 60.0
"""Longest wait for a stopped broker to leave the name servers: their lease, if it could not unregister, is twice that."""
_SAMPLE: Final = 8
"""Topics by whose routes a name server is judged: it takes a broker's whole table at once."""
_READ_WRITE: Final = int(Perm.READ | Perm.WRITE)


class DrainProgress(Struct, frozen=True):
    """How far a drain is. All times are seconds.

    `phase`: `moving` while producers still find the broker or send to it, `reading` while something is open, `done`.
    """

    broker: str
    """Name of the broker."""
    phase: Literal["moving", "reading", "done"]
    passed: float
    """Since the drain was begun."""
    quiet: float
    """Since the last send, or since name servers announce it so."""
    quiet_wanted: float
    """How long it has to be quiet."""
    work: OpenWork
    """What is still open there."""
    announced_by: tuple[str, ...] = ()
    """Name servers that still tell clients to send there."""
    trouble: str = ""
    """Why the broker could not be asked the last time; the figures are older then."""

    def text(self) -> str:
        """One line for people."""
        said = [f"no send for {self.quiet:.0f} s of {self.quiet_wanted:.0f} s"]
        if self.announced_by:
            said = [f"name server {', '.join(self.announced_by)} still announces it as writable"]
        said += self.work.sentences()
        if self.trouble:
            said.append(f"it does not answer: {self.trouble}")
        return "; ".join(said)


class Drained(Struct, frozen=True):
    """A drained broker. `layouts`: topic → fixed layout that it had, of those from which the broker was taken."""

    broker: str
    """Name of the broker."""
    work: OpenWork
    """What the last look found there: nothing waits any more, `unread` is what nobody reads."""
    layouts: dict[str, str]
    stopped: bool = False
    """Whether its processes were stopped, too."""


Told = Callable[[DrainProgress], None]


class Quiet:
    """Notices sends by the number of stored messages, and how long there was none. Delayed messages and commits count as sends."""

    def __init__(self, now: float) -> None:
        self._since, self._stored = now, -1

    def seen(self, now: float, stored: int, *, announced: bool) -> float:
        """Return the seconds without a send. Args: announced: a name server still tells clients to send."""
        if stored != self._stored or announced:
            self._since, self._stored = now, stored
        return now - self._since


async def drain(
    core: ClientCore,
    name: str,
    *,
    quiet_seconds: float = QUIET_SECONDS,
    timeout: float | None = None,
    force: bool = False,
    mend_order: bool = False,
    only_sends: bool = False,
    stop: bool = False,
    told: Told | None = None,
) -> Drained:
    """Drain a broker. Returns when no send has come for the quiet time and nothing is open.

    Args:
        force: also if a topic has no other broker that is written to.
        mend_order: take the broker out of the fixed layouts of strictly ordered topics; without, such a topic refuses the drain.
        only_sends: do not wait for what is open.
        stop: then stop its processes, slaves first; only of ours.
    Raises: Refusal, BrokerNotFound, ConfigError: nothing was done. Unfinished: it is drained, and something is open after `timeout`, or
    it does not answer any more.
    """
    place = await find(core, name)
    if stop and not place.ours:
        raise Refusal(
            f"broker {place.broker} is a RocketMQ, which nobody can stop from here: drain it without, and stop it there"
        )
    tables = await tables_of(core, place.master, place.cluster, place.broker)
    if not force:
        await check_others(core, place, tables)
    layouts = await take_out_of_orders(core, place, tables, wanted=mend_order, force=force)
    await set_draining(core, place, on=True)
    work = await _until_empty(core, place, tables, quiet_seconds, timeout, told, only_sends=only_sends)
    if stop:
        await stop_all(core, place)
    return Drained(place.broker, work, layouts, stop)


async def undo(core: ClientCore, name: str) -> BrokerReplicas:
    """Let producers send to a broker again. Returns when each name server that answers says so. Raises BrokerNotFound, Unfinished."""
    place = await find(core, name)
    await set_draining(core, place, on=False)
    tables = await tables_of(core, place.master, place.cluster, place.broker)
    sample = _sample(tables)
    end = core.clock.monotonic() + GONE_SECONDS
    while sample and not all((await announced_at(core, place.broker, sample[:1])).values()):
        if core.clock.monotonic() > end:
            raise Unfinished(
                f"broker {place.broker} takes sends again, but not every name server of {core.name_servers} says so after "
                f"{GONE_SECONDS:.0f} s; it tells them all when it registers next"
            )
        await asyncio.sleep(PAUSE_SECONDS / 4)
    return place


async def check_others(core: ClientCore, place: BrokerReplicas, tables: Tables) -> None:
    """Raise Refusal if sends to some topic would find no broker without this one."""
    topics = [one.name for one in tables.topics.values() if one.perm & Perm.WRITE and one.write_queues]
    template = tables.template
    if template is not None and template.perm & Perm.WRITE and template.perm & Perm.INHERIT:
        topics.append(AUTO_CREATE_TOPIC)
    routes = await each(topics, lambda topic: _route(core, topic))
    alone = [topic for topic in topics if not writable_elsewhere(routes[topic], place.broker)]
    if alone:
        said = ", ".join(
            "topics that do not exist yet" if one == AUTO_CREATE_TOPIC else f"topic {one}" for one in alone[:5]
        )
        more = f" and {len(alone) - 5} more" if len(alone) > 5 else ""
        raise Refusal(
            f"broker {place.broker} is not drained: it is the only one that can be sent to for {said}{more}, and sends would fail. Create "
            "them at another broker first (`metaq cluster add-broker`, `metaq topic create --broker`), or force it"
        )


async def _route(core: ClientCore, topic: str) -> Route | None:
    try:
        return await core.consult(core.name_servers.route(topic))
    except NoRoute:
        return None


async def take_out_of_orders(
    core: ClientCore, place: BrokerReplicas, tables: Tables, *, wanted: bool, force: bool, dry_run: bool = False
) -> dict[str, str]:
    """Take a broker out of fixed layouts. Returns topic → what it was. Raises Refusal: it is in one, and that is not wanted.

    `dry_run`: only check, and say what would be changed.
    """
    fixed = {
        topic: layout
        for topic, layout in (await orders(core)).items()
        if topic in tables.topics and place.broker in dict(layout.parts)
    }
    left = {
        topic: OrderLayout(tuple(part for part in layout.parts if part[0] != place.broker))
        for topic, layout in fixed.items()
    }
    alone = [topic for topic, layout in left.items() if not layout.parts]
    if fixed and not wanted and not force:
        topic, layout = next(iter(fixed.items()))
        raise Refusal(
            f"broker {place.broker} is not drained: the fixed layout of topic {topic} is {layout}, and producers that send in strict order "
            f"keep to it. Have the broker taken out of {'it' if len(fixed) == 1 else f'{len(fixed)} layouts'} (--mend-order), or set one "
            "without it (`metaq topic order set`)"
        )
    if alone and not force:
        raise Refusal(
            f"broker {place.broker} is not drained: the fixed layout of topic {alone[0]} names no other broker, and sends would fail"
        )
    if not wanted:
        return {}
    for topic, layout in left.items():
        if layout.parts and not dry_run:
            await order.put(core, topic, str(layout))
    return {topic: str(layout) for topic, layout in fixed.items() if left[topic].parts}


async def set_draining(core: ClientCore, place: BrokerReplicas, *, on: bool) -> None:
    """Have a broker announce no topic as writable, or all as they are, from now on. Raises FAULTS: its master does not do it."""
    pairs = (
        {"draining": str(on).lower()}
        if place.ours
        else {"brokerPermission": str(int(Perm.READ) if on else _READ_WRITE)}
    )
    await core.ask(place.master, ChangeOptions(pairs))
    # A slave that is promoted goes on with it. One that does not answer now is no reason to fail.
    await _try_each(core, place.slaves.values(), ChangeOptions(pairs))
    if on:  # at once: the broker's registration takes its time. It is what keeps the permission away.
        await _try_each(core, core.name_servers.addresses, WipeWritePermission(place.broker))


async def _try_each(core: ClientCore, addresses: Iterable[str], call: ChangeOptions | WipeWritePermission) -> None:
    outcomes = await asyncio.gather(*(core.ask(address, call) for address in addresses), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, MetaqError):
            raise outcome


def _sample(tables: Tables) -> list[str]:
    return [one.name for one in tables.topics.values() if one.perm & Perm.WRITE and one.write_queues][:_SAMPLE]


async def _until_empty(
    core: ClientCore,
    place: BrokerReplicas,
    tables: Tables,
    quiet_seconds: float,
    timeout: float | None,
    told: Told | None,
    *,
    only_sends: bool,
) -> OpenWork:
    clock = core.clock
    start = answered = clock.monotonic()
    quiet, work, trouble = Quiet(start), OpenWork(), ""
    announced: list[str] = []
    silence = 0.0
    while True:
        began = clock.monotonic()
        try:
            place = await _still_draining(core, place)
            tables = await tables_of(core, place.master, place.cluster, place.broker)
            work, trouble = await look(core, place, tables, await readers_elsewhere(core, place)), ""
            announced = [at for at, still in (await announced_at(core, place.broker, _sample(tables))).items() if still]
            answered = clock.monotonic()
            silence = quiet.seen(answered, work.stored, announced=bool(announced))
        except (*FAULTS, BrokerNotFound) as error:
            trouble = str(error)
        now = clock.monotonic()
        moving = bool(trouble or announced or silence < quiet_seconds)
        ended = not moving and (only_sends or not work.waits)
        phase: Literal["moving", "reading", "done"] = "done" if ended else "moving" if moving else "reading"
        progress = DrainProgress(
            place.broker, phase, now - start, silence, quiet_seconds, work, tuple(announced), trouble
        )
        if told is not None:
            told(progress)
        if ended:
            return work
        if trouble and now - answered > SILENT_SECONDS:
            raise Unfinished(
                f"broker {place.broker} has not answered for {SILENT_SECONDS:.0f} s: {trouble}. It is drained, also when it starts again; "
                f"what was open when it answered last: {'; '.join(work.sentences()) or 'nothing'}"
            )
        if timeout is not None and now - start >= timeout:
            raise Unfinished(
                f"broker {place.broker} is not empty after {timeout:g} s: {progress.text()}. It stays drained: drain it again to go on, or "
                "undo it"
            )
        await asyncio.sleep(max(PAUSE_SECONDS, 3 * (now - began)))


async def _still_draining(core: ClientCore, place: BrokerReplicas) -> BrokerReplicas:
    """Return the broker as it is now: another master may lead. Raises Unfinished: somebody has undone the drain; as `find`."""
    now = await find(core, place.broker)
    if now.ours and not now.draining:
        if now.master == place.master:
            raise Unfinished(f"broker {place.broker} is not drained any more: somebody has undone it")
        await set_draining(core, now, on=True)  # a slave that did not answer then leads now
    return now


async def stop_all(core: ClientCore, place: BrokerReplicas) -> None:
    """Stop the processes of a broker of ours, slaves first, and wait until no name server has the broker. Raises FAULTS, Unfinished."""
    for number in sorted(place.addresses, reverse=True):
        await core.ask(place.addresses[number], StopBroker())
    end = core.clock.monotonic() + GONE_SECONDS
    while still := await _known_at(core, place.broker):
        if core.clock.monotonic() > end:
            raise Unfinished(
                f"broker {place.broker} was told to stop, and is still registered at name server {', '.join(still)} after "
                f"{GONE_SECONDS:.0f} s"
            )
        await asyncio.sleep(PAUSE_SECONDS / 4)


async def _known_at(core: ClientCore, broker: str) -> list[str]:
    found = await at_name_servers(core, lambda address: core.ask(address, GetCluster()))
    return [address for address, info in found.items() if broker in info.brokers]
