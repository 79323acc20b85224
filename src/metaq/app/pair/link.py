"""The connection from the master of a synchronous pair to its slave: made again and again, and kept alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from metaq.broker.metaq1.pair.samsa import Samsa
from metaq.errors import ConfigError, ConnectionFailed, Reason, Refused, RemoteProtocolError
from metaq.log import when_dead
from metaq.model.metaq1.pair import BRANCHES_TOPIC, AskEnd, AskHead, BranchCopy, Heard, SyncMessage, ToSlave
from metaq.model.metaq1.partition import POSITION_MAX
from metaq.net.dialer import dial
from metaq.net.peer import Peer
from metaq.store.metaq1.frames import FramesRead
from metaq.wire.metaq1.branches import encode_copy
from metaq.wire.metaq1.commands import (
    Code,
    Command,
    GetLine,
    OffsetLine,
    Reader,
    ResultLine,
    SyncLine,
    ValueLine,
    VersionLine,
    encode,
    whole_result,
)
from metaq.wire.metaq1.frame import HEAD_BYTES, checksum

log = logging.getLogger(__name__)

GROUP: Final = "metaq-samsa"
"""Group of the master's questions, which are about no consumers."""
CONNECT_SECONDS: Final = 5.0
RETRY_SECONDS_MAX: Final = 1.0
IDLE_SECONDS: Final = 10.0
"""Silence after which the slave is asked for its version: the original ends a connection that is silent for 300 s."""
BODY_BYTES_MAX: Final = 64 * 1024
"""Longest answer: texts, and heads of frames."""
FLUSH_BYTES: Final = 256 * 1024


def line_of(opaque: int, what: ToSlave) -> Command:
    """Return the line of a command to the slave."""
    match what:
        case SyncMessage():
            return SyncLine(what.topic, what.partition, what.flag, what.message_id, what.body, opaque, what.checksum)
        case BranchCopy():
            body = encode_copy(what)
            return SyncLine(BRANCHES_TOPIC, 0, 0, 0, body, opaque, checksum(body))
        case AskEnd():
            return OffsetLine(what.topic, GROUP, what.partition, POSITION_MAX, opaque)
        case AskHead():
            return GetLine(what.topic, GROUP, what.partition, what.position, HEAD_BYTES, opaque)


class SlaveSession:
    """One connection. A `metaq.net.peer.Session`, and the `SlaveLink` of the broker's service."""

    def __init__(self, peer: Peer, samsa: Samsa, thread: ThreadPoolExecutor) -> None:
        self._peer, self._samsa, self._thread = peer, samsa, thread
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(BODY_BYTES_MAX)
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self.active_at = self._loop.time()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Done when the connection has ended; says why."""
        peer.on_writable = samsa.go_on

    # -- metaq.broker.metaq1.pair.slave_link.SlaveLink
    @property
    def congested(self) -> bool:
        return self._peer.congested

    def send(self, opaque: int, what: ToSlave) -> None:
        self._write(encode(line_of(opaque, what)))

    def _write(self, data: bytes) -> None:
        # What one turn of the loop says goes out together.
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._unsent:
            data, self._unsent, self._unsent_bytes = b"".join(self._unsent), [], 0
            self.active_at = self._loop.time()
            self._peer.write(data)

    def read(self, job: Callable[[], FramesRead], done: Callable[[FramesRead | Refused], None]) -> None:
        def finish(future: asyncio.Future[FramesRead]) -> None:
            if future.cancelled() or self.lost.done():
                return
            error = future.exception()
            if error is None:
                done(future.result())
            else:
                done(error if isinstance(error, Refused) else Refused(Reason.UNAVAILABLE, str(error) or repr(error)))

        self._loop.run_in_executor(self._thread, job).add_done_callback(finish)

    def drop(self, why: str) -> None:
        # Not within a call of the service's own.
        self._loop.call_soon(self._peer.close, why)

    def ask_version(self) -> None:
        """Say something, so that the slave does not take the connection for dead."""
        self._write(encode(VersionLine(0)))

    # -- metaq.net.peer.Session
    def data_received(self, data: memoryview) -> int:
        self.active_at = self._loop.time()
        try:
            return self._take(bytes(data))
        finally:
            self._samsa.answers_over()

    def _take(self, raw: bytes) -> int:
        start = 0
        while True:
            found = whole_result(raw, start, BODY_BYTES_MAX)
            if found is not None:
                line, start = found
                self._reader.forget()  # it may have seen the first part of this one
                self._samsa.answered(line.opaque, Heard(line.code, line.body))
                continue
            other, start = self._reader.next(raw, start)
            if other is None:
                return start
            match other:
                case ResultLine():
                    self._samsa.answered(other.opaque, Heard(other.code, other.body))
                case ValueLine():
                    self._samsa.answered(other.opaque, Heard(Code.SUCCESS, other.body))
                case _:
                    raise RemoteProtocolError(f"the slave answers with {str(other)[:100]!r}")

    def frame_needed(self) -> int:
        return self._reader.needed

    def connection_lost(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why or "it has closed the connection")
        self._samsa.detach(self.lost.result())


class SlaveConnection:
    """Keeps the master of a pair connected to its slave."""

    def __init__(self, samsa: Samsa) -> None:
        self._samsa, self._settings = samsa, samsa.settings
        self._thread = ThreadPoolExecutor(1, "metaq-slave-read")
        self._tried = asyncio.Event()
        self._session: SlaveSession | None = None
        """Of the connection that was made last."""
        self._task = asyncio.create_task(self._keep(), name=f"connection to the slave {self._settings.slave}")
        self._task.add_done_callback(when_dead(log, f"the slave {self._settings.slave} is not connected to any more"))

    async def first_try(self) -> None:
        """Wait until the slave is connected, or a first try has failed."""
        await self._tried.wait()

    async def _keep(self) -> None:
        said, pause = "", self._settings.check_interval
        while True:
            try:
                peer = await dial(self._settings.slave, self._made, CONNECT_SECONDS)
            except (ConnectionFailed, ConfigError, RemoteProtocolError) as error:
                if str(error) != said:
                    said = str(error)
                    log.error(  # noqa: TRY400  the text says it all
                        "Connect to slave broker[%s] failed, it will retry to connect it: %s. Puts are refused until then",
                        self._settings.url, said,
                    )  # fmt: skip
                self._tried.set()
            else:
                said, pause = "", self._settings.check_interval
                session = self._session
                assert session is not None, "made with the connection"
                log.info("connected to the slave %s", self._settings.url)
                self._samsa.attach(session)
                self._tried.set()
                try:
                    await self._stay(session)
                finally:
                    peer.close("this broker stops")
            await asyncio.sleep(pause)
            pause = min(pause * 2, max(RETRY_SECONDS_MAX, self._settings.check_interval))

    def _made(self, peer: Peer) -> SlaveSession:
        self._session = SlaveSession(peer, self._samsa, self._thread)
        return self._session

    async def _stay(self, session: SlaveSession) -> None:
        loop = asyncio.get_running_loop()
        while not session.lost.done():
            await asyncio.wait((session.lost,), timeout=max(0.1, session.active_at + IDLE_SECONDS - loop.time()))
            if not session.lost.done() and loop.time() >= session.active_at + IDLE_SECONDS:
                session.ask_version()

    async def close(self) -> None:
        """End the connection for good."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._thread.shutdown(wait=False, cancel_futures=True)
