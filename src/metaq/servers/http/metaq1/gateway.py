"""The gateway of MetaQ 1.x (plug-in jettyBroker): `/put/B`, `/get/B` and `/offset/B`, whatever the method.

The status is the code of the text protocol, and the body what stands behind it there; of a get that finds something, the frames. B, the
broker's id, and what follows it are for load balancers, and not looked at. What is missing or no number is told with 400, `Invalid request`.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.broker.metaq1.service import Metaq1Service
from metaq.errors import BadRequest, Reason, Refused
from metaq.model.message import host_bytes
from metaq.model.metaq1.partition import (
    ANY_PARTITION,
    CHECKSUM_UNKNOWN,
    FRAME_HEADER_BYTES,
    Frames,
    Judged,
    Judging,
    Later,
    Moved,
    PartitionGet,
    PartitionPut,
)
from metaq.servers.http.callers import Callers
from metaq.servers.http.messages.puller import ColdReader, HttpChannel
from metaq.servers.http.operations import BINARY, TEXT, Content, Operation, query_of
from metaq.servers.http.problems import ProblemError
from metaq.servers.http.requests import Acks, body_of, connection_of, when_ready
from metaq.servers.http.same_site import refuse_cross_site
from metaq.servers.metaq1_counters import SHOWN_CHARS_MAX, Counted
from metaq.servers.metaq1_stats import StatsBodies
from metaq.wire.metaq1.commands import Code, put_body
from metaq.wire.metaq1.refusals import CODE_OF

GROUP: Final = "httpgroup"
"""Group of the original's HTTP consumers, which name none in /offset."""

_TOO_LONG: Final = 413
Q = TypeVar("Q", bound=Struct)
Int = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class PutQuery(Struct, frozen=True):
    """Parameters of a put. `length` is not needed: the body tells it."""

    topic: Annotated[str, Meta(description="Topic.")]
    partition: Annotated[Int, Meta(description="Partition; -1: the broker takes one.")] = ANY_PARTITION
    flag: Annotated[Int, Meta(description="Bits of the message.")] = 0
    checksum: Annotated[Int, Meta(description="CRC-32 of the body, 31 bits; -1: none.")] = CHECKSUM_UNKNOWN
    length: Annotated[Int, Meta(description="Bytes of the body; -1: as many as come.")] = -1


class GetQuery(Struct, frozen=True):
    """Parameters of a get."""

    topic: Annotated[str, Meta(description="Topic.")]
    partition: Annotated[Int, Meta(description="Partition.")]
    offset: Annotated[Long, Meta(description="Byte position to read from.")]
    maxsize: Annotated[Int, Meta(description="Bytes at most.")]
    group: Annotated[str, Meta(description="Group that reads.")] = GROUP


class OffsetQuery(Struct, frozen=True):
    """Parameters of an offset query."""

    topic: Annotated[str, Meta(description="Topic.")]
    partition: Annotated[Int, Meta(description="Partition.")]
    offset: Annotated[Long, Meta(description="Byte position; the nearest that is there is told.")]
    group: Annotated[str, Meta(description="Group that reads.")] = GROUP


class Gateway:
    """The operations.

    Args:
        broker: one that serves MetaQ 1.x.
        metaq1: its services.
        acks: waits for the broker's promises.
        cold: reads old messages.
        callers: finds who asks.
        stats: of MetaQ 1.x, which count what comes here, too.
    """

    def __init__(
        self, broker: Broker, metaq1: Metaq1Service, acks: Acks, cold: ColdReader, callers: Callers, stats: StatsBodies
    ) -> None:
        self._broker, self._partitions, self._acks, self._cold, self._callers = (
            broker, metaq1.partitions, acks, cold, callers,
        )  # fmt: skip
        self._options, self._stats = metaq1.settings.options, stats

    def operations(self) -> list[Operation]:
        """Return the operations."""
        text, frames = Content(TEXT), Content(BINARY)
        return [
            Operation(
                name="metaq1Put", method="POST", path="/put/{broker:path}", also="/put", any_method=True, query=PutQuery, run=self._put,
                text="Store a message of MetaQ 1.x; the answer is its id, partition and position.", bodies=(frames,), answers={200: text},
            ),
            Operation(
                name="metaq1Get", method="GET", path="/get/{broker:path}", also="/get", any_method=True, query=GetQuery, run=self._get,
                text="Return frames of a partition of MetaQ 1.x from a position on.", answers={200: frames, 301: text},
            ),
            Operation(
                name="metaq1Offset", method="GET", path="/offset/{broker:path}", also="/offset", any_method=True, query=OffsetQuery,
                run=self._offset, text="Return the position nearest to one of a partition.", answers={200: text},
            ),
        ]  # fmt: skip

    async def _put(self, request: Request) -> Response:
        refuse_cross_site(request)
        try:
            query = _query(request, PutQuery)
            return await self._put_message(request, query)
        except BadRequest as error:
            return _invalid(error)
        except Refused as refused:
            self._stats.counters.count(Counted.PUT_FAILED, query.topic)
            place = f"[broker '{self._stats.url}'] [partition '{query.topic[:SHOWN_CHARS_MAX]}-{query.partition}']"
            answer = _text(CODE_OF[refused.reason], f"Put message to {place} failed.Detail:{refused.text}")
            if refused.reason is Reason.ILLEGAL_MESSAGE:
                answer.headers["connection"] = "close"  # the rest of the body is not read
            return answer

    async def _put_message(self, request: Request, query: PutQuery) -> Response:
        caller, counters = self._callers.of(request), self._stats.counters
        body = await self._body(request, query.topic)
        if query.length not in (-1, len(body)):
            raise BadRequest(f"length is {query.length}, and the body has {len(body)} bytes")
        counters.count(Counted.PUT, query.topic)
        counters.count(Counted.BYTES, query.topic, len(body))
        host, port = connection_of(request).peer.address
        put = PartitionPut(
            topic=query.topic, partition=query.partition, body=body, flag=query.flag, checksum=query.checksum,
            born_host=host_bytes(host.partition("%")[0] or "0.0.0.0", port),  # noqa: S104  no address to bind
        )  # fmt: skip
        stored = await when_ready(lambda: self._partitions.put(put, caller))
        if self._broker.held_pulls.grown:
            self._broker.answer_pulls()
        try:
            lack = await self._acks.kept(self._partitions.acks.due())
        except ProblemError as error:
            return _text(Code.ERROR, error.problem.detail)
        if lack:
            return _text(Code.ERROR, f"the message is stored, but {lack}")
        return _text(Code.SUCCESS, put_body(stored.message_id, stored.partition, stored.position).decode())

    async def _body(self, request: Request, topic: str) -> bytes:
        """Return the body. Raises Refused ILLEGAL_MESSAGE: no get could hand it out; HTTPException: it does not come whole."""
        most = self._options.max_transfer_size - FRAME_HEADER_BYTES
        try:
            return await body_of(request, most)
        except HTTPException as error:
            if error.status_code != _TOO_LONG:
                raise
            promised = request.headers.get("content-length", "")
            raise self._partitions.too_long(topic, int(promised) if promised.isdecimal() else most + 1) from None

    async def _get(self, request: Request) -> Response:
        try:
            query = _query(request, GetQuery)
            self._stats.counters.count(Counted.GET, query.topic)
            return await self._get_frames(request, query)
        except BadRequest as error:
            return _invalid(error)
        except Refused as refused:
            self._stats.counters.count(Counted.GET_MISS, query.topic)
            # As the text protocol's, for a size that is none.
            code = Code.BAD_REQUEST if refused.reason is Reason.INVALID else CODE_OF[refused.reason]
            return _text(code, refused.text)

    async def _get_frames(self, request: Request, query: GetQuery) -> Response:
        connection = connection_of(request)
        channel = HttpChannel(connection, self._callers.of(request))
        wanted = PartitionGet(
            topic=query.topic,
            group=query.group,
            partition=query.partition,
            position=query.offset,
            size_max=query.maxsize,
        )
        got: Judged = await when_ready(lambda: self._partitions.get(wanted, channel))
        while True:
            match got:
                case Frames():
                    return Response(bytes(got.body), media_type=BINARY)
                case Moved():
                    return _text(Code.MOVED, str(got.position))
                case Judging():
                    got = await connection.unless_gone(_judged(got))
                case Later():
                    found, finish = await self._cold.read(connection, got.job), got.finish
                    got = await when_ready(functools.partial(finish, found))

    async def _offset(self, request: Request) -> Response:
        try:
            query, caller = _query(request, OffsetQuery), self._callers.of(request)
            self._stats.counters.count(Counted.OFFSET, query.topic)
            position = await when_ready(
                lambda: self._partitions.offset(query.topic, query.partition, query.offset, caller)
            )
        except BadRequest as error:
            return _invalid(error)
        except Refused as refused:
            return _text(CODE_OF[refused.reason], refused.text)
        return _text(Code.SUCCESS, str(position))


def _query(request: Request, kind: type[Q]) -> Q:
    """Return the parameters of a request. Raises BadRequest. A blank one counts as missing, as in the original."""
    return query_of(request, kind, blank=False)


def _judged(judging: Judging) -> asyncio.Future[Judged]:
    judged: asyncio.Future[Judged] = asyncio.get_running_loop().create_future()

    def done(outcome: Judged | Exception) -> None:
        if judged.done():
            return
        if isinstance(outcome, Exception):
            judged.set_exception(outcome)
        else:
            judged.set_result(outcome)

    judging.begin(done)
    return judged


def _text(code: Code, text: str) -> Response:
    return Response(text, int(code), media_type=TEXT)


def _invalid(error: BadRequest) -> Response:
    return _text(Code.BAD_REQUEST, f"Invalid request: {error}")
