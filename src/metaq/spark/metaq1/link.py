"""One blocking connection to a server of MetaQ 1.x. Executors read one partition at a time and need no event loop."""

from __future__ import annotations

from typing import Final

from metaq.errors import BrokerError, RemoteProtocolError
from metaq.net.blocking import dial_blocking
from metaq.wire.metaq1.commands import Answer, Code, GetLine, ResultLine, encode
from metaq.wire.metaq1.one_answer import OneAnswer

ANSWER_BYTES_MAX: Final = 256 << 20
LAST: Final = 2**63 - 1
_READ_BYTES: Final = 1 << 18
_OPAQUE_MAX: Final = 2**31 - 2


class TextLink:
    """Not thread-safe; unusable after any error. Raises ConnectionFailed, RequestTimeout, RemoteProtocolError."""

    def __init__(self, address: str, timeout: float) -> None:
        """Args: address: `host:port`. timeout: seconds to connect, and to wait for the next bytes."""
        self.address = address
        self._stream = dial_blocking(address, timeout)
        self._receiving, self._opaque = OneAnswer(ANSWER_BYTES_MAX), 0
        self._room = bytearray(_READ_BYTES)

    def close(self) -> None:
        self._stream.close()

    def get(self, topic: str, group: str, partition: int, offset: int, size: int) -> Answer:
        """Return the answer to a `get`."""
        self._opaque = self._opaque % _OPAQUE_MAX + 1
        self._stream.send(encode(GetLine(topic, group, partition, offset, size, self._opaque)))
        answer: Answer | None = None
        while answer is None:
            count = self._stream.receive_into(self._room)
            try:
                answer = self._receiving.receive(memoryview(self._room)[:count])
            except RemoteProtocolError as error:
                raise RemoteProtocolError(f"{self.address} does not answer as a server of MetaQ 1.x: {error}") from None
        if answer.opaque != self._opaque:
            raise RemoteProtocolError(f"{self.address} answers a `get` that was not made")
        return answer

    def bound(self, topic: str, group: str, partition: int, *, last: bool) -> int | None:
        """Return the offset of a partition's first message, or the one behind its last.

        None: the server has nothing of it: it was never written. The original answers so, too, while it has not loaded it.
        Raises BrokerError: the server refuses, for instance since the partition is closed.
        """
        answer = self.get(topic, group, partition, LAST if last else -1, 64)
        if isinstance(answer, ResultLine):
            if answer.code == Code.NOT_FOUND:
                return None
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
    return BrokerError(answer.code, text, address, f"read partition {partition} of {topic}")
