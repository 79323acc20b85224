"""A slave compares its log with its master's in the background: bit rot is found before a consumer or a promotion meets it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from metaq.app.role.both_logs import asking, next_call
from metaq.app.role.master import MasterSearch
from metaq.broker.broker import Broker
from metaq.client.conversation.administration import GetReplicaState
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import Caller, ask
from metaq.client.conversation.scrubbing.calls import GetLogChecksums
from metaq.client.conversation.scrubbing.comparison import Comparison, NotComparable
from metaq.errors import Reason, Refused
from metaq.log import RateLimitedLog, when_dead
from metaq.model.leadership import ReplicaState, parting
from metaq.model.scrub import RANGE_BYTES, DamagedSide, LogDifference
from metaq.store.log.broken import DamagedPlace
from metaq.store.log.check import check_records

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
"""Longest pause between two looks whether a pass is due: `scrubInterval` may be changed meanwhile."""
RETRY_SECONDS: Final = 30.0
"""Pause before a pass goes on that could not."""
STEP_RANGES: Final = 4
"""Checksums of one step: what is read at once, however slow the pass is."""


class Scrubbing:
    """The comparison of one slave's log with its master's. Only in the event loop; logs are read in threads.

    Args:
        caller: sends the requests.
        search: knows the master.
    """

    def __init__(self, broker: Broker, caller: Caller, search: MasterSearch) -> None:
        self._broker, self._scrub, self._caller, self._search = broker, broker.scrub, caller, search
        self._faults = RateLimitedLog(log, broker.clock)
        self._task: asyncio.Task[None] | None = None
        self._said_alone = False
        self._left: tuple[int, Comparison] | None = None
        """A pass that a fault has interrupted, and the log's history then."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._keep_comparing(), name="compare the log with the master's"
        )
        self._task.add_done_callback(when_dead(log, "this slave compares its log with its master's no more"))

    def tick(self) -> None:
        """Let time pass. Called ten times a second."""
        self._faults.tick()

    async def stop(self) -> None:
        """End a pass that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_comparing(self) -> None:
        while True:
            due = self._scrub.due_in()
            if due != 0:
                await asyncio.sleep(LOOK_SECONDS if due is None else min(due, LOOK_SECONDS))
                continue
            if self._search.address is None:  # the log says so already
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                await self.run()
            except (*FAULTS, NotComparable, Refused, OSError) as error:
                self._faults.warning(
                    "pass", "the comparison with the master's log does not go on, it is tried again: %s", error
                )
            except Exception:
                log.exception("the comparison with the master's log has failed; it is tried again")
            else:
                continue
            await asyncio.sleep(RETRY_SECONDS)

    async def run(self) -> None:
        """Compare all that both have, or go on where that was interrupted. Raises FAULTS, NotComparable, Refused, OSError."""
        master = self._search.address
        if master is None:
            raise Refused(Reason.UNAVAILABLE, "no master is known")
        state = await ask(self._caller, master, GetReplicaState())
        told = None if state is None else await ask(self._caller, master, GetLogChecksums(0, 0))
        if state is None or told is None:
            self._say_alone(master)
            await self._check_alone()
        else:
            await self._compare(master, state)

    # ------------------------------------------------------------------ with a master of ours

    async def _compare(self, master: str, state: ReplicaState) -> None:
        broker, history = self._broker, self._broker.replicas.history
        if self._left is None or self._left[0] != history:
            limit = parting(broker.roles.kept.epochs, broker.store.log.end, state.epochs, state.log_end)
            self._left = history, Comparison(limit, STEP_RANGES)
            self._scrub.begin()
        comparison = self._left[1]
        try:
            await self._walk(comparison, master, history)
        except NotComparable:
            self._left = None
            raise
        self._left = None
        self._scrub.end(comparison.compared, alone=False)
        log.info(
            "this log was compared with that of the master at %s from offset %d to %d: %d places differ",
            master, comparison.start, comparison.place, comparison.found,
        )  # fmt: skip
        if comparison.unread:
            log.warning(
                "%d ranges of the log could not be read wholly by a disk, this one's or the master's", comparison.unread
            )

    async def _walk(self, comparison: Comparison, master: str, history: int) -> None:
        steps, outcomes, before = comparison.steps(), None, comparison.compared
        ask_both = asking(self._broker, self._caller, master)
        while (call := await next_call(steps, outcomes)) is not None:
            outcomes = await ask_both(call)
            if self._broker.replicas.history != history:
                raise NotComparable("this log was cut meanwhile")
            self._report(comparison.differences)
            if more := comparison.compared - before:
                before = comparison.compared
                await asyncio.sleep(self._scrub.pause_after(more))
        self._report(comparison.differences)

    def _report(self, differences: list[LogDifference]) -> None:
        for one in self._scrub.found(differences):
            self._faults.error(
                "difference",
                "%s differs from the %s's log at byte %d (log offset %d, %d bytes): %s",
                one.file, "slave" if one.damaged is DamagedSide.MASTER else "master", one.at, one.log_offset, one.size,
                _consequence(one.damaged, self._broker.environment.name),
            )  # fmt: skip

    # ------------------------------------------------------------------ with a RocketMQ

    def _say_alone(self, master: str) -> None:
        if not self._said_alone:
            self._said_alone = True
            log.info(
                "the master at %s tells no checksums of its log (a RocketMQ, or an earlier release): this slave checks its own records only",
                master,
            )

    async def _check_alone(self) -> None:
        store, run = self._broker.store, self._broker.store.log.run
        self._scrub.begin()
        place, stop, history, checked = store.log.min, store.state.flushed, self._broker.replicas.history, 0
        found: list[LogDifference] = []
        while place < stop and self._broker.replicas.history == history:
            following, places = await asyncio.to_thread(check_records, run, place, stop, STEP_RANGES * RANGE_BYTES)
            if following == place:
                if store.log.min <= place:
                    break  # the log ends there
                following = store.log.min
            else:
                checked += following - place
            found += map(_of_slave, places)
            self._tell_alone(found)
            await asyncio.sleep(self._scrub.pause_after(following - place))
            place = following
        self._scrub.end(checked, alone=True)

    def _tell_alone(self, found: list[LogDifference]) -> None:
        for one in self._scrub.found(found):
            self._faults.error(
                "difference",
                "%s is damaged at byte %d (log offset %d, %d bytes): if the master has it right, start this slave anew with an empty folder",
                one.file, one.at, one.log_offset, one.size,
            )  # fmt: skip


def _of_slave(place: DamagedPlace) -> LogDifference:
    return LogDifference(place.start, place.size, DamagedSide.SLAVE, place.path, place.at)


def _consequence(damaged: DamagedSide, name: str) -> str:
    if damaged is DamagedSide.BOTH:
        return "both are damaged there, and neither can be repaired from the other"
    if damaged is DamagedSide.UNKNOWN:
        return "both look right there, so it is not known which one is damaged, and nothing is repaired"
    return f"the {damaged}'s is damaged; `metaq broker scrub {name} --repair` repairs it"
