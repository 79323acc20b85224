"""Messages that could not be sent: kept in files, one for each topic and partition, and sent again from time to time.

One backlog belongs to one session factory. Its files are read and written in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from metaq.errors import MetaqError
from metaq.log import when_dead
from metaq.metaq1.model.message import Message
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.producing.base import SEND_SECONDS, DefaultTopic, ProducerBase
from metaq.metaq1.producing.selectors import chosen
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.storages.kept import SUFFIX, KeptMessage, KeptMessages, kept_name, kept_path

log = logging.getLogger("metaq.client")

Result = TypeVar("Result")
KEPT_MAX: Final = 500_000
"""Messages of one topic and partition that are kept, as in Java."""
BATCH: Final = 100
"""Messages that are read, sent and then removed together: a process that is killed meanwhile sends as many again."""


class Backlog:
    """Keeps messages and sends them again, in the order of each file; a file rests at its first failure until the next round.

    Args:
        core: of the factory.
        default: the factory's default topic.
        folder: of the files.
        limit: messages in one file; above it they are dropped, which is logged and counted. None: no limit.
    """

    def __init__(self, core: FactoryCore, default: DefaultTopic, folder: Path, limit: int | None = KEPT_MAX) -> None:
        self._core, self._folder, self._limit = core, folder, limit
        self._sender = ProducerBase(core, default, None, lambda _: None)
        self._files: dict[Path, tuple[Partition, KeptMessages]] = {}
        """Belongs to the thread."""
        self._thread = ThreadPoolExecutor(1, "MetaQ 1.x kept messages")
        self._lock = threading.Lock()
        self._queue: deque[tuple[Message, Partition]] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._found = asyncio.Event()
        self.kept = self.dropped = 0
        """Messages that were written to a file, and those that were lost, since the factory was made."""
        core.hand_in(self._start)

    @property
    def waiting(self) -> int:
        """Messages in files now."""
        return sum(len(kept) for _, kept in list(self._files.values()))

    def keep(self, message: Message, partition: Partition) -> None:
        """Any thread: write a message to the file of its topic and this partition, soon. Waits for nothing and raises nothing."""
        with self._lock:
            config = self._core.config
            fits = len(self._queue) < config.max_pending_messages and self._queued_bytes < config.max_pending_bytes
            if fits:
                self._queue.append((message, partition))
                self._queued_bytes += len(message.data)
            first = len(self._queue) == 1
        if not fits:
            self._drop(1, message.topic, partition, f"the disk of {self._folder} does not keep up")
        elif first:
            self._soon(self._write)

    async def flushed(self) -> None:
        """In the loop: wait until what was given to `keep` is written."""
        await self._do(self._write)

    async def _end(self) -> None:
        """In the loop: write what is not written, and close the files."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._sender._end()  # noqa: SLF001  a producer of this room
        await self._do(self._close)
        self._thread.shutdown(wait=False)

    # -------------------------------------------------------------- in the thread

    def _soon(self, work: Callable[[], object]) -> None:
        try:
            self._thread.submit(work)
        except RuntimeError:  # the interpreter exits, or the factory is closed: nobody is held up any more
            work()

    async def _do(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError:  # the interpreter exits
            return work()

    def _write(self) -> None:
        with self._lock:
            queue, self._queue, self._queued_bytes = self._queue, deque(), 0
        groups: dict[tuple[str, Partition], list[tuple[int, Message]]] = {}
        for message, partition in queue:
            groups.setdefault((message.topic, partition), []).append((-1, message))
        for (topic, partition), messages in groups.items():
            try:
                kept = self._file(kept_path(self._folder, topic, str(partition)), partition)
                room = messages if self._limit is None else messages[: max(0, self._limit - len(kept))]
                if room:
                    kept.add_all(room)
            except MetaqError as error:
                self._drop(len(messages), topic, partition, str(error))
                continue
            finally:
                if self._closed:
                    self._close_files()
            self.kept += len(room)
            if len(room) < len(messages):
                self._drop(len(messages) - len(room), topic, partition, f"{kept.path} keeps {self._limit} already")

    def _file(self, path: Path, partition: Partition) -> KeptMessages:
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = (partition, KeptMessages(path, self._limit))
        return found[1]

    def _find(self) -> None:
        """Open the files that a factory before this one has left."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            with contextlib.suppress(ValueError):
                partition = Partition.parse(kept_name(path) or "")
                try:
                    self._file(path, partition)
                except MetaqError as error:
                    log.warning("messages that wait are not sent: %s", error)

    def _drop(self, count: int, topic: str, partition: Partition, why: str) -> None:
        with self._lock:
            self.dropped += count
        log.error("%d messages for topic %s, partition %s, are dropped: %s", count, topic, partition, why)

    def _close(self) -> None:
        self._write()
        self._closed = True
        self._close_files()

    def _close_files(self) -> None:
        files, self._files = self._files, {}
        for _, kept in files.values():
            kept.close()

    # -------------------------------------------------------------- in the loop

    def _start(self) -> None:
        if not self._core.closed:
            self._task = asyncio.get_running_loop().create_task(self._keep_sending(), name="MetaQ 1.x kept messages")
            self._task.add_done_callback(when_dead(log, f"messages kept in {self._folder} are not sent any more"))

    async def _keep_sending(self) -> None:
        await self._do(self._find)
        self._found.set()
        while True:
            self._wake.clear()
            await self.send_again()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._core.config.recover_message_interval):
                    await self._wake.wait()

    async def send_again(self) -> None:
        """Send what waits in all files, each up to its first failure."""
        for partition, kept in list(self._files.values()):
            await self._drained(kept, partition)

    async def _drained(self, kept: KeptMessages, partition: Partition) -> bool:
        """Send what waits in one file. Return whether all of it was sent."""
        while batch := await self._batch(kept):
            if not await self._sent(kept, batch, partition):
                return False
        return not len(kept)

    async def _batch(self, kept: KeptMessages) -> list[KeptMessage]:
        try:
            return await self._do(lambda: kept.oldest(BATCH))
        except MetaqError as error:
            log.warning("messages that wait are not sent: %s", error)
            return []

    async def _sent(self, kept: KeptMessages, batch: list[KeptMessage], partition: Partition) -> bool:
        """Send a batch, one message after the other; remove what was sent. Return whether all of it was."""
        done: list[int] = []
        try:
            for one in batch:
                await self._send(one, partition)
                done.append(one.number)
        except MetaqError as error:
            log.warning("%d messages in %s wait on: %s", len(kept) - len(done), kept.path, error)
        finally:
            if done:
                await self._do(lambda: kept.remove(done))
        return len(done) == len(batch)

    async def _send(self, one: KeptMessage, partition: Partition) -> None:
        sender, message = self._sender, one.message
        if sender._default.topic is None:  # noqa: SLF001  a producer of this room
            await sender._publish(message.topic)  # noqa: SLF001
        route = sender._route(message.topic)  # noqa: SLF001
        # A fixed server tells no partitions: the one that was chosen before is as good as then.
        known = partition in route.partitions or (
            self._core.config.address is not None and partition.broker_id in route.addresses
        )
        if not known:
            partition = chosen(sender.selector, message, route.partitions, tuple(route.addresses))
        flag, body = message.encoded()
        address = route.addresses[partition.broker_id]
        await sender._put(message, flag, body, partition, address, SEND_SECONDS)  # noqa: SLF001
