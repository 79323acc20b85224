"""A slave's connection, as its master sees it: reports come in, chunks of the log go out (`metaq.wire.ha`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from msgspec import Struct

from metaq.broker.allowance import Bucket, Rate
from metaq.broker.replication.replicas import NOT_YET, Replicas
from metaq.clock import Clock
from metaq.errors import RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.net.peer import Peer
from metaq.options import BrokerOptions
from metaq.servers.pieces import ColdReads
from metaq.store.message_store import MessageStore
from metaq.wire.ha import REPORT, decode_reports, decode_ticket, encode_acknowledged, encode_head

log = logging.getLogger(__name__)

BURSTS_PER_SECOND: Final = 5
"""A slave that catches up may have a fifth of a second's bytes at once: it is looked at ten times a second."""
PIECE_BYTES: Final = 256 * 1024
"""Bytes of the log that are read and sent in one go: others have their turn of the loop in between."""


class Shared(Struct, eq=False):
    """What the sessions of one server share."""

    options: BrokerOptions
    clock: Clock
    store: MessageStore
    replicas: Replicas
    cold_reads: ColdReads
    sessions: set[SlaveSession]
    faults: RateLimitedLog
    """Of peers whose log cannot go on here: anybody may connect, as often as he likes."""


class SlaveSession:
    """A `metaq.net.peer.Session`. What no slave sends ends it, and costs nothing but a line of the log.

    A slave whose log cannot go on here is told by silence, as the stream has no word for it: it is closed a while later, since
    RocketMQ's slaves come back at once, two thousand times a second.
    """

    def __init__(self, peer: Peer, shared: Shared) -> None:
        self._peer, self._shared = peer, shared
        self._address = f"{peer.address[0]}:{peer.address[1]}"
        self.replica = shared.replicas.connect(self._address)
        shared.sessions.add(self)
        now = shared.clock.monotonic()
        self.heard = self.told = now
        """When the last report came, and when anything was sent; monotonic seconds."""
        self._refused_at: float | None = None
        self._next = NOT_YET
        """LogOffset of the next byte to send; NOT_YET: the slave has not said where it is."""
        self._empty = False
        """The slave began with nothing, and has not reported anything else yet."""
        self._reading = self._in_turn = False
        self._history = shared.replicas.history
        self._is_known = False
        """It has shown a ticket: it is a member of this broker's group, and is told what was acknowledged."""
        self._acknowledged = -1
        """What it was told last."""
        self._allowance = Bucket(0, now)
        """Bytes that may be sent to a slave that catches up."""
        peer.on_writable = self.pump

    # ------------------------------------------------------------------ reports

    def data_received(self, data: memoryview) -> int:
        """Take reports. Raises RemoteProtocolError: they are none."""
        if self._refused_at is not None:
            return len(data)
        is_first = self.replica.copied == NOT_YET and not self._is_known and self._shared.replicas.takes_tickets
        if is_first and (ticket := decode_ticket(data)):
            self._show(ticket)
            return REPORT.size + (self._take(data[REPORT.size :]) if self._is_known else 0)
        return self._take(data)

    def _take(self, data: memoryview) -> int:
        """Take reports, and return the bytes of them. Raises as `data_received`."""
        reported, taken = decode_reports(data)
        if reported is None:
            return taken
        self.heard = self._shared.clock.monotonic()
        if self.replica.copied == NOT_YET:
            self._begin(reported)
        elif self._empty and reported == 0:
            pass  # a heartbeat from before the first chunk, whose offset need not be 0
        elif not self.replica.copied <= reported <= self._next:
            # RocketMQ believes a report of anything: sends are acknowledged then that nobody has copied.
            raise RemoteProtocolError(
                f"its log cannot end at {reported}: it ended at {self.replica.copied}, and the log was sent up to {self._next}"
            )
        else:
            self._empty = False
            self._shared.replicas.report(self.replica, reported)
        return taken

    def frame_needed(self) -> int:
        return REPORT.size

    def _show(self, ticket: int) -> None:
        """Take a ticket, or end the connection: its follower asks for another one."""
        self._is_known = self._shared.replicas.identify(self.replica, ticket)
        if not self._is_known:
            self._peer.close("its ticket is not, or not any more, good here")

    def _begin(self, reported: int) -> None:
        low, end = self._shared.store.log.min, self._shared.store.log.end
        if reported > end or reported < 0:
            self._refuse(
                f"says that its log ends at {reported}, and the log here ends at {end}: it holds what this broker does "
                "not have; start it anew with an empty folder, if that may be lost"
            )
        elif 0 < reported < low:
            self._refuse(
                f"has the log up to {reported}, and the log here begins at {low}: what lies between is gone by retention; "
                "start it anew with an empty folder"
            )
        else:
            # An empty slave gets all there is; RocketMQ's own master would begin at its last file.
            self._next, self._empty = max(reported, low), reported == 0
            self._shared.replicas.report(self.replica, self._next if reported else low)
            log.info("the slave at %s copies the log from %d on; it ends at %d", self._address, self._next, end)
            self.pump()

    def _refuse(self, why: str) -> None:
        self._shared.faults.error(
            self._peer.address[0], "the slave at %s %s; nothing is sent to it", self._address, why
        )
        self._refused_at = self._shared.clock.monotonic()

    # ------------------------------------------------------------------ chunks

    def pump(self) -> None:
        """Send what the slave lacks, as much as it takes; the rest when it has read, and in turns."""
        if self._next == NOT_YET or self._reading or self._in_turn or self._peer.closed or self._peer.congested:
            return
        if self._history != self._shared.replicas.history:
            self._peer.close("the log here has another history now")
            return
        if self._is_held_up():
            return
        if self._next < self._shared.store.log.end and self._send_piece() and self._next < self._shared.store.log.end:
            self._in_turn = True
            self._peer.when_its_turn(self._take_turn, 0, beyond=True)

    def _is_held_up(self) -> bool:
        """Whether it has had all that a slave that catches up may have for now; `tick` looks again."""
        options = self._shared.options
        if not options.ha_flow_control_enable:
            return False
        per_second = options.max_ha_transfer_byte_in_second
        if self._shared.store.log.end - self._next <= per_second:
            return False
        rate = Rate(per_second // BURSTS_PER_SECOND, per_second)
        return self._allowance.refill(rate, self._shared.clock.monotonic()) <= 0

    def _take_turn(self) -> int:
        self._in_turn = False
        before = self._next
        self.pump()
        return self._next - before

    def _send_piece(self) -> bool:
        """Send a piece of the log. Returns False if it has to be read first."""
        data = self._shared.store.reader.log_bytes_cached(self._next, PIECE_BYTES)
        if data is None:
            self._reading = self._shared.cold_reads.read(
                self, lambda: self._shared.store.reader.log_bytes(self._next, PIECE_BYTES), self._was_read
            )
            return False
        self._write(data)
        return True

    def _was_read(self, future: asyncio.Future[bytes]) -> None:
        self._reading = False
        if future.cancelled() or self._peer.closed:
            return
        if error := future.exception():
            self._peer.close(f"the log from {self._next} on cannot be read: {error}")
            return
        self._write(future.result())
        self.pump()

    def _write(self, data: bytes | bytearray) -> None:
        if not data:  # retention has taken the file that it was reading
            self._peer.close(f"the log from {self._next} on, which it was to get, is gone")
            return
        step, parts, view = self._shared.options.ha_transfer_batch_size, list[bytes | memoryview](), memoryview(data)
        for place in range(0, len(data), step):
            chunk = view[place : place + step]
            parts += (encode_head(self._next + place, len(chunk)), chunk)
        self._next += len(data)
        self._allowance.left -= len(data)
        self.replica.sent = self._next
        self.told = self._shared.clock.monotonic()
        self._peer.write(b"".join(parts))

    # ------------------------------------------------------------------ time, and the end

    def tick(self, now: float) -> None:
        """Send a heartbeat to a slave that waits, and end the connection of one that is silent."""
        options = self._shared.options
        if self._history != self._shared.replicas.history:
            self._peer.close("the log here has another history now")
        elif self._refused_at is not None:
            if now - self._refused_at >= options.ha_send_heartbeat_interval / 1000:
                self._peer.close("its log cannot be continued from here")
        elif now - self.heard >= options.ha_housekeeping_interval / 1000:
            self._peer.close(f"it has not reported for {options.ha_housekeeping_interval / 1000:g} s")
        elif self._next != NOT_YET:
            self._tell(now)

    def _tell(self, now: float) -> None:
        if self._is_known and (end := self._shared.replicas.told_end) > self._acknowledged and not self._peer.congested:
            self._acknowledged = end
            self._peer.write(encode_acknowledged(end))
        if now - self.told >= self._shared.options.ha_send_heartbeat_interval / 1000:
            self.told = now
            if not self._peer.congested:
                self._peer.write(encode_head(self._next, 0))

    def connection_lost(self, why: str) -> None:
        self._shared.sessions.discard(self)
        self._shared.replicas.disconnect(self.replica)
        self._shared.cold_reads.forget(self)
        if self._next != NOT_YET:
            log.info("the slave at %s is gone%s", self._address, f": {why}" if why else "")


class StrangerSession:
    """A `metaq.net.peer.Session` of who may not copy the log. It is told nothing, and closed a while later, as `SlaveSession` does.

    Args:
        peer: the connection.
        now: monotonic seconds.
        others: those of the server, which it leaves at its end.
    """

    def __init__(self, peer: Peer, now: float, others: set[StrangerSession]) -> None:
        self._peer, self._since, self._others = peer, now, others

    def data_received(self, data: memoryview) -> int:
        """Pass over everything."""
        return len(data)

    def frame_needed(self) -> int:
        return 0

    def tick(self, now: float, seconds: float) -> None:
        """End it after `seconds`."""
        if now - self._since >= seconds:
            self._peer.close("it may not copy the log")

    def connection_lost(self, _why: str) -> None:
        self._others.discard(self)
