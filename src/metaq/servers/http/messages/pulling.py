"""Pulls by HTTP: `GET /topics/{topic}/queues/{queue}/messages?offset=N`, with long polling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from metaq.broker.broker import Broker
from metaq.broker.channel import Notice, OnAnswer, Unanswered
from metaq.broker.pulls.pull import Pull, PullAnswer, PullOutcome
from metaq.broker.requests import FILTER, HOLD, PullRequest
from metaq.errors import BadRequest, MetaqError, Reason, Refused
from metaq.model.access import Caller
from metaq.model.message import StoredMessage
from metaq.model.topics.system import TOOLS_GROUP
from metaq.net.address import join_address
from metaq.options import MIB
from metaq.servers.http.answers import json_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.connection import HttpConnection
from metaq.servers.http.requests import connection_of, when_ready
from metaq.servers.pieces import ColdReads
from metaq.wire import hot
from metaq.wire.compression import decompress
from metaq.wire.http.message import whole
from metaq.wire.http.stored import as_object

log = logging.getLogger(__name__)

COUNT: Final = 32
COUNT_MAX: Final = 1000
WAIT_SECONDS_MAX: Final = 60.0
BYTES_MAX: Final = 4 * MIB
"""Bytes of records of one answer; one message at least, whatever its size."""
COLD_READERS: Final = 2

_WORDS: Final[Mapping[PullOutcome, str]] = {
    PullOutcome.FOUND: "found",
    PullOutcome.GO_ON: "go-on",
    PullOutcome.NOTHING_NEW: "nothing-new",
    PullOutcome.OUT_OF_RANGE: "out-of-range",
}


class HttpChannel:
    """The client of one pull, as the services see it: a `metaq.broker.pulls.pull.PullChannel`."""

    def __init__(self, connection: HttpConnection, caller: Caller) -> None:
        self._connection = connection
        self.caller, self.remote = caller, join_address(*connection.peer.address)
        self.answered: asyncio.Future[PullAnswer] = asyncio.get_running_loop().create_future()

    @property
    def congested(self) -> bool:
        return self._connection.peer.congested

    def keep(self, more: int) -> None:
        self._connection.peer.keep(more)

    def may_keep(self, more: int) -> bool:
        return self._connection.peer.may_keep(more)

    def tell(self, what: Notice) -> None:
        """Drop a notice: who pulls by HTTP is a member of nothing."""
        log.debug("a client of HTTP cannot be told %s", what)

    def ask(self, question: object, seconds: float, done: OnAnswer) -> None:  # noqa: ARG002  HTTP has no requests to clients
        done(Unanswered.UNKNOWN)

    def answer_pull(self, pull: Pull, answer: PullAnswer | Exception) -> None:  # noqa: ARG002  there is one
        if self.answered.done():
            return
        if isinstance(answer, Exception):
            self.answered.set_exception(answer)
        else:
            self.answered.set_result(answer)


class Pulling:
    """The pages."""

    def __init__(self, broker: Broker, callers: Callers) -> None:
        self._broker, self._callers = broker, callers
        self._readers = ThreadPoolExecutor(COLD_READERS, "metaq-http-cold-read")
        self._cold_reads = ColdReads(self._readers)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/topics/{topic}/queues/{queue:int}/messages", self._pull, methods=["GET"], name="pull")]

    def close(self) -> None:
        """Release the threads."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def _pull(self, request: Request) -> Response:
        query = request.query_params
        pairs = {name: query[name] for name in query}
        if unknown := sorted(set(pairs) - {"offset", "max", "wait", "group", "filter", "filterType", "body"}):
            raise BadRequest(
                f"there is no parameter {unknown[0]!r:.100} of a pull: offset, max, wait, group, filter, filterType, body"
            )
        offset, count = whole(pairs, "offset", 0), min(max(1, whole(pairs, "max", COUNT)), COUNT_MAX)
        wait = min(_seconds(pairs), WAIT_SECONDS_MAX)
        wanted = PullRequest(
            group=pairs.get("group", TOOLS_GROUP).encode("utf-8", "replace"),
            topic=request.path_params["topic"].encode("utf-8", "replace"),
            queue_id=request.path_params["queue"],
            offset=offset,
            count_max=count,
            flags=FILTER | (HOLD if wait else 0),
            hold_ms=int(wait * 1000),
            subscription=pairs.get("filter", "*").encode("utf-8", "replace"),
            expression_type=pairs.get("filterType", "TAG").encode("utf-8", "replace"),
            bytes_max=BYTES_MAX,
        )
        connection = connection_of(request)
        channel = HttpChannel(connection, self._callers.of(request))
        answer = await self._answer(channel, wanted, connection)
        return json_answer(self._object(answer, raw=pairs.get("body") == "base64"))

    async def _answer(self, channel: HttpChannel, wanted: PullRequest, connection: HttpConnection) -> PullAnswer:
        pulls = self._broker.pulls
        pull = await when_ready(lambda: pulls.make(channel, channel.caller, wanted, None))
        answer = pulls.first(pull)
        try:
            while True:
                if answer is None:
                    answer = await connection.unless_gone(channel.answered)
                if answer.outcome is not PullOutcome.COLD:
                    return answer
                channel.answered = asyncio.get_running_loop().create_future()
                answer = pulls.after_cold(pull, await self._cold(connection, answer))
        finally:
            self._broker.closed(channel)

    async def _cold(self, connection: HttpConnection, answer: PullAnswer) -> Any:
        pulled = answer.pulled
        assert pulled.cached is not None, "it is cold"
        assert pulled.job is not None, "it is cold"
        if (found := pulled.cached()) is not None:
            return found
        read: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(future: asyncio.Future[Any]) -> None:
            if read.done():
                return
            if future.cancelled():
                read.cancel()
            elif (error := future.exception()) is not None:
                read.set_exception(error)
            else:
                read.set_result(future.result())

        if not self._cold_reads.read(connection, pulled.job, done):
            raise Refused(Reason.BUSY, "too many pulls of old messages wait for the disk")
        return await read

    def _object(self, answer: PullAnswer, *, raw: bool) -> dict[str, Any]:
        pulled = answer.pulled
        data = bytes(pulled.long) if pulled.long is not None else pulled.body
        messages = hot.decode_records(
            data, 0, len(data), StoredMessage, self._broker.environment.name, pulled.min_offset, pulled.max_offset
        )
        return {
            "outcome": _WORDS[answer.outcome],
            "next": answer.next_offset,
            "min": pulled.min_offset,
            "end": pulled.max_offset,
            "messages": [as_object(message, self._body(message), raw=raw) for message in messages],
        }

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


def _seconds(pairs: Mapping[str, str]) -> float:
    text = pairs.get("wait", "0")
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise BadRequest(f"wait is {text!r:.50}, no number of seconds")
    return found
