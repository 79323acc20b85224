"""Recovery of consumers' offsets at the slave of a pair that starts as master (`recoverOffset=true`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from metaq.broker.broker import Broker
from metaq.broker.metaq1.pair.lanes import messages_of
from metaq.broker.metaq1.pair.recovery import Mark, Search, moved
from metaq.broker.metaq1.service import Metaq1Service
from metaq.errors import Refused
from metaq.model.metaq1.partition import FRAME_HEADER_BYTES
from metaq.saved import Saving
from metaq.store.metaq1.frames import FrameReader, FrameRun, FramesRead
from metaq.store.metaq1.queue_positions import QueuePositions
from metaq.store.queues.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from metaq.registry.zookeeper.client import ZookeeperClient

log = logging.getLogger(__name__)

WINDOW: Final = 2048
"""Messages that are looked at together."""
RUN_BYTES: Final = 4 << 20
_PAUSE_SECONDS: Final = 0.02

Result = TypeVar("Result")


class OffsetRecovery:
    """Rewrites the offsets of one broker's partitions."""

    def __init__(self, broker: Broker, metaq1: Metaq1Service, broker_id: int) -> None:
        self._broker, self._metaq1, self._broker_id = broker, metaq1, broker_id
        self._reader = FrameReader(broker.store.reader, broker_id)

    async def run(self, client: ZookeeperClient, root: str) -> int:
        """Rewrite what has to be. Returns how many offsets were rewritten. Raises ConnectionFailed: ZooKeeper does not answer."""
        from metaq.registry.zookeeper.layout import Layout, OffsetNode, parse_offset
        from metaq.registry.zookeeper.offsets import read_texts

        layout = Layout(root)
        texts = await client.ask(lambda session: read_texts(session, layout, broker_id=self._broker_id))
        wanted: dict[tuple[str, int], list[tuple[str, Mark]]] = {}
        for key, text in texts.items():
            _, topic, part = key
            path, number = layout.offset(*key), part.partition("-")[2]
            try:
                node = parse_offset(text)
            except ValueError:
                log.warning("%s in ZooKeeper says %.100r, which is no offset: it stays", path, text)
                continue
            if number.isdecimal():
                wanted.setdefault((topic, int(number)), []).append((path, Mark(node.message_id, node.position)))
        changes: dict[str, str] = {}
        for (topic, partition), offsets in wanted.items():
            if self._metaq1.partitions.is_visible(topic):
                for path, mark in (await self._recovered(topic, partition, offsets)).items():
                    changes[path] = OffsetNode(mark.message_id, mark.position).text
        if changes:
            await client.ask(lambda session: session.write_all(changes))
        for path, text in changes.items():
            log.info("offset recovered: %s is now %s", path, text)
        return len(changes)

    async def _recovered(self, topic: str, partition: int, offsets: list[tuple[str, Mark]]) -> dict[str, Mark]:
        queue = self._broker.store.reader.existing_queue(topic, partition)
        if queue is None or queue.max_offset == 0:
            empty = Search(())
            moves = {path: moved(mark, empty, 0, 0) for path, mark in offsets}
            return {path: mark for path, mark in moves.items() if mark is not None}
        positions = await self._settled(lambda: self._metaq1.bases.touch(topic, partition))
        begin, end = await self._settled(lambda: positions.min), await self._settled(lambda: positions.max)
        others = [(path, mark) for path, mark in offsets if not await self._is_here(queue, positions, mark, begin, end)]
        search = Search(mark for _, mark in others)
        await self._search(queue, positions, search)
        found = {path: moved(mark, search, begin, end) for path, mark in others}
        return {path: mark for path, mark in found.items() if mark is not None}

    async def _is_here(self, queue: ConsumeQueue, positions: QueuePositions, mark: Mark, begin: int, end: int) -> bool:
        """Return whether the message of an offset lies where the offset says."""
        if not begin < mark.position <= end:
            return False
        place = await self._settled(lambda: positions.at(mark.position - 1))
        if await self._settled(lambda: positions.position(place.queue_offset + 1)) != mark.position:
            return False
        ids = await self._ids(queue, place.queue_offset, place.queue_offset + 1)
        return [message_id for _, message_id in ids] == [mark.message_id]

    async def _search(self, queue: ConsumeQueue, positions: QueuePositions, search: Search) -> None:
        stop = queue.max_offset
        while search.open and stop > queue.min_offset:
            start = max(queue.min_offset, stop - WINDOW)
            for offset, message_id in reversed(await self._ids(queue, start, stop)):
                behind = await self._settled(lambda after=offset + 1: positions.position(after))  # type: ignore[misc]
                search.look(message_id, behind)
                if not search.open:
                    return
            stop = start

    async def _ids(self, queue: ConsumeQueue, start: int, stop: int) -> list[tuple[int, int]]:
        """Return (QueueOffset, id) of the messages in this range."""
        found: list[tuple[int, int]] = []
        more = 1
        while start < stop:
            units = queue.units(start, min(stop - start, WINDOW))
            if not units:
                break
            count = size = 0
            for unit in units:
                size += unit.size + FRAME_HEADER_BYTES
                if count and size > RUN_BYTES:
                    break
                count += 1
            run = FrameRun(queue.topic, queue.queue_id, start, count, 0, size * more)
            read = self._reader.read(run)
            if not isinstance(read, FramesRead):
                read = await asyncio.get_running_loop().run_in_executor(None, read)
            if read.queue_offset > start:
                start = read.queue_offset
                continue
            messages = messages_of(queue.topic, queue.queue_id, bytes(read.body))
            if not messages:
                # A compressed body that is longer than its record; or nothing is there.
                if not read.body or more > 1024:
                    break
                more *= 4
                continue
            found += [(start + number, message.message_id) for number, message in enumerate(messages)]
            start, more = start + len(messages), 1
            await asyncio.sleep(0)
        return found

    async def _settled(self, ask: Callable[[], Result]) -> Result:
        while True:
            try:
                return ask()
            except Saving:
                await asyncio.sleep(_PAUSE_SECONDS)
            except Refused as error:
                if not error.retriable:
                    raise
                log.warning("the recovery of offsets waits: %s", error)
                await asyncio.sleep(1.0)
