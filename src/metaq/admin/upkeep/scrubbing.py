"""The logs of a master and its slaves are compared, and damaged records repaired from the other side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from msgspec import Struct

from metaq.admin.replicas import NoSuchReplica, ask_replica, replicas, told
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.scrubbing.calls import RepairLog
from metaq.client.conversation.scrubbing.comparison import Comparison
from metaq.client.shared.core import ClientCore
from metaq.model.leadership import ReplicaState, parting
from metaq.model.scrub import DamagedSide, LogDifference


class ScrubProgress(Struct, frozen=True):
    """How far the comparison of a pair is."""

    master: str
    """`host:port` of the master."""
    slave: str
    """`host:port` of the slave."""
    start: int
    """LogOffset at which the comparison begins."""
    place: int
    """LogOffset up to which it is done."""
    stop: int
    """LogOffset at which it ends."""
    found: int
    """Places that differ."""
    differences: tuple[LogDifference, ...]
    """The first 1000 of them."""


class FailedRepair(Struct, frozen=True):
    """A place that was to be repaired, and was not."""

    difference: LogDifference
    """The place."""
    why: str
    """Why it could not be repaired."""


class PairScrub(Struct, frozen=True):
    """The comparison of a slave's log with its master's."""

    master: str
    """Address, as that of the slave."""
    slave: str
    """`host:port`."""
    start: int
    """LogOffset at which the comparison began."""
    stop: int
    """The log was compared from `start` to `stop`, LogOffsets: as far as both have it on their disks."""
    found: int
    """Places that differ."""
    differences: tuple[LogDifference, ...]
    """The first 1000 of those that were found."""
    repaired: tuple[LogDifference, ...] = ()
    """Those that were repaired."""
    failed: tuple[FailedRepair, ...] = ()
    """Those that were to be repaired, and were not."""
    unread: int = 0
    """Ranges of 1 MiB that a disk could not read wholly, though what could be read does not differ."""

    @property
    def left(self) -> int:
        """Number of places that still differ: found, and not repaired."""
        return self.found - len(self.repaired)


class _Pair(Struct, frozen=True):
    master: str
    slave: str
    master_state: ReplicaState
    slave_state: ReplicaState


async def scrub(
    core: ClientCore,
    broker: str,
    *,
    repair: bool = False,
    bytes_per_second: int | None = None,
    progress: Callable[[ScrubProgress], None] | None = None,
) -> list[PairScrub]:
    """Compare the logs of a master and its slaves, see `Admin.scrub`."""
    done = []
    for pair in await _pairs(core, broker):
        comparison = await _compare(core, pair, bytes_per_second, progress or (lambda _progress: None))
        repaired, failed = await _repair(core, pair, comparison.differences) if repair else ((), ())
        done.append(
            PairScrub(
                pair.master, pair.slave, comparison.start, comparison.place, comparison.found, tuple(comparison.differences),
                repaired, failed, comparison.unread,
            )
        )  # fmt: skip
    return done


async def _pairs(core: ClientCore, broker: str) -> list[_Pair]:
    """Raises BrokerNotFound, NoSuchReplica."""
    found = await replicas(core, broker)
    named = found[0] if ":" in broker else None
    if named is not None and named.state is not None:
        if named.leads:
            found = await replicas(core, named.state.broker)
        elif named.state.master:
            found = [await ask_replica(core, named.state.master), named]
    masters = [(one, one.state) for one in found if one.state is not None and one.leads]
    slaves = [(one, one.state) for one in found if one.state is not None and not one.leads]
    if not masters or not slaves:
        raise NoSuchReplica(
            f"broker {broker} has no master and slave that answer and can be compared: {told(broker, found)}"
        )
    (master, state), *_ = masters
    return [_Pair(master.address, slave.address, state, own) for slave, own in slaves]


async def _compare(
    core: ClientCore, pair: _Pair, bytes_per_second: int | None, progress: Callable[[ScrubProgress], None]
) -> Comparison:
    """Raises NotComparable, and what requests raise."""
    one, other = pair.master_state, pair.slave_state
    comparison = Comparison(parting(one.epochs, one.log_end, other.epochs, other.log_end))
    steps, before = comparison.steps(), 0
    call = next(steps)
    with contextlib.suppress(StopIteration):
        while True:
            call = steps.send(await asyncio.gather(core.ask(pair.master, call), core.ask(pair.slave, call)))
            progress(_told(pair, comparison))
            if bytes_per_second is not None:
                await asyncio.sleep((comparison.compared - before) / bytes_per_second)
                before = comparison.compared
    progress(_told(pair, comparison))
    return comparison


def _told(pair: _Pair, comparison: Comparison) -> ScrubProgress:
    stop = comparison.place if comparison.stop is None else comparison.stop
    differences = tuple(comparison.differences)
    return ScrubProgress(
        pair.master, pair.slave, comparison.start, comparison.place, stop, comparison.found, differences
    )


async def _repair(
    core: ClientCore, pair: _Pair, differences: list[LogDifference]
) -> tuple[tuple[LogDifference, ...], tuple[FailedRepair, ...]]:
    """Repair what can be. What is damaged at both sides, or nobody knows where, is left."""
    repaired, failed = list[LogDifference](), list[FailedRepair]()
    for one in differences:
        if one.damaged is DamagedSide.MASTER:
            address, source = pair.master, pair.slave
        elif one.damaged is DamagedSide.SLAVE:
            address, source = pair.slave, pair.master
        else:
            continue
        try:
            await core.ask(address, RepairLog(one.log_offset, one.size, source))
        except FAULTS as error:
            failed.append(FailedRepair(one, str(error)))
        else:
            repaired.append(one)
    return tuple(repaired), tuple(failed)
