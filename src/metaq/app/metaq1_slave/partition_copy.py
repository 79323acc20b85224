"""The copy of one partition: gets from the master, appends here, so that every message keeps its id and its byte position.

Where the copy ends is what the partition here says: no offset is kept anywhere else. Before the first get of each connection the last
message here is compared with the master's at that position, so that two brokers that have parted are never mixed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn, Protocol, TypeVar

from msgspec import Struct

from metaq.app.metaq1_slave.appending import RECORD_MORE, CopiedPartitions
from metaq.app.role.pending import ended
from metaq.clock import Clock
from metaq.errors import BadRequest, MetaqError, Refused, RemoteProtocolError
from metaq.log import RateLimitedLog
from metaq.metaq1.conversation import answers
from metaq.metaq1.conversation.pipeline import ANSWER_BYTES_MAX, Make
from metaq.metaq1.shared.connection import Connection
from metaq.saved import Saving
from metaq.store.log.writer import PutRecord
from metaq.wire.metaq1.commands import Answer, Code, GetLine, OffsetLine, ResultLine, TooLong
from metaq.wire.metaq1.frame import HEAD, HEAD_BYTES, Frame, frames

GET_BYTES: Final = 1 << 20
"""What is asked for at once, as by the original's slaves; more for a message that is longer."""
ASK_SECONDS: Final = 10.0
PARTED_SECONDS: Final = 5.0
"""Shortest pause before a master is asked again whose messages are not those of the copy."""
BATCH_BYTES: Final = 128 * 1024
"""Appended in one turn of the loop: clients of the slave are served in between."""
STEPS: Final = 10
"""Pauses grow by a tenth of the longest one, as in 1.x."""

Result = TypeVar("Result")


class Asked(Protocol):
    """The connection to the master: `metaq.metaq1.shared.links.Link`."""

    address: str

    @property
    def up(self) -> Connection | None:
        """The present connection; None: there is none."""
        ...

    async def ask(self, make: Make, action: str, timeout: float, number: int | None = None) -> Answer | TooLong:
        """See `Link.ask`."""
        ...


class Parted(MetaqError):
    """The copy and the master's partition are not the same: nothing is copied."""


class CopyRules(Struct, frozen=True):
    """What the options say of copies."""

    group: str
    longest_pause: float
    """Seconds."""


class PartitionCopy:
    """One partition's copy. Used in the event loop.

    Args:
        copied: the partitions here.
        let_go: lets all messages of a partition go, durably.
        at_once: how many partitions ask at the same time.
        faults: limits lines of the log.
    """

    def __init__(
        self,
        copied: CopiedPartitions,
        topic: str,
        partition: int,
        rules: CopyRules,
        *,
        let_go: Callable[[str, int], Awaitable[None]],
        at_once: asyncio.Semaphore,
        faults: RateLimitedLog,
        clock: Clock,
    ) -> None:
        self.topic, self.partition = topic, partition
        self._copied, self._rules, self._let_go, self._at_once = copied, rules, let_go, at_once
        self._faults, self._clock = faults, clock
        self._begin: int | None = None
        """Where the master's partition begins, while there is nothing here; None: it is not known."""
        self._compared = 0
        """Number of the connection over which the last message was compared."""
        self._size = GET_BYTES
        self.pause = 0.0
        """Seconds before the next step."""

    async def run(self, link: Asked) -> NoReturn:
        """Copy until cancelled. What fails is tried again, for ever: no message is passed over."""
        while True:
            await self.try_step(link)
            await asyncio.sleep(self.pause)

    async def try_step(self, link: Asked) -> None:
        """Take one step; set the pause before the next. Raises nothing."""
        try:
            async with self._at_once:
                moved_on = await self._step(link)
        except Parted as error:
            self._grow()
            self.pause = max(self.pause, PARTED_SECONDS)
            self._faults.error((self.topic, self.partition), "%s", error)
        except (MetaqError, OSError, MemoryError) as error:
            self._grow()
            self._faults.warning(
                (self.topic, self.partition, type(error).__name__),
                "partition %d of topic %s is not copied from %s just now: %s", self.partition, self.topic, link.address, error,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001  a fault of ours in one partition must not end the copy of it, nor that of others
            self._grow()
            self._faults.error(
                (self.topic, self.partition, "fault"), "partition %d of topic %s could not be copied", self.partition, self.topic,
                error=error,
            )  # fmt: skip
        else:
            if moved_on:
                self.pause = 0.0
            else:
                self._grow()

    def _grow(self) -> None:
        self.pause = min(self._rules.longest_pause, self.pause + self._rules.longest_pause / STEPS)

    async def _step(self, link: Asked) -> bool:
        """Get once. Returns whether something was copied. Raises MetaqError, OSError, MemoryError."""
        position = await self._settled(lambda: self._copied.end(self.topic, self.partition))
        if position is None:
            position = self._begin if self._begin is not None else await self._ask_begin(link)
            self._begin = position
        else:
            await self._compare(link, position)
        found = await self._get(link, position, self._size)
        match found:
            case answers.Found(data=data):
                return await self._take(data, position)
            case answers.Moved(offset=offset):
                return await self._moved(position, offset)
        return False

    async def _ask_begin(self, link: Asked) -> int:
        action = f"tell where partition {self.partition} of topic {self.topic} begins"
        answer = await link.ask(
            lambda opaque: OffsetLine(self.topic, self._rules.group, self.partition, 0, opaque), action, ASK_SECONDS
        )
        if isinstance(answer, ResultLine) and answer.code == Code.NOT_FOUND:
            return 0
        return answers.offset_of(answer, link.address, action)

    async def _get(self, link: Asked, position: int, size: int) -> answers.Fetched:
        action = f"get messages of topic {self.topic}, partition {self.partition}"
        answer = await link.ask(
            lambda opaque: GetLine(self.topic, self._rules.group, self.partition, position, size, opaque),
            action,
            ASK_SECONDS,
        )
        if isinstance(answer, ResultLine) and answer.code == Code.FORBIDDEN:
            # To a consumer that is as if there were nothing; a slave says why it waits.
            raise answers.refusal(answer, link.address, action)
        return answers.fetched(answer, link.address, action)

    async def _compare(self, link: Asked, end: int) -> None:
        """Return if the last message here is the master's, too, or the master does not have it any more. Raises Parted."""
        number = link.up.number if link.up is not None else 0
        if number and number == self._compared:
            return
        last = await self._settled(lambda: self._copied.last(self.topic, self.partition))
        if last is not None:
            position, message_id = last
            found = await self._get(link, position, HEAD_BYTES)
            match found:
                case answers.Found(data=data) if len(data) >= HEAD_BYTES:
                    if HEAD.unpack_from(data)[2] != message_id:
                        raise self._parted(f"another message than the copy at position {position}")
                case answers.Moved(offset=offset) if offset > position:
                    pass  # its head has gone
                case _:
                    raise self._parted(
                        f"nothing at position {position}, where the copy has its last message, and ends before {end}"
                    )
        self._compared = number

    def _parted(self, what: str) -> Parted:
        self._compared = 0
        return Parted(
            f"partition {self.partition} of topic {self.topic}: the master has {what}. Nothing more is copied: it has lost messages, or is "
            "another broker. To follow it all the same, start this slave anew with an empty folder"
        )

    async def _take(self, data: bytes, position: int) -> bool:
        """Append the whole messages of an answer. Raises RemoteProtocolError behind those before a damaged one."""
        batch, size, taken = list[PutRecord](), 0, 0
        found, fault = _whole(data)
        for frame in found:
            batch.append(self._copied.record(self.topic, self.partition, frame, self._clock.now_ms()))
            size += frame.size + RECORD_MORE
            taken += frame.size
            if size >= BATCH_BYTES:
                await self._append(batch, position + taken)
                batch, size = [], 0
                await asyncio.sleep(0)
        if batch:
            await self._append(batch, position + taken)
        if fault is not None:
            raise RemoteProtocolError(f"at position {position + taken}: {fault}")
        if not found:  # longer than what was asked for
            if self._size >= ANSWER_BYTES_MAX:
                raise RemoteProtocolError(f"the message at position {position} is longer than {ANSWER_BYTES_MAX} bytes")
            self._size = min(2 * self._size, ANSWER_BYTES_MAX)
        elif self._size > GET_BYTES:
            self._size = GET_BYTES
        return bool(found)

    async def _append(self, batch: Sequence[PutRecord], end: int) -> None:
        """Append messages that end at a position then. Raises Refused, Parted."""
        if self._begin is not None:
            begin = self._begin
            await self._settled(lambda: self._copied.make_topic(self.topic, self.partition))
            await self._settled(lambda: self._copied.begin(self.topic, self.partition, begin))
            self._begin = None
        await self._settled(lambda: self._copied.append(batch))
        now = await self._settled(lambda: self._copied.end(self.topic, self.partition))
        if now != end:
            raise self._parted(
                f"messages up to position {end}, and with the same ones the copy ends at {now}: it holds messages of others"
            )

    async def _moved(self, position: int, offset: int) -> bool:
        """Go on where the master says: what lies before is not there any more. Returns whether that is somewhere else."""
        if offset == position:
            return False
        if self._begin is not None:
            self._begin = offset
            return True
        if offset < position:
            raise self._parted(f"its end at position {offset}, before that of the copy at {position}")
        self._faults.error(
            (self.topic, self.partition, "gap"),
            "partition %d of topic %s: the master keeps nothing before position %d any more, and the copy ends at %d: messages of %d bytes "
            "are lost to this slave. It lets go of its older ones, too, and goes on there",
            self.partition, self.topic, offset, position, offset - position,
        )  # fmt: skip
        await self._let_go(self.topic, self.partition)
        await self._settled(lambda: self._copied.go_on_at(self.topic, self.partition, offset))
        return True

    async def _settled(self, work: Callable[[], Result]) -> Result:
        return await settled(work)


async def settled(work: Callable[[], Result]) -> Result:
    """Return what `work` returns, once what it needs is saved. Raises what it raises."""
    while True:
        try:
            return work()
        except Saving as saving:
            for pending in saving.pending:
                try:
                    await ended(pending)
                except Refused:  # the next try says so, if it still matters
                    await asyncio.sleep(PAUSE_SECONDS)
            work = saving.then or work


PAUSE_SECONDS: Final = 0.05
"""Between two tries of what could not be saved."""


def _whole(data: bytes) -> tuple[list[Frame], BadRequest | None]:
    """Return the whole messages of an answer, and what is wrong with the one behind them."""
    found = list[Frame]()
    try:
        found.extend(frames(data))
    except BadRequest as error:
        return found, error
    return found, None
