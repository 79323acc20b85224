"""The core of one session factory: its background loop, links and routes, and the sends under way.

A factory, its producers and its consumers are facades around it; it lives in the loop of `metaq.client.shared.loop`, with those of
all clients of the process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from metaq.client.shared.callbacks import CallbackThreads
from metaq.client.shared.loop import LoopThread, background
from metaq.client.shared.pending import PendingCalls
from metaq.clock import SYSTEM, Clock
from metaq.errors import BufferFull, ClientClosed, ClientError, ClientForked, NoRoute
from metaq.metaq1.config import MetaClientConfig
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.shared.fixed_routes import FixedRoutes
from metaq.metaq1.shared.links import ConnectionPace, Links
from metaq.metaq1.shared.routes import Routes
from metaq.metaq1.shared.wakes import Wakes
from metaq.net.address import local_address

log = logging.getLogger("metaq.client")

Result = TypeVar("Result")
CLOSE_SECONDS: Final = 20.0
"""Longest wait of a shutdown for all parts of a factory."""
FLUSH_SECONDS: Final = 5.0
"""Longest wait of it for sends under way; they have time-outs of their own, by default shorter."""


class FactoryCore:
    """What the clients of one factory share.

    Args:
        config: of the factory.
        pace: times of connections; None: Java's.
        clock: for names and random choices.
    """

    def __init__(self, config: MetaClientConfig, pace: ConnectionPace | None = None, clock: Clock = SYSTEM) -> None:
        self.config, self.clock = config, clock
        self._pid = os.getpid()
        self._thread = background()
        self.calls = PendingCalls(self)
        self.callbacks = CallbackThreads(config.callback_threads)
        self.wakes = Wakes()
        self.closed = False
        self.pace = pace or ConnectionPace(reconnect_times=config.max_reconnect_times)
        self.links: Links = self._make_links()
        self.routes: Routes = self._make_routes()
        self._begun_ms = clock.now_ms()
        self._numbers = itertools.count(1)
        self._outbox: deque[Callable[[], None]] = deque()
        self._posted = False
        self._lock = threading.Lock()
        self._messages = self._bytes = 0
        """Sends under way."""
        self._emptied = asyncio.Event()
        self.last_ends: list[Callable[[], Awaitable[None]]] = []
        """What ends after producers and consumers, and still has connections."""

    def _make_links(self) -> Links:
        return Links(self.pace, loopback=self.config.loopback_connection)

    def _make_routes(self) -> Routes:
        address = self.config.address
        if address is not None:
            return FixedRoutes(self.links, address)
        from metaq.metaq1.shared.zookeeper_routes import zookeeper_routes  # kazoo is an extra

        assert self.config.zk_config is not None, "one of the two is checked"
        return zookeeper_routes(self.links, self.config.zk_config)

    # -------------------------------------------------------------- any thread

    @property
    def thread(self) -> LoopThread:
        return self._thread

    @property
    def in_own_process(self) -> bool:
        return self._pid == os.getpid()

    def check_open(self) -> None:
        """Raise ClientForked in a child of the process that made the factory, ClientClosed after its shutdown."""
        if not self.in_own_process:
            raise ClientForked(
                f"this session factory was made in process {self._pid} and does not work in its child {os.getpid()}: make a new "
                "one after the fork"
            )
        if self.closed:
            raise ClientClosed("the session factory is closed")

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        """Run `work()` in the loop and wait. Raises ClientError in the loop's own thread, which must not wait."""
        self.check_open()
        self.check_may_wait()
        return self.calls.run(work(), timeout)

    async def awaited(self, work: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        """Run `work()` in the loop and await it in the caller's."""
        self.check_open()
        return await self.calls.awaited(work(), timeout)

    def start(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> concurrent.futures.Future[Result]:
        """Run `work()` in the loop; its outcome arrives in the future returned."""
        self.check_open()
        return self.calls.start(work())

    def check_may_wait(self) -> None:
        """Raise ClientError in the loop's own thread."""
        if self._thread.current:
            raise ClientError(
                "this call waits, which a callback in the client's own thread must not: callback_threads=0"
            )

    def address_of(self, topic: str, partition: Partition) -> str:
        """Return the server of a partition of a published topic. Raises NoRoute."""
        if self.config.address is not None:
            return self.config.address
        route = self.routes.route(topic)
        found = None if route is None else route.addresses.get(partition.broker_id)
        if found is None:
            raise NoRoute(f"partition {partition} of topic {topic} has no server in ZooKeeper now")
        return found

    def session_id(self) -> str:
        """Return the next id of a producer, as Java's: address, time of the factory, number. Colons would end a key's field."""
        return f"{local_address().replace(':', '.')}-{self._begun_ms}-{next(self._numbers)}"

    def admit(self, size: int) -> None:
        """Count a send of so many bytes as under way; pair with `done`. Raises BufferFull."""
        config = self.config
        with self._lock:
            if self._messages >= config.max_pending_messages or self._bytes + size > config.max_pending_bytes > size:
                raise BufferFull(
                    f"{self._messages} messages of {self._bytes} bytes wait for their answers (max_pending_messages="
                    f"{config.max_pending_messages}, max_pending_bytes={config.max_pending_bytes}): wait for some of them"
                )
            self._messages += 1
            self._bytes += size

    @property
    def messages(self) -> int:
        """Sends under way."""
        return self._messages

    def done(self, size: int) -> None:
        """In the loop: count one send of so many bytes less."""
        with self._lock:
            self._messages -= 1
            self._bytes -= size
        if not self._messages:
            self._emptied.set()

    def done_aside(self, size: int) -> None:
        """As `done`, in another thread."""
        with self._lock:
            self._messages -= 1
            self._bytes -= size
        if self.closed and not self._messages:  # else nobody waits for it
            with contextlib.suppress(RuntimeError):  # the interpreter exits
                self._thread.post(self._emptied.set)

    def hand_in(self, job: Callable[[], None]) -> None:
        """Have the loop call `job`, which raises nothing, in the order of the calls of each thread. Many cost one wake-up."""
        self._outbox.append(job)
        # A drain that runs now has either seen this job or has cleared the flag before.
        if not self._posted:
            self._posted = True
            self._thread.post(self._drain)

    def _drain(self) -> None:
        self._posted = False
        while self._outbox:
            self._outbox.popleft()()

    def end_calls(self) -> None:
        """Refuse new calls, and end those that wait."""
        self.closed = True
        self.calls.end("the session factory was closed")

    # -------------------------------------------------------------- in the loop

    async def close(self, ends: Iterable[Callable[[], Awaitable[None]]] = ()) -> None:
        """Close routes and connections, when sends under way have their outcome; those that have none in time fail.

        Args: ends: of producers and consumers, which still have their connections and ZooKeeper in them.
        """
        self.closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                while self._messages:
                    self._emptied.clear()
                    await self._emptied.wait()
        try:
            async with asyncio.timeout(CLOSE_SECONDS / 2):
                for room in (ends, self.last_ends):
                    for outcome in await asyncio.gather(*(end() for end in room), return_exceptions=True):
                        if isinstance(outcome, Exception):
                            log.warning("a part of a session factory did not end in order: %s", outcome)
        except TimeoutError:
            log.warning("parts of a session factory did not end within %g s", CLOSE_SECONDS / 2)
        async with asyncio.timeout(CLOSE_SECONDS / 2):
            await self.routes.close()
            await self.links.close()
