"""How a slave comes by its master's tables: a master of ours tells each change at once, a RocketMQ is asked every 10 s."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from metaq.app.role.master import MasterSearch
from metaq.app.role.pending import all_ended
from metaq.broker.broker import Broker
from metaq.broker.replication.tables import AGAIN_SECONDS
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import ask
from metaq.client.conversation.following import (
    DELAY_OFFSETS,
    GROUP_OFFSETS,
    GROUPS,
    TOPICS,
    FollowTables,
    GetTable,
)
from metaq.client.conversation.reading.offsets import GetPosition, SetPosition
from metaq.client.shared.transport import Transport
from metaq.errors import BrokerError, Refused
from metaq.in_pieces import InPieces
from metaq.log import RateLimitedLog, when_dead
from metaq.model import MessageQueue
from metaq.wire import bodies
from metaq.wire.codes import RequestCode, ResponseCode

log = logging.getLogger(__name__)

SYNC_SECONDS: Final = 10.0
"""Pause between two looks at the tables of a RocketMQ, as of its own slaves."""
HURRY_SECONDS: Final = 0.5
"""The same while nothing is known of it, and the shortest pause when messages of an unknown topic come."""
HOLD_SECONDS: Final = 5.0
"""Time that a question waits at a master of ours; what groups have committed here goes back to it in between."""
PAUSE_SECONDS: Final = 0.2
"""Pause before the next question: changes that come one by one are told together."""
PAUSE_IN_GROUP_SECONDS: Final = 0.05
"""The same where changes are answered when followers have them."""
TELL_MAX: Final = 1000
"""Positions of groups that go back to the master between two questions."""


class TableFollowing:
    """Keeps a slave's tables as its master's are.

    Args:
        transport: the slave's.
        search: knows the master.
    """

    def __init__(self, broker: Broker, transport: Transport, search: MasterSearch) -> None:
        self._broker, self._followed, self._transport, self._search = broker, broker.followed, transport, search
        self._told: dict[RequestCode, bytes] = {}
        """The answers of a RocketMQ that were taken over last."""
        self._is_ours = True
        """The master knows FOLLOW_TABLES, as far as is known."""
        self._plain = ""
        """The master of which the log says that it is a RocketMQ."""
        self._is_last = False
        """The master has stepped down: it is asked for what it has, and not told anything."""
        self._hurried = asyncio.Event()
        self._faults = RateLimitedLog(log, broker.clock)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_asking(), name="take over the master's tables")
        self._task.add_done_callback(when_dead(log, "this slave takes over no tables of its master any more"))

    def tick(self) -> None:
        """Let time pass. Called ten times a second."""
        self._followed.tick()
        self._faults.tick()

    def hurry(self) -> None:
        """Ask a RocketMQ soon: messages of an unknown topic have come."""
        self._hurried.set()

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def take_last(self, master: str) -> None:
        """Take over the tables of a master of ours that has stepped down, as they are now, and ask no more.

        Args: master: its address; this slave may not have found it yet. Raises what `ask` raises.
        """
        await self.stop()
        self._is_last = self._is_ours = True
        while not await self._ask(master):  # there is more
            pass

    async def _keep_asking(self) -> None:
        while True:
            self._hurried.clear()
            pause = HURRY_SECONDS
            try:
                if (master := self._search.address) is not None:
                    pause = await self._ask(master)
            except FAULTS as error:
                self._is_ours = True  # whoever answers next may be another
                self._faults.warning("tables", "the master does not tell its tables, it is asked again: %s", error)
            except Exception:
                log.exception("the master's tables could not be taken over; it is tried again")
            await asyncio.sleep(min(pause, HURRY_SECONDS))
            if pause > HURRY_SECONDS:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause - HURRY_SECONDS):
                        await self._hurried.wait()

    async def _ask(self, master: str) -> float:
        """Ask the master once. Returns the pause before the next question, s; 0: there is more. Raises what `ask` raises."""
        if self._is_ours:
            try:
                return await self._follow(master)
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
            self._is_ours = False
            self._followed.end_of_changes()
            if self._plain != master:
                self._plain = master
                log.info(
                    "the master at %s does not tell what has changed in its tables: it is asked for all of them every %g s, "
                    "as RocketMQ's slaves do", master, SYNC_SECONDS,
                )  # fmt: skip
        await self._ask_all(master)
        return SYNC_SECONDS

    # -- a master of ours
    async def _follow(self, master: str) -> float:
        feed, position = self._followed.place
        call = FollowTables(feed, position, 0 if self._is_last else int(HOLD_SECONDS * 1000), self._search.place)
        changes = await ask(self._transport, master, call, call.seconds + HOLD_SECONDS)
        self._search.heard(changes.log_end)
        self._told.clear()
        await _in_turns(self._followed.take(changes))
        try:
            await all_ended(self._broker.saves())
        except Refused:  # said already; another question now would say that they are here, and the master may tell an administrator so
            return AGAIN_SECONDS
        if not changes.complete:
            return 0.0
        if not self._is_last:
            await self._tell(master, generations=True)
        return PAUSE_SECONDS if self._search.place is None else PAUSE_IN_GROUP_SECONDS

    async def _tell(self, master: str, *, generations: bool) -> None:
        """Tell the master what groups have committed here while it was away: it must not hand that out again.

        It is not to go back there, behind what a group has committed at the master meanwhile. Args: generations: the master is ours.
        """
        for group, topic, queue_id, offset, told in self._followed.ahead()[:TELL_MAX]:
            queue = MessageQueue(topic, self._broker.environment.name, queue_id)
            generation = self._broker.deletions.generation(topic) if generations else None
            try:
                if not generations and await ask(self._transport, master, GetPosition(group, queue)) != told:
                    continue
                await ask(
                    self._transport,
                    master,
                    SetPosition(group, queue, offset, generation, told if generations else None),
                )
            except BrokerError as error:  # a group or topic that is gone there
                self._faults.warning("ahead", "the master does not take the progress of group %s: %s", group, error)

    # -- a RocketMQ
    async def _ask_all(self, master: str) -> None:
        """Ask for each table, and take over those that have changed."""
        takes: tuple[tuple[RequestCode, Callable[[bytes, int], Awaitable[None]]], ...] = (
            (TOPICS, self._take_topics),
            (GROUPS, self._take_groups),
            (GROUP_OFFSETS, self._take_offsets),
            (DELAY_OFFSETS, self._take_delays),
        )
        for table, take in takes:
            asked_at = self._broker.store.log.end
            body = await ask(self._transport, master, GetTable(table))
            # Progress of delayed messages is taken each time: it holds for what the log has grown by as well.
            if body != self._told.get(table) or table == DELAY_OFFSETS:
                await take(body, asked_at)
                self._told[table] = body
        if not self._is_last:
            await self._tell(master, generations=False)

    async def _take_topics(self, body: bytes, asked_at: int) -> None:
        pieces = bodies.topic_table_of(body)
        while True:
            try:
                next(pieces)
            except StopIteration as end:
                self._followed.take_topics(end.value[1], asked_at)
                return
            await asyncio.sleep(0)

    async def _take_groups(self, body: bytes, _asked_at: int) -> None:
        self._followed.take_groups(bodies.group_table_of(body)[1])

    async def _take_offsets(self, body: bytes, _asked_at: int) -> None:
        self._followed.take_offsets(bodies.group_offsets_of(body))

    async def _take_delays(self, body: bytes, asked_at: int) -> None:
        self._followed.take_delays(bodies.delay_offsets_of(body), asked_at)


async def _in_turns(work: InPieces[None]) -> None:
    """Run work in pieces, with a turn of the loop for others behind each."""
    for _ in work:
        await asyncio.sleep(0)
