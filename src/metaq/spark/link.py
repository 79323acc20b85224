"""One blocking connection to a broker or name server: many requests under way, answers by `opaque`.

A Spark worker reads one range at a time and has nothing else to do, so an event loop would only add cost. Frames are
received straight into a buffer of their own size: a pull's body is not copied between the kernel and the decoder.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from metaq.errors import BrokerError, ConnectionFailed
from metaq.net.dialer import dial_blocking
from metaq.wire.command import Command, decode, encode
from metaq.wire.frame import HEAD_BYTES, LENGTH_BYTES, frame_bytes

SCRATCH_BYTES = 64 * 1024
LOST_ANSWERS_MAX = 1024
_OPAQUE_MASK = 0x7FFFFFFF


class Link:
    """Not thread-safe. After any error but a BrokerError the connection is useless: close it and make another.

    Raises, from every method: ConnectionFailed, RequestTimeout, RemoteProtocolError.
    """

    def __init__(self, address: str, timeout: float) -> None:
        """Args: address: `host:port`. timeout: seconds to connect, and to wait for the next bytes of an answer."""
        self.address = address
        self._stream = dial_blocking(address, timeout)
        self._scratch = bytearray(SCRATCH_BYTES)
        self._begin = self._end = 0
        self._opaque = 0
        self._early: dict[int, Command] = {}

    def post(self, command: Command) -> int:
        """Send a request. Returns its opaque, for `answer`."""
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        command.opaque = self._opaque
        self._stream.send(encode(command))
        return self._opaque

    def answer(self, opaque: int) -> Command:
        """The response to a posted request; answers that come before it are kept. Its body is a view, never copied."""
        while opaque not in self._early:
            command = self._receive()
            if command.is_response:  # A push of the broker's (group changed, ...) is not for us.
                self._early[command.opaque] = command
            if len(self._early) > LOST_ANSWERS_MAX:
                raise ConnectionFailed(f"{self.address} sends answers to requests that were not made")
        return self._early.pop(opaque)

    def ask(self, commands: Sequence[Command], action: str, fine: Container[int] = (0,)) -> list[Command]:
        """Send all, then collect all answers, in order. Raises BrokerError: the code of one of them is not `fine`."""
        opaques = [self.post(command) for command in commands]
        answers = [self.answer(opaque) for opaque in opaques]
        for answer in answers:
            if answer.code not in fine:
                raise BrokerError(answer.code, answer.remark or "", self.address, action)
        return answers

    def close(self) -> None:
        self._stream.close()

    def _receive(self) -> Command:
        size = frame_bytes(self._scratch, self._begin, self._end)
        while not size or self._end - self._begin < HEAD_BYTES:
            self._fill()
            size = frame_bytes(self._scratch, self._begin, self._end)
        frame = memoryview(bytearray(size))
        have = min(size, self._end - self._begin)
        frame[:have] = memoryview(self._scratch)[self._begin : self._begin + have]
        self._begin += have
        while have < size:
            have += self._stream.receive_into(frame[have:])
        header_end = HEAD_BYTES + int.from_bytes(frame[LENGTH_BYTES + 1 : HEAD_BYTES], "big")
        command = decode(frame[LENGTH_BYTES:header_end])
        command.body = frame[header_end:]
        return command

    def _fill(self) -> None:
        left = self._scratch[self._begin : self._end]
        self._scratch[: len(left)] = left
        self._begin, self._end = 0, len(left)
        self._end += self._stream.receive_into(memoryview(self._scratch)[self._end :])
