"""Keeps a broker's nodes in ZooKeeper, whatever happens to the session.

Nodes are compared with what should be there in rounds: after each change of a topic, after each return of the
connection, and when another broker has our place. A round runs in a thread. The broker's own node comes first: only its
holder advertises topics, so two brokers with one id never mix theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from kazoo.exceptions import ConnectionLoss
from msgspec import Struct

from metaq.log import FIRST_SECONDS, when_dead
from metaq.model.metaq1.partition import Published
from metaq.registry.zookeeper.absence import NO_ANSWER, Absence
from metaq.registry.zookeeper.layout import Layout, Metaq1Broker
from metaq.registry.zookeeper.offsets import read_positions
from metaq.registry.zookeeper.session import Failures, Session, close_within

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
FIRST_WORD_SECONDS: Final = 10.0
"""Longest wait of a start for a ZooKeeper that neither takes the registration nor is known to be away."""
UNREACHABLE_SECONDS: Final = 2.0
"""Longest wait of a start for a connection; then the broker goes on without one. The log has said so before (`FIRST_SECONDS`)."""
LEAVE_SECONDS: Final = 5.0
"""Longest time for removing our nodes at a stop; else ZooKeeper does it when the session times out."""
URI_CHARS_MAX: Final = 200
"""Characters of another broker's address that are logged: anybody may have written it."""
HOPELESS_SESSIONS: Final = 1.5
"""Session time-outs without a connection after which a new client is made, without the old session: it is gone at the
server, and kazoo would ask an emptied ZooKeeper for it for ever. Also, an odd answer may have ended the old client's
thread."""


Result = TypeVar("Result")


class ZookeeperSettings(Struct, frozen=True):
    """Address and times (seconds) of ZooKeeper."""

    connect: str
    """`host:port`, `,`-separated."""
    root: str = "/meta"
    session_timeout: float = 30.0
    connection_timeout: float = 30.0
    """How long a lost connection is missing before it is logged."""
    sync_time: float = 5.0
    """How long clients may take to see that we left; a stop waits for it."""


class Advertisement(Struct, frozen=True):
    """A broker's content in ZooKeeper."""

    config: bytes
    """Bytes of server.ini, whose checksum slaves watch."""
    topics: Mapping[str, Published]


class ZookeeperRegistrar:
    """Keeps one broker registered.

    Args:
        settings: of ZooKeeper.
        broker: its identity.
        describe: returns what to advertise, None: what is there stays, for another registrar to replace; called in the event loop.
        succeeds: whoever has this broker's place at first was replaced by it: the place is taken, and once taken kept or lost as
            any other.
    """

    def __init__(
        self,
        settings: ZookeeperSettings,
        broker: Metaq1Broker,
        describe: Callable[[], Advertisement | None],
        *,
        succeeds: bool = False,
    ) -> None:
        self._settings, self._broker, self._describe = settings, broker, describe
        self._layout = Layout(settings.root)
        self._wake = asyncio.Event()
        self._first_word = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.session: Session | None = None
        """The present session."""
        self._absence: Absence | None = None
        """Of a connection, since the last round; None: nothing was tried yet."""
        self._kept = _Kept(succeeds=succeeds)
        self._thread = ThreadPoolExecutor(1, "zookeeper")
        """One thread, so that rounds and the farewell follow one another."""
        self.registered = False
        """Everything advertised is in ZooKeeper, as far as is known."""
        self.failing = ""
        """Why it is not registered; empty if it is."""

    async def start(self) -> None:
        """Register. Return when that is done, or has failed for now; go on in the background."""
        # A ZooKeeper that is away must not keep the broker from serving those who know its address.
        self._task = asyncio.create_task(self._keep(), name="ZooKeeper registrar")
        self._task.add_done_callback(when_dead(log, "this broker does not register in ZooKeeper any more"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WORD_SECONDS):
                await self._first_word.wait()

    def changed(self) -> None:
        """Advertise again: something may have changed. Calls until then make one round."""
        self._wake.set()

    async def ask(self, work: Callable[[Session, Layout], Result]) -> Result:
        """Return what `work` returns, which runs in the registrar's thread. Raises one of `Failures`: there is no connection, or it
        broke; what `work` raises."""
        session = self.session
        if session is None or not session.connected:
            raise ConnectionLoss(f"{self._settings.connect} is not connected")
        return await self._in_thread(lambda: work(session, self._layout))

    async def positions(self, group: str, topic: str | None) -> dict[tuple[str, int], int] | None:
        """Return (topic, partition) → position of a 1.x group at this broker; None: ZooKeeper does not answer now."""
        session = self.session
        if session is None or not session.connected:
            return None
        try:
            return await self._in_thread(
                lambda: read_positions(session, self._layout, group, self._broker.broker_id, topic)
            )
        except Failures as error:
            log.warning("ZooKeeper %s does not tell how far group %s is: %r", self._settings.connect, group, error)
            return None

    async def groups(self) -> list[str] | None:
        """Return the names of all 1.x groups, at whichever brokers; None: ZooKeeper does not answer now."""
        session = self.session
        if session is None or not session.connected:
            return None
        try:
            return await self._in_thread(lambda: sorted(session.children([self._layout.groups])[0]))
        except Failures as error:
            log.warning("ZooKeeper %s does not tell which groups there are: %r", self._settings.connect, error)
            return None

    async def stop(self, *, at_once: bool = False) -> None:
        """Unregister, and give clients the time to see it; `at_once`: they find this broker elsewhere already."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        # A request that gets no answer ends with the session, which is closed already.
        self._thread.shutdown(wait=False)
        if self.registered and not at_once:
            await asyncio.sleep(self._settings.sync_time)

    async def _keep(self) -> None:
        while True:
            try:
                await self._keep_session()
            except Exception as error:
                self.failing, self.registered = str(error), False
                self._first_word.set()
                log.exception("ZooKeeper %s cannot be asked; trying on", self._settings.connect)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                log.info("beginning anew with ZooKeeper %s", self._settings.connect)

    async def _keep_session(self) -> None:
        """Use one ZooKeeper client, until its session is lost for good."""
        session = self.session = Session(self._settings.connect, self._settings.session_timeout, self._wake.set)
        session.open()
        try:
            await self._serve(session)
        finally:
            await self._leave(session)

    async def _serve(self, session: Session) -> None:
        """Make rounds, until the session is lost for good."""
        loop = asyncio.get_running_loop()
        away_since = loop.time()
        if self._absence is None:
            self._absence = Absence(away_since, FIRST_SECONDS)
        while True:
            if session.connected:
                self._wake.clear()  # before anything is read: a change during the round must cause another
                done = await self._round(session)
                away_since = loop.time()
                self._absence = Absence(away_since, self._settings.connection_timeout)
                await self._sleep(None if done else RETRY_SECONDS)
                continue
            self.registered = False
            # See HOPELESS_SESSIONS: `_keep` begins with a new client.
            if loop.time() - away_since > self._settings.session_timeout * HOPELESS_SESSIONS:
                return
            self._wake.clear()
            unreachable_at = away_since + UNREACHABLE_SECONDS
            until = self._absence.next if self._first_word.is_set() else min(self._absence.next, unreachable_at)
            await self._sleep(until - loop.time())
            if session.connected:
                continue
            if self._absence.due(loop.time()):
                self._say(f"cannot be reached ({session.why or NO_ANSWER})", again=True)
            if loop.time() >= unreachable_at:
                self._first_word.set()

    async def _sleep(self, seconds: float | None) -> None:
        """Wait until `_wake` is set, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _round(self, session: Session) -> bool:
        """Advertise everything once. Return whether all of it is there."""
        try:
            advertised = self._describe()
            if advertised is None:
                return True
            clash = await self._in_thread(lambda: self._kept.renew(session, self._layout, self._broker, advertised))
        except Failures as error:
            self._fail(f"refused or lost a request ({type(error).__name__} {error})".replace(" )", ")"))
            return False
        except Exception as error:
            if str(error) != self.failing:
                log.exception("registering in ZooKeeper %s failed", self._settings.connect)
            self.failing, self.registered = str(error), False
            self._first_word.set()
            return False
        if clash:
            self._fail(
                f"knows another broker with brokerId {self._broker.broker_id} ({clash}): give one of the two another; this"
                " one is told to nobody until the other is gone"
            )
            return False
        if not self.registered:
            log.info(
                "registered in ZooKeeper %s%s as broker %s at %s with %d topics",
                self._settings.connect, self._layout.root, self._broker.role, self._broker.uri, len(advertised.topics),
            )  # fmt: skip
        self.failing, self.registered = "", True
        self._first_word.set()
        return True

    def _fail(self, why: str) -> None:
        self._say(why)
        self._first_word.set()

    def _say(self, why: str, *, again: bool = False) -> None:
        """Have the log say why this broker is not registered; `again`: though it has said so before."""
        self.registered = False
        if again or why != self.failing:
            log.warning(
                "ZooKeeper %s %s. Clients of MetaQ 1.x do not find this broker until it is registered; trying on",
                self._settings.connect, why,
            )  # fmt: skip
        self.failing = why

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _leave(self, session: Session) -> None:
        """Remove our nodes, all at once."""
        try:
            if session.connected and self._kept.place:
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._in_thread(lambda: self._kept.farewell(session, self._layout, self._broker))
        except (*Failures, TimeoutError) as error:
            log.info("could not say goodbye to ZooKeeper %s: %r", self._settings.connect, error)
        finally:
            await close_within(session, LEAVE_SECONDS)


class _Kept:
    """The nodes advertised in the present session. Used by one thread at a time."""

    def __init__(self, *, succeeds: bool) -> None:
        self._succeeds = succeeds
        """Whoever has the broker's place was replaced by it."""
        self._session = 0
        self._sessions: set[int] = set()
        self._nodes: dict[str, str] = {}
        self._sure = False
        """`_nodes` are surely there. After a lost answer some may be missing, and others there."""
        self._greeted = 0
        """Session in which the text for very old clients was written."""
        self.place = False
        """The broker's own node is ours."""

    def renew(self, session: Session, layout: Layout, broker: Metaq1Broker, advertised: Advertisement) -> str:
        """Make ZooKeeper's nodes those of `advertised`. Return the address of another broker that has our place, else
        "".

        Raises one of `Failures`.
        """
        if session.id != self._session:
            self._session, self._nodes, self._sure = session.id, {}, True
            self._sessions.add(session.id)
        if clash := self._take_place(session, layout.who(broker), broker.uri):
            self._sure = False  # the other broker may replace our nodes
            return clash
        if broker.slave is None and self._greeted != session.id:
            session.write(layout.broker(broker.broker_id), broker.uri)
            self._greeted = session.id
        wanted = layout.wanted(broker, advertised.config, advertised.topics)
        sure, self._sure = self._sure, False
        gone = self._nodes.keys() - wanted.keys()
        session.delete(gone)
        changed = {path: text for path, text in wanted.items() if self._nodes.get(path, text) != text}
        fresh = {path: text for path, text in wanted.items() if not sure or path not in self._nodes}
        self._nodes = {path: text for path, text in self._nodes.items() if path not in gone} | fresh
        for path in session.create(fresh):
            found = session.owner(path)
            if found != (session.id, wanted[path]):  # left by an earlier session of this broker id
                session.replace(path, wanted[path])
        for path, text in changed.items():
            if path not in fresh:
                session.replace(path, text)
        self._nodes = dict(wanted)
        self._sure = True
        return ""

    def _take_place(self, session: Session, path: str, uri: str) -> str:
        if session.create({path: uri}):
            found = session.owner(path)
            if found is None:
                return self._take_place(session, path, uri)  # it vanished between the two requests
            owner, text = found
            if owner != session.id:
                # Nobody but us listens at our address, so the node is that of a session of ours or of our process before.
                # But if it was ours and somebody took it, there is a second process that thinks the same.
                if not self._succeeds and (text != uri or (self.place and owner not in self._sessions)):
                    return repr(text[:URI_CHARS_MAX])
                session.replace(path, uri)
        self.place, self._succeeds = True, False
        # Should another broker replace the node, the next round must see it.
        session.watch(path)
        return ""

    def farewell(self, session: Session, layout: Layout, broker: Metaq1Broker) -> None:
        """Remove the persistent node for very old clients, and ours below it; closing the session removes the rest."""
        if broker.slave is None:
            # Children first: ZooKeeper deletes no node that has some. Those of a broker that has replaced this one stay.
            ours = session.owners([layout.who(broker), layout.checksum(broker.broker_id)])
            session.delete([path for path, (owner, _) in ours.items() if owner == session.id])
            if len(ours) == sum(owner == session.id for owner, _ in ours.values()):
                session.remove(layout.broker(broker.broker_id))
