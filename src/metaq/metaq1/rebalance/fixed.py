"""All partitions of one fixed server, or the one that is configured. There is no ZooKeeper, and nothing is shared with others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable
from typing import Final

from metaq.errors import ConfigError, ConnectionFailed, MetaqError, RemoteProtocolError, RequestTimeout
from metaq.log import when_dead
from metaq.metaq1.config import ConsumerConfig
from metaq.metaq1.conversation import answers
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.rebalance.fetching import Fetching, Held
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.shared.figures import ask_stats
from metaq.metaq1.shared.links import Link
from metaq.wire.metaq1.stats import BROKER_ID, topic_parts

log = logging.getLogger("metaq.client")

LOOK_SECONDS: Final = 5.0
"""Interval between two looks for new partitions."""
STOP_SECONDS, COMMIT_SECONDS = 5.0, 4.0
"""Longest waits of an end: for listeners, for the last commit. Both within `CLOSE_SECONDS` of a factory."""
_ACTION: Final = "tell its partitions"


class FixedBalance:
    """A `Balance` for a consumer of a factory with `server_url`. Made and used in the background loop.

    A server tells the partitions that have been written to. So new ones are looked for again and again; those that were found stay.

    Args:
        core: of the factory.
        config: of the consumer.
        fetching: what fetches and commits.
        look_seconds: interval between two looks for new partitions.
    """

    def __init__(
        self, core: FactoryCore, config: ConsumerConfig, fetching: Fetching, look_seconds: float = LOOK_SECONDS
    ) -> None:
        address = core.config.address
        assert address is not None, "a factory with ZooKeeper has a ZookeeperBalance"
        self._core, self._address, self._fetching = core, address, fetching
        self._group, self._look_seconds = config.group, look_seconds
        self._only = None if config.partition is None else _partition(config.partition)
        self._topics: tuple[str, ...] = ()
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._loaded: frozenset[Held] = frozenset()
        self._said: set[str] = set()
        """Topics that were said to have no partition."""
        self._away = False
        """It was said that the server is away."""
        self._ended = False

    @property
    def owned(self) -> frozenset[Held]:
        """The partitions that this consumer has now."""
        return self._loaded

    async def begin(self, topics: Collection[str]) -> None:
        """As `Balance.begin`. Raises ConnectionFailed, BrokerError, RemoteProtocolError: the server does not tell its partitions."""
        self._topics = tuple(sorted(set(topics)))
        self._link = self._core.links.acquire(self._address)
        try:
            found = await self._partitions()
        except BaseException:
            self._core.links.release(self._link)
            self._link = None
            raise
        await self._take(found)
        self._task = asyncio.create_task(self._look(), name=f"partitions of {self._address}")
        self._task.add_done_callback(when_dead(log, f"new partitions of {self._address} are not looked for any more"))

    async def end(self) -> None:
        """As `Balance.end`. Harmless twice, and after a `begin` that has failed."""
        if self._ended:
            return
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await end_fetching(self._fetching, self._group)
        self._fetching.forget(self._loaded)
        if self._link is not None:
            self._core.links.release(self._link)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await self._take(await self._partitions())
            except Exception as error:
                if not self._away:
                    trace = None if isinstance(error, MetaqError) else error
                    log.warning("group %s: new partitions are not known: %s", self._group, error, exc_info=trace)
                self._away = True
            else:
                self._away = False

    async def _take(self, found: Iterable[Held]) -> None:
        """Fetch from these, too."""
        partitions = set(found)
        gone: frozenset[Held] = frozenset()
        if partitions and self._only is None:
            # One server has one id; if it was given another, its partitions have other names.
            broker_id = next(iter(partitions)).partition.broker_id
            gone = frozenset(held for held in self._loaded if held.partition.broker_id != broker_id)
        fresh = partitions - self._loaded
        if fresh or gone:
            log.info("group %s: %d partitions more of %s", self._group, len(fresh), self._address)
            await self._exchange(fresh, gone)
        self._say(partitions | self._loaded)

    async def _exchange(self, fresh: Collection[Held], gone: frozenset[Held]) -> None:
        try:
            await self._fetching.load(fresh)
        except MetaqError as error:
            log.warning("group %s: offsets of %d partitions are not known: %s", self._group, len(fresh), error)
            return
        await self._fetching.stop()
        await self._fetching.commit()
        self._fetching.forget(gone)
        self._loaded = self._loaded.union(fresh) - gone
        await self._fetching.start(dict.fromkeys(sorted(self._loaded), self._address))

    def _say(self, known: Collection[Held]) -> None:
        have = {held.topic for held in known}
        for topic in self._topics:
            if topic not in have and topic not in self._said:
                self._said.add(topic)
                log.warning(
                    "topic %s has no partition at %s that was written to: group %s waits for one", topic, self._address, self._group
                )  # fmt: skip

    async def _partitions(self) -> list[Held]:
        """Return the partitions of the topics at the server. Raises ConnectionFailed, BrokerError, RemoteProtocolError."""
        if self._only is not None:
            return [Held(topic, self._only) for topic in self._topics]
        figures = {words[0]: words[1:] for words in await self._stats(None)}
        try:
            broker_id = int(figures[BROKER_ID][0])
            numbers = topic_parts(await self._stats("offsets"))
        except (KeyError, IndexError, ValueError):
            raise RemoteProtocolError(f"the figures of {self._address} cannot be read") from None
        return [
            Held(topic, Partition(broker_id, number)) for topic in self._topics for number in numbers.get(topic, ())
        ]

    async def _stats(self, item: str | None) -> list[list[str]]:
        assert self._link is not None, "acquired in `begin`"
        try:
            answer = await ask_stats(self._link, item, _ACTION)
        except RequestTimeout as error:
            raise ConnectionFailed(str(error)) from error
        return answers.lines_of(answer, self._address, _ACTION)


async def end_fetching(fetching: Fetching, group: str) -> None:
    """Stop and commit, as the end of a consumer of this group. Bounded; what fails is logged."""
    for seconds, work, what in (
        (STOP_SECONDS, fetching.stop, "listeners have not returned"),
        (COMMIT_SECONDS, fetching.commit, "its last commit has not ended"),
    ):
        try:
            async with asyncio.timeout(seconds):
                await work()
        except TimeoutError:
            log.warning("a consumer of group %s ends, and %s within %g s", group, what, seconds)
        except Exception as error:
            log.warning("a consumer of group %s ends, and %s: %s", group, what, error, exc_info=True)


def _partition(text: str) -> Partition:
    try:
        return Partition.parse(text)
    except ValueError as error:
        raise ConfigError(f"partition: {error}") from None
