"""A broker leaves a cluster, and leaves nothing behind: it is drained, its processes are stopped, its queues leave the routes."""

from __future__ import annotations

from msgspec import Struct

from metaq.admin.growth import drain as draining
from metaq.admin.growth.places import Refusal, find, tables_of
from metaq.admin.growth.work import OpenWork, look, readers_elsewhere
from metaq.client.shared.core import ClientCore


class RemovedBroker(Struct, frozen=True):
    """A removed broker. `left`: what was still open or unread there; it is in its folder. `layouts`: as those of `Drained`.

    `stopped`: its processes were stopped, and no name server has it any more; else it is a RocketMQ, which is drained, empty, and to be
    stopped where it runs.
    """

    broker: str
    """Name of the broker."""
    left: OpenWork
    layouts: dict[str, str]
    stopped: bool


async def remove(
    core: ClientCore,
    name: str,
    *,
    quiet_seconds: float = draining.QUIET_SECONDS,
    timeout: float | None = None,
    force: bool = False,
    dry_run: bool = False,
    told: draining.Told | None = None,
) -> RemovedBroker:
    """Drain a broker, wait until it is empty, and stop it; with `dry_run`, only check whether that can begin.

    Args: force: do not wait for what is open, and leave behind what nobody reads; sends still are not refused as long as producers have
    another broker. Fixed layouts lose the broker.
    Raises as `draining.drain`; Refusal also if nobody reads a topic that has messages there.
    """
    place = await find(core, name)
    if dry_run or not force:
        tables = await tables_of(core, place.master, place.cluster, place.broker)
        work = await look(core, place, tables, await readers_elsewhere(core, place))
        if not force:
            _check_read(place.broker, work)
    if dry_run:
        if not force:
            await draining.check_others(core, place, tables)
        layouts = await draining.take_out_of_orders(core, place, tables, wanted=True, force=force, dry_run=True)
        return RemovedBroker(place.broker, work, layouts, stopped=False)
    done = await draining.drain(
        core,
        name,
        quiet_seconds=quiet_seconds,
        timeout=timeout,
        force=force,
        mend_order=True,
        only_sends=force,
        told=told,
    )
    if not force:
        _check_read(place.broker, done.work)
    if place.ours:
        await draining.stop_all(core, place)
    return RemovedBroker(place.broker, done.work, done.layouts, place.ours)


def _check_read(broker: str, work: OpenWork) -> None:
    if work.unread:
        raise Refusal(
            f"broker {broker} is not removed: no group has ever read {work.unread_text()} there, which would be left behind. Read or delete "
            "them, or force it"
        )
