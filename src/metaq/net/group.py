"""The connections of one listener or of one client, and their common limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from metaq.log import RateLimitedLog
from metaq.net.budget import Budget, LimitedStream, ListenLimits
from metaq.net.turns import Turns

log = logging.getLogger("metaq.net")

_TICKS_IDLE = 4
"""Ticks per idle time-out. An event only notes the number of the current tick, instead of reading a clock."""


class Group:
    """The connections that share limits.

    Args:
        limits: replaced as a whole when options change.
        server: a listener's; a client's connections have no limits, and go on reading when they are congested.
        budget: of all listeners of the process; None: this one has its own.
    """

    def __init__(self, limits: ListenLimits, *, server: bool, budget: Budget | None = None) -> None:
        self.limits = limits
        self.server = server
        self.budget = budget or Budget(limits)
        self.streams: set[LimitedStream] = set()
        self.refused = 0
        """Connections that were refused since the start."""
        self.turns = Turns()
        self.tick = 0
        self.crowded = False
        """Whether the last two reads came from different connections: then writes are gathered (`Stream`)."""
        self.faults = RateLimitedLog(log)
        self.admit: Callable[[str], str] | None = None
        """Asked with the address of a new connection: returns "", or what refuses it."""
        self._last_read: LimitedStream | None = None
        self._unsent: list[LimitedStream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, stream: LimitedStream, descriptor: int = 0, address: str = "") -> str:
        """Add a connection with this socket, from this address. Returns "", or which limit refuses it."""
        refused = self._refusal(descriptor, address)
        if refused:
            self.refused += 1
        else:
            self.streams.add(stream)
        return refused

    def _refusal(self, descriptor: int, address: str) -> str:
        limits = self.limits
        if limits.connections_max and len(self.streams) >= limits.connections_max:
            return f"there are {limits.connections_max} connections already, the limit"
        if limits.descriptor_max and descriptor > limits.descriptor_max:
            return f"{descriptor} files and connections are open, and the rest of this process's limit (ulimit -n) is for files"
        return self.admit(address) if self.admit is not None else ""

    def remove(self, stream: LimitedStream) -> None:
        self.streams.discard(stream)
        # A closed connection must not stay in memory for this.
        if self._last_read is stream:
            self._last_read = None
        if not self.streams:
            self._emptied.set()

    async def emptied(self) -> None:
        """Wait until no connection is left."""
        while self.streams:
            self._emptied.clear()
            await self._emptied.wait()

    def start(self) -> None:
        """Begin to close idle connections."""
        if self.limits.idle_seconds:
            loop = asyncio.get_running_loop()
            # One timer for all connections; idle ones are closed up to a quarter of the time too late.
            self._timer = loop.call_later(self.limits.idle_seconds / _TICKS_IDLE, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.tick += 1
        # A list first: aborting changes the set.
        for stream in [stream for stream in self.streams if self.tick - stream.last_seen() > _TICKS_IDLE]:
            stream.abort(f"nothing was read or written for {self.limits.idle_seconds:g} s")
        self.faults.tick()
        self.start()

    def was_read(self, stream: LimitedStream) -> None:
        self.crowded = stream is not self._last_read
        self._last_read = stream

    def send_later(self, stream: LimitedStream) -> None:
        """Have `stream` write what it has gathered at the end of this turn of the loop."""
        if not self._unsent:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()  # a system call each time
            self._loop.call_soon(self._send)
        self._unsent.append(stream)

    def _send(self) -> None:
        # The set is taken first: what is written meanwhile begins another round.
        streams, self._unsent = self._unsent, []
        for stream in streams:
            stream.send_unsent()
