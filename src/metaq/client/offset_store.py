"""Where a group's progress is kept: at the brokers when its members share the work, in a file when each does all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
from collections.abc import Mapping
from typing import Protocol

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.offsets import GetPosition, SetPosition
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.core import ClientCore
from metaq.errors import BadRequest
from metaq.model import MessageQueue
from metaq.wire import bodies

log = logging.getLogger("metaq.client")


class OffsetStore(Protocol):
    """Loads and keeps the next offset to be consumed, per queue."""

    async def load(self, queue: MessageQueue) -> int | None:
        """The stored offset, None if there is none. Raises when that cannot be found out: then do not begin."""
        ...

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep these. Raises nothing: what failed is logged and will be tried again with newer numbers."""
        ...


class BrokerOffsets:
    """Progress at the broker of each queue. Only what has changed is sent."""

    def __init__(self, core: ClientCore, group: str) -> None:
        self._core, self._group = core, group
        self._kept: dict[MessageQueue, int] = {}

    async def load(self, queue: MessageQueue) -> int | None:
        position = await self._core.ask_broker(queue.broker, GetPosition(self._group, queue))
        if position is not None:
            self._kept[queue] = position
        return position

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> None:
        changed = [(queue, offset) for queue, offset in offsets.items() if self._kept.get(queue) != offset]
        await asyncio.gather(*(self._keep(queue, offset) for queue, offset in changed))

    async def _keep(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._core.ask_broker(queue.broker, SetPosition(self._group, queue, offset))
        except FAULTS as error:
            then = "trying again" if judge(error, Purpose.COMMIT).again else "its broker refuses it"
            log.warning(
                "the offset %d of %s for group %s was not kept, %s: %s", offset, queue, self._group, then, error
            )
        else:
            self._kept[queue] = offset


class LocalOffsets:
    """Progress in one JSON file per group, in RocketMQ's form and under its path."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offsets = self._read()
        self._unwritten = False

    @staticmethod
    def path(client: str, group: str) -> pathlib.Path:
        """`~/.rocketmq_offsets/CLIENT/GROUP/offsets.json`; CLIENT must be the same in the next run of the program."""
        return pathlib.Path.home() / ".rocketmq_offsets" / client / group / "offsets.json"

    async def load(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> None:
        if not self._unwritten and all(self._offsets.get(queue) == offset for queue, offset in offsets.items()):
            return
        self._offsets.update(offsets)
        self._unwritten = True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(".json.tmp")
            temporary.write_bytes(bodies.queue_offsets(self._offsets))
            if self._path.exists():
                self._path.replace(self._backup)
            temporary.replace(self._path)
            self._unwritten = False
        except OSError as error:
            log.warning("the offsets were not written to %s: %s", self._path, error)

    @property
    def _backup(self) -> pathlib.Path:
        return self._path.with_suffix(".json.bak")

    def _read(self) -> dict[MessageQueue, int]:
        for path in (self._path, self._backup):
            with contextlib.suppress(OSError, BadRequest):
                return bodies.queue_offsets_of(path.read_bytes())
        return {}
