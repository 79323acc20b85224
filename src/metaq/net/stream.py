"""One TCP connection: bytes between the event loop and a session, within limits.

Reading. All connections of a thread receive into one shared buffer, because most hold nothing between two events. The
unfinished frame that an event leaves behind is kept by its connection: a short one is put in front of the next read, a
long one gets a private buffer, which grows with the bytes that really came and never on a mere promise of them.

Writing. What the kernel does not take waits in the transport. A server's connection whose peer leaves more than
`BEHIND_BYTES` there is behind, and counted; above its share (`Budget.share`) it stops reading: who does not read its
answers gets no more of them. Above `unanswered_bytes_max`, or when all together leave too much, it is closed. A long
answer is no bytes that wait but a `Source`, of which one piece at a time is made (`turns`).

A server whose connections take turns writes their answers at the end of the loop's turn, all connections after each
other: a peer that is woken by the first answer does not preempt us before the others are written (64 connections with
one request each: p50 1.38 ms by immediate writes, 1.09 ms so). A connection that is alone is answered at once, which
saves it 1.3 us.

Ending. A connection that is to end takes and gives no data from that moment on, and holds none. Its transport is ended by
the next turn of the loop, never inside one of the transport's own callbacks: uvloop and libuv go on with what they then
have freed (in get_buffer the process is gone).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import cast

from metaq.clock import SYSTEM
from metaq.errors import RemoteProtocolError
from metaq.net.address import address_of, join_address
from metaq.net.budget import CONGESTED_BYTES
from metaq.net.ends import end_cleanly, set_up
from metaq.net.group import Group
from metaq.net.peer import Peer, Session, is_plain
from metaq.net.sweep import Watch, receive_buffer, send_now
from metaq.net.turns import JOB_COST, Source

log = logging.getLogger("metaq.net")

KIB, MIB = 1024, 1024 * 1024
SHARED_BYTES = 512 * KIB
_LONG_READ_BYTES = SHARED_BYTES // 2
LONG_READ_SECONDS = 0.005
"""Time of a long read after which the connection's turn ends: libuv reads on while a peer fills the buffer, and others starve."""
_PREFIX_BYTES_MAX = 16 * KIB
"""Longest rest put in front of the next read. A longer one would be copied again for each small packet of a slow peer."""
_PRIVATE_BYTES_MIN = 64 * KIB
TURNS_MAX = 1024
"""Most jobs of one connection that wait for their turn."""
LEFTOVERS_MAX = 16
"""Reads that a sweep passes on to the session before the connection leaves it: looking at each twice saves nothing."""
_JOINED_BYTES_MAX = 64 * KIB
"""Longest write that is gathered with others. Longer ones go out at once: they are views of the log, and a join copies."""


class _SharedBuffer(threading.local):
    """One receive buffer per thread: between filling it and emptying it no other connection of its loop runs."""

    def __init__(self) -> None:
        self.view = receive_buffer(SHARED_BYTES)


_shared = _SharedBuffer()


class Stream(asyncio.BufferedProtocol):
    """A connection: the asyncio protocol towards the loop, the `Peer` towards the session."""

    def __init__(self, group: Group, make_session: Callable[[Peer], Session]) -> None:
        self.address: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.plain = False
        self.on_writable: Callable[[], None] | None = None
        self.on_half_closed: Callable[[], bool] | None = None
        self.on_written: Callable[[int], None] | None = None
        self.seen = group.tick
        self.held = self.waiting = self.kept = 0
        """As the `Budget` counts them; `waiting` is 0 while the peer is not behind."""
        self._group, self._budget = group, group.budget
        self._make_session = make_session
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        """None before the connection is made, and once it is to end."""
        self._ending: asyncio.Transport | None = None  # of a connection that is to end
        self._behind = self._congested = False
        self._over = False  # closed for the session and the peer, and nothing is counted for it any more
        self._paused = False  # by the session, which waits for something (`pause`)
        self._resuming = 0
        """Calls of `resume` whose turn has not come: until then nothing is read behind what the session left."""
        self._source: Source | None = None
        """The long answer being written; others wait in `_sources`, jobs in `_jobs`."""
        self._sources: deque[tuple[bytes, Source]] = deque()
        self._jobs: deque[tuple[int, Callable[[], int | None]]] = deque()
        self._queued: list[bytes] = []  # writes that came while a long answer was being written
        self._queued_bytes = 0
        self._wants_turn = False
        self._close_when_done, self._unsent, self._why = False, b"", ""
        self._sweep: Watch | None = None  # what reads this connection in the loop's place, in slot `_slot`
        self._slot = self._leftovers = 0
        self._fd = -1
        """Descriptor of the socket, if it may be written to past the loop while the transport has nothing queued; else -1."""
        self._shared = _shared.view
        self._rest = b""  # A short unfinished frame...
        self._private: bytearray | None = None  # ...or the buffer of a long one, filled up to _filled.
        self._filled = 0
        self._needed = 0

    # -------------------------------------------------------------- Peer

    @property
    def congested(self) -> bool:
        return self._congested

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def busy(self) -> bool:
        return bool(self._source or self._sources or self._jobs)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.on_written is not None:
            self.on_written(len(data))
        if self._source is not None:
            self._queued.append(bytes(data))
            self._queued_bytes += len(data)
            self._count(transport)
            return
        if self._group.server and self._group.crowded and len(data) <= _JOINED_BYTES_MAX:
            if not self._unsent:  # once per turn of the loop, whatever the number of answers
                self._group.send_later(self)
            self._unsent += data
            if len(self._unsent) > _JOINED_BYTES_MAX:
                self.send_unsent()
        else:
            self.send_unsent()
            try:  # `_write` in line: this runs for each answer, and a call costs more than the rest of it
                transport.write(data)
            except MemoryError:
                self._no_memory(data)
        if self._sweep is not None:
            self._sweep.set_behind(self._slot, behind=True)  # until `answer` finds the transport empty
        if self._behind:  # only a peer that is behind is measured: the others cost no call
            self._count(transport)
        else:
            self.seen = self._group.tick

    def write_now(self, data: bytes) -> None:
        transport, fd = self._transport, self._fd
        if self._sweep is not None:
            self.answer(data)
            return
        if fd >= 0 and transport is not None and not (
            transport.is_closing() or self._behind or self._unsent or self._source or self._sources
            or transport.get_write_buffer_size()
        ):  # fmt: skip
            assert send_now is not None, "else there is no descriptor"
            sent = send_now(fd, data)
            if self.on_written is not None:
                self.on_written(sent)
            if sent == len(data):  # else the transport takes the rest, and waits
                self.seen = self._group.tick
                return
            data = data[sent:]
        self.write(data)

    def send_unsent(self) -> None:
        """Write what was gathered in this turn of the loop."""
        data, self._unsent = self._unsent, b""
        if data and not self.closed:
            assert self._transport is not None, "it is not closed"
            self._write(self._transport, data)

    def _write(self, transport: asyncio.Transport, data: bytes | bytearray | memoryview) -> None:
        try:
            transport.write(data)
        except MemoryError:
            self._no_memory(data)

    def _no_memory(self, data: bytes | bytearray | memoryview) -> None:
        # A part of it may be out: the peer would take the next bytes for the rest of this answer.
        self.abort(f"there is no memory for the {len(data)} bytes that it was to get")

    def _count(self, transport: asyncio.Transport) -> None:
        """Update how many bytes the peer leaves unread; stop reading its requests, or close, if that is too many."""
        group = self._group
        if not group.server:
            return
        if not self._behind and not self._queued:  # the peer has read everything
            self._budget.leave_unread(self, 0)
            self._go_on()
            return
        size = transport.get_write_buffer_size() + self._queued_bytes
        self._budget.leave_unread(self, size)
        limit = group.limits.unanswered_bytes_max
        if self.closed:
            return
        if limit and size > limit:
            self.abort(f"it left {size} bytes of answers unread, the limit is {limit}")
        elif size > self._budget.share and not self._congested:
            self._congested = True
            self._stop_reading(transport)

    # -- what the session keeps
    def keep(self, more: int) -> None:
        if not self._over:
            self._budget.keep(self, more)

    def may_keep(self, more: int) -> bool:
        return self._budget.may_keep(self, more)

    # -- a session that waits
    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._stop_reading(self._transport)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._resuming += 1
            asyncio.get_running_loop().call_soon(self._resume)

    def go_on(self) -> None:
        if self._paused:
            self._paused = False
            self._read_again()

    def _resume(self) -> None:
        self._resuming -= 1
        self._read_again()

    # -- long answers
    @property
    def turn_is_free(self) -> bool:
        return self._group.turns.free and self._source is None and not self._jobs

    def when_its_turn(self, job: Callable[[], int | None], cost: int = JOB_COST, *, beyond: bool = False) -> bool:
        if len(self._jobs) >= TURNS_MAX and not beyond:
            return False
        self._jobs.append((cost, job))
        self._want_turn()
        return True

    def write_from(self, head: bytes, source: Source) -> None:
        if not self.closed:
            self._sources.append((head, source))
            if self._sweep is not None:
                self._sweep.set_behind(self._slot, behind=True)
            self._want_turn()

    def _want_turn(self) -> None:
        if not self._wants_turn and not self._behind and (self._source or self._sources or self._jobs):
            self._wants_turn = True
            self._group.turns.want(self)

    def take_turn(self) -> int:
        """Write one piece of a long answer, begin the next one, or run a job. Returns what it cost."""
        self._wants_turn = False
        transport = self._transport or self._ending
        if transport is None or transport.is_closing() or self._behind:
            return 0
        cost = 0
        if self._source is not None:
            cost = self._take_piece(transport, self._source)
        elif self._sources:
            head, self._source = self._sources.popleft()
            self.send_unsent()
            self._write(transport, head)
            cost = self._take_piece(transport, self._source)
        elif self._jobs:
            cost, job = self._jobs.popleft()
            self._want_turn()
            if (spent := job()) is not None:
                cost = spent
        return cost

    def _take_piece(self, transport: asyncio.Transport, source: Source) -> int:
        try:
            piece = source.take(self._want_turn)
        except Exception as error:  # noqa: BLE001  the peer was promised so many bytes: there is no other way to tell
            self.abort(f"the rest of its answer cannot be read: {error or type(error).__name__}")
            return 0
        if piece is None:
            return 0
        if len(piece):
            if self.on_written is not None:
                self.on_written(len(piece))
            self._write(transport, piece)
        else:
            self._source = None
            queued, self._queued, self._queued_bytes = b"".join(self._queued), [], 0
            if queued:  # answers to later requests, which waited for the end of this one
                self._write(transport, queued)
        if self._behind or self.waiting:
            self._count(transport)
        else:
            self.seen = self._group.tick
        self._want_turn()
        if self._close_when_done and not (self._source or self._sources):
            self._end(transport, transport.close)
        return len(piece)

    # -- reading by a sweep
    @property
    def swept(self) -> bool:
        return self._sweep is not None

    def join(self, sweep: Watch, sender: object) -> bool:
        transport = self._transport
        stays = (
            self._congested or self._paused or self._resuming or self._behind or self.held or self._sweep is not None
        )
        if transport is None or transport.is_closing() or stays or not self.plain:
            return False
        raw = transport.get_extra_info("socket")
        if raw is None:
            return False
        try:
            self._slot = sweep.add(raw.fileno(), self, sender)
        except OSError as error:
            log.debug("the connection of %s is read by itself: %s", join_address(*self.address), error)
            return False
        self._sweep, self._leftovers = sweep, 0
        transport.pause_reading()  # after `add`, which can fail: somebody must read the connection
        return True

    def leave(self) -> None:
        if self._sweep is not None:
            self._leave()
            self._resume_reading()

    def _leave(self) -> None:
        sweep, self._sweep = self._sweep, None
        if sweep is not None:
            sweep.remove(self._slot)

    def take(self, data: memoryview) -> None:
        """Present bytes that a sweep read and did not use. None of them: the peer has closed, and the loop handles that."""
        if not data:
            self.leave()
        elif self.closed:
            return
        elif self._congested or self._paused or self._resuming:  # became so after the sweep had read
            self._keep(data, 0)
        else:
            self._present(data)
            self._leftovers += 1
            if self._leftovers >= LEFTOVERS_MAX:  # a sweep does not answer its kind of requests: the loop is cheaper
                self.leave()

    def answer(self, data: bytes) -> None:
        """Write answers that a sweep could not write past earlier bytes, or that waited until it had left the sweep."""
        transport, sweep = self._transport, self._sweep
        if transport is None:
            return
        if sweep is None:
            self.write(data)
            return
        waits = self._source or self._sources or self._unsent or transport.get_write_buffer_size()
        if not waits:
            sweep.set_behind(self._slot, behind=False)
            data = data[sweep.send(self._slot, data) :]
        if data:
            self.write(data)

    def last_seen(self) -> int:
        if self._sweep is not None and self._sweep.was_read(self._slot):
            self.seen = self._group.tick
        return self.seen

    # -- the end
    def close(self, why: str = "") -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.send_unsent()  # what this turn gathered: from here on the connection counts as closed
            self._tell(why)
            if self._source or self._sources:  # they come first; what comes in now is not looked at
                self._transport, self._ending, self._close_when_done = None, self._transport, True
                self._leave()
                self._drop_rest()
                self._jobs.clear()
            else:
                self._end(self._transport, self._transport.close)

    def abort(self, why: str) -> None:
        """Close at once; what the peer has not read is lost. Also cuts a `close` short."""
        transport = self._transport or self._ending
        if transport is not None:
            self._tell(why)
            self._end(transport, transport.abort)

    def _end(self, transport: asyncio.Transport, how: Callable[[], None]) -> None:
        """From now on this connection is closed; the loop's next turn tells the transport."""
        self._transport, self._ending = None, transport
        self._give_up()
        if self._group.server:
            end_cleanly(transport)
        asyncio.get_running_loop().call_soon(how)

    def _give_up(self) -> None:
        """Hold nothing any more."""
        self._over = True
        self._leave()
        self._drop_rest()
        self._drop_answers()
        self._budget.forget(self)

    def _drop_answers(self) -> None:
        self._source, self._close_when_done = None, False
        self._sources.clear()
        self._jobs.clear()
        self._queued, self._queued_bytes = [], 0
        self._budget.leave_unread(self, 0)

    def _tell(self, why: str) -> None:
        if why and not self._why:
            self._why = why
            log.info("closing the connection of %s: %s", join_address(*self.address), why)

    # -------------------------------------------------------------- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self.address = address_of(transport.get_extra_info("peername"))  # None: the peer has gone again
        self.local = address_of(transport.get_extra_info("sockname"))
        self.plain = is_plain(transport)
        raw = transport.get_extra_info("socket")
        if refused := self._group.add(self, raw.fileno() if raw is not None else 0, self.address[0]):
            self.abort(refused)
            return
        if raw is not None:
            set_up(raw, server=self._group.server and self.plain)
            if send_now is not None and self.plain:
                self._fd = raw.fileno()
        behind_bytes = self._budget.behind_bytes(len(self._group.streams)) if self._group.server else CONGESTED_BYTES
        transport.set_write_buffer_limits(high=behind_bytes)
        self._session = self._make_session(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._group.remove(self)
        self._give_up()
        self._transport = self._ending = None
        session, self._session = self._session, None
        if session is not None:
            session.connection_lost(self._why or (str(exc) if exc is not None else ""))

    def eof_received(self) -> bool:
        """Handle the peer's end of sending. Returns whether the connection stays open for answers still to come."""
        self.send_unsent()
        if self._group.server and self._transport is not None:
            end_cleanly(self._transport)
        return self.on_half_closed is not None and not self.closed and self.on_half_closed()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the loop's guess is not needed
        if self._private is not None:
            if self._filled == len(self._private):  # it grows with bytes that came, not by what the head promises
                self._grow(self._private)
            if self._private is not None:
                return memoryview(self._private)[self._filled :]
        # Also when growing has ended the connection: its transport needs a buffer all the same.
        if not self._rest:
            return self._shared
        size = len(self._rest)
        self._shared[:size] = self._rest
        return self._shared[size:]

    def buffer_updated(self, nbytes: int) -> None:
        self.seen = self._group.tick
        self._group.was_read(self)
        began = SYSTEM.monotonic() if nbytes >= _LONG_READ_BYTES else None  # a short read has not filled the buffer
        if self._private is not None:
            self._filled += nbytes
            if self._filled < self._needed:  # looking at each read would cost the square of the frame's length
                return
            self._present(memoryview(self._private)[: self._filled])
        else:
            self._present(self._shared[: len(self._rest) + nbytes])
        if began is not None and self._group.server and SYSTEM.monotonic() - began > LONG_READ_SECONDS:
            self._let_others()

    def _let_others(self) -> None:
        """Stop reading for this turn of the loop: libuv reads up to 32 times in a row while a peer fills the buffer."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._congested:
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._resume_reading)

    def _stop_reading(self, transport: asyncio.Transport) -> None:
        if self._sweep is not None:
            self._leave()  # its transport does not read: there is nothing to pause
        else:
            transport.pause_reading()

    def _resume_reading(self) -> None:
        transport = self._transport
        # uvloop reads at once when resumed: what `_resume` has still to present would come behind that, or the peer's end.
        stopped = self._congested or self._paused or self._resuming or self._sweep is not None
        if transport is not None and not transport.is_closing() and not stopped:
            transport.resume_reading()

    def pause_writing(self) -> None:
        self._behind = True
        if not self._group.server:
            self._congested = True
        elif (transport := self._transport or self._ending) is not None:
            self._count(transport)

    def resume_writing(self) -> None:
        self._behind = False
        self.seen = self._group.tick
        if not self._group.server:
            self._go_on()
        elif (transport := self._transport or self._ending) is not None:
            self._count(transport)
        self._want_turn()

    def _go_on(self) -> None:
        """Go on with the peer's requests: it has read what we wrote."""
        if not self._congested:
            return
        self._congested = False
        if self.on_writable is not None:
            self.on_writable()
        if self._group.server:
            self._read_again()

    def _read_again(self) -> None:
        """Present what the session left when it stopped, and read on, unless it must still wait."""
        if self._congested or self._paused or self.closed:
            return
        if self.held:
            rest = bytes(memoryview(self._private)[: self._filled]) if self._private is not None else self._rest
            if len(rest) >= self._needed:  # else an unfinished frame, for which the next read brings more
                self._present(memoryview(rest))
        self._resume_reading()

    # -------------------------------------------------------------- the unfinished frame

    def _present(self, data: memoryview) -> None:
        """Give the session bytes that came, and keep those that it does not take."""
        session = self._session
        if session is None or self._transport is None:
            return
        try:
            consumed = session.data_received(data)
            if consumed == len(data):
                if self.held:
                    self._drop_rest()
            elif self._transport is not None:
                self._keep(data[consumed:], session.frame_needed())
        except RemoteProtocolError as error:  # answers to the frames before it still go out
            self.close(str(error))
        except MemoryError:
            self.abort(f"there is no memory for the {len(data)} bytes that came")
        except Exception as error:  # noqa: BLE001  whatever a session does wrong, its connection alone pays
            text = "the connection of %s is closed: its session failed"
            self._group.faults.error(type(error).__name__, text, join_address(*self.address), error=error)
            self.close("its session failed")

    def _keep(self, rest: memoryview, needed: int) -> None:
        self.leave()  # a sweep cannot put kept bytes in front of those it reads
        size = len(rest)
        self._needed = needed if needed > size else 0
        if size <= _PREFIX_BYTES_MAX and needed <= SHARED_BYTES // 2:  # the rest fits into the shared buffer
            self._rest, self._private = bytes(rest), None
            self._budget.hold(self, size)
            return
        # Nothing is read behind it for now: no spare room.
        waits = (self._congested or self._paused) and self._group.server
        self._rest, self._private, self._filled = b"", bytearray(size if waits else self._room(size)), size
        self._private[:size] = rest
        self._budget.hold(self, len(self._private))

    def _room(self, size: int) -> int:
        """Return the size of the buffer for an unfinished frame of which `size` bytes have come.

        Twice that, not the size that its head claims: a peer would get 16 MiB of memory for 8 bytes.
        """
        room = max(2 * size, _PRIVATE_BYTES_MIN)
        return min(self._needed, room) if self._needed > size else room

    def _grow(self, private: bytearray) -> None:
        """Enlarge the buffer of an unfinished frame. The connection may end here: above the limit, or without memory."""
        try:
            self._private = bytearray(self._room(self._filled))
        except MemoryError:
            self.abort(f"there is no memory for its frame of {self._needed} bytes")
            return
        self._private[: self._filled] = private
        self._budget.hold(self, len(self._private))

    def _drop_rest(self) -> None:
        self._rest, self._private, self._filled, self._needed = b"", None, 0, 0
        self._budget.hold(self, 0)
