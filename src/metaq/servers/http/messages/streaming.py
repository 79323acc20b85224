"""Topics as server-sent events: `GET /topics/{topic}/events`, resumed by `Last-Event-ID`.

Each event is one message, and its id says how far all queues have come with it: `0:17,1:4`. So whoever connects again with the
last id that was seen misses nothing and gets nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from metaq.broker.broker import Broker
from metaq.broker.pulls.pull import PullAnswer
from metaq.broker.requests import FILTER, HOLD, PullRequest
from metaq.errors import BadRequest
from metaq.model.access import Action, Caller
from metaq.model.topics.system import TOOLS_GROUP
from metaq.options import KIB
from metaq.servers.http.callers import Callers
from metaq.servers.http.connection import ClientGone, HttpConnection
from metaq.servers.http.messages.feeds import Event, Feed, FeedKey, Feeds, event_of
from metaq.servers.http.messages.puller import HttpChannel, Puller
from metaq.servers.http.operations import Content, Operation, query_of
from metaq.servers.http.requests import connection_of

ALIVE_SECONDS: Final = 15.0
"""Silence behind which a comment is sent: who listens sees that the connection is there, and so does every proxy."""
HOLD_MS: Final = 15_000
"""Time that a feed's pull is held: as long, a stream of a topic that was deleted may go on in silence."""
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


class Asked(NamedTuple):
    """A stream that somebody asked for. `wanted`: its pulls, but for queue and offset. `places`: queue id → offset to begin at."""

    topic: str
    caller: Caller
    wanted: PullRequest
    places: dict[int, int]
    raw: bool


class Streaming:
    """The page. `listeners`: the streams that are open. Args: broker: has the topics. puller: of the server. callers: finds who listens."""

    def __init__(self, broker: Broker, puller: Puller, callers: Callers) -> None:
        self._broker, self.puller, self._callers = broker, puller, callers
        self.feeds, self.listeners, self.now = Feeds(puller), set[Listener](), broker.clock.monotonic

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                name="listen", method="GET", path="/topics/{topic}/events",
                text="Send the messages of a topic as server-sent events; goes on behind Last-Event-ID.", run=self._listen,
                query=ListenQuery, answers={200: Content("text/event-stream")},
            )
        ]  # fmt: skip

    def check(self, caller: Caller, topic: str) -> None:
        """Raises Denied: the caller may not read the topic, or not any more."""
        self._broker.gatekeeper.check(caller, Action.SUBSCRIBE, topic)

    def tick(self) -> None:
        """Wake the listeners whose clients have heard nothing for long."""
        due = self.now() - ALIVE_SECONDS
        for listener in self.listeners:
            if listener.heard <= due:
                listener.wake()

    def close(self) -> None:
        """End the feeds."""
        self.feeds.close()

    async def _listen(self, request: Request) -> Response:
        topic, query = request.path_params["topic"], query_of(request, ListenQuery)
        caller = self._callers.of(request)
        self.check(caller, topic)
        config = self._broker.topics.require(topic)
        if config.read_queues > QUEUES_MAX:
            raise BadRequest(f"topic {topic} has {config.read_queues} queues, {QUEUES_MAX} are at most: pull them")
        places = self._places(topic, config.read_queues, query.start, request.headers.get("last-event-id", ""))
        wanted = PullRequest(
            group=TOOLS_GROUP.encode(), topic=topic.encode(), queue_id=0, offset=0, count_max=COUNT, flags=FILTER | HOLD,
            hold_ms=HOLD_MS, subscription=query.filter.encode("utf-8", "replace"),
            expression_type=query.filter_type.encode("utf-8", "replace"), bytes_max=BYTES_MAX,
        )  # fmt: skip
        listener = Listener(
            self, connection_of(request), Asked(topic, caller, wanted, places, raw=query.body == "base64")
        )
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
    """One stream of events. It reads what it is late with, and gets the rest from the feeds of its queues.

    `heard`: when the client got something last, monotonic seconds.
    """

    def __init__(self, streaming: Streaming, connection: HttpConnection, asked: Asked) -> None:
        self._streaming, self._connection, self._asked = streaming, connection, asked
        self._channel = HttpChannel(connection, asked.caller)
        self._places = dict(asked.places)
        self._feeds = dict[int, Feed]()
        self._behind = set(self._places)
        """Queues in which it is not at its feed."""
        self._woken = asyncio.Event()
        self.wake = self._woken.set
        self.heard = 0.0

    async def check(self) -> None:
        """Pull once. Raises what a pull raises."""
        await self._pull(next(iter(self._places)), self._asked.wanted)

    async def _pull(self, queue: int, wanted: PullRequest) -> PullAnswer:
        at = wanted._replace(queue_id=queue, offset=self._places[queue], flags=FILTER, hold_ms=0)
        return await self._streaming.puller.pull(self._channel, at)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events, and comments while there are none."""
        streaming = self._streaming
        streaming.listeners.add(self)
        try:
            yield self._heard(b": metaq\n\n")
            while True:
                self._woken.clear()
                self._connection.will_wait()
                streaming.check(self._asked.caller, self._asked.topic)
                came = False
                for queue in list(self._places):
                    if parts := await self._next(queue):
                        came = True
                        yield self._heard(b"".join(parts))
                        if (metering := self._connection.metering) is not None:
                            await metering.paid()
                if came or self._behind:
                    await asyncio.sleep(0)  # who has much to catch up with takes turns with the others
                elif not self._woken.is_set():
                    if streaming.now() >= self.heard + ALIVE_SECONDS:
                        yield self._heard(b": alive\n\n")
                    await self._woken.wait()
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001  behind the first event there is no status: whoever listens is told here
            yield b"event: error\ndata: " + msgspec.json.encode({"detail": str(error)}) + b"\n\n"
        finally:
            streaming.listeners.discard(self)
            for feed in self._feeds.values():
                streaming.feeds.leave(feed, self.wake)

    def _heard(self, data: bytes) -> bytes:
        self.heard = self._streaming.now()
        return data

    async def _next(self, queue: int) -> list[bytes]:
        """Return the next events of a queue, with their ids; none: it is at its feed, or has moved on over others' messages."""
        feed = self._feeds.get(queue)
        if feed is not None and not feed.failed and (found := feed.behind(self._places[queue])) is not None:
            self._behind.discard(queue)
            return self._with_ids(queue, found, feed.next)
        before, answer = self._places[queue], await self._pull(queue, self._asked.wanted)
        events = [event_of(one) for one in self._streaming.puller.objects(answer, raw=self._asked.raw)]
        parts = self._with_ids(queue, events, answer.next_offset)
        if parts or answer.next_offset != before:
            self._behind.add(queue)
        else:
            self._join(queue, feed)
        return parts

    def _join(self, queue: int, feed: Feed | None) -> None:
        """Wait for the feed of a queue at whose end this listener is. A feed that is not quite there wakes it when it is."""
        if feed is not None and feed.failed:
            self._streaming.feeds.leave(feed, self.wake)
            feed = None
        if feed is None:
            key = FeedKey(self._asked.wanted._replace(queue_id=queue), self._asked.raw)
            offset = self._places[queue]
            self._feeds[queue] = self._streaming.feeds.join(key, self._asked.caller, offset, self.wake)
        self._behind.discard(queue)

    def _with_ids(self, queue: int, events: list[Event], behind: int) -> list[bytes]:
        parts = list[bytes]()
        for offset, data in events:
            self._places[queue] = offset + 1
            place = ",".join([f"{queue}:{offset}" for queue, offset in self._places.items()])
            parts.append(b"id: " + place.encode() + data)
        self._places[queue] = behind
        return parts
