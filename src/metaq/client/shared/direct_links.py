"""Direct links: connections on which a thread that sends and waits writes and reads by itself, without the event loop.

Beside the connection that the event loop has to a broker there is at most one direct link. It carries sends only, by one
thread at a time, and is opened by the loop when threads have asked for it `WISHES` times; so a client that sends now and
then has none. Brokers know a client by the connection of its heartbeats, so their requests never come here. A direct link
that fails in any way is dropped, and the loop's connection carries what comes then.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from metaq.client.conversation.notices import not_supported
from metaq.client.conversation.sending.send_frames import OPAQUE_FIRST, OPAQUE_LAST
from metaq.clock import Clock
from metaq.errors import ConnectionFailed
from metaq.model.message_ids import IdPrefixes
from metaq.net.direct import POSSIBLE, DirectStream, dial_direct
from metaq.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, Command, encode
from metaq.wire.connection import Connection

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls

log = logging.getLogger("metaq.client")

WISHES = 10
"""Sends that would have used a direct link, after which one is opened."""
DIAL_SECONDS = 1.0
AGAIN_SECONDS = 1.0
"""Pause after a failed open, s."""
IDLE_SECONDS = 60.0
"""Time after which an unused link is closed, s: brokers close connections that are silent for two minutes."""
LOOK_AT_SECONDS = 0.01
"""Pause after which a link is checked before use, s: the broker may have closed it."""
WAITING_MAX = 3
"""Threads waiting for a direct link at most. With more of them, batches of the loop are faster."""
WAIT_SECONDS = 0.001
"""Longest wait for a direct link, s: what a send through the loop takes on a busy machine."""
SLOW_SECONDS = 1.0
"""Time without further waiting after a wait that was in vain, s."""
ID_SECONDS = 1.0
_NUMBER_MAX = (1 << 16) - 1


class DirectLink:
    """One direct link. All but `retired` may be used only while holding `lock`."""

    __slots__ = (
        "_opaques", "_prefix_until", "_prefixes", "_slow_until", "_waiting", "lock", "number", "opaque", "prefix", "prefix_text",
        "retired", "stream", "used_at",
    )  # fmt: skip

    def __init__(self, stream: DirectStream, prefixes: IdPrefixes, now: float) -> None:
        self.stream = stream
        self.lock = threading.Lock()
        self.used_at = now
        self.retired = False
        """Whether it must not be used any more; the holder closes it."""
        self.opaque = OPAQUE_FIRST
        """Opaque of the next request."""
        self._waiting: dict[int, None] = {}
        self._slow_until = 0.0
        self._opaques = itertools.count(OPAQUE_FIRST + 1)
        self._prefixes = prefixes
        self._renew(now)

    def wait(self, thread: int, now: float) -> bool:
        """Any thread: wait for the link while that is likely to be faster than the loop. Returns whether the caller holds it."""
        if len(self._waiting) >= WAITING_MAX or now < self._slow_until:
            return False
        self._waiting[thread] = None
        try:
            if self.lock.acquire(timeout=WAIT_SECONDS):
                return True
        finally:
            self._waiting.pop(thread, None)
        # In vain: the link is busy with slow answers, so the loop's batches are faster for a while.
        self._slow_until = now + SLOW_SECONDS
        return False

    def prepare(self, now: float) -> None:
        """Prepare opaque and message id of the next request."""
        self.opaque = next(self._opaques)
        self.number += 1
        if now >= self._prefix_until or self.number > _NUMBER_MAX:
            self._renew(now)

    def fresh(self, now: float) -> bool:
        """Check the link after a pause, and renew the id prefix. Returns whether it can be used, as far as we can see."""
        if self.stream.stale:
            return False
        if now >= self._prefix_until:
            self._renew(now)
        return True

    @property
    def message_id(self) -> str:
        """Return the next message's unique id. Tools decode the time from it, so its prefix is at most a second old."""
        return f"{self.prefix_text}{self.number:04X}"

    def _renew(self, now: float) -> None:
        self.prefix = self._prefixes.next()
        self.prefix_text, self._prefix_until, self.number = self.prefix.decode(), now + ID_SECONDS, 0
        # Opaques have a fixed number of digits in the prepared headers.
        if self.opaque > OPAQUE_LAST - _NUMBER_MAX:
            self._opaques = itertools.count(OPAQUE_FIRST)

    def answer(self, data: bytes, opaque: int, deadline: float) -> Command:
        """Read the response to `opaque`, which begins with `data`. Responses to others are late ones, and dropped.

        Raises RemoteProtocolError, RequestTimeout, ConnectionFailed.
        """
        # A decoder of its own: the quick way has none, and a link that was answered otherwise is rare.
        connection = Connection()
        while True:
            connection.receive_data(data)
            while (command := connection.next_command()) is not None:
                if not command.flag & RESPONSE_FLAG:
                    # A broker's request: it belongs on the loop's connection.
                    self._refuse(command, deadline)
                elif command.opaque == opaque:
                    return command
            data = self.stream.receive(deadline)

    def _refuse(self, command: Command, deadline: float) -> None:
        refusal = not_supported(command)
        log.debug("refused on the direct link to %s: %s", self.stream.address, refusal.remark)
        if not command.flag & ONEWAY_FLAG:
            refusal.opaque, refusal.flag = command.opaque, refusal.flag | RESPONSE_FLAG
            self.stream.write(encode(refusal), deadline)


class DirectLinks:
    """The direct links of one core. Methods run on the loop unless they say otherwise."""

    def __init__(
        self,
        prefixes: IdPrefixes,
        clock: Clock,
        peer_of: Callable[[str], tuple[str, int] | None],
        start: Callable[[str], None],
        tls: ClientTls | None = None,
    ) -> None:
        """
        Args:
            prefixes: makes the beginnings of message ids.
            clock: for pauses and idle times.
            peer_of: numeric address of the peer of the loop's connection to an address; None: there is to be no direct link.
            start: has the loop run `open(address)`. Called from any thread.
            tls: makes the links with TLS, as the loop's connections are.
        """
        self.ready: dict[str, DirectLink] = {}
        """Address → open link. Readable from any thread."""
        self._prefixes, self._clock, self._peer_of, self._start = prefixes, clock, peer_of, start
        self._tls = tls
        self._wishes: Counter[str] = Counter()
        self._opening: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._closed = False

    def wish(self, address: str) -> None:
        """Any thread: note that a send would have used a link to this address; open one after WISHES of them."""
        self._wishes[address] += 1
        # Without the lock: a wish that is lost between threads only delays the link.
        if self._wishes[address] < WISHES or address in self._opening or not POSSIBLE:
            return
        if self._clock.monotonic() >= self._not_before.get(address, 0.0):
            self._opening.add(address)
            self._start(address)

    async def open(self, address: str) -> None:
        try:
            peer = self._peer_of(address)
            # The peer's numeric address: a host name may lead to another broker meanwhile.
            if peer is None or self._closed or address in self.ready:
                return
            try:
                stream = await dial_direct(peer, address, DIAL_SECONDS, self._clock, self._tls)
            except ConnectionFailed as error:
                log.debug("no direct link to %s: %s", address, error)
                self._not_before[address] = self._clock.monotonic() + AGAIN_SECONDS
                return
            if self._closed:
                stream.close()
                return
            self.ready[address] = DirectLink(stream, self._prefixes, self._clock.monotonic())
        finally:
            # Also after a failure: the wishes are counted anew.
            self._wishes.pop(address, None)
            self._opening.discard(address)

    def drop(self, address: str, link: DirectLink) -> None:
        """Any thread that holds the link: close it, because it has failed."""
        # Another link may be there by now.
        if self.ready.get(address) is link:
            del self.ready[address]
        link.retired = True
        link.stream.close()

    def keep_only(self, addresses: Collection[str]) -> None:
        """Close links to other addresses, and idle ones, unless they are in use."""
        now = self._clock.monotonic()
        for address, link in list(self.ready.items()):
            if address in addresses and now - link.used_at < IDLE_SECONDS:
                continue
            if link.lock.acquire(blocking=False):
                # In use: not idle, or dropped by its holder when it fails.
                try:
                    self.drop(address, link)
                finally:
                    link.lock.release()

    def silent(self, seconds: float) -> list[str]:
        """Return the addresses from which a send has had no answer for so long."""
        since = self._clock.monotonic() - seconds
        return [address for address, link in list(self.ready.items()) if link.used_at < since and link.lock.locked()]

    def give_up(self, address: str) -> None:
        """Close the link to an address. A send in progress there fails."""
        if (link := self.ready.pop(address, None)) is None:
            return
        link.retired = True
        if link.lock.acquire(blocking=False):
            link.stream.close()
            link.lock.release()
        else:
            # A thread reads or writes there: cutting wakes it, and it closes the link.
            link.stream.cut()

    def close(self) -> None:
        """Close all links. Sends in progress fail."""
        self._closed = True
        for address in list(self.ready):
            self.give_up(address)
