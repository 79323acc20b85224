"""Groups without a session: `POST /groups/{group}/topics/{topic}/messages`, and `POST /groups/{group}/ack`.

All that this keeps is what the broker has in any case. How far a group is says its offset. A consumer that gets messages of a queue holds
the queue's lock, as an orderly consumer does (`metaq.broker.pulls.locks`), until it has acknowledged them, and for a minute at most:
meanwhile no other one gets messages of that queue. So the messages of a queue are in one hand at a time, in their order.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from metaq.broker.broker import Broker
from metaq.broker.pulls.pull import PullAnswer, PullOutcome
from metaq.broker.requests import FILTER, HOLD, OffsetCommit, PullRequest
from metaq.errors import BadRequest, Reason, Refused
from metaq.model import MessageQueue, QueueLocks
from metaq.model import properties as props
from metaq.model.access import Caller
from metaq.model.message import StoredMessage
from metaq.model.topics.topic import RETRY_PREFIX, check_consumer_group
from metaq.options import MIB
from metaq.servers.http.answers import Turns, json_answer
from metaq.servers.http.callers import Callers
from metaq.servers.http.connection import HttpConnection
from metaq.servers.http.messages.progress import check_offline
from metaq.servers.http.messages.puller import HttpChannel, Puller
from metaq.servers.http.messages.saves import OffsetSaves
from metaq.servers.http.operations import JSON, Content, Operation, query_of
from metaq.servers.http.requests import connection_of, when_ready
from metaq.wire.http.received import AckId, Gone, Received
from metaq.wire.http.stored import as_json

WAIT_SECONDS_MAX: Final = 60.0
BYTES_MAX: Final = 4 * MIB
"""Bytes of records of one answer; one message at least."""
QUEUES_MAX: Final = 256
AGAIN_SECONDS: Final = 1.0
"""Interval in which a consumer that waits looks whether another has let go of a queue."""
PULLS_MAX: Final = 16
"""Pulls of one queue of which the filter takes nothing, before the next queue has its turn."""


class ReceiveQuery(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of a group that receives."""

    max: Annotated[int, Meta(ge=1, le=1000, description="Messages at most.")] = 32
    wait: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for a message.")] = 0.0
    consumer: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9_.@-]{0,100}$",
            description="Name of this consumer: it gets again what it has not acknowledged. Without one each request is a consumer of its own.",
        ),
    ] = ""
    start: Annotated[
        Literal["earliest", "latest"], Meta(description="Where a group begins that has never received from a queue.")
    ] = "latest"
    filter: Annotated[str, Meta(description="Tags (`a || b`), or an expression of `filterType`.")] = "*"
    filter_type: Annotated[str, Meta(description="TAG, SQL92, or METAQ_PREDICATE.")] = "TAG"
    body: Annotated[Literal["text", "base64"], Meta(description="base64: all bodies in Base64.")] = "text"


class Place(NamedTuple):
    """A queue."""

    topic: str
    queue: int


class Receiving:
    """The page. Args: puller: of the server. callers: finds who receives. saves: of the broker's offsets."""

    def __init__(self, broker: Broker, puller: Puller, callers: Callers, saves: OffsetSaves) -> None:
        self._broker, self._puller, self._callers, self._saves = broker, puller, callers, saves

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                name="receive", method="POST", path="/groups/{group}/topics/{topic}/messages",
                text="Return the next messages of a group from all queues of a topic, and its retries; wait for some.",
                run=self._receive, query=ReceiveQuery, answers={200: Content(JSON, Received)},
            )
        ]  # fmt: skip

    async def _receive(self, request: Request) -> Response:
        query, broker = query_of(request, ReceiveQuery), self._broker
        group, topic = request.path_params["group"], request.path_params["topic"]
        caller = self._callers.of(request)
        broker.gatekeeper.check_consumer(caller, check_consumer_group(group), (topic,))
        check_offline(broker, group)
        config = broker.topics.require(topic)
        if config.read_queues > QUEUES_MAX:
            raise BadRequest(f"topic {topic} has {config.read_queues} queues, {QUEUES_MAX} are at most: pull them")
        await when_ready(lambda: broker.groups.require(group, caller.client))
        queues = config.read_queues
        first = broker.clock.random_below(queues) if queues > 1 else 0
        places = [Place(topic, (first + number) % queues) for number in range(queues)]
        receiver = Receiver(broker, self._puller, connection_of(request), caller, group, query)
        if receiver.begin(places):
            await self._saves.saved()
        messages = await receiver.receive(places)
        return json_answer({"consumer": receiver.consumer, "messages": messages, "gone": receiver.gone})


class Receiver:
    """One request of a group. `consumer`: who holds the queues. `gone`: what has left the log unread."""

    def __init__(
        self,
        broker: Broker,
        puller: Puller,
        connection: HttpConnection,
        caller: Caller,
        group: str,
        query: ReceiveQuery,
    ) -> None:
        self._broker, self._puller, self._connection, self._caller = broker, puller, connection, caller
        self._group, self._query = group, query
        self.consumer = query.consumer or broker.clock.token()[:16]
        self.gone = list[Gone]()
        self._left, self._bytes_left = query.max, BYTES_MAX
        self._free = dict[Place, int]()
        """Queues that nobody else holds and that had nothing → offset."""
        self._held = False
        """Another consumer holds a queue."""

    def begin(self, places: list[Place]) -> bool:
        """Have the group begin in the queues in which it has never been. Return whether there are such."""
        lookup, begun = self._broker.lookup, False
        for topic, queue in places:
            if lookup.consumer_offset(self._group, topic, queue, young_is_zero=False) is not None:
                continue
            at: int | None = lookup.min_offset(topic, queue)
            if self._query.start == "latest" and lookup.consumer_offset(self._group, topic, queue) is None:
                at = lookup.max_offset(topic, queue)
            self._commit(Place(topic, queue), at or 0)
            begun = True
        return begun

    async def receive(self, places: list[Place]) -> list[dict[str, object]]:
        """Return messages, as `ReceivedMessage` has them. Raises Refused; ClientGone."""
        clock = self._broker.clock
        until = clock.monotonic() + self._query.wait
        while True:
            check_offline(self._broker, self._group)  # a member may have come while this waited
            if found := await self._take_all([*self._retries(), *places]):
                return found
            left = until - clock.monotonic()
            if left <= 0:
                return found
            await self._anything(min(left, AGAIN_SECONDS) if self._held else left)

    def _retries(self) -> list[Place]:
        config = self._broker.topics.get(RETRY_PREFIX + self._group)
        return [Place(config.name, queue) for queue in range(config.read_queues)] if config is not None else []

    # -- what is there
    async def _take_all(self, places: list[Place]) -> list[dict[str, object]]:
        found, turns = list[dict[str, object]](), Turns()
        self._free, self._held = {}, False
        for place in places:
            if self._left <= 0 or self._bytes_left <= 0:
                break
            found += await self._take(place)
            await turns.next()
        return found

    async def _take(self, place: Place) -> list[dict[str, object]]:
        """Return the next messages of a queue, whose lock is held then."""
        offset = self._offset(place)
        if offset == self._broker.lookup.max_offset(*place):
            if self._holder(place) in {None, self.consumer}:
                self._free[place] = offset
            else:
                self._held = True
            return []
        if not await when_ready(lambda: self._broker.locks.lock(self._caller, self._locks(place))):
            if self._holder(place) is None:
                text = f"queue {place.queue} of {place.topic} cannot be locked for group {self._group}: see the broker's log"
                raise Refused(Reason.BUSY, f"{text} (queueLocksMax)")
            self._held = True
            return []
        found = list[dict[str, object]]()
        try:
            found = await self._pull(place)
        finally:
            if not found:
                self._broker.locks.unlock(self._caller, self._locks(place))
        if not found:
            self._free[place] = self._offset(place)
        return found

    async def _pull(self, place: Place) -> list[dict[str, object]]:
        # Read again behind the lock: another consumer may have acknowledged since.
        offset = self._offset(place)
        for _ in range(PULLS_MAX):
            answer = await self._puller.pull(HttpChannel(self._connection, self._caller), self._wanted(place, offset))
            if answer.outcome is PullOutcome.OUT_OF_RANGE:
                offset = self._moved(place, offset, answer)
                continue
            if found := await self._told(place, offset, answer):
                return found
            if answer.next_offset > offset and self._offset(place) <= offset:
                self._commit(place, answer.next_offset)  # the filter takes none of them
                offset = answer.next_offset
            if answer.outcome is not PullOutcome.GO_ON:
                break
        return []

    def _moved(self, place: Place, offset: int, answer: PullAnswer) -> int:
        """Return where to go on: the queue does not hold the group's offset."""
        if answer.next_offset > offset:
            self.gone.append(Gone(place.topic, place.queue, offset, answer.next_offset))
        # Also back: the queue ends before it, for its topic was made anew, or its log was lost.
        self._commit(place, answer.next_offset)
        return answer.next_offset

    async def _told(self, place: Place, offset: int, answer: PullAnswer) -> list[dict[str, object]]:
        def tell(message: StoredMessage, body: bytes) -> object:
            told = as_json(message, body, raw=self._query.body == "base64")
            # As the consumers of all clients see it: a retry is a message of its own topic.
            return msgspec.structs.replace(told, topic=message.properties.get(props.RETRY_TOPIC, message.topic))

        told, start, found = await self._puller.told(self._connection, answer, tell), offset, list[dict[str, object]]()
        end = told[-1].offset + 1 if told else offset
        for one in told:
            ack = AckId(self._group, place.topic, place.queue, start, one.offset + 1, end, self.consumer)
            found.append({"ackId": str(ack), "message": one.text})
            start = one.offset + 1
        self._left -= len(found)
        self._bytes_left -= sum(len(bytes(one.text)) for one in told)
        return found

    def _wanted(self, place: Place, offset: int, wait: float = 0.0) -> PullRequest:
        query, own = self._query, not place.topic.startswith(RETRY_PREFIX)
        return PullRequest(
            group=self._group.encode(), topic=place.topic.encode(), queue_id=place.queue, offset=offset, count_max=max(1, self._left),
            flags=FILTER | (HOLD if wait else 0), hold_ms=int(wait * 1000),
            subscription=query.filter.encode("utf-8", "replace") if own else b"*",
            expression_type=query.filter_type.encode("utf-8", "replace") if own else b"TAG", bytes_max=max(1, self._bytes_left),
        )  # fmt: skip

    # -- the broker's state
    def _offset(self, place: Place) -> int:
        at = self._broker.lookup.consumer_offset(self._group, *place, young_is_zero=False)
        return at if at is not None else self._broker.lookup.min_offset(*place)

    def _commit(self, place: Place, offset: int) -> None:
        self._broker.lookup.commit_offset(
            OffsetCommit(
                group=self._group, topic=place.topic, queue_id=place.queue, offset=offset, client=self._caller.client
            )
        )

    def _holder(self, place: Place) -> str | None:
        return self._broker.locks.holder(self._group, *place)

    def _locks(self, place: Place) -> QueueLocks:
        queue = MessageQueue(place.topic, self._broker.environment.name, place.queue)
        return QueueLocks(self._group, self.consumer, (queue,))

    # -- waiting
    async def _anything(self, seconds: float) -> None:
        """Wait until one of the free queues has something, for so long at most. Raises Refused: a pull cannot wait; ClientGone."""
        if not self._free:
            await self._connection.unless_gone(asyncio.ensure_future(asyncio.sleep(seconds)))
            return
        pulls = [
            asyncio.ensure_future(
                self._puller.pull(
                    HttpChannel(self._connection, self._caller), self._wanted(place, offset, max(seconds, 0.001))
                )
            )
            for place, offset in self._free.items()
        ]
        try:
            done, _ = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in pulls:
                one.cancel()
            await asyncio.gather(*pulls, return_exceptions=True)
