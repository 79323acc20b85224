"""Restart of all brokers of a cluster, one after the other, while clients send: who follows first, who leads last, as a follower.

Each step is begun when the one before has come to its end: so whoever ends it in between leaves brokers that all run and follow, but
for the one that is just restarting, which goes on by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from metaq.admin.brokers import BrokerNotFound
from metaq.admin.growth import drain, places
from metaq.admin.growth.places import Refusal, Unfinished
from metaq.admin.replicas import Replica, ask_replica, promote, replicas
from metaq.admin.rolling.moving import HandOverPhase, HandOverProgress, move_leader, registered
from metaq.admin.rolling.plan import BrokerProcess, Kind, Plan, plan_of
from metaq.admin.rolling.standing import standing_of
from metaq.client.conversation.administration import GetReplicaState, GetRuntime, GetSettings, Identify
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.drain import RestartBroker
from metaq.client.shared.core import ClientCore
from metaq.errors import BrokerError, ConfigError, MetaqError
from metaq.model.leadership import SYNC_MASTER

QUIET_SECONDS: Final = 3.0
"""A broker that has handed over is restarted when so long no client has asked it for what only a leader does."""
DRAIN_SECONDS_MAX: Final = 70.0
"""And so long behind the hand-over in any case: a Java client asks for routes every 30 s, and a broker that has stepped down starts
again inside its process after a minute."""
TIMEOUT_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 0.2
ANSWER_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 10.0
"""So long a broker is told again to restart that is just starting again inside its process."""


class RollingPhase(enum.Enum):
    """What a rolling restart does, or waits for."""

    BEGINS = "begins"
    """The restart begins, and nothing is done yet."""
    HANDING_OVER = "hands over"
    """It leads, and another member is to lead."""
    LEADS = "leads"
    """It leads now, as another one is to be restarted."""
    DRAINING = "is drained: clients still send by way of it"
    """Clients are to stop sending by way of it."""
    RESTARTING = "restarts"
    """It was told to restart."""
    STARTING = "is starting: it does not answer"
    """It does not answer yet."""
    CATCHING_UP = "runs, and is catching up"
    """It answers, and lacks something of its master's log."""
    IN_SYNC = "is in sync"
    """It has all of its master's log."""
    DONE = "is done"
    """All of them are restarted and in sync."""


class RollingProgress(Struct, frozen=True):
    """How far a rolling restart is."""

    broker: str
    """Name of the broker; "": all of them."""
    member: int
    """Which of the brokers of that name, as in `BrokerProcess`; 0 also: all of them."""
    address: str
    """"": all of them."""
    phase: RollingPhase
    """What is done, or waited for."""
    seconds: float
    """Since it began."""
    detail: str = ""
    """What is waited for."""


class RestartedBroker(Struct, frozen=True):
    """A broker that was restarted."""

    broker: str
    """Name of the broker."""
    member: int
    """Which of the brokers of that name, as in `BrokerProcess`."""
    address: str
    """Where it is, `host:port`."""
    seconds: float
    """From the order to restart until it was in sync."""


class RestartedCluster(Struct, frozen=True):
    """A rolling restart that has come to its end."""

    restarted: tuple[RestartedBroker, ...]
    """Those that were restarted, in this order."""
    leaders: dict[str, str]
    """Broker name → address of the one that leads now, of those whose leader has changed."""
    seconds: float
    """How long all of it took."""


By: TypeAlias = Callable[[BrokerProcess], None]
"""Restarts the process of a broker, in a thread; returns when that is done, or has begun. Raises MetaqError: it failed."""
Told: TypeAlias = Callable[[RollingProgress], None]


async def chosen(core: ClientCore, brokers: Sequence[str], cluster: str | None) -> list[str]:
    """Return the broker names to restart. Raises BrokerNotFound; ConfigError: there are several clusters."""
    info = await core.consult(core.name_servers.cluster())
    clusters = {name: sorted(names) for name, names in info.clusters.items() if names}
    known = ", ".join(sorted(info.brokers)) or "none"
    for one in brokers:
        if one not in info.brokers:
            raise BrokerNotFound(
                f"no broker {one} is registered at name servers {core.name_servers}; registered: {known}"
            )
    if brokers:
        return list(dict.fromkeys(brokers))
    if cluster is not None:
        if cluster not in clusters:
            raise BrokerNotFound(
                f"no cluster {cluster} is registered at name servers {core.name_servers}; registered: {', '.join(sorted(clusters)) or 'none'}"
            )
        return clusters[cluster]
    if len(clusters) > 1:
        raise ConfigError(
            f"there are {len(clusters)} clusters at name servers {core.name_servers}: {', '.join(sorted(clusters))}. Say which one (--cluster), "
            "or name the brokers"
        )
    if not info.brokers:
        raise BrokerNotFound(f"no broker is registered at name servers {core.name_servers}")
    return sorted(info.brokers)


async def restart_cluster(
    core: ClientCore,
    brokers: Sequence[str] = (),
    *,
    cluster: str | None = None,
    by: By | None = None,
    anyway: bool = False,
    with_gaps: bool = False,
    quiet: float | None = None,
    timeout: float = TIMEOUT_SECONDS,
    told: Told = lambda _progress: None,
) -> RestartedCluster:
    """Restart brokers one after the other, see `RollingCalls.restart_cluster`."""
    # All of them are looked at before the first one is touched.
    plans = [await _plan(core, one, anyway=anyway, with_gaps=with_gaps) for one in await chosen(core, brokers, cluster)]
    began = core.clock.monotonic()
    restarted, leaders = list[RestartedBroker](), dict[str, str]()
    for first_look in plans:
        plan = first_look
        if restarted:  # what was well when it began may not be any more
            try:
                plan = await _plan(core, first_look.broker, anyway=anyway, with_gaps=with_gaps)
            except Refusal as error:
                names = ", ".join(dict.fromkeys(one.broker for one in restarted))
                raise Unfinished(f"{names} was restarted, and the rolling restart stops here: {error}") from None
        rolling = _Rolling(core, plan, by, quiet, timeout, told, began)
        restarted += await rolling.run()
        if rolling.leader:
            leaders[plan.broker] = rolling.leader
    return RestartedCluster(tuple(restarted), leaders, core.clock.monotonic() - began)


async def _plan(core: ClientCore, broker: str, *, anyway: bool, with_gaps: bool) -> Plan:
    found = await replicas(core, broker)
    minimum = 0
    if len(found) > 1 and standing_of(found) is None:
        for one in found:
            if one.state is not None and one.leads and one.state.role == SYNC_MASTER:
                settings = await core.ask(one.address, GetSettings())
                minimum = int(settings.get("minInSyncReplicas", "0"))
    return plan_of(broker, found, minimum, anyway=anyway, with_gaps=with_gaps)


class _Rolling:
    """The rolling restart of the brokers of one name."""

    def __init__(
        self, core: ClientCore, plan: Plan, by: By | None, quiet: float | None, timeout: float, told: Told, began: float
    ) -> None:
        self._core, self.plan, self._by, self._timeout, self._told, self._began = core, plan, by, timeout, told, began
        self._quiet = QUIET_SECONDS if quiet is None else quiet
        self._drain_quiet = drain.QUIET_SECONDS if quiet is None else quiet
        self.leader = ""
        """Address of the one that leads since this restart; "": none has been made the leader."""

    def _tell(self, process: BrokerProcess | None, phase: RollingPhase, detail: str = "") -> None:
        member, address = (process.member, process.address) if process is not None else (0, "")
        seconds = self._core.clock.monotonic() - self._began
        self._told(RollingProgress(self.plan.broker, member, address, phase, seconds, detail))

    async def run(self) -> list[RestartedBroker]:
        """Raises Unfinished, BrokerError: it stops there."""
        plan, done = self.plan, list[RestartedBroker]()
        self._tell(None, RollingPhase.BEGINS, plan.gap)
        if plan.kind is Kind.SINGLE:
            return [await self._single(plan.processes[0])]
        waiting = list(plan.processes)
        while waiting:
            leader = await self._leader()
            following = [one for one in waiting if one.address != leader.address]
            if not following:
                # The last one: whoever leads is restarted as a follower.
                await self._hand_over(leader, done)
                following = waiting
            process = following[0]
            done.append(await self._restart(process, was_leader=process.address == leader.address))
            waiting.remove(process)
        self._tell(None, RollingPhase.DONE)
        return done

    # ------------------------------------------------------------------ who leads

    async def _all(self) -> list[Replica]:
        """Return the brokers of the plan as they are now, whether name servers know them at this moment or not."""
        return await asyncio.gather(*(ask_replica(self._core, one.address) for one in self.plan.processes))

    async def _leader(self) -> BrokerProcess:
        """Return who leads. Raises Unfinished: nobody, for too long."""

        async def look() -> BrokerProcess | str:
            found = await self._all()
            leading = [one for one in found if one.leads and not one.error and one.state is not None]
            if not leading:
                return "nobody leads"
            address = max(leading, key=lambda one: one.state.rank if one.state is not None else (0, 0, 0, "")).address
            return next(one for one in self.plan.processes if one.address == address)

        return await self._until(look, "to be led by one of its brokers", self._core.clock.monotonic() + self._timeout)

    async def _hand_over(self, leader: BrokerProcess, done: Sequence[RestartedBroker]) -> None:
        core, name = self._core, self.plan.broker
        self._tell(leader, RollingPhase.HANDING_OVER)
        if self.plan.kind is Kind.GROUP:

            def told(now: HandOverProgress) -> None:
                if now.phase is not HandOverPhase.DONE:
                    self._tell(leader, RollingPhase.HANDING_OVER, now.phase.value)

            moved = await move_leader(core, name, progress=told)
            self.leader = moved.address
        else:
            # One that was restarted: it has all, as its master has said.
            others = [
                one for one in await self._all() if one.address in {late.address for late in done} and not one.error
            ]
            if not others:
                raise Unfinished(f"no slave of {name} answers that could lead: its master was not restarted")
            chosen_one = others[0]
            await promote(core, name, broker_id=chosen_one.broker_id)
            self.leader = chosen_one.address
            try:
                async with asyncio.timeout(self._timeout):
                    await registered(core, name, self.leader)
            except TimeoutError:
                raise Unfinished(
                    f"the broker at {self.leader} leads {name}, and not all name servers say so after {self._timeout:g} s"
                ) from None
        self._tell(
            next(one for one in self.plan.processes if one.address == self.leader),
            RollingPhase.LEADS,
        )

    # ------------------------------------------------------------------ one broker

    async def _restart(self, process: BrokerProcess, *, was_leader: bool) -> RestartedBroker:
        clock = self._core.clock
        if was_leader:
            await self._wait_in_sync(process, clock.monotonic() + self._timeout)
        await self._drain(process)
        began = clock.monotonic()
        await self._renew(process, began + self._timeout)
        await self._wait_in_sync(process, began + self._timeout)
        seconds = clock.monotonic() - began
        self._tell(process, RollingPhase.IN_SYNC, f"after {seconds:.1f} s")
        return RestartedBroker(process.broker, process.member, process.address, seconds)

    async def _drain(self, process: BrokerProcess) -> None:
        """Return when no client sends by way of a broker that does not lead, or they have had their time."""
        clock = self._core.clock
        began = clock.monotonic()
        while clock.monotonic() - began < max(DRAIN_SECONDS_MAX, 2 * self._quiet):
            try:
                state = await self._core.ask(process.address, GetReplicaState(), ANSWER_SECONDS)
            except FAULTS:  # it starts again inside its process: its clients have gone over
                await asyncio.sleep(LOOK_SECONDS)
                continue
            quiet = -1 if state is None else state.quiet_ms
            if quiet < 0 or quiet >= self._quiet * 1000:  # a release before does not say
                return
            self._tell(process, RollingPhase.DRAINING, f"no request for {quiet / 1000:.1f} s of {self._quiet:g} s")
            await asyncio.sleep(LOOK_SECONDS)

    async def _instance(self, address: str) -> str:
        """Return what a process does not have in common with the one before it at the same address. Raises FAULTS."""
        identity = await self._core.ask(address, Identify(), ANSWER_SECONDS)
        if identity is not None:
            return identity.instance
        return (await self._core.ask(address, GetRuntime(), ANSWER_SECONDS)).get("bootTimestamp", "")

    async def _renew(self, process: BrokerProcess, end: float) -> None:
        """Have a broker restarted, and return when another process answers there. Raises Unfinished, BrokerError."""
        clock, address = self._core.clock, process.address
        order_until = clock.monotonic() + AGAIN_SECONDS
        self._tell(process, RollingPhase.RESTARTING)
        while True:
            try:
                before = await self._instance(address)
                if self._by is None:
                    await self._core.ask(address, RestartBroker())
                break
            except FAULTS as error:
                if isinstance(error, BrokerError) or clock.monotonic() >= order_until:
                    raise
                await asyncio.sleep(LOOK_SECONDS)
        if self._by is not None:
            await asyncio.to_thread(self._by, process)
        else:
            # It may have started again inside its process in between: the one that has taken the order counts.
            with contextlib.suppress(*FAULTS):
                before = await self._instance(address)

        async def look() -> BrokerProcess | str:
            try:
                now = await self._instance(address)
            except FAULTS as error:
                self._tell(process, RollingPhase.STARTING)
                return f"it does not answer: {error}"
            if now == before:
                self._tell(process, RollingPhase.RESTARTING)
                return "it has not stopped yet" if self._by is None else "the same process still answers there"
            return process

        await self._until(look, "to be restarted", end, process)

    async def _wait_in_sync(self, process: BrokerProcess, end: float) -> None:
        """Return when a broker has all that its leader had when both were seen first, and is in the in-sync set. Raises Unfinished."""
        target: dict[int, int] = {}

        async def look() -> BrokerProcess | str:
            found = await self._all()
            own = next(one for one in found if one.address == process.address)
            why = why_not_in_sync(self.plan, own, found, target)
            if why:
                self._tell(process, RollingPhase.CATCHING_UP if not own.error else RollingPhase.STARTING, why)
            return why or process

        await self._until(look, "to be in sync", end, process)

    async def _until(
        self,
        look: Callable[[], Awaitable[BrokerProcess | str]],
        what: str,
        end: float,
        process: BrokerProcess | None = None,
    ) -> BrokerProcess:
        """Return the process that `look` finds. Raises Unfinished: until the end it only says why there is none."""
        while True:
            found = await look()
            if isinstance(found, BrokerProcess):
                return found
            if self._core.clock.monotonic() >= end:
                raise Unfinished(
                    f"{process or self.plan.broker} was waited for {what} ({self._timeout:g} s): {found}. The rolling restart stops here; no "
                    "broker after it was touched"
                )
            await asyncio.sleep(LOOK_SECONDS)

    # ------------------------------------------------------------------ a broker without others

    async def _single(self, process: BrokerProcess) -> RestartedBroker:
        """Restart a master without slaves: producers leave it before, where they have another one to go to."""
        core, clock, name = self._core, self._core.clock, self.plan.broker
        place = await places.find(core, name)
        drained = await self._leave(process, place)
        began = clock.monotonic()
        try:
            await self._renew(process, began + self._timeout)
        except MetaqError as error:
            if drained:
                raise Unfinished(
                    f"{error}. It stays drained: `metaq broker drain {name} --undo` has producers send to it again"
                ) from None
            raise
        if drained:
            await drain.undo(core, name)
        await self._wait_registered(process)
        seconds = clock.monotonic() - began
        self._tell(process, RollingPhase.IN_SYNC, f"after {seconds:.1f} s")
        self._tell(None, RollingPhase.DONE)
        return RestartedBroker(process.broker, process.member, process.address, seconds)

    async def _leave(self, process: BrokerProcess, place: places.BrokerReplicas) -> bool:
        """Drain a broker if its producers have another one to go to. Returns whether it was drained for this."""
        if place.draining:
            return False

        def told(now: drain.DrainProgress) -> None:
            self._tell(process, RollingPhase.DRAINING, now.text())

        try:
            await drain.drain(
                self._core,
                place.broker,
                quiet_seconds=self._drain_quiet,
                timeout=self._timeout,
                only_sends=True,
                told=told,
            )
        except Refusal as error:
            self._tell(process, RollingPhase.DRAINING, f"no: {error}")
            return False
        return True

    async def _wait_registered(self, process: BrokerProcess) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await registered(self._core, process.broker, process.address)
        except TimeoutError:
            raise Unfinished(
                f"{process} runs again, and not all name servers know it after {self._timeout:g} s"
            ) from None


def why_not_in_sync(plan: Plan, own: Replica, found: Sequence[Replica], target: dict[int, int]) -> str:
    """Return why a broker is not in sync; "": it is.

    Args: target: epoch → LogOffset that it has to have: where the leader's log ended when both were first seen in that epoch.
    """
    if own.error or own.state is None:
        return own.error or "a RocketMQ answers there"
    leading = [one for one in found if one.state is not None and not one.error and one.leads]
    if not leading:
        return "nobody leads"
    leader = max(leading, key=lambda one: one.state.rank if one.state is not None else (0, 0, 0, ""))
    assert leader.state is not None, "it leads"
    if leader.address == own.address:
        return ""  # whoever led before has failed meanwhile
    end = target.setdefault(leader.state.epoch, leader.state.log_end)
    if own.state.epoch != leader.state.epoch:
        return f"it is in epoch {own.state.epoch}, its leader in {leader.state.epoch}"
    if own.state.log_end < end:
        return f"it lacks {end - own.state.log_end:,} B"
    if plan.kind is Kind.GROUP:
        group = leader.state.group
        if group is None or own.state.group is None:
            return "its leader has no failover"
        if own.state.master != leader.address:
            return "it does not follow the leader yet"
        if own.state.group.member not in group.in_sync:
            return f"it is not in the in-sync set yet ({', '.join(map(str, sorted(group.in_sync)))})"
        return ""
    slaves = sum(1 for one in found if not one.error and one.address != leader.address)
    if sum(1 for one in leader.state.slaves if one.copied >= end) < slaves:
        return "its master does not have its report yet"
    return ""
