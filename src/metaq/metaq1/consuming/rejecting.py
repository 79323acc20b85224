"""Messages that have failed too often: what becomes of them, and how kept ones are tried again."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from metaq.errors import ConfigError, MetaqError
from metaq.metaq1.consuming.handing import Handing
from metaq.metaq1.consuming.subscriptions import Subscription
from metaq.metaq1.model.message import Message
from metaq.metaq1.model.partition import RANDOM_PARTITION
from metaq.metaq1.model.received import ReceivedMessage
from metaq.metaq1.storages.kept import KeptMessage, KeptMessages, kept_path
from metaq.wire.metaq1.frame import HEAD_BYTES

log = logging.getLogger("metaq.client")

RejectConsumptionHandler: TypeAlias = Callable[[ReceivedMessage, Any], Any]
"""Takes a message and its consumer. The message is passed over when it returns; an error has it delivered again. One of asyncio's
consumers may be a coroutine function."""
LOCAL, DROP = "local", "drop"
RECOVER: Final = (LOCAL, DROP)
"""What becomes of rejected messages, where there is no handler: kept in a local file and tried again, or dropped."""
FIRST_SECONDS: Final = 5.0
"""From the start of a consumer to the first try, as in Java."""
AT_ONCE: Final = 100
"""Kept messages that are read at once."""


def handler_of(recover: object) -> str | RejectConsumptionHandler:
    """Return `recover` if it is one of `RECOVER`, or a function. Raises ConfigError."""
    if callable(recover):
        return recover
    if recover not in RECOVER:
        raise ConfigError(f"recover={recover!r}: need {LOCAL!r}, {DROP!r}, or a function of a message and its consumer")
    assert isinstance(recover, str), "as those are"
    return recover


class LocalRecover:
    """Keeps rejected messages of one group in local files, one for each topic, and has them tried again.

    Args:
        folder: of the files; those of other groups may be there, too.
    """

    def __init__(self, folder: str, group: str) -> None:
        self._folder, self._group = Path(folder).expanduser(), group

    def path(self, topic: str) -> Path:
        """Return the file of a topic."""
        return kept_path(self._folder, topic, self._group)

    def keep(self, message: ReceivedMessage) -> None:
        """Keep a message durably. Blocks. Raises StoreLocked: another process keeps or reads just now; StoreFull, StoreFailed."""
        with contextlib.closing(KeptMessages(self.path(message.topic))) as kept:
            kept.add(message.message_id, Message(message.topic, message.data, message.attribute))
        log.warning(
            "a message of topic %s, partition %s, at %d, has failed too often in group %s: it waits in %s, and is tried again from there",
            message.topic, message.partition, message.offset, self._group, self.path(message.topic),
        )  # fmt: skip

    def after(self, topic: str, number: int) -> list[KeptMessage]:
        """Return some kept messages behind one of this number. Blocks. Raises as `keep`."""
        if not self.path(topic).exists():
            return []
        with contextlib.closing(KeptMessages(self.path(topic))) as kept:
            return kept.oldest(AT_ONCE, number)

    def remove(self, topic: str, numbers: Sequence[int]) -> None:
        """Forget messages. Blocks. Raises as `keep`."""
        with contextlib.closing(KeptMessages(self.path(topic))) as kept:
            kept.remove(numbers)

    @contextlib.contextmanager
    def alone(self, topic: str) -> Iterator[bool]:
        """Be the one process that tries a topic's messages again. The value says whether it is."""
        path = self.path(topic)
        if not path.exists():
            yield False
            return
        with path.with_name(path.name + ".recovering").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True


class Recovery:
    """Tries kept messages again and again, by the listeners of a consumer. In the background loop.

    Args:
        recover: has the messages.
        interval: s between two rounds.
        handing: calls listeners, in threads of its own.
    """

    def __init__(
        self, recover: LocalRecover, subscriptions: Sequence[Subscription], interval: float, handing: Handing, run: Any
    ) -> None:
        self._recover, self._subscriptions, self._interval, self._handing, self._run = (
            recover,
            subscriptions,
            interval,
            handing,
            run,
        )

    async def follow(self, first: float = FIRST_SECONDS) -> None:
        """Do a round after `first` seconds, and then each interval, until this is cancelled."""
        await asyncio.sleep(min(first, self._interval))
        while True:
            for one in self._subscriptions:
                try:
                    await self._round(one)
                except MetaqError as error:
                    log.warning("rejected messages of topic %s are not tried again now: %s", one.topic, error)
                except Exception:
                    log.exception("rejected messages of topic %s are not tried again now", one.topic)
            await asyncio.sleep(self._interval)

    async def _round(self, one: Subscription) -> None:
        """Try each message once."""
        lock = self._recover.alone(one.topic)
        if not await self._run(lock.__enter__):
            return
        try:
            number = 0
            while some := await self._run(functools.partial(self._recover.after, one.topic, number)):
                number = some[-1].number
                tried = await asyncio.gather(*(self._try(one, kept) for kept in some))
                done = [kept.number for kept, well in zip(some, tried, strict=True) if well]
                if done:
                    await self._run(functools.partial(self._recover.remove, one.topic, done))
                    log.info("%d rejected messages of topic %s are consumed now", len(done), one.topic)
        finally:
            await self._run(lambda: lock.__exit__(None, None, None))

    async def _try(self, one: Subscription, kept: KeptMessage) -> bool:
        """Return whether the listener has taken the message."""
        message = kept.message
        received = ReceivedMessage(
            message.topic, message.data, message.attribute, kept.message_id, 0, RANDOM_PARTITION, -1, HEAD_BYTES + len(message.data)
        )  # fmt: skip
        return await self._handing.call(one, received)
