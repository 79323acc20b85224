"""One remoting connection without its socket: bytes in, commands out. For clients; servers read with `hot.FrameTable`.

Receive from a socket straight into `room` and report the count to `received`: then the body of a large frame is never
copied. Bytes that came otherwise go to `receive_data`.

`next_command` returns a command or None for "more bytes are needed", or raises RemoteProtocolError. After an error the
connection stays broken: where the next frame begins is unknown.
"""

from __future__ import annotations

from metaq.errors import RemoteProtocolError
from metaq.wire import hot
from metaq.wire.command import FRAME_BYTES_MAX, HEAD_BYTES, LENGTH_BYTES, Buffer, Command, decode, frame_bytes

SMALL_BYTES = 64 * 1024
"""A frame up to this size is read in the common buffer, and its body copied; a larger one gets memory of its own."""
_ROOM_BYTES_MIN = 4 * 1024


class Connection:
    """Reads commands from a stream of bytes. Not thread-safe.

    Args:
        frame_bytes_max: largest frame; a longer one is a RemoteProtocolError.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._start = self._end = 0  # of the bytes in the buffer that no command has used
        self._large = memoryview(b"")
        """The unfinished frame if it is a large one; its first `_filled` bytes have come."""
        self._filled = 0
        self._broken: RemoteProtocolError | None = None

    def room(self, wanted: int = SMALL_BYTES) -> memoryview:
        """Return memory for the next bytes: at least one, for small frames about `wanted`. Valid until the next
        call."""
        if self._filled < len(self._large):
            return self._large[self._filled :]
        # Everything is used: begin at the front again, which costs no copy.
        if self._start == self._end:
            self._start = self._end = 0
        left = self._end - self._start
        if len(self._buffer) - self._end < min(wanted, _ROOM_BYTES_MIN):
            # Move what is left to the front only if that frees at least as much: moving it for each frame takes quadratic time.
            size = len(self._buffer) if self._start > left else max(2 * left, left + wanted)
            larger = bytearray(size)
            larger[:left] = memoryview(self._buffer)[self._start : self._end]
            self._buffer, self._start, self._end = larger, 0, left
        return memoryview(self._buffer)[self._end :]

    def received(self, count: int) -> None:
        """Count `count` bytes that were put into the last `room`. Once broken, they are dropped."""
        # Where the next frame would begin is unknown: nothing behind the broken one can be read.
        if self._broken is not None:
            return
        if self._filled < len(self._large):
            self._filled += count
        else:
            self._end += count

    def receive_data(self, data: Buffer) -> None:
        """Add bytes of the peer. Once broken, they are dropped."""
        rest = memoryview(data)
        while rest and self._broken is None:
            room = self.room(len(rest))
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            self.received(count)
            rest = rest[count:]

    def next_command(self) -> Command | None:
        """Return the next whole command, None if more bytes are needed. The body of a large one is a view of memory of
        its own.

        Raises RemoteProtocolError, again at every later call.
        """
        if self._broken is not None:
            # A new exception each time: one that is raised twice grows its traceback.
            raise RemoteProtocolError(*self._broken.args)
        try:
            return self._next_large() if len(self._large) else self._next_small()
        except RemoteProtocolError as error:
            self._broken = error
            raise

    @property
    def unread_bytes(self) -> int:
        """Bytes of the unfinished frame at hand."""
        return self._filled + self._end - self._start

    @property
    def missing_bytes(self) -> int:
        """Bytes that are sure to come still: what a large frame lacks, one byte of any other."""
        return max(1, len(self._large) - self._filled)

    def _next_small(self) -> Command | None:
        have = self._end - self._start
        size = frame_bytes(self._buffer, self._start, self._end, self._frame_bytes_max)
        if size and size <= have:
            with memoryview(self._buffer) as view, view[self._start + LENGTH_BYTES : self._start + size] as frame:
                command = decode(frame)
            self._start += size
            return command
        # Only with all eight bytes of the head: `frame_bytes` has judged them by then.
        if size > SMALL_BYTES and have >= HEAD_BYTES:
            # Unwritten memory: zeroing it would cost a tenth of all that is done with a large answer.
            self._large, self._filled = memoryview(hot.unwritten(size)), have
            self._large[:have] = memoryview(self._buffer)[self._start : self._end]
            self._start = self._end = 0
        return None

    def _next_large(self) -> Command | None:
        frame = self._large
        if self._filled < len(frame):
            return None
        header_end = HEAD_BYTES + int.from_bytes(frame[LENGTH_BYTES + 1 : HEAD_BYTES], "big")
        self._large, self._filled = memoryview(b""), 0
        # The header alone: `decode` copies the body, which here stays where it was received.
        command = decode(frame[LENGTH_BYTES:header_end])
        command.body = frame[header_end:]
        return command
