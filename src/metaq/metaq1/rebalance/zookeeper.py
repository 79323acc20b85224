"""Partitions of a consumer by its group in ZooKeeper, shared with members in Java and Python.

One task per consumer does rounds: whenever a consumer of the group comes or goes, a server of a topic comes, goes or has other
partitions, and when the session has been replaced by another. A round reads the group, and does what `make_plan` says, in the order
of Java's client: stop, commit, give away, take, load, fetch. Changes that come during a round cause one more.

Where it differs from Java's client, which gives everything back when a partition of its share is still somebody else's, tries seven
times, and then consumes no more: this one goes on with what it has, is told by ZooKeeper when the partition is free, and never gives
up. So a member that was killed, whose partitions are its own until its session ends, holds up nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from metaq.errors import ConfigError, ConnectionFailed, MetaqError
from metaq.log import when_dead
from metaq.metaq1.config import ConsumerConfig
from metaq.metaq1.rebalance.fetching import Fetching, Held
from metaq.metaq1.rebalance.plan import Plan, Rules, Seen, Standing, make_plan
from metaq.metaq1.rebalance.strategies import strategy_of
from metaq.metaq1.shared.core import FactoryCore
from metaq.net.address import local_address
from metaq.registry.zookeeper import membership
from metaq.registry.zookeeper.client import ZookeeperClient
from metaq.registry.zookeeper.session import Session
from metaq.registry.zookeeper.subscribing import Subscribable, read_subscribable

log = logging.getLogger("metaq.client")

TRIES: Final = 7
"""Failed tries in a row after which the pauses become longer, and the log loud."""
SLOWER: Final = 6.0
"""Pauses between tries then, in `zk_sync_time`."""
GATHER_SECONDS: Final = 0.05
"""Pause between a change and its round: changes come in bursts."""
STALE_SESSIONS: Final = 1.5
"""Session time-outs for which a consumer waits for the end of another session that has its id: that of a process that was killed."""
SLOW_STOP_SECONDS: Final = 30.0
"""Interval of complaints about a listener that does not return, for which a rebalance waits."""
STOP_SECONDS, COMMIT_SECONDS, LEAVE_SECONDS = 4.0, 3.0, 2.0
"""Longest waits of an end: for listeners, for the last commit, for ZooKeeper. All within `CLOSE_SECONDS` of a factory."""

Result = TypeVar("Result")
_numbers = itertools.count(1)


def default_consumer_id(core: FactoryCore) -> str:
    """Return a new id as Java's client makes it: host, process, time in ms, number."""
    return f"{local_address().replace(':', '.')}-{os.getpid()}-{core.clock.now_ms()}-{next(_numbers)}"


def _trace(error: Exception) -> Exception | None:
    """Return what is to be logged with its traceback: an error that is none of MetaQ's own."""
    return None if isinstance(error, MetaqError) else error


class _SessionEnded(Exception):
    """The session in which this consumer is registered is gone."""


class _IdTaken(MetaqError):
    """Another session has the consumer's id, and may end soon."""


class _Blocked(MetaqError):
    """Other consumers still have some partitions of this one's share."""


class ZookeeperBalance:
    """A `Balance` for one consumer. Made and used in the background loop.

    Args:
        core: of the factory, which has a ZooKeeper.
        config: of the consumer.
        fetching: what fetches and commits.
        consumer_id: None: `config.consumer_id`, or one of its own.
        group: None: `config.group`; a broadcast consumer has one of its own.
    """

    def __init__(
        self,
        core: FactoryCore,
        config: ConsumerConfig,
        fetching: Fetching,
        consumer_id: str | None = None,
        group: str | None = None,
    ) -> None:
        registry = core.routes.registry()
        zookeeper = core.config.zk_config
        assert registry is not None, "a factory with a fixed server has a FixedBalance"
        assert zookeeper is not None, "and this one has its settings"
        self._client: ZookeeperClient = registry.client
        self._layout, self._zookeeper = registry.layout, zookeeper
        self._core, self._config, self._fetching = core, config, fetching
        self.group = group or config.group
        self.consumer_id = consumer_id or config.consumer_id or default_consumer_id(core)
        self._name = f"{self.group}_{self.consumer_id}"
        self._loop = asyncio.get_running_loop()
        self._rules = Rules(self._name, (), strategy_of(config.load_balance_strategy_type), config.read_from, self._one)
        self._wake = asyncio.Event()
        self._deaf: Callable[[], None] | None = None
        """Ends the listening to ZooKeeper."""
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        """Of `begin`."""
        self._named = self._ended = False
        self._leaving: asyncio.Task[None] | None = None
        # What belongs to a session.
        self._session = 0
        self._formers: set[int] = set()
        """Sessions that were this consumer's."""
        self._standing = Standing()
        self._loaded: set[Held] = set()
        """Owned partitions whose offsets are known: they may be fetched."""
        self._sure = True
        """What is owned is known. After a lost answer it is not, and while another process has the same id."""
        self._paused = False
        """Fetches are stopped, and are to go on."""
        self._id_until: float | None = None
        """How long another session with this id is waited for, by the loop's time; None: there is none."""
        self._sharing = False
        """Another session has this id, and both consume everything."""

    @property
    def name(self) -> str:
        """The consumer's name in its group: of its own node, and in those of its partitions."""
        return self._name

    @property
    def owned(self) -> frozenset[Held]:
        """The partitions that this consumer has now."""
        return self._standing.owned

    @property
    def _registered(self) -> bool:
        """The session in which this consumer has registered is still the present one, as far as is known: 0 without connection."""
        return self._client.session.id in {0, self._session}

    async def begin(self, topics: Collection[str]) -> None:
        """As `Balance.begin`. It returns when the share is there, after two tries without success, or at once when another session has
        the consumer's id; with `refuse_shared_consumer_id` it waits until that session has ended or has lived for too long."""
        self._rules = Rules(
            self._name, tuple(sorted(set(topics))), self._rules.strategy, self._rules.read_from, self._one
        )
        self._take_name()
        self._deaf = self._client.listen(self._wake.set)
        self._first = self._loop.create_future()
        self._task = self._loop.create_task(self._follow(), name=f"rebalance of {self._name}")
        self._task.add_done_callback(when_dead(log, f"consumer {self._name} follows no changes of its group any more"))
        try:
            await self._first
        except asyncio.CancelledError:
            await self._halt()
            raise
        except MetaqError:
            await self.end()
            raise

    def _take_name(self) -> None:
        """Tell of another consumer of this factory that has the name: in ZooKeeper they look like one. Raises ConfigError."""
        if self._name in self._client.names:
            what = f"another consumer of this session factory has consumer id {self.consumer_id} of group {self.group}"
            if self._config.refuse_shared_consumer_id:
                raise ConfigError(f"{what}: give each consumer an id of its own, or none")
            log.error("%s: BOTH CONSUME EVERYTHING; give each consumer an id of its own, or none", what)
        self._client.names.append(self._name)
        self._named = True

    async def end(self) -> None:
        """As `Balance.end`. Harmless twice, and after a `begin` that has failed."""
        if self._ended:
            return
        self._ended = True
        if self._named:
            self._client.names.remove(self._name)
        await self._halt()
        await self._within(STOP_SECONDS, self._fetching.stop(), "listeners have not returned")
        if self._registered:
            await self._within(COMMIT_SECONDS, self._fetching.commit(), "its last commit has not ended")
        self._leaving = self._loop.create_task(self._leave(), name=f"end of {self._name}")
        # It goes on behind that: others of the factory keep the session, and with it these nodes.
        await self._within(LEAVE_SECONDS, self._left(), "its nodes are in ZooKeeper until that answers")
        self._fetching.forget(self._loaded)
        self._standing, self._loaded = Standing(), set()

    async def _left(self) -> None:
        assert self._leaving is not None, "begun by `end`"
        await asyncio.shield(self._leaving)

    async def _leave(self) -> None:
        """Delete this consumer's nodes, as soon as ZooKeeper answers, unless they have ended with their session."""
        paths = self._paths(self._standing.owned)
        number = self._session
        said = False
        while self._client.session.id in {0, number} and not self._client.closed:
            try:
                await self._client.ask(
                    lambda session: membership.leave(session, self._layout, self.group, self._name, paths.keys())
                )
            except ConnectionFailed as error:
                if not said:
                    log.warning("consumer %s has ended, and its nodes are still there: %s", self._name, error)
                said = True
                await asyncio.sleep(self._zookeeper.zk_sync_time)
            else:
                return

    async def _within(self, seconds: float, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            log.warning("consumer %s ends, and %s within %g s", self._name, what, seconds)
        except Exception as error:
            log.warning("consumer %s ends, and %s: %s", self._name, what, error, exc_info=_trace(error))

    async def _halt(self) -> None:
        """Have no more rounds."""
        if self._deaf is not None:
            self._deaf()
            self._deaf = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    # -------------------------------------------------------------- rounds

    async def _follow(self) -> None:
        failures, due = 0, 0.0
        while True:
            pause: float | None = None
            try:
                await self._round()
            except _SessionEnded:
                log.warning("the ZooKeeper session of consumer %s has ended; it registers again", self._name)
                continue
            except ConnectionFailed as error:
                pause = self._zookeeper.zk_sync_time
                log.warning("consumer %s keeps its partitions: %s", self._name, error)
                self._settle(error)
            except _IdTaken:
                pause = self._zookeeper.zk_sync_time
                if not self._config.refuse_shared_consumer_id:
                    self._settle(None)
            except Exception as error:  # noqa: BLE001  whatever it is, the consumer must not be silently dead
                # Tries that a change has brought about, before their time, do not count.
                if self._loop.time() >= due:
                    failures += 1
                    due = self._loop.time() + self._failed(error, failures)
                pause = due - self._loop.time()
            else:
                failures, due = 0, 0.0
                self._settle(None)
            await self._woken(pause)

    def _failed(self, error: Exception, failures: int) -> float:
        """Tell of a failed try, and return the seconds until the next."""
        pause = self._zookeeper.zk_sync_time * (SLOWER if failures >= TRIES else 1.0)
        trace = _trace(error)
        if failures >= TRIES:
            log.error(
                "rebalance of consumer %s: %d tries have failed, it goes on every %g s: %s",
                self._name, failures, pause, error, exc_info=trace,
            )  # fmt: skip
        else:
            log.warning(
                "rebalance of consumer %s: try %d of %d has failed: %s", self._name, failures, TRIES, error, exc_info=trace
            )  # fmt: skip
        if isinstance(error, ConfigError):
            self._settle(error)
        elif failures > 1:
            self._settle(None)
        return pause

    def _settle(self, outcome: MetaqError | None) -> None:
        """Let `begin` return, or raise."""
        if self._first is None or self._first.done():
            return
        if outcome is None:
            self._first.set_result(None)
        else:
            self._first.set_exception(outcome)

    async def _woken(self, pause: float | None) -> None:
        """Wait for a change, or for the next try."""
        if self._id_until is not None and not self._sharing:
            left = max(self._id_until - self._loop.time(), 0.0)
            pause = left if pause is None else min(pause, left)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
                await asyncio.sleep(GATHER_SECONDS)

    async def _round(self) -> None:
        self._wake.clear()  # before anything is read: a change during the round must cause another
        await self._enter()
        found = await self._in_session(
            lambda session: read_subscribable(session, self._layout, self.group, self._rules.topics)
        )
        owner, _ = found.members.get(self._name, (0, ()))
        if owner != self._session:
            self._sure = False  # whoever took the node away may have taken others, too
            await self._enroll()
        elif self._id_until is not None:
            self._alone()
        seen, standing = self._seen(found), self._standing
        # In a thread: the strategy may be the user's.
        plan = await self._in_session(lambda _: make_plan(self._rules, seen, standing))
        await self._carry_out(plan)

    def _seen(self, found: Subscribable) -> Seen:
        members: dict[str, Collection[str]] = {name: topics for name, (_, topics) in found.members.items()}
        # Another session with this id may have subscribed to less, and a node of ours may be gone for a moment.
        members[self._name] = {*members.get(self._name, ()), *self._rules.topics}
        return Seen(members, found.topics, found.addresses)

    # -------------------------------------------------------------- session and id

    async def _in_session(self, work: Callable[[Session], Result]) -> Result:
        """Run `work` in the session in which this consumer is registered. Raises _SessionEnded, ConnectionFailed."""
        number = self._session

        def checked(session: Session) -> Result:
            if session.id != number:
                raise _SessionEnded
            result = work(session)
            if session.id != number:
                raise _SessionEnded
            return result

        return await self._client.ask(checked)

    async def _enter(self) -> None:
        """Register in the present session, if that is another than before."""
        number = await self._client.ask(lambda session: session.id)
        if number == self._session:
            return
        if self._session:
            # Others have its partitions by now, and further offsets of them: a commit would take those back.
            await self._stop()
            self._fetching.forget(self._loaded)
            self._formers.add(self._session)
        self._standing, self._loaded, self._sure, self._paused = Standing(), set(), True, False
        self._session, self._id_until, self._sharing = number, None, False
        await self._enroll()

    async def _enroll(self) -> None:
        """Have this consumer's own node. Raises _IdTaken: another session has it; ConfigError: and does not end."""
        topics = self._rules.topics
        owner = await self._in_session(
            lambda session: membership.join(session, self._layout, self.group, self._name, topics, self._formers)
        )
        if owner == self._session:
            self._alone()
            return
        now = self._loop.time()
        what = f"consumer id {self.consumer_id} of group {self.group} belongs to ZooKeeper session {owner:#x}, too"
        if self._id_until is None:
            seconds = STALE_SESSIONS * self._zookeeper.zk_session_timeout
            self._id_until = now + seconds
            log.warning("%s: waiting up to %g s for its end, as for that of a process that was killed", what, seconds)
        if now < self._id_until:
            raise _IdTaken(what)
        if self._config.refuse_shared_consumer_id:
            raise ConfigError(f"{what}: give each process a consumer_id of its own, or none")
        if not self._sharing:
            log.error("%s: BOTH CONSUME EVERYTHING; give each process a consumer_id of its own, or none", what)
        self._sharing, self._sure = True, False

    def _alone(self) -> None:
        """No other session has this id any more."""
        if self._id_until is not None:
            log.warning("consumer id %s of group %s belongs to this process alone now", self.consumer_id, self.group)
            self._id_until, self._sharing, self._sure = None, False, False

    # -------------------------------------------------------------- a plan

    async def _carry_out(self, plan: Plan) -> None:
        """Do what a try has to do. Raises what made it fail; then fetches go on where they may."""
        if plan.homeless:
            some = ", ".join(f"{topic} {partition}" for topic, partition in plan.homeless[:3])
            log.warning("consumer %s has %d partitions without a server (%s ...)", self._name, len(plan.homeless), some)
        blocked: dict[Held, str] = {}
        try:
            if plan.release:
                await self._pause()
                await self._let_go(plan.release)
            claims = plan.claim if self._sure else (*plan.servers, *plan.homeless)
            if claims:
                blocked = await self._take(claims)
            fresh = self._standing.owned - self._loaded
            if fresh:
                await self._fetching.load(fresh)
                self._loaded |= fresh
        except _SessionEnded:
            raise
        except Exception:
            await self._go_on(plan)
            raise
        self._standing = Standing(self._standing.owned, plan.shares, self._standing.servers)
        await self._go_on(plan)
        if blocked:
            held, who = next(iter(blocked.items()))
            raise _Blocked(
                f"{len(blocked)} partitions are still somebody else's: {held.topic} {held.partition} of {who or 'another'}"
            )

    async def _let_go(self, partitions: Collection[Held]) -> None:
        """Give partitions back that are committed and not fetched any more."""
        sure, self._sure = self._sure, False
        gone = self._loaded.intersection(partitions)
        self._loaded -= gone
        self._fetching.forget(gone)
        paths = self._paths(partitions)
        await self._in_session(lambda session: membership.release(session, paths.keys(), self._name, sure=sure))
        self._sure = sure
        self._own(self._standing.owned.difference(partitions))

    async def _take(self, partitions: Collection[Held]) -> dict[Held, str]:
        """Own partitions; return those that others have."""
        self._sure = False
        paths = self._paths(partitions)
        before = self._standing.owned
        self._own(before.union(partitions))  # so that an end in the middle gives them back
        shared = self._sharing or not self._config.refuse_shared_consumer_id
        claimed = await self._in_session(
            lambda session: membership.claim(session, paths.keys(), self._name, self._formers, shared=shared)
        )
        blocked = {paths[path]: who for path, who in claimed.blocked.items()}
        self._own((before | {paths[path] for path in (*claimed.gained, *claimed.borrowed)}).difference(blocked))
        lost = self._loaded.intersection(blocked)
        if lost:
            log.warning("consumer %s has lost %d partitions to others", self._name, len(lost))
            await self._pause()
            self._loaded -= lost
            self._fetching.forget(lost)
        if claimed.borrowed and not self._sharing:
            log.error(
                "another session has consumer id %s of group %s, too: BOTH CONSUME EVERYTHING; give each process a consumer_id of "
                "its own, or none", self.consumer_id, self.group,
            )  # fmt: skip
        self._sure = not claimed.borrowed
        return blocked

    async def _go_on(self, plan: Plan) -> None:
        """Fetch what is owned and loaded, unless that goes on already."""
        if not self._registered:
            return  # the next round begins anew
        servers = {held: server for held, server in plan.servers.items() if held in self._loaded}
        if servers == self._standing.servers and not self._paused:
            return
        await self._pause()
        await self._fetching.start(servers)
        self._paused = False
        self._standing = Standing(self._standing.owned, self._standing.shares, servers)
        log.info("consumer %s fetches %d partitions", self._name, len(servers))

    async def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            await self._stop()
            if self._registered:
                await self._fetching.commit()

    async def _stop(self) -> None:
        """Stop all fetches, however long listeners take."""
        stopping = self._loop.create_task(self._fetching.stop())
        try:
            while not stopping.done():
                await asyncio.wait((stopping,), timeout=SLOW_STOP_SECONDS)
                if not stopping.done():
                    log.warning(
                        "a rebalance of consumer %s waits for a listener that does not return; the group waits with it", self._name
                    )  # fmt: skip
        finally:
            stopping.cancel()
        await stopping

    def _own(self, partitions: Iterable[Held]) -> None:
        self._standing = Standing(frozenset(partitions), self._standing.shares, self._standing.servers)

    def _paths(self, partitions: Iterable[Held]) -> dict[str, Held]:
        return {self._layout.owner(self.group, held.topic, str(held.partition)): held for held in partitions}

    def _one(self, addresses: Sequence[str]) -> str:
        return addresses[self._core.clock.random_below(len(addresses))]
