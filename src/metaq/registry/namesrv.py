"""Registrations of a broker at its name servers.

Name servers do not talk to each other, so a broker registers at each. It sends its whole table at its start and every
`period` seconds, which renews its lease, and tells everything to a name server that was away. In between it sends only
changed topics, as RocketMQ's brokers do for new ones: a registration never removes a topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from metaq.client.conversation.driver import Caller, ask
from metaq.client.conversation.registration import RegisterBroker, UnregisterBroker
from metaq.client.conversation.routes import GetCluster
from metaq.errors import MetaqError
from metaq.log import when_dead
from metaq.model import DataVersion, TopicConfig
from metaq.model.topics.registration import BrokerIdentity, Registered

log = logging.getLogger(__name__)


SILENCE_PERIODS = 2
"""Periods after which the whole table is sent again: a name server's lease is four by default."""
GATHER_SECONDS = 0.02
"""Average seconds between registrations of changes: thousands of automatically created topics would else be as many of
them."""
AT_ONCE = 32
"""Registrations in a row without that pause: whoever creates a few topics finds them at once."""
REGISTERED_TIMEOUT = 2.0
"""Longest wait for the name servers, below the 3 seconds that clients wait for an answer."""


class Registrar:
    """Keeps one broker registered at every name server, also at one that was restarted.

    Each name server has a task of its own, so one that does not answer delays no other.

    Args:
        caller: sends the requests.
        name_servers: their addresses.
        identity: the broker's names and addresses.
        describe: returns the DataVersion and the topic table; for names, only those topics that exist.
        period: seconds between registrations of the whole table.
        retry: seconds before a failed registration is tried again.
        timeout: seconds that a name server may take to answer.
        gather: average seconds between registrations of changes, unless somebody waits for one (`when_registered`).
        at_once: registrations of changes in a row without that pause.
        ordered: called with the ordered topics in the name servers' answers.
        told: called with each answer.
        certain: returns whether the broker surely is what `identity` says. Otherwise it does not take the place of another one that
            has registered as that: a leader that has slept may have a successor.
    """

    def __init__(
        self,
        caller: Caller,
        name_servers: Sequence[str],
        identity: BrokerIdentity,
        describe: Callable[[Collection[str] | None], tuple[DataVersion, Mapping[str, TopicConfig]]],
        period: float = 30.0,
        retry: float = 1.0,
        *,
        timeout: float = RegisterBroker.seconds,
        gather: float = GATHER_SECONDS,
        at_once: int = AT_ONCE,
        ordered: Callable[[Collection[str]], None] = lambda _topics: None,
        told: Callable[[Registered], None] = lambda _answer: None,
        certain: Callable[[], bool] = lambda: True,
    ) -> None:
        self._caller, self._identity, self._describe, self._certain = caller, identity, describe, certain
        self._period, self._retry, self._ordered, self._told = period, retry, ordered, told
        self._timeout = timeout
        self._gather, self._credit = gather, at_once * gather
        self._ordered_at: dict[str, Collection[str]] = {}
        """Name server → its ordered topics."""
        self._servers = [_NameServer(address) for address in name_servers]
        self._changes = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Name server → what keeps this broker registered there."""
        self._failing: dict[str, str] = {}
        self._taken = asyncio.Event()

    @property
    def failing(self) -> Mapping[str, str]:
        """Name servers that failed the last registration → why."""
        return self._failing

    async def start(self) -> None:
        """Register everywhere, wait for the answers, and go on in the background. One out of reach is logged and tried
        again."""
        # All at once: one name server that is away costs its own time-out, not that of the others, too.
        await asyncio.gather(*(self._register(server) for server in self._servers))
        for server in self._servers:
            self._keep(server)

    def _keep(self, server: _NameServer) -> None:
        work = self._keep_registering(server)
        task = asyncio.create_task(work, name=f"registrar of {server.address}")
        task.add_done_callback(
            when_dead(log, f"this broker does not register at name server {server.address} any more")
        )
        self._tasks[server.address] = task

    async def exchange(self, addresses: Sequence[str]) -> None:
        """Register at these name servers instead. Return when each new one has answered, or failed to.

        Those that are none any more are not told: what they know stays until its lease ends, since clients ask them until
        they have heard of the others.
        """
        known = {server.address: server for server in self._servers}
        new = [_NameServer(address) for address in addresses if address not in known]
        await asyncio.gather(*(self._register(server) for server in new))
        for address in known.keys() - set(addresses):
            self._tasks.pop(address).cancel()
            self._failing.pop(address, None)
            self._ordered_at.pop(address, None)
        self._servers = [*(server for server in self._servers if server.address in addresses), *new]
        for server in new:
            self._keep(server)
        self._notify_waiters()

    async def registered(self) -> None:
        """Wait until one name server has accepted a registration."""
        await self._taken.wait()

    def changed(self, topic: str | None = None) -> None:
        """Register a changed topic (None: the table), at once unless that was done often lately. Calls until then make
        one registration."""
        self._changes += 1
        for server in self._servers:
            if topic is None:
                server.needs_all()
            else:
                server.topics.add(topic)
            server.changed.set()

    def lost(self, address: str) -> None:
        """Register again at a name server whose connection broke, once it is back: it drops brokers with their
        connections."""
        for server in self._servers:
            if server.address == address:
                server.needs_all()
                server.changed.set()

    def when_registered(self, done: Callable[[], None], timeout: float = REGISTERED_TIMEOUT) -> None:
        """Call `done` once every name server has taken, or failed to take, the present table; after `timeout` seconds
        at the latest."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        waiter.add_done_callback(lambda _: done())
        # What has changed up to now: a registration that began before does not count.
        self._waiters.append((self._changes, waiter))
        loop.call_later(timeout, _finish, waiter)
        self._notify_waiters()
        if not waiter.done():
            for server in self._servers:
                server.hurry.set()

    async def stop(self) -> None:
        """Unregister at every name server that can be reached."""
        # The tasks end first: a registration under way would bring the broker back behind its unregistration.
        await self.end()
        await asyncio.gather(*(self._unregister(server.address) for server in self._servers))

    async def end(self) -> None:
        """Register no more. What the name servers know stays until its lease ends, or another registration replaces it."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for _, waiter in self._waiters:
            _finish(waiter)

    async def _unregister(self, address: str) -> None:
        try:
            await ask(self._caller, address, UnregisterBroker(self._identity), self._timeout)
        except MetaqError as error:
            log.info("could not unregister at name server %s: %s", address, error)

    async def _keep_registering(self, server: _NameServer) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._retry if server.address in self._failing else self._period):
                    await server.changed.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(server.paid_until - self._credit):
                    await server.hurry.wait()
            try:
                await self._register(server)
            except Exception:
                log.exception("registering at name server %s failed", server.address)  # the next period tries again

    async def _register(self, server: _NameServer) -> None:
        server.changed.clear()  # before the table is read: a change during the call must cause another round
        server.hurry.clear()
        changes = self._changes
        now = asyncio.get_running_loop().time()
        server.paid_until = max(server.paid_until, now) + self._gather
        # After too long a silence the lease may have ended unnoticed, and the table with it: then send all of it.
        names = server.topics if server.all_until > now and server.topics else None
        if not self._certain() and await self._is_replaced_at(server.address):
            server.needs_all()
            server.reported = changes
            self._notify_waiters()
            return
        # Before the request: what changes while it is under way is sent with the next one.
        server.topics = set()
        version, topics = self._describe(names)
        taken = await self._register_at(server.address, RegisterBroker(self._identity, version, topics))
        if not taken:
            server.needs_all()
        elif names is None:
            server.all_until = now + self._period * SILENCE_PERIODS
        server.reported = changes
        self._notify_waiters()

    async def _is_replaced_at(self, address: str) -> bool:
        """Whether another broker has registered there in this one's place."""
        try:
            data = (await ask(self._caller, address, GetCluster(), self._timeout)).brokers.get(self._identity.broker)
        except MetaqError:
            return False  # the registration says so
        other = data.addresses.get(self._identity.broker_id) if data is not None else None
        return other is not None and other not in self._identity.addresses

    async def _register_at(self, address: str, call: RegisterBroker) -> bool:
        try:
            answer = await ask(self._caller, address, call, self._timeout)
        except MetaqError as error:
            if self._failing.get(address) != str(error):  # once per reason, not every 30 seconds
                log.warning("cannot register at name server %s, will try again: %s", address, error)
            self._failing[address] = str(error)
            return False
        self._taken.set()
        self._told(answer)
        if answer.order is not None:
            self._ordered_at[address] = answer.order.keys()
            # Of all name servers together: one that was started anew may know none yet.
            self._ordered({topic for topics in self._ordered_at.values() for topic in topics})
        if self._failing.pop(address, None):
            log.info("registered at name server %s again", address)
        return True

    def _notify_waiters(self) -> None:
        # The slowest counts: a client may ask any of them for the route.
        reported = min((server.reported for server in self._servers), default=self._changes)
        for changes, waiter in self._waiters:
            if changes <= reported:
                _finish(waiter)
        self._waiters = [(changes, waiter) for changes, waiter in self._waiters if not waiter.done()]


class _NameServer:
    """One name server: the changes it has, and the topics it must get."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.changed = asyncio.Event()
        self.hurry = asyncio.Event()
        """Set while somebody waits for a registration there."""
        self.paid_until = 0.0
        """Loop time up to which registrations are paid for, at `gather` seconds each; may run ahead of now by the
        credit."""
        self.reported = 0
        self.topics: set[str] = set()
        """Topics that changed since its last registration."""
        self.all_until = 0.0
        """Loop time until which it surely has the rest of the table; later it must get the whole."""

    def needs_all(self) -> None:
        self.all_until = 0.0


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
