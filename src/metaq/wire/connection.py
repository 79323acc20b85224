"""One remoting connection without its socket: bytes in, commands out, and the other way round.

`next_command` has three ways out: a command, None for "feed me more", or RemoteProtocolError. After an error the
connection stays broken, because nobody knows where the next frame would begin.
"""

from __future__ import annotations

from metaq.errors import RemoteProtocolError
from metaq.wire.command import Command, decode, encode
from metaq.wire.frame import FRAME_BYTES_MAX, LENGTH_BYTES, Buffer, frame_bytes

_COMPACT_ABOVE = 256 * 1024


class Connection:
    """Both ends use it: a server reads requests and sends responses, a client the other way."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._start = 0  # Read frames are cut off the buffer's front in steps: moving the rest for each is quadratic.
        self._broken: RemoteProtocolError | None = None

    def receive_data(self, data: Buffer) -> None:
        """Add what the peer sent. Once broken, it is dropped."""
        if self._broken is not None:
            return
        if self._start == len(self._buffer):
            self._buffer.clear()
            self._start = 0
        elif self._start > _COMPACT_ABOVE:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def next_command(self) -> Command | None:
        """The next whole command, or None for "feed me more". Raises RemoteProtocolError, again at every later call."""
        if self._broken is not None:
            raise RemoteProtocolError(*self._broken.args)
        try:
            size = frame_bytes(self._buffer, self._start, len(self._buffer), self._frame_bytes_max)
            end = self._start + size
            if not size or end > len(self._buffer):
                return None
            with memoryview(self._buffer) as view, view[self._start + LENGTH_BYTES : end] as frame:
                command = decode(frame)
        except RemoteProtocolError as error:
            self._broken = error
            raise
        self._start = end
        return command

    @property
    def unread_bytes(self) -> int:
        """Bytes of the unfinished frame at hand."""
        return len(self._buffer) - self._start

    def send(self, command: Command) -> bytes:
        """The bytes of a command, ready for the socket."""
        return encode(command)
