"""What a slave does beside serving: it follows its master."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from metaq.app.registration import NameServerRegistration
from metaq.app.role.master import MasterSearch
from metaq.broker.broker import Broker
from metaq.client.conversation.administration import GetReplicaState
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import ask
from metaq.client.conversation.following import DELAY_OFFSETS, GROUP_OFFSETS, GROUPS, TOPICS, GetTable
from metaq.client.conversation.reading.offsets import SetPosition
from metaq.client.shared.transport import Transport
from metaq.errors import BrokerError
from metaq.log import RateLimitedLog
from metaq.model import MessageQueue
from metaq.servers.ha.slave import Following, say
from metaq.servers.server import CallSoon
from metaq.wire import bodies
from metaq.wire.codes import RequestCode

log = logging.getLogger(__name__)

SYNC_SECONDS: Final = 10.0
"""Pause between two looks at the master's tables, as a RocketMQ slave's."""
LAST_LOOK_PAUSE_SECONDS: Final = 0.1
HURRY_SECONDS: Final = 0.5
"""The same while nothing is known of it, and the shortest pause when messages of an unknown topic come."""


class Slave:
    """What a slave does beside serving: it copies its master's log, and takes over its tables.

    Args:
        announced: knows the master from the name servers.
    """

    def __init__(self, broker: Broker, call_soon: CallSoon, announced: NameServerRegistration) -> None:
        self._broker, self._followed = broker, broker.followed
        self._transport = Transport(lambda _address, _asked: None, lambda _address: None, lambda _address: None)
        self.search = MasterSearch(broker, self._transport, announced)
        self.following = Following(broker, call_soon, self.search.find, self._hurry)
        self._told: dict[RequestCode, bytes] = {}
        """The answers that were taken over last."""
        self._heard_of_state = True
        """Whether the master says where its log ends."""
        self._hurried = asyncio.Event()
        self._faults = RateLimitedLog(log, broker.clock)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.following.start()
        self._task = asyncio.get_running_loop().create_task(self._keep_asking(), name="take over the master's tables")
        self._task.add_done_callback(say)

    def tick(self) -> None:
        """Let time pass. Called ten times a second."""
        self.following.tick()
        self.search.tick()
        self._faults.tick()

    async def stop(self) -> None:
        """End all connections to the master."""
        await self.following.stop()
        await self._end_task()
        await self._transport.close()

    async def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look_until(self, deadline: float) -> bool:
        """Take over the master's tables as they are now. Returns whether that was done by `deadline`, loop time."""
        await self._end_task()  # not beside a look that began before
        while True:
            try:
                await self._ask_all()
            except FAULTS as error:
                if asyncio.get_running_loop().time() >= deadline:
                    log.warning("the master does not tell its tables: %s", error)
                    return False
                await asyncio.sleep(LAST_LOOK_PAUSE_SECONDS)
            else:
                return True

    async def tables_saved(self) -> None:
        """Return when what was taken over last is on the disk, or could not be put there: who leads next reads it."""
        await asyncio.to_thread(self._followed.flush)

    def _hurry(self) -> None:
        self._hurried.set()

    async def _keep_asking(self) -> None:
        while True:
            self._hurried.clear()
            try:
                await self._ask_all()
            except FAULTS as error:
                self._faults.warning("tables", "the master does not tell its tables, it is asked again: %s", error)
            except Exception:
                log.exception("the master's tables could not be taken over; it is tried again")
            await asyncio.sleep(HURRY_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SYNC_SECONDS if self._told else HURRY_SECONDS):
                    await self._hurried.wait()

    async def _ask_all(self) -> None:
        """Ask for each table, and take over those that have changed. Raises what `ask` raises."""
        master = self.search.address
        if master is None:
            return
        if self._heard_of_state:
            await self._hear(master)
        for table, take in (
            (TOPICS, self._take_topics),
            (GROUPS, self._take_groups),
            (GROUP_OFFSETS, self._take_offsets),
            (DELAY_OFFSETS, self._take_delays),
        ):
            asked_at = self._broker.store.log.end
            body = await ask(self._transport, master, GetTable(table))
            if body != self._told.get(table):
                await take(body, asked_at)
                self._told[table] = body
        # The master has been away, and groups have gone on here: it must not hand out again what they have consumed.
        for group, topic, queue_id, offset in self._followed.ahead():
            queue = MessageQueue(topic, self._broker.environment.name, queue_id)
            try:
                await ask(self._transport, master, SetPosition(group, queue, offset))
            except BrokerError as error:  # a group or topic that is gone there
                self._faults.warning("ahead", "the master does not take the progress of group %s: %s", group, error)

    async def _hear(self, master: str) -> None:
        state = await ask(self._transport, master, GetReplicaState())
        if state is None:
            self._heard_of_state = False  # a RocketMQ
        else:
            self.search.heard(state)

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
