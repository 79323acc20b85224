"""The connection between two brokers: the real sessions of both ends, and bytes that come in pieces, late, or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from metaq.broker.broker import Broker
from metaq.clock import Chance
from metaq.errors import RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.servers.ha.session import PIECE_BYTES, Shared, SlaveSession, log
from metaq.servers.ha.slave import MasterSession
from tests.crash.simulation.ledger import Broken

CONGESTED_BYTES = 200_000
"""Bytes on the way beyond which the sender is to wait."""


class End:
    """One end of the connection. A `metaq.net.peer.Peer`, as far as the two sessions use it."""

    def __init__(self, address: str, heard_at: float) -> None:
        self.address = address, 50000
        self.heard_at = heard_at
        """When anything that can be read came last; monotonic seconds."""
        self.on_writable: Callable[[], None] | None = None
        self.closed = False
        self.why = ""
        self.sent = bytearray()
        """On the way to the other end."""
        self.inbox = bytearray()
        """Came, and was not taken yet."""
        self.jobs = deque[Callable[[], object]]()

    @property
    def congested(self) -> bool:
        return len(self.sent) > CONGESTED_BYTES

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.sent += data

    def when_its_turn(self, job: Callable[[], object], _cost: int = 0, *, beyond: bool = False) -> bool:
        self.jobs.append(job)
        return True

    def turn(self) -> None:
        while self.jobs:
            self.jobs.popleft()()

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self, why: str = "") -> None:
        if not self.closed:
            self.closed, self.why = True, why


class _ReadsAtOnce:
    """Stands for `metaq.servers.pieces.ColdReads`."""

    def read(self, _connection: object, job: Callable[[], Any], done: Callable[[Any], None]) -> bool:
        future = Future[Any]()
        try:
            future.set_result(job())
        except OSError as error:
            future.set_exception(error)
        done(future)
        return False

    def forget(self, connection: object) -> None: ...


class Link:
    """One connection of a slave to a master.

    Args: loop: on which the slave's session makes its future; nothing runs there.
    """

    def __init__(self, master: Broker, slave: Broker, chance: Chance, loop: asyncio.AbstractEventLoop) -> None:
        self._chance, self._clock = chance, master.clock
        self.master = master
        now = master.clock.monotonic()
        self._near, self._far = End("10.0.0.2", now), End("10.0.0.1", now)
        self._silence = master.options.ha_housekeeping_interval / 1000
        self._stalled = frozenset[End]()
        """Ends whose bytes do not come at the other one."""
        faults = RateLimitedLog(log, master.clock)
        shared = Shared(
            master.options, master.clock, master.store, master.replicas, _ReadsAtOnce(), sessions=set(), faults=faults
        )
        self.of_slave = SlaveSession(self._near, shared)  # as the master sees it

        async def make() -> MasterSession:
            return MasterSession(self._far, slave, lambda act: act(), lambda: None)

        self.of_master = loop.run_until_complete(make())
        self.why = ""
        """Why the connection has ended."""

    @property
    def closed(self) -> bool:
        return self._near.closed or self._far.closed

    @property
    def idle(self) -> bool:
        """Whether nothing is on the way."""
        return not (self._near.sent or self._far.sent or self._near.jobs)

    def carry(self, pieces: int) -> None:
        """Let some pieces of bytes come, at either end."""
        for _ in range(pieces):
            self.pump()
            if self.closed:
                return
            waiting = [pair for pair in self._ways() if pair[0].sent]
            if not waiting:
                return
            sender, receiver, receive = self._chance.choice(waiting)
            size = int(self._chance.choice((1, 7, 500, 20_000, 100_000)) * (0.5 + self._chance.random()))
            self._deliver(sender, receiver, receive, max(1, size))

    def carry_all(self) -> None:
        """Let all come that was or will be sent, until both ends have nothing more to say."""
        while not self.closed:
            self.pump()
            waiting = [pair for pair in self._ways() if pair[0].sent]
            if not waiting:
                return
            for sender, receiver, receive in waiting:
                self._deliver(sender, receiver, receive, len(sender.sent))

    def pump(self) -> None:
        """Have the master send what it has, as its appends do."""
        if not self.closed:
            self.of_slave.pump()
            self._near.turn()

    def tick(self) -> None:
        """Let time pass at both ends. Raises Broken: one of them has left a link over which it was told something, or has not left it."""
        self.tick_master()
        if not self.closed:
            self.of_master.tick()
            self._check_silence(self._far)

    def tick_master(self) -> None:
        """The same at the master's end alone."""
        if not self._near.closed:
            self.of_slave.pump()
            self._near.turn()
            self.of_slave.tick(self._clock.monotonic())
            self._check_silence(self._near)

    def _check_silence(self, end: End) -> None:
        silence = self._clock.monotonic() - end.heard_at
        who = "master" if end is self._near else "slave"
        if silence >= self._silence and not end.closed:
            raise Broken(f"the {who} stays on a link over which nothing has come for {silence:g} s")
        if silence < self._silence and _is_silence(end.why):
            raise Broken(f"the {who} has left a link over which something came {silence:g} s ago: {end.why}")
        if len(end.sent) > CONGESTED_BYTES + 2 * PIECE_BYTES:
            raise Broken(f"the {who} has {len(end.sent)} bytes on the way, which nobody takes")

    def stall(self, *, to_slave: bool, to_master: bool) -> None:
        """From now on, nothing comes of what is sent this way, until the next call."""
        self._stalled = frozenset(end for end, stalls in ((self._near, to_slave), (self._far, to_master)) if stalls)

    @property
    def said(self) -> str:
        """Why one of the two has left."""
        return self._near.why or self._far.why

    @property
    def was_silent(self) -> bool:
        """Whether it was left for its silence."""
        return _is_silence(self.said)

    @property
    def slave_said(self) -> str:
        """Why the slave has left."""
        return self._far.why

    @property
    def is_half_open(self) -> bool:
        """Whether the slave has left it, and its master does not know that."""
        return self._far.closed and not self._near.closed

    def _ways(self) -> tuple[tuple[End, End, Callable[[memoryview], int]], ...]:
        ways = (
            (self._near, self._far, self.of_master.data_received),
            (self._far, self._near, self.of_slave.data_received),
        )
        return tuple(way for way in ways if way[0] not in self._stalled)

    def _deliver(self, sender: End, receiver: End, receive: Callable[[memoryview], int], size: int) -> None:
        receiver.inbox += sender.sent[:size]
        was_congested = sender.congested
        del sender.sent[:size]
        data = bytes(receiver.inbox)
        try:
            with memoryview(data) as view:
                taken = receive(view)
        except RemoteProtocolError as error:
            receiver.close(str(error))
            return
        del receiver.inbox[:taken]
        if taken or receiver is self._far:  # the slave hears each byte, its master whole reports
            receiver.heard_at = self._clock.monotonic()
        if was_congested and not sender.congested and sender.on_writable is not None and not sender.closed:
            sender.on_writable()

    def leave(self) -> None:
        """The slave has left, and the master hears nothing of it: the connection is half-open."""
        self.why = self._far.why
        self.of_master.connection_lost(self.why)

    def end(self, why: str = "") -> None:
        """The connection ends, for both."""
        self.why = self.said or why
        for peer in (self._near, self._far):
            peer.close(why)
        self.of_slave.connection_lost(self.why)
        self.of_master.connection_lost(self.why)


def _is_silence(why: str) -> bool:
    return "it was silent" in why or "it has not reported" in why
