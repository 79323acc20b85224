"""Pulls of clients of HTTP: the channel that they wait at, and what they find, as it is told."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import msgspec

from metaq.broker.broker import Broker
from metaq.broker.channel import Notice, OnAnswer, Unanswered
from metaq.broker.pulls.pull import Pull, PullAnswer, PullOutcome
from metaq.broker.requests import PullRequest
from metaq.errors import MetaqError, Reason, Refused
from metaq.model.access import Caller
from metaq.model.message import StoredMessage
from metaq.net.address import join_address
from metaq.servers.http.answers import Turns
from metaq.servers.http.connection import HttpConnection
from metaq.servers.http.metering import HttpMetering
from metaq.servers.http.requests import when_ready
from metaq.servers.pieces import ColdReads
from metaq.store.reads.long_body import ColdBody, LongBody
from metaq.store.reads.pull import ReadResult
from metaq.wire import hot
from metaq.wire.compression import decompress
from metaq.wire.http.stored import StoredAsJson, as_json

log = logging.getLogger(__name__)

T = TypeVar("T")

COLD_READERS: Final = 2
OUTCOMES: Final[Mapping[PullOutcome, str]] = {
    PullOutcome.FOUND: "found",
    PullOutcome.GO_ON: "go-on",
    PullOutcome.NOTHING_NEW: "nothing-new",
    PullOutcome.OUT_OF_RANGE: "out-of-range",
}
"""What answers say of a pull. COLD is never the end of one."""


class Told(NamedTuple):
    """A message as it is told. `offset`: in its queue. `text`: it, as JSON."""

    offset: int
    text: msgspec.Raw


def telling(*, raw: bool) -> Callable[[StoredMessage, bytes], StoredAsJson]:
    """Return what tells messages. Args: raw: all bodies in Base64."""
    return functools.partial(as_json, raw=raw)


class _Waiting:
    """A channel with one pull, whose answer is waited for: a `metaq.broker.pulls.pull.PullChannel`, but for what it keeps.

    Args: caller: whose right it has. remote: who it is, in words.
    """

    def __init__(self, caller: Caller, remote: str) -> None:
        self.caller, self.remote = caller, remote
        self._answered: asyncio.Future[PullAnswer] | None = None

    def will_answer(self) -> None:
        """Begin to wait: the pull is about to be made, or made again."""
        self._answered = asyncio.get_running_loop().create_future()

    async def answer(self) -> PullAnswer:
        """Wait for the answer."""
        assert self._answered is not None, "somebody waits"
        return await self._answered

    def tell(self, what: Notice) -> None:
        """Drop a notice: who pulls by HTTP is a member of nothing."""
        log.debug("a client of HTTP cannot be told %s", what)

    def ask(self, question: object, seconds: float, done: OnAnswer) -> None:  # noqa: ARG002  HTTP has no requests to clients
        done(Unanswered.UNKNOWN)

    def answer_pull(self, pull: Pull, answer: PullAnswer | Exception) -> None:  # noqa: ARG002  there is one
        if self._answered is None or self._answered.done():
            return
        if isinstance(answer, Exception):
            self._answered.set_exception(answer)
        else:
            self._answered.set_result(answer)


class HttpChannel(_Waiting):
    """The client of one pull. Args: connection: of the client. caller: whose right it has."""

    def __init__(self, connection: HttpConnection, caller: Caller) -> None:
        super().__init__(caller, join_address(*connection.peer.address))
        self.reads_for: object = connection
        self._connection, self.metering = connection, connection.metering

    async def answer(self) -> PullAnswer:
        """Wait for the answer. Raises ClientGone: the connection has ended."""
        assert self._answered is not None, "somebody waits"
        return await self._connection.unless_gone(self._answered)

    @property
    def congested(self) -> bool:
        return self._connection.peer.congested

    def keep(self, more: int) -> None:
        self._connection.peer.keep(more)

    def may_keep(self, more: int) -> bool:
        return self._connection.peer.may_keep(more)


class FeedChannel(_Waiting):
    """The client of a feed's pulls, which are nobody's in particular. What they keep is counted where feeds are."""

    congested = False
    metering: HttpMetering | None = None

    def __init__(self, caller: Caller, remote: str) -> None:
        super().__init__(caller, remote)
        self.reads_for: object = self

    def keep(self, more: int) -> None:
        """Count nothing: a predicate's job is the only thing that is kept, and it is one message."""

    def may_keep(self, more: int) -> bool:  # noqa: ARG002  see `keep`
        return True


class ColdReader:
    """Reads old messages in threads, for all pages of a server."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(COLD_READERS, "metaq-http-cold-read")
        self._reads = ColdReads(self._readers)

    def close(self) -> None:
        """Release the threads."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def read(self, reads_for: object, job: Callable[[], T]) -> T:
        """Return what a job returns, or raises. Raises Refused BUSY: too many for this connection or feed wait."""
        read: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(future: asyncio.Future[T]) -> None:
            if read.done():
                return
            if future.cancelled():
                read.cancel()
            elif (error := future.exception()) is not None:
                read.set_exception(error)
            else:
                read.set_result(future.result())

        if not self._reads.read(reads_for, job, done):
            raise Refused(Reason.BUSY, "too many reads of old messages wait for the disk")
        return await read


class Puller:
    """Pulls for all pages of a server."""

    def __init__(self, broker: Broker, cold: ColdReader) -> None:
        self._broker, self._cold = broker, cold

    async def pull(self, channel: HttpChannel | FeedChannel, wanted: PullRequest) -> PullAnswer:
        """Pull, and wait for messages if the request says so. Raises Refused; ClientGone: the connection has ended."""
        pulls, quotas = self._broker.pulls, self._broker.quotas
        if (metering := channel.metering) is not None and metering.limited:
            quotas.connections[channel] = metering  # a held pull counts for whom its channel stands
        pull = await when_ready(lambda: pulls.make(channel, channel.caller, wanted, None))
        channel.will_answer()
        answer = pulls.first(pull)
        try:
            while True:
                if answer is None:
                    answer = await channel.answer()
                if answer.outcome is not PullOutcome.COLD:
                    return answer
                channel.will_answer()
                answer = pulls.after_cold(pull, await self._read_cold(channel, answer))
        finally:
            self._broker.closed(channel)
            quotas.connections.pop(channel, None)

    async def _read_cold(self, channel: HttpChannel | FeedChannel, answer: PullAnswer) -> ReadResult:
        pulled = answer.pulled
        assert pulled.cached is not None, "it is cold"
        assert pulled.job is not None, "it is cold"
        if (found := pulled.cached()) is not None:
            return found
        return await self._cold.read(channel.reads_for, pulled.job)

    def objects(self, answer: PullAnswer, *, raw: bool = False) -> list[StoredAsJson]:
        """Return the messages of a short answer as they are told. `raw`: their bodies in Base64."""
        pulled = answer.pulled
        data = bytes(pulled.long) if pulled.long is not None else pulled.body
        messages = hot.decode_records(
            data, 0, len(data), StoredMessage, self._broker.environment.name, pulled.min_offset, pulled.max_offset
        )
        return [as_json(message, self._body(message), raw=raw) for message in messages]

    async def told(
        self, connection: HttpConnection, answer: PullAnswer, make: Callable[[StoredMessage, bytes], object]
    ) -> list[Told]:
        """Return the messages of an answer as JSON, made in turns: 4 MiB of them in Base64 take some 20 ms.

        Args: make: what is told of a message and its body.
        """
        pulled, turns, found = answer.pulled, Turns(), list[Told]()
        kept = 3 * (
            len(pulled.long) if pulled.long is not None else len(pulled.body)
        )  # as records, as objects, as JSON
        connection.peer.keep(kept)
        try:
            data = pulled.body if pulled.long is None else await self._whole(connection, pulled.long)
            name = self._broker.environment.name
            messages = hot.decode_records(data, 0, len(data), StoredMessage, name, pulled.min_offset, pulled.max_offset)
            for message in messages:
                told = msgspec.json.encode(make(message, self._body(message)))
                found.append(Told(message.queue_offset, msgspec.Raw(told)))
                await turns.next()
        finally:
            connection.peer.keep(-kept)
        return found

    async def _whole(self, connection: HttpConnection, body: LongBody) -> bytes:
        """Return a long answer, read in pieces; what may be on the disk alone, in a thread."""
        pieces, left, turns = list[bytes](), len(body), Turns()
        while left > 0:
            piece: bytes | memoryview | None
            if not isinstance(body, ColdBody):
                piece = body.next()
            elif (piece := body.next_cached()) is None:
                piece = await self._cold.read(connection, body.next)
            pieces.append(bytes(piece))
            left -= len(piece)
            await turns.next()
        return b"".join(pieces)

    def _body(self, message: StoredMessage) -> bytes:
        try:
            return decompress(message.body, message.sys_flag, self._broker.store_options.max_message_size * 4)
        except MetaqError as error:
            log.warning(
                "the body of the message at offset %d of %s is given as it is stored: %s",
                message.queue_offset,
                message.queue,
                error,
            )
            return message.body
