"""Offset stores of a group: at the brokers (clustering), in a local file (broadcasting), or the user's own.

For all of them: a failed commit is logged and repeated, and a queue whose offset cannot be loaded is not begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import pathlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol, cast

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import GetConsumeStats
from metaq.client.conversation.reading.offsets import GetPosition, SetPosition, beginners
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.shared.core import ClientCore
from metaq.client.shared.together import in_thread, together
from metaq.errors import BadRequest, BrokerError, ClientError, ConfigError, MetaqError, RequestTimeout
from metaq.model import MessageQueue
from metaq.model.offsets import is_another
from metaq.wire import bodies

log = logging.getLogger("metaq.client")

BROKER, LOCAL = "broker", "local"
COMMITS_AT_ONCE = 64
"""Concurrent commits: thousands at once would crowd out pulls on the same connections."""
OWN_TRIES = 2
"""Tries of a user's store per commit; the next follow with the next commit."""


GenerationOf = Callable[[MessageQueue], int | None]


class OffsetStore(Protocol):
    """A user's own store, given as `offset_store=`. Its methods are called in a thread, never two at a time, and may
    block. An offset is the number of the next message to be consumed.

    An offset is good for the topic of which it was taken, and not for one that is made anew under its name. A store tells the two apart
    across runs of the program if it has two methods more, as `GenerationStore`.
    """

    def load(self, queue: MessageQueue) -> int | None:
        """The offset that is kept for the queue; None if there is none. Called before the queue is begun.

        If it raises, or returns anything else, the queue is not begun; it is asked again until it answers.
        """
        ...

    def update(self, queue: MessageQueue, offset: int) -> None:
        """The progress of a queue, which `persist` is to keep."""
        ...

    def persist(self) -> None:
        """Keep what `update` was called with since the last `persist`. Called every few seconds if something changed,
        when a queue goes to another member, and at the end. If it or `update` raises, that is logged and both are
        called again."""
        ...


class GenerationStore(OffsetStore, Protocol):
    """An `OffsetStore` that keeps a number with each offset: the generation of the queue's topic, which only its broker knows.

    If the topic has another one when the queue is begun again, the queue is begun at its first message.
    """

    def load_generation(self, queue: MessageQueue) -> int | None:
        """The generation that was kept with the queue's offset; None: none. Called after `load`; what it raises counts as there."""
        ...

    def update_generation(self, queue: MessageQueue, generation: int) -> None:
        """The generation to be kept with the queue's offset. Called before its `update`, if it has changed; `persist` follows."""
        ...


class Offsets(Protocol):
    """Loads and stores the next offset to be consumed, per queue."""

    generation: GenerationOf
    """Returns the generation of a queue's topic that its offsets are of; None: not known."""

    async def load(self, queue: MessageQueue) -> int | None:
        """Load the stored offset; None: there is none. Raises one of FAULTS: unknown, so the queue must not be begun."""
        ...

    def kept(self, queue: MessageQueue) -> int | None:
        """Return the offset that was last loaded or stored, without a request."""
        ...

    async def begun(self, queues: Collection[MessageQueue]) -> bool:
        """Return whether there is an offset of one of these queues, all those of a topic. Raises as `load`."""
        ...

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> list[MetaqError]:
        """Store offsets. Returns what failed, which was logged, and is stored with the next call, in newer offsets."""
        ...

    def doubt(self, broker: str) -> None:
        """Note that another one leads the broker of that name, and may lack what the former one was told last."""
        ...


class OffsetsUnknown(ClientError):
    """The offset of a queue cannot be loaded."""

    retriable = True


class OffsetsNotKept(ClientError):
    """A file or a user's store has not taken offsets; `__cause__` is what it raised."""

    retriable = True


async def kept_in_time(persist: Callable[[], Awaitable[list[MetaqError]]], timeout: float | None) -> None:
    """Call `persist` until nothing fails any more. Raises what is final at once, else RequestTimeout after `timeout` s."""
    last: list[MetaqError] = []
    work = asyncio.ensure_future(_until_kept(persist, last))
    try:
        await asyncio.wait([work], timeout=timeout)
        if work.done():
            work.result()
            return
        why = f": {last[-1]}" if last else ""
        raise RequestTimeout(f"the progress was not kept within {timeout:g} s{why}")
    finally:
        work.cancel()  # not awaited: a user's store may block without end


async def _until_kept(persist: Callable[[], Awaitable[list[MetaqError]]], last: list[MetaqError]) -> None:
    failed = 0
    while errors := await persist():
        failed += 1
        last[:] = errors[:1]
        for error in errors:
            # A file or store of the program's own is for the program to mend: it hears of it at once.
            if isinstance(error, OffsetsNotKept) or not judge(error, Purpose.COMMIT).again:
                raise error
        await asyncio.sleep(judge(errors[0], Purpose.COMMIT, failed).pause)


class BrokerOffsets:
    """Offsets at the broker of each queue (14, 15). Only changed ones are sent."""

    def __init__(self, core: ClientCore, group: str) -> None:
        self._core, self._group = core, group
        self.generation: GenerationOf = _unknown  # a broker takes no offset of the topic before
        self._kept: dict[MessageQueue, int] = {}
        self._begun: set[tuple[str, str]] = set()
        """(broker, topic) for which the broker has an offset of this group."""
        self._doubted: set[MessageQueue] = set()
        """Queues whose offset is to be stored again, though it is the one that was stored last."""

    async def load(self, queue: MessageQueue) -> int | None:
        position = await self._core.ask_broker(queue.broker, GetPosition(self._group, queue, exact=True))
        # A RocketMQ 4 answers 0 for a young queue of a group that has no offset.
        if position == 0 and not await self._core.learn_level(queue.broker) and not await self.begun([queue]):
            return None
        if position is not None:
            self._kept[queue] = position
        return position

    async def begun(self, queues: Collection[MessageQueue]) -> bool:
        asked = {(queue.broker, queue.topic): queue for queue in queues}
        if not asked.keys() & self._begun:
            await together(self._look, asked, COMMITS_AT_ONCE)
        return bool(asked.keys() & self._begun)

    async def _look(self, place: tuple[str, str]) -> None:
        """Note whether a broker has offsets of this group in a topic."""
        broker, topic = place
        try:
            stats, _ = await self._core.ask_broker(broker, GetConsumeStats(self._group))
        except BrokerError as error:
            # To begin at the first message repeats some; a wrong "no" would lose some.
            log.info("whether group %s has begun with topic %s is not known: %s", self._group, topic, error)
            self._begun.add(place)
        else:
            if any(self._core.namespace.plain(queue.topic) == topic for queue in stats):
                self._begun.add(place)

    def kept(self, queue: MessageQueue) -> int | None:
        return self._kept.get(queue)

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> list[MetaqError]:
        changed = {
            queue: offset
            for queue, offset in offsets.items()
            if self._kept.get(queue) != offset or queue in self._doubted
        }
        # One queue per new (broker, topic) goes ahead of the others, for RocketMQ's sake: see `beginners`.
        first = [(queue, changed.pop(queue)) for queue in beginners(changed, self._begun)]
        errors = await together(self._keep, first, COMMITS_AT_ONCE)
        errors += await together(self._keep, list(changed.items()), COMMITS_AT_ONCE)
        return [error for error in errors if error is not None]

    async def _keep(self, progress: tuple[MessageQueue, int]) -> MetaqError | None:
        queue, offset = progress
        try:
            await self._core.ask_broker(queue.broker, SetPosition(self._group, queue, offset, self.generation(queue)))
        except FAULTS as error:
            then = "trying again" if judge(error, Purpose.COMMIT).again else "its broker refuses it"
            log.warning(
                "the offset %d of %s for group %s was not kept, %s: %s", offset, queue, self._group, then, error
            )
            return error
        self._kept[queue] = offset
        self._doubted.discard(queue)
        self._begun.add((queue.broker, queue.topic))
        return None

    def doubt(self, broker: str) -> None:
        self._doubted.update(queue for queue in self._kept if queue.broker == broker)


class LocalOffsets:
    """Offsets in one JSON file per group, in RocketMQ's format and place. The file is read and written in threads."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.generation: GenerationOf = _unknown
        self._generations: dict[MessageQueue, int] = {}
        """Generations that the offsets of `_kept` are of, where it is not 0."""
        self._to_write: Mapping[MessageQueue, int] = {}
        """Generations that `_write` writes."""
        self._kept: dict[MessageQueue, int] | None = None
        """What the file holds; None: it was not read yet."""
        self._unwritten: dict[MessageQueue, int] = {}
        self._busy = asyncio.Lock()

    @staticmethod
    def path(client: str, group: str) -> pathlib.Path:
        """`~/.rocketmq_offsets/CLIENT/GROUP/offsets.json`; CLIENT must be the same in the next run of the program."""
        return pathlib.Path.home() / ".rocketmq_offsets" / client / group / "offsets.json"

    async def load(self, queue: MessageQueue) -> int | None:
        async with self._busy:
            kept = await self._read_once()
            offset, now = self._unwritten.get(queue, kept.get(queue)), self.generation(queue)
            if offset is not None and now is not None and is_another(now, self._generations.get(queue, 0)):
                _tell_made_anew(queue, offset, f"was written to {self._path}")
                # Written with the next offsets. If the first messages are gone already, the first pull says so.
                self._unwritten[queue] = offset = 0
        return offset

    async def begun(self, queues: Collection[MessageQueue]) -> bool:
        async with self._busy:
            kept = await self._read_once()
        return any(queue in kept for queue in queues)

    def kept(self, queue: MessageQueue) -> int | None:
        return None if self._kept is None else self._kept.get(queue)

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> list[MetaqError]:
        async with self._busy:
            try:
                kept = await self._read_once()
                self._unwritten.update(offsets)
                # Nothing has changed: no write every few seconds for an idle group.
                fresh = {**kept, **self._unwritten}
                told = {queue: now for queue in self._unwritten if (now := self.generation(queue)) is not None}
                generations = {queue: now for queue, now in {**self._generations, **told}.items() if now}
                if fresh == kept and generations == self._generations:
                    self._unwritten.clear()
                    return []
                self._to_write = generations
                await in_thread(self._write, fresh)
            except (OSError, OffsetsUnknown) as error:
                log.warning("the offsets were not written to %s, trying again: %s", self._path, error)
                return [_not_kept(f"the progress was not written to {self._path}", error)]
            self._kept, self._generations = fresh, generations
            self._unwritten.clear()
            return []

    def doubt(self, broker: str) -> None:
        """Nothing to do: no broker has them."""

    async def _read_once(self) -> dict[MessageQueue, int]:
        if self._kept is not None:
            return self._kept
        kept, self._generations = await in_thread(self._read)
        self._kept = kept
        return kept

    @property
    def _backup(self) -> pathlib.Path:
        return self._path.with_suffix(".json.bak")

    def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and synced, then renamed: a crash leaves the new file, the old one, or its copy, never half of one.
        temporary = self._path.with_suffix(".json.tmp")
        with temporary.open("wb") as file:
            file.write(bodies.kept_offsets(offsets, self._to_write))
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            # RocketMQ's `.bak`, which it reads too if the file is damaged.
            self._path.replace(self._backup)
        temporary.replace(self._path)

    def _read(self) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        """Return offsets and generations. Raises OffsetsUnknown: the file is there, and neither it nor the one before can be read."""
        failure: Exception | None = None
        for path in (self._path, self._backup):
            try:
                text = path.read_bytes()
                offsets, generations = bodies.queue_offsets_of(text), bodies.kept_generations_of(text)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, BadRequest) as error:
                log.warning("the offsets in %s cannot be read: %s", path, error)
                failure = failure or error
            else:
                if path is self._backup:
                    log.warning("going on from the offsets in %s, which are some seconds older", path)
                return offsets, generations
        if failure is not None:
            raise OffsetsUnknown(f"the progress in {self._path} cannot be read (mend it or delete it): {failure}")
        return {}, {}


class OwnOffsets:
    """Offsets in a user's own store."""

    def __init__(self, store: OffsetStore, group: str) -> None:
        self._store, self._group = store, group
        self.generation: GenerationOf = _unknown
        self._kept: dict[MessageQueue, int] = {}
        self._keeps_generations = callable(getattr(store, "load_generation", None))
        self._generations: dict[MessageQueue, int] = {}
        """Generations that the store has."""
        self._busy = asyncio.Lock()

    async def load(self, queue: MessageQueue) -> int | None:
        name = type(self._store).__name__
        async with self._busy:
            try:
                offset, then = await in_thread(self._load, queue)
            except Exception as error:
                log.exception("the offset store %s of group %s failed to load %s", name, self._group, queue)
                raise OffsetsUnknown(f"{name}.load({queue}) failed: {type(error).__name__}: {error}") from error
        if offset is None:
            return None
        # A wrong offset would skip or repeat messages without a word: the queue waits instead.
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise OffsetsUnknown(f"{name}.load({queue}) returned {offset!r}: need None, or an offset from 0 on")
        if then is not None:
            if not isinstance(then, int) or isinstance(then, bool):
                raise OffsetsUnknown(f"{name}.load_generation({queue}) returned {then!r}: need None, or a whole number")
            self._generations[queue] = then
        now = self.generation(queue)
        self._kept[queue] = offset
        if self._keeps_generations and now is not None and is_another(now, then or 0):
            _tell_made_anew(queue, offset, f"was kept by {name}")
            return 0
        return offset

    def _load(self, queue: MessageQueue) -> tuple[int | None, int | None]:
        offset = self._store.load(queue)
        if offset is None or not self._keeps_generations:
            return offset, None
        return offset, cast("GenerationStore", self._store).load_generation(queue)

    async def begun(self, queues: Collection[MessageQueue]) -> bool:
        # By what was loaded: `load` is promised to be called for queues that are begun.
        return any(queue in self._kept for queue in queues)

    def kept(self, queue: MessageQueue) -> int | None:
        return self._kept.get(queue)

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> list[MetaqError]:
        name, errors = type(self._store).__name__, list[MetaqError]()
        async with self._busy:
            changed = {
                queue: offset
                for queue, offset in offsets.items()
                if self._kept.get(queue) != offset or self._new_generation(queue) is not None
            }
            for tries_left in reversed(range(OWN_TRIES if changed else 0)):
                try:
                    await in_thread(self._keep, changed)
                except Exception as error:
                    errors = [_not_kept(f"the offset store {name} of group {self._group} failed", error)]
                    log.exception(
                        "the offset store %s of group %s did not keep %s; %s", name, self._group,
                        ", ".join(f"{offset} of {queue}" for queue, offset in changed.items()),
                        "trying again" if tries_left else "trying again with the next commit, if the queues are still "
                        "this member's; until then these messages come again",
                    )  # fmt: skip
                else:
                    self._kept.update(changed)
                    return []
        return errors

    def doubt(self, broker: str) -> None:
        """Nothing to do: no broker has them."""

    def _new_generation(self, queue: MessageQueue) -> int | None:
        """Return the generation that the store is to keep; None: it has it, or keeps none."""
        now = self.generation(queue) if self._keeps_generations else None
        return None if now == self._generations.get(queue) else now

    def _keep(self, offsets: Mapping[MessageQueue, int]) -> None:
        generations = dict[MessageQueue, int]()
        for queue, offset in offsets.items():
            if (now := self._new_generation(queue)) is not None:
                cast("GenerationStore", self._store).update_generation(queue, now)
                generations[queue] = now
            self._store.update(queue, offset)
        self._store.persist()
        self._generations |= generations


def _unknown(_queue: MessageQueue) -> int | None:
    return None


def _tell_made_anew(queue: MessageQueue, offset: int, how: str) -> None:
    log.warning(
        "topic %s was deleted and made anew at broker %s since the offset %d of %s %s: going on at its first message",
        queue.topic, queue.broker, offset, queue, how,
    )  # fmt: skip


def _not_kept(what: str, cause: Exception) -> OffsetsNotKept:
    error = OffsetsNotKept(f"{what}: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


def checked_store(given: str | os.PathLike[str] | OffsetStore | None, *, broadcast: bool) -> None:
    """Raises ConfigError, TypeError: it is no offset store, or none for this kind of group."""
    if given is None or given == LOCAL or isinstance(given, os.PathLike):
        return
    if given == BROKER:
        if broadcast:
            raise ConfigError(
                "offset_store='broker' with broadcast=True: each member has progress of its own, and a broker keeps one per "
                "group; use 'local' or a store of your own"
            )
        return
    if isinstance(given, str):
        raise ConfigError(
            f"offset_store={given!r}: need 'broker', 'local', a path, or an object with load, update, persist"
        )
    generations = {"load_generation": 1, "update_generation": 2}
    optional = generations if any(hasattr(given, name) for name in generations) else {}
    for name, arguments in ({"load": 1, "update": 2, "persist": 0} | optional).items():
        method = getattr(given, name, None)
        if not callable(method):
            needed = (
                "load_generation and update_generation, or neither" if name in optional else "load, update and persist"
            )
            raise TypeError(f"the offset store {given!r} has no method {name}: it needs {needed}")
        if inspect.iscoroutinefunction(method):
            raise TypeError(f"the offset store's {name} is asynchronous: make it `def`; it is called in a thread")
        with contextlib.suppress(ValueError):  # Native code, whose signature may be unknown.
            try:
                inspect.signature(method).bind(*range(arguments))
            except TypeError as error:
                raise TypeError(
                    f"the offset store's {name} cannot be called with {arguments} arguments: {error}"
                ) from None


def offsets_of(
    given: str | os.PathLike[str] | OffsetStore | None, core: ClientCore, group: str, *, client: str, broadcast: bool
) -> Offsets:
    """Make the offset store. `given` None: as RocketMQ, the broker, or a file for broadcasting. `client`: folder of the file."""
    if given == LOCAL or (given is None and broadcast):
        return LocalOffsets(LocalOffsets.path(client, group))
    if given is None or given == BROKER:
        return BrokerOffsets(core, group)
    if isinstance(given, os.PathLike):
        return LocalOffsets(pathlib.Path(given))
    assert not isinstance(given, str)
    return OwnOffsets(given, group)
