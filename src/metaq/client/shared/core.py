"""The client core, shared by all producers and consumers of a process (RocketMQ's MQClientInstance).

One core per name servers and client id: one connection per broker, one heartbeat, one route poll, whichever threads and
event loops its users live in. The first user makes it, the last one to leave closes it.

The client id, under which brokers know us, is made of the instance name, and of the address and unit name if they are
given. Two members of one consumer group in one process need two names, because a client is a member once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

from metaq.client.conversation import driver
from metaq.client.conversation.call import FAULTS, At, Call, Consultation, Conversation
from metaq.client.conversation.groups import LeaveGroup, SendHeartbeat
from metaq.client.conversation.name_servers import NameServers
from metaq.client.conversation.notices import not_supported, notice_of, unreadable
from metaq.client.conversation.retry import may_have_moved
from metaq.client.identity import sources
from metaq.client.identity.names import Namespace
from metaq.client.identity.options import ClientOptions
from metaq.client.shared import loop as loops
from metaq.client.shared.answering import Answering
from metaq.client.shared.direct_links import DirectLinks
from metaq.client.shared.leaders import LAST_WORDS_SECONDS, UNANSWERED_SECONDS, Leaders
from metaq.client.shared.namespaces import NamespacedRoutes
from metaq.client.shared.requests import Requests
from metaq.client.shared.roles import Checker, Member
from metaq.client.shared.routes import KnownRoutes
from metaq.client.shared.transport import CONNECT_SECONDS, Transport
from metaq.clock import SYSTEM, Clock
from metaq.errors import BadRequest, BrokerError, ClientForked, NoRoute
from metaq.log import RateLimitedLog
from metaq.model import BrokerData, Heartbeat
from metaq.model.message_ids import IdPrefixes
from metaq.model.notices import MembersChanged, OffsetsReset, RequestReplied, TransactionCheck
from metaq.net.address import local_address
from metaq.wire.command import Command, reply

log = logging.getLogger("metaq.client")

T = TypeVar("T")

MEET_SECONDS = 1.0
"""Pause between two tries to find the brokers that may send transaction checks, s."""
MEET_AGAIN_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses of reconnects to such a broker, s; afterwards the regular heartbeats reconnect."""


class ClientCore:
    """The shared core. Methods run on the background loop unless they say otherwise. `taken`: client ids of other cores."""

    namespace = Namespace()
    """The holder's namespace."""

    address_server: str | None = None  # URL of the page that the name servers' addresses come from, if they do

    def __init__(
        self, addresses: tuple[str, ...], options: ClientOptions, clock: Clock = SYSTEM, taken: Collection[str] = ()
    ) -> None:
        self.thread = loops.background()
        self.clock = clock
        self.pid = os.getpid()
        host = local_address()
        # The address only names the client: it need not be reachable.
        self.client_id = options.unused_client_id(host, self.pid, clock.now_ms(), taken)
        self.id_prefixes = IdPrefixes(options.client_ip or host, clock)
        self.credentials = options.credentials
        tls = options.tls.open() if options.tls is not None else None
        self.transport = Transport(self._on_request, self._on_connected, self._on_lost, self.credentials, tls, clock)
        self.links = DirectLinks(self.id_prefixes, clock, self.transport.peer_of, self._open_direct_link, tls)
        # Begin with a random one, to spread the clients over the name servers.
        self.name_servers = NameServers(addresses, clock.random_below(len(addresses)))
        self.routes: KnownRoutes | NamespacedRoutes = KnownRoutes(
            self.name_servers, self.consult, self._on_route_change, self._on_broker_change
        )
        self.leaders = Leaders(clock.monotonic, self.spawn, self._known_broker, self._look_for_leader)
        self._watching_links = False
        self.users: Counter[ClientOptions] = Counter()
        self._paces: dict[Callable[[], Awaitable[None]], tuple[float, asyncio.Task[None]]] = {}
        self._producer_groups: Counter[str] = Counter()
        self._members: dict[str, Member] = {}
        self._checkers: dict[str, list[Checker]] = {}
        self._cluster: dict[str, BrokerData] = {}
        """All brokers of the cluster, while each of them must know this client: any may hold a half message whose check
        we answer, or get the reply to a request of ours."""
        self._requesters: Counter[object] = Counter()
        self._meeting: asyncio.Future[None] | None = None
        self._levels: dict[str, int] = {}
        """Broker → level of our extensions that it supports, from the response to a heartbeat."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._limited_log = RateLimitedLog(log, clock)
        """Rate-limited log for lines that a broker can cause at will."""
        self.requests = Requests(self._limited_log)
        self._answering = Answering(self.spawn, self._limited_log)

    def set_pace(self) -> None:
        """Set the intervals of the periodic work: the shortest that any user of this core asked for."""
        users = list(self.users)
        if not users:
            return
        for work, seconds in (
            (self._poll_routes, min(options.poll_name_server_interval for options in users)),
            (self.send_heartbeats, min(options.heartbeat_broker_interval for options in users)),
        ):
            known, task = self._paces.get(work, (0.0, None))
            if known != seconds:
                # Only a changed interval restarts its task: restarting would postpone the next heartbeat.
                if task is not None:
                    task.cancel()
                self._paces[work] = seconds, self.every(seconds, work)
        if self.address_server is not None and self._poll_addresses not in self._paces:
            seconds = sources.POLL_SECONDS
            self._paces[self._poll_addresses] = seconds, self.every(seconds, self._poll_addresses)

    async def _poll_addresses(self) -> None:
        await sources.look_again(self.address_server or "", self.name_servers, self._limited_log)

    async def close(self) -> None:
        """End the periodic work and drop all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.links.close()
        await self.transport.close()

    def every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run `work` every so many seconds until the core closes or the task is cancelled. Errors are logged."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await work()
                except FAULTS as error:
                    log.debug("%s: %s", work.__name__, error)
                except Exception:
                    # Periodic work must survive any bug: a client without heartbeats loses its queues.
                    log.exception("%s failed and will be tried again in %s s", work.__name__, seconds)

        return self.spawn(repeat())

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """Run `work` in the loop; it is cancelled when the core closes."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the client ended with an error", exc_info=error)

    def _open_direct_link(self, address: str) -> None:
        """Any thread: have the loop open a direct link."""
        self.thread.post(lambda: self.spawn(self._open_link(address)))

    async def _open_link(self, address: str) -> None:
        await self.links.open(address)
        if not self._watching_links:
            self._watching_links = True
            self.spawn(self._watch_links())

    async def _watch_links(self) -> None:
        """Doubt brokers that leave sends on direct links unanswered: their threads wait, and notice nothing."""
        while self.links.ready:
            await asyncio.sleep(UNANSWERED_SECONDS / 2)
            for address in self.links.silent(UNANSWERED_SECONDS):
                if (data := self._broker_at(address)) is not None:
                    self.leaders.doubt(data.broker)
        self._watching_links = False

    # -------------------------------------------------------------- members

    def shared(self) -> ClientCore:
        """Return the core without a namespace, which all clients of this client id share."""
        return self

    @property
    def in_own_process(self) -> bool:
        return self.pid == os.getpid()

    def check_process(self) -> None:
        """Any thread. Raises ClientForked in a child of the process that made this core."""
        if not self.in_own_process:
            raise ClientForked(
                f"this client was made in process {self.pid} and does not work in its child {os.getpid()}: "
                "make a new one after the fork"
            )

    def add_producer(self, group: str) -> None:
        self._producer_groups[group] += 1

    def remove_producer(self, group: str) -> bool:
        """Returns whether it was the group's last producer here."""
        self._producer_groups[group] -= 1
        if self._producer_groups[group] <= 0:
            del self._producer_groups[group]
            return True
        return False

    def add_checker(self, checker: Checker) -> None:
        """Register `checker` for its group's transaction checks, at every broker, also those that it never sends to."""
        first = not self._checkers
        self._checkers.setdefault(checker.group, []).append(checker)
        # At once, also if the brokers are known: the heartbeat carries the new producer group.
        self.spawn(self._meet_brokers(known=not first))

    def remove_checker(self, checker: Checker) -> None:
        """Unregister a checker."""
        left = self._checkers.get(checker.group, [])
        if checker in left:
            left.remove(checker)
        if not left:
            self._checkers.pop(checker.group, None)

    async def add_requester(self, producer: object) -> None:
        """Make this client known to all brokers, any of which may push a reply. Returns when those that can be reached
        know it."""
        if producer not in self._requesters:
            self._requesters[producer] += 1
            # Every broker may get the reply, and pushes it only to a client that it knows by heartbeat.
            self._meeting = self.spawn(self._meet_for_replies())
        if self._meeting is not None and not self._meeting.done():
            # Other requests may wait for the same meeting.
            await asyncio.shield(self._meeting)

    def is_requester(self, producer: object) -> bool:
        """Any thread: return whether it was added, and the brokers have this client's heartbeat."""
        return producer in self._requesters and self._meeting is not None and self._meeting.done()

    async def _meet_for_replies(self) -> None:
        try:
            await self._find_brokers()
        except FAULTS as error:
            log.info("replies by way of brokers that we do not know yet cannot reach us: %s", error)
        await self.send_heartbeats()

    def remove_requester(self, producer: object) -> None:
        """Unregister a closed producer: its requests get no more replies."""
        del self._requesters[producer]
        self.requests.give_up(producer)

    @property
    def _known_to_all(self) -> bool:
        """Whether every broker must have this client's heartbeat, also those that it sends nothing to."""
        return bool(self._checkers or self._requesters)

    async def _meet_brokers(self, *, known: bool) -> None:
        """Send a heartbeat to every master as soon as a name server knows them."""
        while not known and self._checkers:
            try:
                await self._find_brokers()
                known = True
            except FAULTS as error:
                log.info("no broker can ask about transactions yet: %s", error)
                await asyncio.sleep(MEET_SECONDS)
        await self.send_heartbeats()

    async def _find_brokers(self) -> None:
        before = self._cluster
        self._cluster = (await self.consult(self.name_servers.cluster())).brokers if self._known_to_all else {}
        for name, data in self._cluster.items():
            self.routes.heard(data)
            if before.get(name) != data and self.routes.broker(name) is None:
                self._on_broker_change(data)

    def claim(self, member: Member) -> bool:
        """Any thread: become the member of its group here. Return False: this client is one already."""
        # In one step, because constructors run in any thread: of two members the first one stays.
        return self._members.setdefault(member.group, member) is member

    def member(self, group: str) -> Member | None:
        """Any thread: return this client's member of a group; None: it has none."""
        return self._members.get(group)

    def remove_member(self, member: Member) -> None:
        self._members.pop(member.group, None)

    # -------------------------------------------------------------- calls and conversations

    def is_ours(self, broker: str) -> bool:
        """Return whether the broker of that name has reported support of our extensions."""
        return self._levels.get(broker, 0) > 0

    def level_of(self, broker: str) -> int | None:
        """Return the level of our extensions at the broker of that name; None: no heartbeat was answered yet."""
        return self._levels.get(broker)

    def address_of(self, broker: str, broker_id: int = 0) -> str | None:
        """Return the address of a broker: of the wanted role (0 master) if that is up, else of any."""
        data = self.routes.broker(broker)
        if data is None:
            return None
        # As Java's client for pulls: a replica that is up, if the wanted one is not.
        return data.addresses.get(broker_id) or data.any_address

    def is_up(self, broker: str, broker_id: int) -> bool:
        """Return whether the name servers know the broker of that name and number."""
        data = self.routes.broker(broker)
        return data is not None and broker_id in data.addresses

    def ask(self, address: str, call: Call[T], seconds: float | None = None) -> Coroutine[Any, Any, T]:
        """Return the outcome of a call. `seconds`: time-out instead of the call's own.

        Raises what `Transport.call` raises, BrokerError: refused, BadRequest: the answer cannot be read.
        """
        return driver.ask(self.transport, address, call, seconds, self.credentials)

    def ask_broker(
        self, broker: str, call: Call[T], *, broker_id: int = 0, seconds: float | None = None, held: bool = False
    ) -> Coroutine[Any, Any, T]:
        """Ask the broker of that name, as `ask`: its wanted role if that is up. `held`: the answer may come late.

        Raises NoRoute, at once: none is.
        """
        address = self.address_of(broker, broker_id)
        if address is None:
            raise NoRoute(f"no broker named {broker} is up")
        return self.ask_leader(broker, address, call, seconds, held=held)

    async def ask_leader(
        self, broker: str, address: str, call: Call[T], seconds: float | None = None, *, held: bool = False
    ) -> T:
        """Ask who is known to lead the broker of that name, as `ask`. Another one is looked for if that fails, or takes long."""
        # A leader that is replaced while it sleeps, or whose machine is gone, never answers.
        silence = (
            asyncio.get_running_loop().call_later(UNANSWERED_SECONDS, self.leaders.doubt, broker) if not held else None
        )
        try:
            return await self.ask(address, call, seconds)
        except FAULTS as error:
            if may_have_moved(error):
                self.leaders.doubt(broker)
            raise
        finally:
            if silence is not None:
                silence.cancel()

    async def send_oneway(self, address: str, call: Call[Any], seconds: float = CONNECT_SECONDS) -> None:
        """Send a call one-way. Raises as `Transport.send_oneway`."""
        await self.transport.send_oneway(address, call.request(), seconds)

    async def converse(self, broker: str, conversation: Conversation[T]) -> T:
        """Run a conversation with the broker of that name. Raises as `ask_broker` and the conversation."""

        def answer(step: Call[Any]) -> Awaitable[object]:
            return self.ask_broker(broker, step)

        return await driver.converse_async(conversation, answer)

    async def converse_at(self, address: str, conversation: Conversation[T], seconds: float | None = None) -> T:
        """Run a conversation with the peer at an address; `seconds` as in `ask`. Raises as that and the conversation."""

        def answer(step: Call[Any]) -> Awaitable[object]:
            return self.ask(address, step, seconds)

        return await driver.converse_async(conversation, answer)

    def consult(self, consultation: Consultation[T]) -> Coroutine[Any, Any, T]:
        """Run a conversation that chooses its peers."""

        def answer(step: At[Any]) -> Awaitable[object]:
            return self.ask(step.address, step.call)

        return driver.converse_async(consultation, answer)

    # -------------------------------------------------------------- heartbeats

    async def send_heartbeats(self) -> None:
        """Send heartbeats to the brokers of all routes in use: to masters only, to all addresses if somebody consumes."""
        if not self._members and not self._producer_groups:
            return
        brokers = self.routes.brokers()
        targets = [
            (data, address)
            for data in self._brokers().values()
            for address in (
                # Consumers also to slaves, from which they may pull; producers have nothing to do with slaves (as
                # Java's clients).
                data.addresses.values() if self._members and data.broker in brokers else filter(None, [data.master])
            )
        ]
        call = self._heartbeat()
        await asyncio.gather(*(self._send_heartbeat(data, address, call) for data, address in targets))

    async def learn_levels(self, topic: str) -> None:
        """Send a heartbeat to those of the topic's masters that have had none, to learn which are ours. Raises NoRoute."""
        route = await self.routes.route(topic)
        unknown = [data for data in route.brokers if data.broker not in self._levels and data.master]
        call = self._heartbeat()
        await asyncio.gather(*(self._send_heartbeat(data, data.master or "", call) for data in unknown))

    async def learn_level(self, broker: str) -> int | None:
        """Return the level of our extensions at the broker of that name; ask it if unknown. None: no answer."""
        data = self.routes.broker(broker)
        if broker not in self._levels and data is not None and data.master:
            await self._send_heartbeat(data, data.master, self._heartbeat())
        return self._levels.get(broker)

    def _brokers(self) -> dict[str, BrokerData]:
        """Return all brokers of the routes in use, or of the cluster if all must know this client."""
        return {**self._cluster, **self.routes.brokers()}

    def _heartbeat(self) -> SendHeartbeat:
        consumers = tuple(member.heartbeat() for member in self._members.values())
        return SendHeartbeat(Heartbeat(self.client_id, consumers, tuple(self._producer_groups)))

    async def _greet(self, broker: BrokerData, address: str) -> None:
        await self._send_heartbeat(broker, address, self._heartbeat())

    async def _send_heartbeat(self, broker: BrokerData, address: str, call: SendHeartbeat) -> None:
        try:
            self._levels[broker.broker] = await self.ask(address, call)
        except FAULTS as error:
            if isinstance(error, BrokerError) and not error.retriable and self._members:
                # Such a member gets nothing, for ever: its group is not there, or may not be joined.
                self._limited_log.warning(
                    ("heartbeat", address), "consumers of this client are no members there: %s", error
                )
            else:
                log.debug("no heartbeat to %s: %s", address, error)

    async def leave(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Notify every connected broker that this client has left the group. Brokers out of reach notice by themselves."""
        call = LeaveGroup(self.client_id, producer_group, consumer_group)
        # Only where we are connected: another broker has no membership of ours to end.
        connected = set(self.transport.addresses) - set(self.name_servers.addresses)

        async def one(address: str) -> None:
            try:
                await self.ask(address, call)
            except FAULTS as error:
                log.debug("not unregistered at %s: %s", address, error)

        await asyncio.gather(*map(one, connected))

    # -------------------------------------------------------------- events

    async def _poll_routes(self) -> None:
        await self.routes.refresh()
        # Also when nobody needs all brokers any more: `_find_brokers` forgets them then.
        if self._known_to_all or self._cluster:
            await self._find_brokers()
        needed = {address for data in self._brokers().values() for address in data.addresses.values()}
        self.transport.keep_only(needed | set(self.name_servers.addresses))
        self.links.keep_only(needed)

    def _on_route_change(self, topic: str) -> None:
        for member in self._members.values():
            if member.uses(topic):
                member.rebalance_soon()

    def _on_broker_change(self, data: BrokerData) -> None:
        """A broker has other addresses than before: perhaps another one leads."""
        former = self.leaders.changed(data)
        if former is None:
            return
        assert data.master is not None, "there is a new leader"
        log.info("%s leads broker %s now, instead of %s", data.master, data.broker, former or "nobody")
        if self._members or self._producer_groups:
            # At once: it must know us before it lists members, has transactions checked, or pushes replies.
            self.spawn(self._greet(data, data.master))
        for member in list(self._members.values()):
            member.leader_changed(data.broker)
        if former:
            # After a moment: a leader that has stepped down still answers what it has taken.
            asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._leave_former, former)

    def _leave_former(self, address: str) -> None:
        """Give up the requests to a former leader, unless it is a replica still: it may have died without a word."""
        if self._broker_at(address) is None:
            self.links.give_up(address)
            self.transport.give_up(address, "another broker leads in its place")

    def _known_broker(self, name: str) -> BrokerData | None:
        return self.routes.broker(name) or self._cluster.get(name)

    async def _look_for_leader(self, broker: str) -> None:
        if not await self.routes.look(broker) and self._known_to_all:
            await self._find_brokers()

    def _on_connected(self, address: str) -> None:
        """Send a heartbeat on a new connection before anything else: brokers know clients by their connection."""
        if not (self._members or self._producer_groups):
            return
        if (data := self._broker_at(address)) is not None:
            self.spawn(self._send_heartbeat(data, address, self._heartbeat()))

    def _broker_at(self, address: str) -> BrokerData | None:
        return next((data for data in self._brokers().values() if address in data.addresses.values()), None)

    def _on_lost(self, address: str) -> None:
        log.info("lost the connection to %s", address)
        if self._known_to_all and (data := self._broker_at(address)) is not None:
            self.spawn(self._meet_again(data, address))

    async def _meet_again(self, broker: BrokerData, address: str) -> None:
        """Reconnect to a lost broker that may have to check transactions or push replies, although we send nothing to it."""
        for pause in MEET_AGAIN_SECONDS:
            await asyncio.sleep(pause)
            if not self._known_to_all or address in self.transport.addresses:
                return
            await self._send_heartbeat(broker, address, self._heartbeat())

    def _on_request(self, address: str, command: Command) -> Command | asyncio.Future[Command] | None:
        try:
            data = self._broker_at(address)
            # The broker's name is set in messages of checks and replies.
            notice = notice_of(command, data.broker if data is not None else "", self.clock.now_ms())
        except BadRequest as error:
            self._limited_log.warning(("unreadable", address), "%s sent what cannot be read: %s", address, error)
            return unreadable(command, str(error))
        if notice is None:
            answer = not_supported(command)
            log.debug("refused from %s:%s", address, answer.remark)
            return answer
        if isinstance(notice, TransactionCheck):
            self._check(notice, address)
        elif isinstance(notice, RequestReplied):
            self.requests.replied(notice)
            return unreadable(command, notice.broken) if notice.broken else reply(command)
        elif isinstance(notice, MembersChanged | OffsetsReset):
            if (member := self._members.get(notice.group)) is None:
                return None
            if isinstance(notice, MembersChanged):
                # A broker that leads from now on says so in this way, before its clients would notice.
                if data is not None and data.master != address:
                    self.leaders.doubt(data.broker)
                member.rebalance_soon()
            else:
                member.reset_offsets(notice.offsets)
        else:
            return self._answering.begin(command, notice, self._members.get(notice.group))
        return None

    def _check(self, question: TransactionCheck, address: str) -> None:
        if checkers := self._checkers.get(question.group):
            # Several producers of one group: the newest answers, as any member of the group may.
            checkers[-1].check(question, address)
        else:
            self._limited_log.warning(
                ("unanswered", question.group),
                "%s asks about transaction %s of producer group %s, for which nobody here answers; it will ask again",
                address, question.half.message_id, question.group,
            )  # fmt: skip
