"""What the remoting doors share: frames to commands, commands to handlers, errors to answers.

A handler gets the session and the command and returns the answer, or None if it will answer later or never. What it
raises becomes an answer too: BadRequest with its own code, anything else as SYSTEM_ERROR; a shortage of files or memory
with its remedy. Only a broken frame closes the connection, since nobody knows where the next one would begin.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from typing import TypeAlias

from metaq.errors import BadRequest, LocalProtocolError, MetaqError
from metaq.log import RateLimitedLog
from metaq.net.peer import Peer, join_address
from metaq.wire.codes import ResponseCode, request_name
from metaq.wire.command import Command, decode, encode, reply
from metaq.wire.frame import FRAME_BYTES_MAX, LENGTH_BYTES, frame_bytes

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[["RemotingSession", Command], Command | None]

REMARK_CHARS_MAX = 4096
"""Of an error text in an answer: some carry what the peer sent."""

NO_MEMORY = (
    "this server is out of memory, or of room for mappings: raise its limits (ulimit -v, vm.max_map_count) "
    "or give it more"
)
REMEDIES: Mapping[int, str] = {
    errno.EMFILE: "this server has too many open files: raise its limit (ulimit -n), every queue in use holds some",
    errno.ENFILE: "the server's machine has too many open files: raise fs.file-max",
    errno.ENOMEM: NO_MEMORY,
    errno.ENOSPC: "the server's disk is full: free some space, or keep messages for a shorter time (fileReservedTime)",
    errno.EDQUOT: "the quota of the server's disk is spent: raise it, or keep messages for a shorter time",
}
"""What the system refuses, and what to do."""


class RemotingSession:
    """One connection of a remoting door."""

    def __init__(
        self,
        peer: Peer,
        handlers: Mapping[int, Handler],
        frame_bytes_max: int = FRAME_BYTES_MAX,
        faults: RateLimitedLog | None = None,
    ) -> None:
        """`faults`: the log of failed requests, one for all sessions of a door."""
        self.peer = peer
        self.faults = faults or RateLimitedLog(log)
        self.remote = join_address(*peer.address)
        self._handlers = handlers
        self._frame_bytes_max = frame_bytes_max
        self._needed = 0
        self._pushes = 0

    # -- metaq.net.peer.Session
    def data_received(self, data: memoryview) -> int:
        """Handle every whole frame. Returns the bytes used. Raises RemoteProtocolError."""
        start, end, self._needed = 0, len(data), 0
        while not self.peer.congested:
            size = frame_bytes(data, start, end, self._frame_bytes_max)
            if not size or start + size > end:
                self._needed = size
                break
            with data[start + LENGTH_BYTES : start + size] as frame:
                command = decode(frame)
            start += size
            self.handle(command)
        return start

    def frame_needed(self) -> int:
        return self._needed

    def connection_lost(self, why: str) -> None:
        self.on_lost(why)

    # -- for doors
    def on_lost(self, why: str) -> None:
        """The connection is gone. A door that keeps state for it overrides this."""

    def handle(self, command: Command) -> None:
        """Answer one command, unless nobody wants an answer."""
        answer = self.answer(command)
        if answer is not None and not command.is_oneway:
            self.send(answer)

    def answer(self, command: Command) -> Command | None:
        """What to say to a command; None: nothing, or later."""
        if command.is_response:  # The answer to something that we pushed, none of which waits for one.
            return None
        handler = self._handlers.get(command.code)
        if handler is None:
            return reply(
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {request_name(command.code)} not supported",
            )
        try:
            return handler(self, command)
        except Exception as error:  # noqa: BLE001  the peer gets every failure as an answer, the others notice nothing
            return self.failure(command, error)

    def failure(self, command: Command, error: Exception) -> Command:
        """The answer that tells an error."""
        if isinstance(error, BadRequest):
            return reply(command, error.code, remark=str(error)[:REMARK_CHARS_MAX])
        told, text = (command.code, type(error).__name__), f"{type(error).__name__}: {error}"
        if isinstance(error, MetaqError | OSError | MemoryError):
            text = shortage(error) or text
            self.faults.warning(told, "request %s of %s failed: %s", request_name(command.code), self.remote, text)
        else:
            self.faults.error(told, "request %s of %s failed", request_name(command.code), self.remote, error=error)
        return reply(command, ResponseCode.SYSTEM_ERROR, remark=text[:REMARK_CHARS_MAX])

    def send(self, command: Command) -> None:
        """Write a command. An answer that cannot be encoded is replaced by one that says so."""
        try:
            data = encode(command)
        except LocalProtocolError as error:
            log.error("an answer to %s cannot be sent: %s", self.remote, error)  # noqa: TRY400  the text says it all
            if not command.is_response:
                return
            data = encode(
                Command(
                    ResponseCode.SYSTEM_ERROR,
                    command.opaque,
                    command.flag,
                    remark=str(error)[:REMARK_CHARS_MAX],
                    serialize=command.serialize,
                )
            )
        self.write(data)

    def write(self, data: bytes) -> None:
        """Hand whole frames to the transport; a door may gather them first."""
        self.peer.write(data)

    def push(self, command: Command) -> None:
        """Send a request of our own; it needs no answer. Its number is ours, the peer counts its own."""
        self._pushes = self._pushes + 1 & 0x7FFFFFFF
        command.opaque = self._pushes
        self.send(command)


def shortage(error: Exception) -> str:
    """What to tell of an error that says that the system has no more to give; empty for any other."""
    if isinstance(error, MemoryError):
        return NO_MEMORY
    remedy = REMEDIES.get(error.errno or 0) if isinstance(error, OSError) else None
    if remedy is None:
        return ""
    assert isinstance(error, OSError)
    where = f"{os.fspath(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
    return f"{where}{remedy}"
