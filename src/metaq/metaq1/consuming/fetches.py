"""The fetches of one consumer: a task for each of its partitions, in the background loop.

A task asks for a block, hands it to the listener as a whole, and only then asks on: so calls for one partition never overlap, and
messages come in order. Of each server as many blocks are held at once as listeners can be called, and as many again, so that a
thousand partitions take no more memory than a few, and a server that hangs keeps no other from being read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from metaq.errors import BrokerError, MetaqError
from metaq.metaq1.config import MAX_OFFSET, ConsumerConfig
from metaq.metaq1.consuming.delivery import Batch, Delivery
from metaq.metaq1.consuming.fetching import FetchRules, PartitionFetch
from metaq.metaq1.consuming.handing import HandedBack, Handing, Reject, Work
from metaq.metaq1.consuming.message_ids import MessageIdCache
from metaq.metaq1.consuming.reading import get
from metaq.metaq1.consuming.subscriptions import Subscription
from metaq.metaq1.conversation import answers
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.rebalance.fetching import Held
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.links import Link
from metaq.metaq1.storages.storage import OffsetStorage, StoredOffset, load_all
from metaq.wire.metaq1.commands import Code, OffsetLine
from metaq.worker import Waiting, Worker

log = logging.getLogger("metaq.client")

SLOTS: Final = 2
"""Blocks of one server at once, for each listener that may be called."""
TOLD_FAILURES: Final = 60
"""Fetches that fail in a row between two complaints."""


class Fetches:
    """A `Fetching` for one consumer. Made and used in the background loop.

    Args:
        group: whose offsets are saved.
        subscriptions: topic → what to do with its messages.
        storage: of offsets.
        ids: of consumed messages.
        reject: takes messages that fail too often.
    """

    def __init__(
        self,
        core: FactoryCore,
        config: ConsumerConfig,
        group: str,
        subscriptions: Mapping[str, Subscription],
        storage: OffsetStorage,
        handing: Handing,
        ids: MessageIdCache,
        reject: Reject,
    ) -> None:
        self._core, self._config, self._group, self._subscriptions = core, config, group, subscriptions
        self._storage, self._handing, self._ids, self._reject = storage, handing, ids, reject
        self._aside = Worker("MetaQ 1.x offsets")
        self._rules = FetchRules.of(config, core.config.max_read_buffer)
        self._partitions: dict[Held, PartitionFetch] = {}
        self._unsettled: dict[Held, list[int]] = {}
        self._tasks: dict[Held, asyncio.Task[None]] = {}
        self._under_way: dict[Held, Delivery] = {}
        """Blocks that listeners have."""
        self._links: list[Link] = []
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._failures: dict[Held, int] = {}
        self._damages: dict[Held, int] = {}
        """Fetches in a row that have failed, and that have met one damaged frame."""
        self._stopping = False
        self._committing = asyncio.Lock()
        self._commit_failed = False

    # -------------------------------------------------------------- what a rebalance asks for

    async def stop(self) -> None:
        """As `Fetching.stop`."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for held, task in self._tasks.items():
            delivery = self._under_way.get(held)
            if delivery is None:
                task.cancel()
            else:
                delivery.is_stopped = True
        if tasks:
            await asyncio.wait(tasks)
        self._tasks.clear()
        links, self._links = self._links, []
        for link in links:
            self._core.links.release(link)

    async def commit(self) -> None:
        """As `Fetching.commit`."""
        async with self._committing:
            changed = {held: fetch for held, fetch in self._partitions.items() if fetch.is_changed}
            offsets = [
                StoredOffset(held.topic, held.partition, fetch.acknowledged, fetch.message_id)
                for held, fetch in changed.items()
                if fetch.acknowledged != MAX_OFFSET  # the server has not said yet where its end is
            ]
            if not offsets:
                return
            try:
                await self._aside.run(lambda: self._storage.commit_offset(self._group, offsets))
            except Exception as error:
                if not self._commit_failed:
                    trace = None if isinstance(error, MetaqError) else error
                    log.error(  # noqa: TRY400  a trace only of what is no error of ours
                        "offsets of group %s in %d partitions are not saved, and will be tried again each %g s; meanwhile a restart "
                        "would repeat messages: %s", self._group, len(offsets), self._config.commit_offset_period, error, exc_info=trace,
                    )  # fmt: skip
                self._commit_failed = True
                return
            if self._commit_failed:
                log.info("offsets of group %s are saved again", self._group)
            self._commit_failed = False
            for one in offsets:
                changed[Held(one.topic, one.partition)].saved = one.offset

    async def load(self, partitions: Collection[Held]) -> None:
        """As `Fetching.load`. Raises what the storage raises."""
        text = "group %s waits for the offsets of %d partitions in %r: these are not fetched before"
        with Waiting(log, text, self._group, len(partitions), self._storage):
            stored: Mapping[tuple[str, Partition], StoredOffset] = await self._aside.run(
                lambda: load_all(self._storage, self._group, partitions)
            )
        fresh = [held for held in partitions if held not in stored]
        first = self._config.first_offset
        if fresh and first != MAX_OFFSET:

            def init() -> None:
                for topic, partition in fresh:
                    self._storage.init_offset(topic, self._group, partition, first)

            await self._aside.run(init)
        for held in partitions:
            found = stored.get(held)
            offset = first if found is None or self._config.always_consume_from_max_offset else found.offset
            self._partitions[held] = PartitionFetch(
                self._rules,
                offset,
                -1 if found is None else found.message_id,
                self._subscriptions[held.topic].max_size,
                None if found is None else found.offset,
            )
            self._unsettled[held] = []

    def forget(self, partitions: Collection[Held]) -> None:
        """As `Fetching.forget`."""
        for held in partitions:
            self._partitions.pop(held, None)
            self._unsettled.pop(held, None)
            self._failures.pop(held, None)
            self._damages.pop(held, None)

    async def start(self, servers: Mapping[Held, str]) -> None:
        """As `Fetching.start`."""
        await self.stop()
        self._stopping = False
        links = {address: self._core.links.acquire(address) for address in set(servers.values())}
        self._links = list(links.values())
        count = SLOTS * self._config.fetch_runner_count
        self._slots = {address: asyncio.Semaphore(count) for address in links}
        for held, address in servers.items():
            fetch = self._partitions[held]
            self._tasks[held] = asyncio.create_task(
                self._follow(held, fetch, links[address], self._slots[address]),
                name=f"fetch {held.topic} {held.partition}",
            )

    async def keep_committing(self) -> None:
        """Commit again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(self._config.commit_offset_period)
            await self.commit()

    async def close(self) -> None:
        """After the last commit. What a listener that never returns still says is not heard."""
        self._stopping = True
        for task in self._tasks.values():
            task.cancel()
        await self._aside.run(self._storage.close)
        self._aside.end()
        self._handing.close()

    # -------------------------------------------------------------- one partition

    async def _follow(self, held: Held, fetch: PartitionFetch, link: Link, slots: asyncio.Semaphore) -> None:
        while not self._stopping:
            if fetch.delay > 0:
                await asyncio.sleep(fetch.delay)
            async with slots:
                try:
                    await self._step(held, fetch, link)
                except MetaqError as error:
                    fetch.failed()
                    self._complain(held, link, error)
                except Exception:
                    fetch.failed()
                    log.exception("a fetch of %s %s for group %s has failed", *held, self._group)
                else:
                    if self._failures.pop(held, None):
                        log.info("topic %s, partition %s: %s answers group %s again", *held, link.address, self._group)

    def _complain(self, held: Held, link: Link, error: MetaqError) -> None:
        count = self._failures[held] = self._failures.get(held, 0) + 1
        if count % TOLD_FAILURES == 1:
            log.warning(
                "group %s gets nothing of topic %s, partition %s, from %s; trying on: %s",
                self._group,
                *held,
                link.address,
                error,
            )

    async def _step(self, held: Held, fetch: PartitionFetch, link: Link) -> None:
        position = fetch.position
        found = await get(
            link, held.topic, self._group, held.partition, position, fetch.max_bytes, self._config.fetch_timeout
        )
        match found:
            case answers.Nothing():
                fetch.nothing()
                if fetch.may_be_beyond:
                    await self._look_for_the_end(held, fetch, link)
            case answers.Moved(offset):
                self._tell_moved(held, position, offset)
                fetch.moved(offset)
            case answers.Found(data):
                await self._deliver(held, fetch, link, data)

    def _tell_moved(self, held: Held, position: int, offset: int) -> None:
        # From 0 to where an old topic begins, and from "the end" to its place, is what everybody's first fetch does.
        if position not in {0, MAX_OFFSET} and position != offset:
            log.warning(
                "group %s goes on at %d in topic %s, partition %s: its server has nothing at %d any more", self._group, offset, *held, position
            )  # fmt: skip

    async def _look_for_the_end(self, held: Held, fetch: PartitionFetch, link: Link) -> None:
        """Say it, once, if the group waits beyond the server's end. It would look like a topic to which nobody sends."""
        try:
            end = await self._offset(
                held, link, MAX_OFFSET, f"find the end of topic {held.topic}, partition {held.partition}"
            )
        except BrokerError as error:
            if error.code != Code.NOT_FOUND:
                raise
            end = 0  # the partition holds nothing
        fetch.unproved = False
        if end < fetch.position:
            log.warning(
                "group %s waits at %d in topic %s, partition %s, which ends at %d at %s: what comes before it is as long as that is not "
                "consumed. Was the server's data lost? Then correct the group's offset", self._group, fetch.position, *held, end,
                link.address,
            )  # fmt: skip

    async def _offset(self, held: Held, link: Link, at: int, action: str) -> int:
        """Return what the server answers to `offset`. Raises MetaqError."""
        answer = await link.ask(
            lambda opaque: OffsetLine(held.topic, self._group, held.partition.partition, at, opaque),
            action,
            self._config.fetch_timeout,
        )
        return answers.offset_of(answer, link.address, action)

    async def _deliver(self, held: Held, fetch: PartitionFetch, link: Link, data: bytes) -> None:
        one = self._subscriptions[held.topic]
        batch = None if one.auto_ack else Batch()
        delivery = Delivery(
            self._group, held.topic, held.partition, fetch.position, data, self._ids, bytes_max=self._core.config.max_read_buffer,
            accept=one.accept, batch=batch, unsettled=self._unsettled[held],
        )  # fmt: skip
        self._under_way[held] = delivery
        try:
            await self._handing.hand(Work(delivery, one, self._reject, fetch.must_skip))
        except HandedBack as error:
            fetch.failed()
            log.warning(
                "messages of topic %s, partition %s, were not taken, and are handed over again: %s", *held, error
            )
            return
        finally:
            del self._under_way[held]
        self._tell(held, delivery)
        await self._conclude(held, fetch, link, delivery)

    def _tell(self, held: Held, delivery: Delivery) -> None:
        if delivery.filter_error is not None:
            log.error(
                "the filter of topic %s fails, and the message counts as not wanted",
                held.topic,
                exc_info=delivery.filter_error,
            )
        if delivery.error is not None:
            log.error(
                "a message of topic %s, partition %s, at %d, has failed in group %s",
                *held, delivery.offset + delivery.position, self._group, exc_info=delivery.error,
            )  # fmt: skip

    async def _conclude(self, held: Held, fetch: PartitionFetch, link: Link, delivery: Delivery) -> None:
        """Take note of how far the listener has come."""
        if delivery.whole:
            fetch.got(len(delivery.data))
        batch, position = delivery.batch, delivery.offset + delivery.position
        if batch is not None and batch.rolled_back:
            delivery.forget()
            fetch.rolled_back()
        elif delivery.position:
            acknowledged = batch is None or batch.acked
            fetch.consumed(position, delivery.message_id, acknowledged=acknowledged)
            self._damages.pop(held, None)
            if acknowledged:
                delivery.acknowledge()
        elif delivery.is_failed:
            fetch.refused()
        elif delivery.damage is not None:
            await self._damaged(held, fetch, link, delivery.damage)
        elif not delivery.whole and not delivery.is_stopped:
            fetch.incomplete()

    async def _damaged(self, held: Held, fetch: PartitionFetch, link: Link, why: str) -> None:
        """Ask the server where to go on; once. A frame that is damaged again is damage at the server, and no message is skipped."""
        topic, partition = held
        at = fetch.position
        if fetch.restarted_at == at:
            fetch.failed()
            count = self._damages[held] = self._damages.get(held, 0) + 1
            if count % TOLD_FAILURES == 1:
                log.error(
                    "group %s stands in topic %s, partition %s: the frame at %d at %s is damaged: %s. Mend it there, or move the group's "
                    "offset past it", self._group, topic, partition, at, link.address, why,
                )  # fmt: skip
            return
        offset = await self._offset(
            held, link, at, f"find the message of topic {topic}, partition {partition}, near {at}"
        )
        log.error(
            "topic %s, partition %s: the frame at %d from %s is damaged: %s; group %s goes on at %d, where the server says that messages "
            "begin", topic, partition, at, link.address, why, self._group, offset,
        )  # fmt: skip
        fetch.restart(offset, at)


def storage_of(value: Any) -> OffsetStorage:
    """Return `value` if it is an offset storage. Raises TypeError."""
    missing = [
        name for name in ("commit_offset", "load", "init_offset", "close") if not callable(getattr(value, name, None))
    ]
    if missing:
        raise TypeError(
            f"offset_storage is {value!r:.100}, without {', '.join(missing)}: see metaq.metaq1.OffsetStorage"
        )
    storage: OffsetStorage = value
    return storage
