"""The role of a running broker whose group has failover: it follows who leads, or leads itself, as ZooKeeper says.

One task looks at ZooKeeper, at each change and five times a second, and does what the rules say (`metaq.broker.failover.protocol`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from metaq.app.failover.by_hand import ByHand
from metaq.app.failover.group import Group
from metaq.app.failover.leading import Leading
from metaq.app.failover.membership import KeptMembership
from metaq.app.failover.search import LeaderSearch
from metaq.app.registration import NameServerRegistration, Registration
from metaq.app.role.pending import carry_out, ended
from metaq.app.role.slave import Slave
from metaq.app.role.stepping_down import SteppedDown
from metaq.broker.broker import Broker
from metaq.broker.failover.epochs import epochs_in, merged
from metaq.broker.failover.in_sync import InSyncReplicas
from metaq.broker.failover.protocol import (
    Election,
    adopted,
    check_creation,
    check_state,
    created,
    elect,
    fits,
    following,
    leads,
)
from metaq.broker.replication.roles import RoleChange
from metaq.client.conversation.administration import GetReplicaState, Identify
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import ask
from metaq.client.shared.transport import Transport
from metaq.errors import ConfigError, ConnectionFailed, MetaqError, NotOurs, Reason, Refused
from metaq.log import RateLimitedLog, when_dead
from metaq.model.acl.secret import Credentials
from metaq.model.failover import NOBODY, GroupState, Live, Member, Membership, Seen
from metaq.model.leadership import SLAVE, Found, ReplicaState
from metaq.option_table import decide
from metaq.registry.group import group_nodes
from metaq.saved_file import TextFile
from metaq.servers.server import BrokerServices, CallSoon

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
"""Longest pause between two looks while nobody leads."""
CALM_LOOK_SECONDS: Final = 0.5
"""The same otherwise: ZooKeeper tells of what changes there, and each look costs it and this broker about 2 ms."""
FIRST_LOOK_SECONDS: Final = 5.0
"""Longest wait of a start for a first look at ZooKeeper; without one it goes on, and follows nobody."""
PATIENCE_SECONDS: Final = 0.5
"""How long the member that comes first may take to lead, before any other one does."""
RETRY_SECONDS: Final = (0.05, 0.1, 0.2, 0.5)
"""Pauses between two tries to copy the leader's log."""
STOP_SECONDS: Final = 10.0
"""Longest time that a stop takes to hand over."""
_WHO_LEADS: Final = "who leads"
_NOT_CHANGED: Final = f"{_WHO_LEADS} could not be changed"


class FailoverRole:
    """The role of one broker. Only in its event loop. A `metaq.app.role.running.RunningRole` to who runs the broker.

    Args:
        address: the broker's, as it is registered.
        announced: the registration at the name servers.
        file: `config/metaqFailover.json`.
        credentials: what requests to other brokers are signed with; None: they are not signed.
        tls: how it connects to them; None: without TLS.
        ha_tls: and to copy the log.
    """

    def __init__(
        self,
        broker: Broker,
        in_sync: InSyncReplicas,
        call_soon: CallSoon,
        address: str,
        announced: NameServerRegistration,
        file: TextFile[Membership],
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
        ha_tls: ClientTls | None = None,
    ) -> None:
        options, name = broker.options, broker.environment.name
        self._broker, self._in_sync, self._roles = broker, in_sync, broker.roles
        self._announced, self._address, self._ha_tls = announced, address, ha_tls
        self.also_known_as = frozenset[str]()
        self.also_registered: Sequence[Registration] = ()
        """Registrations beside that at the name servers, which a change of leaders changes as well."""
        self._loop = asyncio.get_running_loop()
        self._transport = Transport(credentials=credentials, tls=tls)
        self._may_begin = (broker.roles.kept.role or options.broker_role) != SLAVE
        """Whether it may make a group that there is not yet: the slave of a pair leaves that to its master."""
        wake = asyncio.Event()
        nodes = group_nodes(
            options.failover_zookeeper or "", options.broker_cluster_name, name,
            options.failover_session_timeout / 1000, wake.set, options.failover_zookeeper_auth,
        )  # fmt: skip
        membership = KeptMembership(broker, file, call_soon, address)
        self._group = Group(
            name,
            options.broker_id,
            broker,
            in_sync,
            nodes,
            membership,
            call_soon,
            wake,
            RateLimitedLog(log, broker.clock),
        )
        self._leading = Leading(self._group, self._resigned, self._handed_over)
        self._stepped_down: SteppedDown | None = None
        self._live: Live = {}
        """Members that were alive at the last look."""
        self._known = dict[int, str]()
        """Members that were alive at any look → their addresses then."""
        self._slave: Slave | None = None
        self._search: LeaderSearch | None = None
        self._services: BrokerServices | None = None
        self._session = 0
        """Session in which this broker's node was made; 0: none."""
        self._missing_since: float | None = None
        """Since when nobody leads, monotonic seconds."""
        self._whole_from: int | None = None
        """LogOffset from which on this log is whole again."""
        self._tasks: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()
        """Held by whoever changes who leads: the look, a hand-over, a stop."""
        self._by_hand = ByHand(self._group, self._leading, self._transport, address, self._changing, self._try_to_lead)
        self.again: asyncio.Future[str] = self._loop.create_future()
        """Gets a reason when the broker is to be closed and started again, because it does not lead any more."""

    # ------------------------------------------------------------------ start and end

    async def take(self) -> None:
        """Take part. Raises ConfigError: it cannot: ZooKeeper, its data or this folder are not what they have to be."""
        group, roles, options = self._group, self._roles, self._broker.options
        decide(options, broker_role=SLAVE, broker_id=group.number)
        try:
            await group.membership.open()
            epochs = merged(roles.kept.epochs, epochs_in(self._broker.store))
            if epochs != roles.kept.epochs or roles.kept.role:
                await ended(roles.keep(roles.with_epochs(epochs)))
        except Refused as error:
            raise ConfigError(str(error)) from None
        roles.always_relays = True
        self._broker.follow()
        self._make_slave()
        group.nodes.open()
        try:
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._first_look()
        except (TimeoutError, ConnectionFailed):
            log.error(  # noqa: TRY400  the text says it all
                "ZooKeeper at %s does not answer (%s): the start goes on, and this broker takes no messages before it does",
                options.failover_zookeeper, group.nodes.why or "no connection",
            )  # fmt: skip
        except (Refused, ConfigError) as error:
            await self._end()
            raise ConfigError(str(error)) from None

    def _make_slave(self) -> Slave:
        group = self._group
        self._search = LeaderSearch(
            self._broker, self._transport, self._announced, lambda: group.membership.kept, self._agreed
        )
        slave = self._slave = Slave(
            self._broker, group.call_soon, self._transport, self._search, self._ha_tls, RETRY_SECONDS
        )
        return slave

    async def _first_look(self) -> None:
        """Check what is there before anything is served. Raises ConfigError, Refused, ConnectionFailed."""
        group = self._group
        while not group.nodes.connected:
            group.wake.clear()
            await group.wake.wait()
        await self._announce()
        seen = await group.nodes.look()
        if self._broker.options.failover_adopt:
            await self._adopt(seen)
        elif seen.state is not None:
            check_state(group.membership.kept, seen.state, group.name)
        else:
            check_creation(group.membership.kept, group.name)

    async def _adopt(self, seen: Seen) -> None:
        """Begin the group anew with this log. Raises Refused: another broker of the group runs."""
        group = self._group
        others = [one for number, one in seen.live.items() if number != group.number]
        if others:
            raise Refused(
                Reason.INVALID,
                f"failoverAdopt=true, and member {others[0].member} of {group.name} runs at {others[0].address}: stop all others first",
            )
        kept = group.membership.kept
        if fits(kept, seen.state, group.name):
            log.warning("failoverAdopt=true has no effect: what ZooKeeper has of %s fits this broker's log", group.name)
            return
        state = adopted(group.membership.member(), kept, seen.state, self._broker.clock.token())
        if seen.state is None:
            made = await group.nodes.create(state)
        else:
            made = await group.nodes.swap(state, seen.version) is not None
        if not made:
            raise Refused(Reason.BUSY, f"the state of {group.name} in ZooKeeper was changed meanwhile: start once more")
        log.warning("the group %s is begun anew with this broker's log, in epoch %d", group.name, state.epoch)
        await group.membership.keep(history=state.history, whole=True)

    def start(self, services: BrokerServices) -> None:
        """Begin to work, behind the registrations."""
        self._services = services
        self._roles.by(self._begin_promotion, self._begin_to_step_down)
        self._announced.when_met(self._is_member)
        if self._slave is not None:
            self._slave.start()
        self._spawn(self._keep_looking(), "look at ZooKeeper", "this broker does not look at ZooKeeper any more")
        self._spawn(self._leading.keep_renewing(), "renew the lease", "this broker does not renew its lease any more")

    def tick(self) -> None:
        """Let time pass. Called ten times a second."""
        if self._slave is not None:
            self._slave.tick()
        if self._stepped_down is not None and not self.again.done():
            self._stepped_down.tick()
        self._group.faults.tick()
        if self._in_sync.wanted() is not None:
            self._group.wake.set()

    async def stop(self) -> None:
        """Hand over if this broker leads and another one can, and end."""
        if self._leading.epoch is not None and not self.again.done():
            try:
                async with asyncio.timeout(STOP_SECONDS), self._changing:
                    await self._leading.hand_over(NOBODY, "this broker stops")
            except (TimeoutError, MetaqError) as error:  # another one leads when the session has ended
                log.warning(
                    "this broker stops without handing over: %s", str(error) or f"not within {STOP_SECONDS:g} s"
                )
        await self._end()

    async def _end(self) -> None:
        if self._stepped_down is not None:
            await self._stepped_down.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._in_sync.end()
        if self._slave is not None:
            await self._slave.stop()
        if self._group.nodes.connected:
            with contextlib.suppress(MetaqError):
                await self._group.nodes.retire()
        await self._group.nodes.close()
        await self._transport.close()

    @property
    def must_start_again(self) -> bool:
        """Whether this broker has led in this process, and can do so again when it was started again (`start_again`)."""
        return self._stepped_down is not None

    def start_again(self, why: str) -> None:
        """Have the process close this broker and start it again. No effect if it is at it already."""
        if not self.again.done():
            self.again.set_result(why)

    def _resigned(self, why: str) -> None:
        self.start_again(f"this broker starts again, as a follower: {why}")

    def _handed_over(self, successor: int) -> None:
        """Stay where it is, and relay to the successor, until clients know it."""
        if successor in self._live:
            self._roles.leader_address = self._live[successor].address
        self._stepped_down = SteppedDown(
            self._broker, self._group.call_soon, self._ask, self._successor, self._follow_in_place, self.start_again
        )

    async def _is_member(self, address: str) -> bool:
        """Whether another broker of this name is one of the group: then ZooKeeper says who leads, whatever name servers say just now."""
        return address in self._known.values()

    async def _ask(self, address: str) -> ReplicaState | None:
        """Return the state of a broker; None: nothing of our kind and name answers there."""
        try:
            state = await ask(self._transport, address, GetReplicaState())
        except FAULTS:
            return None
        return state if state is not None and state.broker == self._group.name else None

    async def _successor(self) -> Found | None:
        """Return who leads, as ZooKeeper has it; None: nobody does yet."""
        with contextlib.suppress(MetaqError):
            seen = await self._group.nodes.look()
            member = leads(seen.state, seen.live) if seen.state is not None else None
            state = (
                await self._ask(member.address) if member is not None and member.member != self._group.number else None
            )
            if member is not None and state is not None and state.leads:
                return member.address, state
        return None

    async def _follow_in_place(self) -> None:
        """Follow the leader, with all clients connected."""
        assert self._services is not None, "it is started"
        decide(self._broker.options, broker_role=SLAVE, broker_id=self._group.number)
        await ended(self._roles.keep(self._roles.with_epochs(self._roles.kept.epochs)))
        self._broker.follow_successor()
        self._make_slave().start()
        self._group.wake.set()
        await self._register(self._services)

    # ------------------------------------------------------------------ looks

    async def _keep_looking(self) -> None:
        group = self._group
        while True:
            group.wake.clear()
            try:
                if group.nodes.connected and not self.again.done():
                    async with self._changing:
                        await self._look()
                    self._leading.doubtful = False
            except NotOurs:  # the session has ended
                self._session = 0
                group.wake.set()
            except ConnectionFailed as error:
                group.faults.warning("zookeeper", "ZooKeeper does not answer: %s", error)
            except (Refused, ConfigError) as error:
                await self._doubt(str(error))
            except Exception:
                log.exception("taking part in the group failed; it is tried again")
                await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CALM_LOOK_SECONDS if self._missing_since is None else LOOK_SECONDS):
                    await group.wake.wait()

    async def _look(self) -> None:
        """Look at ZooKeeper once, and do what the rules say. Raises ConnectionFailed, NotOurs, Refused, ConfigError."""
        group, kept = self._group, self._group.membership.kept
        await self._announce()
        seen = await group.nodes.look()
        state = seen.state
        if state is None:
            await self._create()
            return
        check_state(kept, state, group.name)
        self._live = seen.live
        self._known |= {number: one.address for number, one in seen.live.items()}
        self._in_sync.alive(seen.live)
        if state.epoch > kept.epoch and kept.history:
            await group.membership.keep(epoch=state.epoch)
        own = group.membership.member()
        if state.incarnation == own.incarnation:
            await self._lead(state, seen.version)
        elif self._slave is None and self._stepped_down is not None:
            pass  # it waits for its successor
        elif self._leading.epoch is not None or self._slave is None:
            self._leading.resign(f"member {state.leader or state.hand_to} leads, or is to, in epoch {state.epoch}")
        else:
            await self._be_led(own, state, seen)

    async def _doubt(self, why: str) -> None:
        """Acknowledge nothing while the group is not what it was: an operator has to look at it."""
        self._group.faults.error("doubt", "%s", why)
        self._leading.doubtful = True
        self._in_sync.doubt(why)
        if self._search is not None and self._search.leader is not None:
            self._leave()
        await asyncio.sleep(LOOK_SECONDS)

    async def _announce(self) -> None:
        """Have this broker's node in the present session. Raises ConfigError: another broker has it."""
        nodes = self._group.nodes
        session = nodes.session
        if session == self._session:
            return
        own = self._group.membership.member()
        holder = await nodes.announce(own)
        if holder is not None:
            other = holder.member
            # Its own earlier process, whose session has not ended yet, has this folder; nobody else can have it.
            if other.store != own.store or await self._is_another(other):
                raise ConfigError(
                    f"brokerId={own.member} of {self._group.name} is taken by the broker at {other.address}: give each broker of the "
                    "group a number and a folder of its own"
                )
            if not await nodes.take_over(own, holder):
                return
        self._session = session

    async def _is_another(self, other: Member) -> bool:
        """Whether another process than this one answers where the holder of this broker's number says that it is."""
        if other.address == self._address:
            return False
        try:
            identity = await ask(self._transport, other.address, Identify())
        except FAULTS:
            return False
        return identity is not None and identity.instance != self._broker.environment.instance

    async def _create(self) -> None:
        """Make the group, if that is for this broker to do."""
        group, has_messages = self._group, self._broker.store.log.end > 0
        check_creation(group.membership.kept, group.name)
        # A broker that has messages comes before those that have none.
        if not self._may_begin or not (has_messages or self._is_late()):
            group.faults.write(logging.INFO, "no group", "the group %s is not there yet", group.name)
            return
        state = created(group.membership.member(), self._broker.clock.token())
        if await group.nodes.create(state):
            log.warning("the group %s begins with this broker, member %d", group.name, group.number)
        group.wake.set()

    def _is_late(self) -> bool:
        """Whether nobody has led for so long that who comes first has had its time."""
        now = self._broker.clock.monotonic()
        if self._missing_since is None:
            self._missing_since = now
            log.warning("nobody leads %s", self._group.name)
        return now - self._missing_since >= PATIENCE_SECONDS

    async def _be_led(self, own: Member, state: GroupState, seen: Seen) -> None:
        """Follow who leads, or try to lead."""
        search, slave, group = self._search, self._slave, self._group
        assert search is not None, "who does not lead follows"
        assert slave is not None, "who does not lead follows"
        leader = leads(state, seen.live)
        if leader is None and search.leader is not None:
            self._leave()
            own = group.membership.member()
        said = own if leader is None else following(own)
        if _differ(seen.live.get(group.number), said):
            # Whether its log is whole, and how long it is, for those who choose. A renewal does not write that.
            if await group.nodes.announce(said) is not None:
                raise NotOurs(f"the node of member {group.number} of {group.name} is kept by another session")
            group.wake.set()
        if leader is not None:
            self._missing_since = None
            self._in_sync.waiting = ""
            self._heal(own)
            target = leader.address, state.epoch
            if search.leader != target:
                search.forget()
                search.leader = target
                slave.following.again()
        else:
            minimum = self._broker.options.min_in_sync_replicas
            outcome = elect(own, state, seen.live, minimum=minimum, patient=not self._is_late())
            self._in_sync.waiting = "" if isinstance(outcome, Election) else outcome.why
            if isinstance(outcome, Election) and self._stepped_down is not None:
                self.start_again("this broker starts again: it has stepped down, and is to lead once more")
            elif isinstance(outcome, Election):
                await self._try_to_lead(outcome.state, seen.version)
            else:
                group.faults.warning(outcome.why, "this broker does not lead %s: %s", group.name, outcome.why)

    def _leave(self) -> None:
        """Take nothing more from a leader, and report nothing more to it."""
        if self._search is not None and self._slave is not None:
            self._search.forget()
            self._slave.following.again()

    async def _try_to_lead(self, state: GroupState, version: int) -> None:
        """Ask ZooKeeper for the leader's place. Raises ConnectionFailed."""
        # First: what is reported from here on would let the leader before acknowledge what this broker does not begin with.
        self._leave()
        took = await self._group.nodes.swap(state, version)
        if took is None:
            self._group.wake.set()  # somebody else was faster
        else:
            await self._lead(state, took)

    async def _lead(self, state: GroupState, version: int) -> None:
        """Lead, or go on with it: what is in ZooKeeper is what this process has put there. Raises ConnectionFailed, NotOurs, Refused."""
        if self._leading.epoch is not None:
            await self._leading.go_on(state, version)
            return
        assert self._services is not None, "it is started"
        self._leave()
        if self._slave is not None:
            slave, self._slave, self._search = self._slave, None, None
            await slave.stop()
        await self._leading.begin(state, version)
        self._missing_since = None
        self._spawn(self._register(self._services), "register as leader", "this broker is not registered as leader")

    async def _register(self, services: BrokerServices) -> None:
        """Register with the role that this broker has now."""
        await self._announced.again(services)
        for registration in self.also_registered:
            await registration.again(services)
        if self._leading.epoch is not None:
            # Consumers know this broker as a follower, and wait at the former leader for messages that come here now.
            self._broker.tell_members()

    def _heal(self, own: Member) -> None:
        """Note that this log has all again that it may have lost with its power."""
        if own.whole or self._whole_from is None or self._broker.store.log.end < self._whole_from:
            return
        self._whole_from = None

        async def keep() -> None:
            await self._group.membership.keep(whole=True)
            self._group.wake.set()

        self._spawn(keep(), "note that the log is whole", "the log is whole again, and that could not be noted")

    async def _agreed(self, epoch: int, log_end: int) -> None:
        """Belong to the group whose leader's log this one is a begin of. Raises ConnectionFailed, Refused."""
        group = self._group
        seen = await group.nodes.look()
        if seen.state is None or seen.state.epoch != epoch:
            raise ConnectionFailed("the leader has changed meanwhile")
        await group.membership.keep(history=seen.state.history, epoch=epoch)
        self._whole_from = log_end

    # ------------------------------------------------------------------ by hand

    def _begin_promotion(self, change: RoleChange, _role: str, force: bool) -> None:
        self._spawn(carry_out(change, lambda: self._promote(force=force), _WHO_LEADS), "change who leads", _NOT_CHANGED)

    def _begin_to_step_down(self, change: RoleChange, broker_id: int, _master: str) -> None:
        self._spawn(carry_out(change, lambda: self._step_down(broker_id), _WHO_LEADS), "change who leads", _NOT_CHANGED)

    async def _step_down(self, to: int) -> ReplicaState:
        async with self._changing:
            await self._leading.hand_over(to, "by hand")
        await self._announced.cease()  # its next registration as leader would take the place of its successor's
        return self._roles.state()

    async def _promote(self, *, force: bool) -> ReplicaState:
        if self._stepped_down is not None:
            self._stepped_down.restart_soon("this broker starts again: it has stepped down, and is to lead once more")
            raise Refused(
                Reason.BUSY, "this broker has led before, and starts again first: promote it again in a moment"
            )
        return await self._by_hand.promote(force=force)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str, dead: str) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        task = self._loop.create_task(work, name=name)
        task.add_done_callback(when_dead(log, dead))
        self._tasks.append(task)


def _differ(told: Member | None, said: Member) -> bool:
    """Whether ZooKeeper has something else of this broker than it has to say. How long a whole log is does not matter."""
    if told is not None and told.whole and said.whole:
        said = structs.replace(said, log_end=told.log_end, epoch=told.epoch)
    return told != said
