"""The role of a running broker: taken at its start, and changed by hand while it runs.

Promotion happens in place: the slave has the log, the tables and the clients already. A master that steps down follows its successor
in place, too, and starts again in the same process, as a slave, when its clients have gone over (`metaq.app.role.stepping_down`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from metaq.app.registration import NameServerRegistration, Registration
from metaq.app.role.configured import check_role
from metaq.app.role.pending import all_ended, carry_out, durable, ended
from metaq.app.role.stepping_down import SteppedDown
from metaq.broker.broker import Broker
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.replication.mending import Mending
from metaq.broker.replication.roles import RoleChange
from metaq.client.conversation.administration import GetReplicaState, GetSettings, StepDown
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import ask
from metaq.client.conversation.routes import GetCluster
from metaq.client.shared.transport import Transport
from metaq.errors import BrokerError, ConfigError, Reason, Refused
from metaq.model.acl.secret import Credentials
from metaq.model.leadership import ASYNC_MASTER, MASTERS, SLAVE, Found, ReplicaState
from metaq.option_table import decide
from metaq.servers.server import BrokerServices, CallSoon

if TYPE_CHECKING:
    from metaq.app.role.lost_tail import LostTail
    from metaq.app.role.mending import Mender
    from metaq.app.role.slave import Slave
    from metaq.net.tls.client import ClientTls

log = logging.getLogger(__name__)

HAND_OVER_SECONDS: Final = 40.0
"""Longest wait for what the old master has taken last, s. Within `metaq.client.conversation.administration.CHANGE_SECONDS`."""


class RunningRole:
    """The role of one broker. Only in its event loop.

    Args:
        address: the broker's, as it is registered.
        announced: the registration at the name servers.
        metaq1: None: no clients of MetaQ 1.x are served.
        credentials: what requests to other brokers are signed with; None: they are not signed.
        tls: how it connects to them; None: without TLS.
        ha_tls: and to copy the log.
    """

    def __init__(
        self,
        broker: Broker,
        call_soon: CallSoon,
        address: str,
        announced: NameServerRegistration,
        metaq1: Metaq1Settings | None,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
        ha_tls: ClientTls | None = None,
    ) -> None:
        self._broker, self._roles, self._call_soon, self._announced = broker, broker.roles, call_soon, announced
        self._address, self._metaq1 = address, metaq1
        self.also_registered: Sequence[Registration] = ()
        """Registrations beside that at the name servers, which a promotion changes as well."""
        self.also_known_as = frozenset[str]()
        """Addresses under which a name server may name this broker to some clients, such as itself."""
        self._loop = asyncio.get_running_loop()
        self._transport, self._ha_tls = Transport(credentials=credentials, tls=tls), ha_tls
        self._mender: Mender | None = None
        self._slave: Slave | None = None
        self._lost: LostTail | None = None
        self._slaves = 0
        """Connections of slaves at the last tick."""
        self._services: BrokerServices | None = None
        self._changing: asyncio.Task[None] | None = None
        self._stepped_down: SteppedDown | None = None
        self.again: asyncio.Future[str] = self._loop.create_future()
        """Gets a reason when the broker is to be closed and started again, with another role."""

    # ------------------------------------------------------------------ start and end

    async def take(self) -> None:
        """Take the role that this broker has now, and open its parts.

        Raises ConfigError: it cannot have it, or a part cannot be opened.
        """
        kept = self._roles.kept
        if kept.role:
            self._set(kept.role, kept.broker_id)
        options = self._broker.options
        others = await self._others() if options.broker_role != SLAVE else []
        if (successor := self._successor(others)) is not None:
            await self._give_way(*successor)
        check_role(options, self._metaq1, found=bool(self._roles.kept.role))
        if options.broker_role == SLAVE:
            await self._check_number()
            self._broker.follow()
            self._follow()
            return
        if not self._broker.store.recovered.in_order:
            await self._after_crash(others)
        self._broker.lead()

    async def _give_way(self, address: str, state: ReplicaState) -> None:
        """Be the slave of the broker that has replaced this master. Raises ConfigError: it cannot be one."""
        name, number = self._broker.environment.name, self._number_after(state)
        told = f"{name} was replaced as master by the broker at {address}, in epoch {state.epoch}"
        log.warning("%s: it is a slave now, with brokerId %d", told, number)
        await ended(self._roles.keep(self._roles.following(number, address)))
        self._set(SLAVE, number)

    async def _after_crash(self, others: list[Found]) -> None:
        """Lead the log that is there, with what slaves have of it: a power cut may have torn it, or taken its end."""
        from metaq.app.role.both_logs import asking  # as in `_follow`
        from metaq.app.role.lost_tail import LostTail, longer, mend_torn
        from metaq.app.role.torn import slaves_of

        slaves = slaves_of(self._broker, others)
        found = await mend_torn(self._broker, slaves, functools.partial(asking, self._broker, self._transport))
        if found is None:
            found = longer(self._broker, slaves)
        if found is not None:
            if self._broker.store.state.follows is None:
                self._broker.follow(for_now=True)
            self._lost = LostTail(self._broker, self._call_soon, found, self._ha_tls)
            await self._lost.copy()
            self._lost = None
            # An epoch behind the log's end would keep away who still has the rest, should a power cut take that once more.
            await durable(self._broker.store, self._call_soon)
        # A slave with more than that must see that other records come there. A power cut may have left nothing.
        await ended(self._roles.keep(self._roles.in_epoch(self._roles.began(0))))

    def _follow(self) -> Slave:
        from metaq.app.role.master import MasterSearch
        from metaq.app.role.slave import Slave  # a master needs none of it, and has 0.3 MB less at rest

        search = MasterSearch(self._broker, self._transport, self._announced)
        slave = self._slave = Slave(self._broker, self._call_soon, self._transport, search, self._ha_tls)
        return slave

    def _set(self, role: str, broker_id: int) -> None:
        options = self._broker.options
        if (options.broker_role, options.broker_id) != (role, broker_id):
            log.info(
                "the role of this broker is %s with brokerId %d since it was changed by hand; configured are %s and %d",
                role, broker_id, options.broker_role, options.broker_id,
            )  # fmt: skip
        decide(options, broker_role=role, broker_id=broker_id)

    def start(self, services: BrokerServices) -> None:
        """Begin to work, behind the registrations."""
        self._services = services
        self._roles.by(self._begin_promotion, self._begin_to_step_down)
        self._broker.repair_requests.by(self._begin_to_mend)
        self._announced.when_met(self._meet)
        if self._slave is not None:
            self._slave.start()

    def tick(self) -> None:
        """Let time pass. Called ten times a second."""
        if self._slave is not None:
            self._slave.tick()
        if self._lost is not None:
            self._lost.tick()
        slaves = len(self._broker.replicas.connected)
        if slaves > self._slaves and self._roles.leads:
            # It may be the master before: what it has told the name servers since it was replaced went with its connection, and
            # this broker's registration with that.
            self._announced.renew()
        self._slaves = slaves
        if self._stepped_down is not None and not self.again.done():
            self._stepped_down.tick()

    @property
    def must_start_again(self) -> bool:
        """Whether this broker has led in this process, and can do so again when it was started again (`start_again`)."""
        return self._stepped_down is not None

    def start_again(self, why: str) -> None:
        """Have the process close this broker and start it again. No effect if it is at it already."""
        if not self.again.done():
            self.again.set_result(why)

    async def stop(self) -> None:
        """End what works beside serving."""
        if self._stepped_down is not None:
            await self._stepped_down.stop()
        if self._changing is not None:
            self._changing.cancel()
            await asyncio.gather(self._changing, return_exceptions=True)
        self._broker.repair_requests.by(None)
        if self._mender is not None:
            await self._mender.stop()
        if self._slave is not None:
            await self._slave.stop()
        await self._transport.close()

    def _begin_to_mend(self, mending: Mending, log_offset: int, size: int, source: str) -> None:
        from metaq.app.role.mending import Mender  # as in `_follow`

        if self._mender is None:
            self._mender = Mender(self._broker, self._transport)
        self._mender.begin(mending, log_offset, size, source)

    # ------------------------------------------------------------------ others of this name

    async def _registered(self) -> dict[str, int]:
        """Return the other addresses that the name servers have under this broker's name → the number that each has there."""
        name, found = self._broker.environment.name, dict[str, int]()
        # A start waits for one that takes connections and is silent.
        seconds = self._broker.options.register_broker_timeout_mills / 1000
        for server in self._announced.name_servers:
            try:
                data = (await ask(self._transport, server, GetCluster(), seconds)).brokers.get(name)
            except FAULTS:
                continue  # the registration says so
            for number, address in data.addresses.items() if data is not None else ():
                if address != self._address and address not in self.also_known_as:
                    found[address] = number
        return found

    async def _others(self) -> list[Found]:
        """Return the other brokers of ours of this name, as the name servers know them, and their states."""
        asked = [(address, await self._ask(address)) for address in await self._registered()]
        return [(address, state) for address, state in asked if state is not None]

    def _successor(self, others: list[Found]) -> Found | None:
        """Return the broker that leads in a later epoch; None: there is none."""
        later = [one for one in others if one[1].leads and one[1].rank > self._roles.kept.rank]
        return max(later, key=lambda one: one[1].rank, default=None)

    async def _check_number(self) -> None:
        """Return if no other broker has this slave's number. Raises ConfigError."""
        number, name = self._broker.options.broker_id, self._broker.environment.name
        for address, other in (await self._registered()).items():
            # Whom it has stepped down for gives that number up as soon as it leads.
            if other != number or address == self._roles.kept.master:
                continue
            try:
                settings = await ask(self._transport, address, GetSettings())
            except FAULTS:
                continue  # gone, and the name servers do not know yet
            if (settings.get("brokerName"), settings.get("brokerId")) == (name, str(number)):
                state = await self._ask(address)
                if state is not None and state.master in {self._address, *self.also_known_as}:
                    continue  # it has stepped down for this one, which was to lead, and did not come so far
                raise ConfigError(
                    f"brokerId={number} of {name} is taken by the broker at {address}: give each slave a number of its own"
                )

    async def _ask(self, address: str) -> ReplicaState | None:
        """Return the state of a broker; None: nothing of our kind and name answers there."""
        try:
            state = await ask(self._transport, address, GetReplicaState())
        except FAULTS:
            return None
        return state if state is not None and state.broker == self._broker.environment.name else None

    async def _meet(self, address: str) -> bool:
        """Find out who leads, of two brokers with one name and number. Returns whether that is settled."""
        state = await self._ask(address)
        if state is None:
            return False
        if (state.broker_id, state.leads) != (self._broker.options.broker_id, self._roles.leads):
            return True  # one of the two is changing its role just now
        if not state.leads or state.rank == self._roles.kept.rank:
            return False
        if state.rank > self._roles.kept.rank:
            log.error(
                "the broker at %s has replaced this one (epoch %d there, %d here): it steps down",
                address,
                state.epoch,
                self._roles.kept.epoch,
            )
            try:
                await self._step_down(self._number_after(state), address)
            except Refused as error:
                log.error("%s", error)  # noqa: TRY400  the text says it all
                return False
            return True
        own = self._roles.kept.epochs[-1]
        try:
            await ask(self._transport, address, StepDown(own.broker_id or 1, self._address))
        except FAULTS as error:
            log.error("the broker at %s, which this one has replaced, does not step down: %s", address, error)  # noqa: TRY400
            return False
        return True

    def _number_after(self, state: ReplicaState) -> int:
        """The number that a leader had as a slave, which is free now."""
        return (state.epochs[-1].broker_id if state.epochs else 0) or self._roles.kept.broker_id or 1

    # ------------------------------------------------------------------ changes by hand

    def _begin(self, change: RoleChange, work: Callable[[], Coroutine[Any, Any, ReplicaState]]) -> None:
        if self._changing is not None and not self._changing.done():
            change.finish(Refused(Reason.BUSY, "the role of this broker is being changed already; ask for its state"))
            return

        self._changing = self._loop.create_task(carry_out(change, work, "the role"), name="change the role")

    def _begin_promotion(self, change: RoleChange, role: str, force: bool) -> None:
        self._begin(change, lambda: self._promote(role, force=force))

    def _begin_to_step_down(self, change: RoleChange, broker_id: int, master: str) -> None:
        self._begin(change, lambda: self._step_down(broker_id, master))

    async def _step_down(self, broker_id: int, master: str) -> ReplicaState:
        """Take no messages any more, for good. The log ends where the state says."""
        name = self._broker.environment.name
        self._roles.leader_address = master  # what comes from now on is relayed there
        # First: the end of the log that is answered is its last.
        self._broker.step_down(f"{name} takes no messages here any more: this broker has stepped down")
        try:
            await ended(self._roles.keep(self._roles.following(broker_id, master)))
        except Refused:
            self._broker.step_down(None)
            raise
        with contextlib.suppress(Refused):  # whoever wanted the change is told
            await all_ended(self._broker.saves())  # who leads next asks for the tables when this is answered
        await self._announced.cease()
        log.warning("this broker has stepped down at log offset %d", self._broker.store.log.end)
        self._stepped_down = SteppedDown(
            self._broker, self._call_soon, self._ask, self._look_for_successor, self._follow_in_place, self.start_again
        )
        return self._roles.state()

    async def _look_for_successor(self) -> Found | None:
        return self._successor(await self._others())

    async def _follow_in_place(self) -> None:
        """Follow the leader, with all clients connected."""
        services, kept = self._services, self._roles.kept
        assert services is not None, "it is started"
        self._set(SLAVE, kept.broker_id)
        self._broker.follow_successor()
        self._follow().start()
        await self._announced.again(services)
        for registration in self.also_registered:
            await registration.again(services)

    async def _promote(self, role: str, *, force: bool) -> ReplicaState:
        if self._stepped_down is not None:
            self._stepped_down.restart_soon("this broker starts again: it has stepped down, and is to lead once more")
            raise Refused(
                Reason.BUSY, "this broker has led before, and starts again first: promote it again in a moment"
            )
        broker, slave, services = self._broker, self._slave, self._services
        assert slave is not None, "a broker that does not lead follows"
        assert services is not None, "it is started"
        number = broker.options.broker_id
        self._check_what_is_needed(force=force)
        found = await self._hand_over(slave, force=force)
        if not role:
            is_told = found is not None and found.role in MASTERS
            role = found.role if found is not None and is_told else self._roles.kept.master_role or ASYNC_MASTER
        await slave.stop()
        try:
            await self._tables_saved(force=force)
            await durable(
                broker.store, self._call_soon
            )  # an epoch begins where nothing is lost any more: see `_after_crash`
            epoch = self._roles.began(number)
            await ended(self._roles.keep(self._roles.leading(role, epoch)))
        except Refused:
            self._follow().start()
            raise
        self._slave = None
        self._set(role, 0)
        self._roles.predecessor, self._roles.master, self._roles.leader_address = self._roles.master, "", ""
        broker.lead()
        broker.replicas.history += 1
        log.warning(
            "this broker leads %s from log offset %d on, in epoch %d",
            broker.environment.name,
            epoch.start,
            epoch.number,
        )
        await self._announced.again(services)
        for registration in self.also_registered:
            await registration.again(services)
        # Consumers know this broker as a slave, and wait at the former master for messages that come here now.
        broker.tell_members()
        return self._roles.state()

    async def _hand_over(self, slave: Slave, *, force: bool) -> ReplicaState | None:
        """Have the master step down, and copy what it has taken last. Returns its state; None: it is away, or cannot step down.

        Raises Refused: nothing is known to be the end of its log, and `force` does not say that this one is.
        """
        address = slave.search.address or self._roles.kept.master or self._announced.master.master
        if address is None:
            self._check_without("no master is known", force=force)
            return None
        try:
            state = await ask(self._transport, address, GetReplicaState())
            if state is None:
                self._check_without(f"the master at {address} is a RocketMQ, which cannot step down", force=force)
                return None
            if state.leads:
                number = self._broker.options.broker_id
                left = await ask(self._transport, address, StepDown(number, self._address))
            else:
                left = state
        except BrokerError as error:
            why = f"the master at {address} does not step down ({error}); `metaq broker demote` on its own machine has it do so"
            self._check_without(why, force=force)
            return None
        except FAULTS as error:
            self._check_without(f"the master at {address} does not answer ({error})", force=force)
            return None
        await self._catch_up(slave, left, address, force=force)
        try:
            await slave.tables.take_last(address)
        except FAULTS as error:
            log.warning(
                "the master's tables could not be had at last (%s): groups may repeat what they consumed just before",
                error,
            )
        return state

    async def _tables_saved(self, *, force: bool) -> None:
        """Return when what the master has told of its tables is saved, and so in effect. Raises Refused: it cannot be."""
        try:
            await all_ended(self._broker.saves())
        except Refused as error:
            if not force:
                raise
            log.warning("this broker leads without some of what its master has told of topics and groups: %s", error)

    def _check_what_is_needed(self, *, force: bool) -> None:
        """Return if this log has all messages that the master still needs. Raises Refused: not all, or that is not known."""
        needed, begin = self._broker.followed.lacks(), self._broker.store.log.min
        if needed is None:
            return
        what = (
            f"the master needs messages of its log from offset {needed} on (delayed, half or staged ones), and the log here begins at {begin}"
            if needed
            else f"the log here begins at {begin}, and the master has not said yet which messages it needs"
        )
        if not force:
            raise Refused(
                Reason.UNAVAILABLE,
                f"{what}: what lies before would be lost if this slave led. Start it anew with an empty folder, so that it copies all "
                "that the master has, or promote with --force",
            )
        log.warning("%s: this broker leads without what lies before", what)

    def _check_without(self, why: str, *, force: bool) -> None:
        """Return if this slave may lead without its master's word. Raises Refused, with what is known to be missing."""
        end, told = self._broker.store.log.end, self._roles.master_end
        lack = (
            f"its log ended at {told} when it was heard last, and this one ends at {end}: {max(0, told - end)} bytes are known to be missing"
            if told >= 0
            else f"where its log ends is not known; this one ends at {end}"
        )
        if not force:
            raise Refused(
                Reason.UNAVAILABLE,
                f"{why}; {lack}, and more if it has taken messages since. If it does not come back, promote with --force: what this "
                "slave does not have is cut off there, and kept, when it comes back",
            )
        log.warning("%s; this broker leads without what it may lack: %s", why, lack)

    async def _catch_up(self, slave: Slave, left: ReplicaState, address: str, *, force: bool) -> None:
        broker = self._broker
        slave.search.takes_over = True
        slave.search.heard(left.log_end)
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await slave.following.copied(left.log_end)
        except TimeoutError:
            if not force:
                raise Refused(
                    Reason.UNAVAILABLE,
                    f"the master at {address} has stepped down at log offset {left.log_end}, and this slave has its log up to "
                    f"{broker.store.log.end}: the rest does not come. No broker leads {broker.environment.name} now: promote this one "
                    "again, or with --force, or the other one",
                ) from None
            log.warning("this broker leads without %d bytes of its master's log", left.log_end - broker.store.log.end)
        finally:
            slave.search.takes_over = False
