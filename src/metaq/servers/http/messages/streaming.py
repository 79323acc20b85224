"""Topics as server-sent events: `GET /topics/{topic}/events`, resumed by `Last-Event-ID`.

Each event is one message, and its id says how far all queues have come with it: `0:17,1:4`. So whoever connects again with the
last id that was seen misses nothing and gets nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from metaq.broker.broker import Broker
from metaq.broker.pulls.pull import PullOutcome
from metaq.broker.requests import FILTER, HOLD, PullRequest
from metaq.errors import BadRequest
from metaq.model.access import Action, Caller
from metaq.model.topics.system import TOOLS_GROUP
from metaq.options import KIB
from metaq.servers.http.callers import Callers
from metaq.servers.http.connection import HttpConnection
from metaq.servers.http.messages.puller import Puller, Told, telling
from metaq.servers.http.operations import Content, Operation, query_of
from metaq.servers.http.requests import connection_of

ALIVE_SECONDS: Final = 15.0
"""Silence behind which a comment is sent: who listens sees that the connection is there, and so does every proxy."""
HOLD_MS: Final = 60_000
COUNT: Final = 64
BYTES_MAX: Final = 256 * KIB
"""Messages, and bytes of records, that are read ahead of each queue: who reads slowly makes the broker keep no more."""
QUEUES_MAX: Final = 256


class ListenQuery(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of a stream."""

    start: Annotated[Literal["earliest", "latest"], Meta(description="Where to begin without a Last-Event-ID.")] = (
        "latest"
    )
    filter: Annotated[str, Meta(description="Tags (`a || b`), or an expression of `filterType`.")] = "*"
    filter_type: Annotated[str, Meta(description="TAG, SQL92, or METAQ_PREDICATE.")] = "TAG"
    body: Annotated[Literal["text", "base64"], Meta(description="base64: all bodies in Base64.")] = "text"


class Streaming:
    """The page. Args: broker: has the topics. puller: of the server. callers: finds who listens."""

    def __init__(self, broker: Broker, puller: Puller, callers: Callers) -> None:
        self._broker, self._puller, self._callers = broker, puller, callers

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                name="listen", method="GET", path="/topics/{topic}/events",
                text="Send the messages of a topic as server-sent events; goes on behind Last-Event-ID.", run=self._listen,
                query=ListenQuery, answers={200: Content("text/event-stream")},
            )
        ]  # fmt: skip

    async def _listen(self, request: Request) -> Response:
        topic, query = request.path_params["topic"], query_of(request, ListenQuery)
        caller = self._callers.of(request)
        self._broker.gatekeeper.check(caller, Action.SUBSCRIBE, topic)
        config = self._broker.topics.require(topic)
        if config.read_queues > QUEUES_MAX:
            raise BadRequest(f"topic {topic} has {config.read_queues} queues, {QUEUES_MAX} are at most: pull them")
        places = self._places(topic, config.read_queues, query.start, request.headers.get("last-event-id", ""))
        wanted = PullRequest(
            group=TOOLS_GROUP.encode(), topic=topic.encode(), queue_id=0, offset=0, count_max=COUNT, flags=FILTER | HOLD,
            hold_ms=HOLD_MS, subscription=query.filter.encode("utf-8", "replace"),
            expression_type=query.filter_type.encode("utf-8", "replace"), bytes_max=BYTES_MAX,
        )  # fmt: skip
        listener = Listener(self._puller, connection_of(request), caller, wanted, places, raw=query.body == "base64")
        # What the first pull refuses is an answer of its own: behind the first event there is no status any more.
        await listener.check()
        fields = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(listener.events(), media_type="text/event-stream", headers=fields)

    def _places(self, topic: str, queues: int, start: str, last: str) -> dict[int, int]:
        """Return queue id → offset to begin at. Raises BadRequest: Last-Event-ID is none."""
        lookup = self._broker.lookup
        bound = lookup.min_offset if start == "earliest" else lookup.max_offset
        places = dict[int, int]()
        for part in last.split(",") if last else ():
            queue, colon, offset = part.strip().partition(":")
            if not (colon and queue.isdecimal() and offset.isdecimal() and len(part) < 40):
                raise BadRequest(f"Last-Event-ID is {last!r:.100}, none of this server: QUEUE:OFFSET,...")
            if int(queue) < queues:
                places[int(queue)] = int(offset)
        # A queue that was added since is read from its begin: what is in it came behind that event.
        missing = lookup.min_offset if last else bound
        return {queue: places[queue] if queue in places else missing(topic, queue) for queue in range(queues)}


class Listener:
    """One stream of events."""

    def __init__(
        self,
        puller: Puller,
        connection: HttpConnection,
        caller: Caller,
        wanted: PullRequest,
        places: dict[int, int],
        *,
        raw: bool,
    ) -> None:
        self._puller, self._connection, self._caller, self._wanted = puller, connection, caller, wanted
        self._make = telling(raw=raw)
        self._places = places
        self._came: asyncio.Queue[tuple[int, list[Told], int] | BaseException] = asyncio.Queue(1)

    async def check(self) -> None:
        """Pull once without waiting. Raises what a pull raises."""
        first = next(iter(self._places))
        await self._puller.pull(self._connection, self._caller, self._at(first)._replace(flags=FILTER, hold_ms=0))

    def _at(self, queue: int) -> PullRequest:
        return self._wanted._replace(queue_id=queue, offset=self._places[queue])

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events, and comments while there are none."""
        readers = [asyncio.ensure_future(self._read(queue)) for queue in self._places]
        try:
            yield b": metaq\n\n"
            while True:
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        found = await self._came.get()
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                if isinstance(found, BaseException):
                    yield b"event: error\ndata: " + msgspec.json.encode({"detail": str(found)}) + b"\n\n"
                    return
                queue, messages, behind = found
                parts = []
                for message in messages:
                    self._places[queue] = message.offset + 1
                    parts.append(self._event(message))
                self._places[queue] = behind
                yield b"".join(parts)
                if self._connection.metering is not None:
                    await self._connection.metering.paid()
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    def _event(self, message: Told) -> bytes:
        place = ",".join(f"{queue}:{offset}" for queue, offset in self._places.items())
        # JSON has no line break of its own, so that one `data:` line is enough.
        return b"id: " + place.encode() + b"\ndata: " + bytes(message.text) + b"\n\n"

    async def _read(self, queue: int) -> None:
        """Read one queue, and no further ahead than the stream takes."""
        wanted = self._at(queue)
        try:
            while True:
                answer = await self._puller.pull(self._connection, self._caller, wanted)
                messages = await self._puller.told(self._connection, answer, self._make)
                if messages or answer.outcome in {PullOutcome.GO_ON, PullOutcome.OUT_OF_RANGE}:
                    await self._came.put((queue, messages, answer.next_offset))
                wanted = wanted._replace(offset=answer.next_offset)
        except Exception as error:  # noqa: BLE001  whoever listens is told, and connects again where the last event was
            await self._came.put(error)
