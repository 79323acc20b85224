"""Topics that are deleted and made anew under a member that holds positions in them.

A position of the topic before means other messages in the new one, or none. Brokers of ours tell a topic's generation; it is asked for
when queues are taken, at every interval of rebalances, and when a queue ends before a position. Of a RocketMQ broker can be known
whether the message before the position is still the same: its place in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from msgspec import Struct

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.reading.offsets import Beginning, GetBeginning
from metaq.client.conversation.reading.pulling import Pull, PullStatus
from metaq.client.shared.core import ClientCore
from metaq.client.shared.together import together
from metaq.model import MessageQueue, StoredMessage
from metaq.model.topics.system import TOOLS_GROUP
from metaq.wire.record import decode_record

log = logging.getLogger("metaq.client")

BROKERS_AT_ONCE = 16


class Anchor(Struct, frozen=True):
    """A message that was consumed: while its offset has this place in the log, the queue is the same."""

    offset: int
    log_offset: int
    store_ms: int

    @classmethod
    def of(cls, message: StoredMessage) -> Anchor:
        """Return the anchor that a message is."""
        return cls(message.queue_offset, message.log_offset, message.store_ms)


class Generations:
    """The generations of the topics of one member. Lives in the background loop."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._known: dict[tuple[str, str], int] = {}
        """(broker, topic) → generation."""
        self._anchors: dict[MessageQueue, Anchor] = {}
        """Queues of RocketMQ brokers → the message that was newest at the last look."""
        self._looking = asyncio.Lock()

    def of(self, queue: MessageQueue) -> int | None:
        """Return the generation that a queue's positions are of; None: its broker tells none."""
        return self._known.get((queue.broker, queue.topic))

    async def learn(self, queues: Collection[MessageQueue], owned: Collection[MessageQueue]) -> None:
        """Learn the generations for queues that are being taken. `owned`: those that are had already, with what is known."""
        for queue in queues:
            self._anchors.pop(queue, None)
        held = {(queue.broker, queue.topic) for queue in owned}
        wanted = {(queue.broker, queue.topic): queue for queue in queues}
        for place in wanted.keys() - held:
            self._known.pop(place, None)
        for one in await together(
            self._ask, [wanted[place] for place in wanted if place not in self._known], BROKERS_AT_ONCE
        ):
            if one is not None and one[1].generation is not None:
                self._known[one[0].broker, one[0].topic] = one[1].generation

    async def renewed(
        self, queues: Collection[MessageQueue], last: Callable[[MessageQueue], Anchor | None], *, short: bool = False
    ) -> dict[MessageQueue, int]:
        """Return where those of the queues begin that are of a topic made anew since. `last`: newest message had of a queue.
        `short`: they end before positions.

        From then on they count as of the new generation.
        """
        async with self._looking:
            places: dict[tuple[str, str], list[MessageQueue]] = {}
            for queue in queues:
                places.setdefault((queue.broker, queue.topic), []).append(queue)
            told = [some[0] for place, some in places.items() if place in self._known]
            found: dict[MessageQueue, int] = {}
            for one in await together(self._ask, told, BROKERS_AT_ONCE):
                if one is None:
                    continue
                place, now = (one[0].broker, one[0].topic), one[1].generation
                if now is None or now == self._known[place]:
                    continue
                begin = await together(self._ask, places[place], BROKERS_AT_ONCE)
                # If one cannot be asked, all are found at the next look.
                if all(answer is not None and answer[1].generation == now for answer in begin):
                    self._known[place] = now
                    found |= {answer[0]: answer[1].offset for answer in begin if answer is not None}
            others = [queue for queue in queues if (queue.broker, queue.topic) not in self._known]
            for queue in others:
                if (anchor := last(queue)) is not None and await self._is_another(queue, anchor, short=short):
                    found |= await self._begin_of(queue)
            return found

    async def _is_another(self, queue: MessageQueue, newest: Anchor, *, short: bool) -> bool:
        """Return whether a RocketMQ broker's queue is another one than at the last look."""
        if short:
            return await self.lacks(queue, newest)
        anchor = self._anchors.get(queue)
        if anchor is not None and anchor.offset == newest.offset:
            return False  # nothing has come of it, so nothing was passed over
        self._anchors[queue] = newest
        return anchor is not None and await self.lacks(queue, anchor)

    async def lacks(self, queue: MessageQueue, anchor: Anchor) -> bool:
        """Return whether another message is at the anchor's offset, or, if none is there, the oldest one is younger."""
        try:
            result = await self._core.ask_broker(
                queue.broker, Pull(group=TOOLS_GROUP, queue=queue, offset=anchor.offset, count=1)
            )
            if result.status is PullStatus.OUT_OF_RANGE:
                if result.min_offset > anchor.offset:
                    return False  # retention has deleted it
                result = await self._core.ask_broker(
                    queue.broker, Pull(group=TOOLS_GROUP, queue=queue, offset=result.min_offset, count=1)
                )
                if result.status is PullStatus.FOUND and len(result.records):
                    return decode_record(result.records).store_ms > anchor.store_ms
                return False
            if result.status is not PullStatus.FOUND or not len(result.records):
                return False
            message = decode_record(result.records)
        except FAULTS as error:
            log.debug("whether %s is the same as before is not known: %s", queue, error)
            return False
        return message.queue_offset == anchor.offset and message.log_offset != anchor.log_offset

    async def _begin_of(self, queue: MessageQueue) -> dict[MessageQueue, int]:
        self._anchors.pop(queue, None)
        answer = await self._ask_any(queue)
        return {} if answer is None else {queue: answer[1].offset}

    async def _ask(self, queue: MessageQueue) -> tuple[MessageQueue, Beginning] | None:
        """Ask one of our brokers; None: it is none, or does not answer."""
        return await self._ask_any(queue) if await self._core.learn_level(queue.broker) else None

    async def _ask_any(self, queue: MessageQueue) -> tuple[MessageQueue, Beginning] | None:
        try:
            return queue, await self._core.ask_broker(queue.broker, GetBeginning(queue))
        except FAULTS as error:
            log.debug("the generation of %s is not known: %s", queue, error)
            return None


def tell(group: str, queue: MessageQueue, before: int, begin: int) -> None:
    """Log that a queue is begun anew."""
    log.warning(
        "topic %s was deleted and made anew at broker %s: group %s, which was at %d of %s, goes on at its first message, %d",
        queue.topic, queue.broker, group, before, queue, begin,
    )  # fmt: skip
