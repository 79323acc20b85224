"""A master that has stepped down, until its process starts it again as a slave.

Its clients must not notice. So it stays where it is: it tells its successor the rest of its log and its tables, follows it from the
moment on that it leads, with clients connected, serves them as a slave does, and relays what they ask of a leader
(`metaq.servers.remoting.relaying`). When they have learned who leads, it starts again inside its process: what it had open as a
leader is of no use to a slave, nor to a leader of a later epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from metaq.app.role.pending import durable
from metaq.broker.broker import Broker
from metaq.log import when_dead
from metaq.model.leadership import Found, ReplicaState
from metaq.servers.server import CallSoon

log = logging.getLogger(__name__)

QUIET_SECONDS: Final = 5.0
"""It starts again when so long no client has asked it for what only a leader does."""
STAY_SECONDS_MAX: Final = 60.0
"""And so long behind its stepping down in any case: a Java client asks for the route every 30 s."""
SUCCESSOR_SECONDS: Final = 45.0
"""So long a successor that is known may take to lead: longer than it waits for the rest of the log (`HAND_OVER_SECONDS`)."""
LAST_WORDS_SECONDS: Final = 1.0
"""Without one, so long it still tells its tables."""
LAST_COPY_SECONDS: Final = 3.0
"""And so long it serves on for its slaves to copy the end of its log; they can do so after its restart, too."""
LOOK_SECONDS: Final = 0.05
"""Pause between two questions whether the successor leads."""
ASK_AROUND_SECONDS: Final = 1.0
"""Pause between two looks for another one that leads, at the name servers."""
ACKS_SECONDS: Final = 10.0
"""Longest wait for acknowledgements that are held, for a disk or a slave: each has a shorter one of its own."""
ANSWER_SECONDS: Final = 0.2
"""Between the answer to whoever wants the restart, and the restart."""


class SteppedDown:
    """In the event loop of the broker.

    Args:
        call_soon: brings a call from another thread to the event loop.
        ask: returns the state of the broker at an address; None: none of ours and of this name answers there.
        successor: returns the broker that leads in a later epoch, as the name servers know it; None: there is none.
        follow: has this broker follow its leader, as a slave.
        restart: has the process start this broker again, for a reason.
    """

    def __init__(
        self,
        broker: Broker,
        call_soon: CallSoon,
        ask: Callable[[str], Awaitable[ReplicaState | None]],
        successor: Callable[[], Awaitable[Found | None]],
        follow: Callable[[], Awaitable[None]],
        restart: Callable[[str], None],
    ) -> None:
        self._broker, self._roles, self._call_soon = broker, broker.roles, call_soon
        self._ask, self._successor, self._follow, self._restart = ask, successor, follow, restart
        self._began = self._roles.asked_to_lead_at = broker.clock.monotonic()
        self._rank = self._roles.kept.rank
        self.follows = False
        """Whether it follows its successor already."""
        self._task = asyncio.get_running_loop().create_task(self._go_over(), name="follow the successor")
        self._task.add_done_callback(when_dead(log, "this broker does not follow its successor until it starts again"))

    def tick(self) -> None:
        """Let time pass. Called ten times a second."""
        now = self._broker.clock.monotonic()
        waited = now - self._began
        if self.follows:
            if waited >= STAY_SECONDS_MAX:
                self._restart("this broker starts again, as a slave; clients that have not learned who leads do so now")
            elif now - self._roles.asked_to_lead_at >= QUIET_SECONDS:
                self._restart("this broker starts again, as a slave: its clients know who leads")
        elif self._roles.leader_address:
            if waited >= SUCCESSOR_SECONDS:
                self._restart("this broker starts again, as a slave: its successor does not lead")
        else:
            is_copied = self._broker.replicas.copied >= self._broker.store.log.end
            if waited >= (LAST_WORDS_SECONDS if is_copied else LAST_COPY_SECONDS):
                self._restart("this broker starts again, as a slave")

    def restart_soon(self, why: str) -> None:
        """Have this broker start again when whoever asks for that is answered."""
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._restart, why)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _go_over(self) -> None:
        """Follow the successor once it leads; start again where that cannot be done in place."""
        await self._wait_for_leader()
        try:
            async with asyncio.timeout(ACKS_SECONDS):
                # They are of this log as it is: what the successor does not have is cut off next.
                while self._broker.acks.waiting_bytes:  # noqa: ASYNC110  each server counts its own there
                    await asyncio.sleep(LOOK_SECONDS)
            await durable(self._broker.store, self._call_soon)
            await self._follow()
        except Exception as error:
            why = "sends are held that should be answered by now" if isinstance(error, TimeoutError) else ""
            log.error("this broker cannot follow its successor in place: %s", why or error, exc_info=not why)  # noqa: TRY400
            self._restart("this broker starts again, as a slave")
            return
        self.follows = True
        log.info(
            "this broker follows the one at %s, and relays to it what clients ask of a leader",
            self._roles.leader_address,
        )

    async def _wait_for_leader(self) -> None:
        ask_around_at = 0.0
        while True:
            if (address := self._roles.leader_address) and self._is_later(await self._ask(address)):
                return
            if (now := self._broker.clock.monotonic()) >= ask_around_at:
                ask_around_at = now + ASK_AROUND_SECONDS
                if (found := await self._successor()) is not None:
                    self._roles.leader_address = found[0]
                    return
            await asyncio.sleep(LOOK_SECONDS)

    def _is_later(self, state: ReplicaState | None) -> bool:
        return state is not None and state.leads and state.rank > self._rank
