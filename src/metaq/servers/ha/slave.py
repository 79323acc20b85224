"""A slave's side of replication: keeps a connection to the master, and copies its log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from metaq.broker.broker import Broker
from metaq.broker.replication.copying import Copying
from metaq.clock import Clock
from metaq.errors import MetaqError, RemoteProtocolError, StoreError, shortage
from metaq.log import RateLimitedLog, when_dead
from metaq.net.dialer import dial
from metaq.net.peer import Peer
from metaq.servers.server import CallSoon
from metaq.wire.ha import HEAD, decode_chunks, encode_report, encode_ticket

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0
RETRY_SECONDS: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Pauses before the next connection; from the last one on, the same."""

PROGRESS_SECONDS: Final = 5.0
FAR_BYTES: Final = 64 * 1024 * 1024
"""A slave that lacks less says nothing of its progress."""
LONG_BYTES: Final = 64 * 1024
"""Bytes of the log after whose append others have their turn of the loop."""


class Source(NamedTuple):
    """From where a log is copied."""

    address: str
    """`host:port` of a replication port."""
    ticket: int = 0
    """What the connection shows first; 0: nothing, as RocketMQ's slaves."""


FindMaster = Callable[[], Awaitable[Source | None]]
"""Returns where the master's log can be had; None: it is not known now."""


class MasterSession:
    """The connection to a master. A `metaq.net.peer.Session`.

    Args:
        broker: appends what comes.
        call_soon: brings a call from another thread to the event loop.
        unknown: called when messages of an unknown topic come.
        ticket: see `Source`.
    """

    def __init__(
        self, peer: Peer, broker: Broker, call_soon: CallSoon, unknown: Callable[[], None], ticket: int = 0
    ) -> None:
        self._peer, self._call_soon, self._clock = peer, call_soon, broker.clock
        self._ticket, self._was_told = ticket, broker.replicas.was_told
        self._interval = broker.options.ha_send_heartbeat_interval / 1000
        self._silence = broker.options.ha_housekeeping_interval / 1000
        self._heard = self._clock.monotonic()
        self._copying = Copying(broker.environment, broker.appender, broker.topics, unknown)
        self._answer_pulls = broker.answer_pulls
        self._needed = 0
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the connection has ended."""
        self.copied = False
        """Whether anything came that could be taken."""
        self._told = self._heard
        if ticket:
            peer.write(encode_ticket(ticket))
        # What is reported first is where the master goes on: all that is here, and so not before it is held.
        self._copying.when_held(lambda: self._call_soon(self._report))

    def data_received(self, data: memoryview) -> int:
        """Append chunks and report. Raises RemoteProtocolError: they cannot be appended here."""
        if self._peer.closed:  # nothing is taken from a master that was left
            return len(data)
        self._heard = self._clock.monotonic()
        chunks, taken, self._needed, acknowledged = decode_chunks(data, told=self._ticket > 0)
        if acknowledged >= 0:
            self._was_told(acknowledged)
        if chunks:
            end = self._copying.log_end
            try:
                self._copying.take(chunks)
            except (StoreError, OSError, MemoryError) as error:
                raise RemoteProtocolError(shortage(error) or str(error)) from error
            self.copied = True
            if self._copying.log_end > end:
                self._answer_pulls()
                self._copying.when_held(lambda: self._call_soon(self._report))
            if taken >= LONG_BYTES:
                # A client's connection reads on while there is something: consumers of this slave want their turn.
                self._peer.pause()
                self._peer.resume()
        return taken

    def frame_needed(self) -> int:
        return self._needed or HEAD.size

    def _report(self) -> None:
        if not self._peer.closed:
            self._told = self._clock.monotonic()
            self._peer.write(encode_report(self._copying.held))

    def tick(self) -> None:
        """Tell a master that waits that this slave is there, and leave one that is silent: RocketMQ's slaves stay for ever."""
        now = self._clock.monotonic()
        if now - self._heard >= self._silence:
            self._peer.close(f"it was silent for {self._silence:g} s")
        elif now - self._told >= self._interval:
            self._report()

    def close(self) -> None:
        self._peer.close()

    def connection_lost(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)


class Progress:
    """Says in the log how far a slave that is far behind has come.

    Args: wanted: returns where the master's log ended when it was last heard.
    """

    def __init__(self, clock: Clock, log_end: Callable[[], int], wanted: Callable[[], int]) -> None:
        self._clock, self._log_end, self._wanted = clock, log_end, wanted
        self._told, self._from = clock.monotonic(), log_end()
        self._is_behind = False

    def tick(self) -> None:
        """Let time pass."""
        now, end, wanted = self._clock.monotonic(), self._log_end(), self._wanted()
        if self._is_behind and end >= wanted:
            self._is_behind = False
            log.info("all of the master's log is here, up to %d", end)
        if now - self._told < PROGRESS_SECONDS:
            return
        rate, self._told, self._from = (end - self._from) / (now - self._told), now, end
        if wanted - end >= FAR_BYTES:
            self._is_behind = True
            left = f", about {(wanted - end) / rate:.0f} s left" if rate > 0 else ""
            log.info(
                "%.2f of %.2f GB of the master's log are here (%.0f %%): %.1f MB/s%s",
                end / 1e9, wanted / 1e9, 100 * end / wanted, rate / 1e6, left,
            )  # fmt: skip


class Following:
    """Follows a master for as long as the broker is a slave.

    Args:
        find_master: asked before each connection.
        unknown: called when messages of an unknown topic come.
        tls: how it connects; None: without TLS, as RocketMQ does.
        retry_seconds: pauses before the next connection; from the last one on, the same.
    """

    def __init__(
        self,
        broker: Broker,
        call_soon: CallSoon,
        find_master: FindMaster,
        unknown: Callable[[], None],
        tls: ClientTls | None = None,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        self._tls, self._retry_seconds = tls, retry_seconds
        self._broker, self._call_soon, self._find_master, self._unknown = broker, call_soon, find_master, unknown
        self._faults = RateLimitedLog(log, broker.clock)
        self._task: asyncio.Task[None] | None = None
        self._session: MasterSession | None = None
        roles, store = broker.roles, broker.store
        self._progress = Progress(broker.clock, lambda: store.log.end, lambda: roles.master_end)
        self._hurried = asyncio.Event()
        self._ends: list[tuple[int, asyncio.Future[None]]] = []
        """Places of the log that somebody waits for."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="follow the master")
        self._task.add_done_callback(when_dead(log, "this slave has stopped following its master"))

    def tick(self) -> None:
        """Let time pass. Called ten times a second."""
        if self._session is not None:
            self._session.tick()
            self._progress.tick()
        self._tell_end()
        self._faults.tick()

    def again(self) -> None:
        """Leave the present master, to which nothing is reported any more, and ask at once who is followed."""
        if self._session is not None:
            self._session.close()
        self._hurried.set()

    async def copied(self, log_end: int) -> None:
        """Return when the log is here up to there, a tenth of a second later at most."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.append((log_end, waiting))
        self._tell_end()
        await waiting

    def _tell_end(self) -> None:
        """Answer those who wait for a place of the log."""
        end = self._broker.store.log.end
        for place, waiting in self._ends:
            if place <= end and not waiting.done():
                waiting.set_result(None)
        self._ends = [entry for entry in self._ends if not entry[1].done()]

    async def stop(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        tries = 0
        while True:
            copied = False
            try:
                copied = await self._connect()
            except Exception:
                log.exception("following the master failed; it is tried again")
            tries = 0 if copied or self._hurried.is_set() else tries + 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._retry_seconds[min(tries, len(self._retry_seconds) - 1)]):
                    await self._hurried.wait()
            self._hurried.clear()

    async def _connect(self) -> bool:
        """Follow until the connection ends. Returns whether anything came over it."""
        try:
            source = await self._find_master()
            if source is None:
                self._faults.warning(
                    "unknown", "no master of %s is known: nothing is copied", self._broker.environment.name
                )
                return False
            sessions = list[MasterSession]()

            def make_session(peer: Peer) -> MasterSession:
                sessions.append(MasterSession(peer, self._broker, self._call_soon, self._unknown, source.ticket))
                return sessions[0]

            await dial(source.address, make_session, CONNECT_SECONDS, tls=self._tls)
        except MetaqError as error:
            self._faults.warning("away", "the master cannot be followed, it is tried again: %s", error)
            return False
        session = self._session = sessions[0]
        log.info("following the master at %s from %d on", source.address, self._broker.store.log.end)
        try:
            why = await session.ended
        finally:
            self._session = None
            session.close()
        self._faults.error(
            why, "the master at %s is not followed any more: %s", source.address, why or "the connection was closed"
        )
        return session.copied
