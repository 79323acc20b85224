"""One blocking connection to a server of MetaQ 1.x. Executors read one partition at a time and need no event loop."""

from __future__ import annotations

from typing import Final

from metaq.errors import BrokerError, RemoteProtocolError
from metaq.net.blocking import dial_blocking
from metaq.wire.metaq1.commands import Answer, Code, GetLine, Reader, ResultLine, TooLong, ValueLine, encode

ANSWER_BYTES_MAX: Final = 256 << 20
LAST: Final = 2**63 - 1
_READ_BYTES: Final = 1 << 18
_OPAQUE_MAX: Final = 2**31 - 2


class TextLink:
    """Not thread-safe; unusable after any error. Raises ConnectionFailed, RequestTimeout, RemoteProtocolError."""

    def __init__(self, address: str, timeout: float) -> None:
        """Args: address: `host:port`. timeout: seconds to connect, and to wait for the next bytes."""
        self.address = address
        self._stream = dial_blocking(address, timeout, None)
        self._reader, self._kept, self._opaque = Reader(ANSWER_BYTES_MAX), bytearray(), 0
        self._room = bytearray(_READ_BYTES)

    def close(self) -> None:
        self._stream.close()

    def get(self, topic: str, group: str, partition: int, offset: int, size: int) -> Answer:
        """Return the answer to a `get`."""
        self._opaque = self._opaque % _OPAQUE_MAX + 1
        self._stream.send(encode(GetLine(topic, group, partition, offset, size, self._opaque)))
        while True:
            if self._kept and len(self._kept) >= self._reader.needed:
                line, end = self._reader.next(bytes(self._kept))
                del self._kept[:end]
                if line is not None:
                    return self._checked(line)
            count = self._stream.receive_into(self._room)
            self._kept += memoryview(self._room)[:count]

    def _checked(self, line: object) -> Answer:
        if isinstance(line, TooLong) or not isinstance(line, ResultLine | ValueLine) or line.opaque != self._opaque:
            raise RemoteProtocolError(f"{self.address} does not answer `get` as a server of MetaQ 1.x")
        return line

    def bound(self, topic: str, group: str, partition: int, *, last: bool) -> int:
        """Return the offset of a partition's first message, or the one behind its last; 0 while it was never written.

        Raises BrokerError: the server refuses, for instance since the partition is closed.
        """
        answer = self.get(topic, group, partition, LAST if last else -1, 64)
        if isinstance(answer, ResultLine):
            if answer.code == Code.NOT_FOUND:
                return 0
            if answer.code == Code.MOVED:
                return moved(answer, self.address)
            raise refused(answer, self.address, topic, partition)
        raise RemoteProtocolError(f"{self.address} answers a `get` outside of a partition with messages")


def moved(answer: ResultLine, address: str) -> int:
    """Return the offset that a 301 names. Raises RemoteProtocolError."""
    try:
        return int(answer.body)
    except ValueError:
        raise RemoteProtocolError(f"{address} answers 301 without an offset: {answer.body[:100]!r}") from None


def refused(answer: ResultLine, address: str, topic: str, partition: int) -> BrokerError:
    """Return the error of a `get` that the server refuses."""
    text = answer.body[:200].decode(errors="replace")
    return BrokerError(answer.code, f"{address} refuses partition {partition} of {topic}: {answer.code} {text}")
