"""The answer to the one command that is under way on a connection, from the bytes as they come."""

from __future__ import annotations

from metaq.errors import RemoteProtocolError
from metaq.wire.metaq1.commands import Answer, Reader, ResultLine, ValueLine


class OneAnswer:
    """For peers that send one command, wait for its answer, and send the next.

    Args: body_bytes_max: longest body of an answer.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self._reader, self._kept = Reader(body_bytes_max), bytearray()

    def receive(self, data: bytes | memoryview) -> Answer | None:
        """Return the answer if `data` completes it. Raises RemoteProtocolError: it is none, or too long; nothing behind it can be read."""
        self._kept += data
        if len(self._kept) < max(self._reader.needed, 1):
            return None
        line, end = self._reader.next(bytes(self._kept))
        del self._kept[:end]
        if line is None:
            return None
        if not isinstance(line, ResultLine | ValueLine):
            raise RemoteProtocolError("its answer is no result, or too long")
        return line
