"""Cleaning that an administrator asks for: expired log files (329), expired units (306), queues without a topic (316), and what
these would remove (30024).

The broker does all of it by itself, in its time; here it is done now.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from metaq.broker.deletion import Deletions
from metaq.broker.environment import Environment, Tables
from metaq.errors import Reason, Refused
from metaq.model.upkeep.cleaning import Cleanable, CleanableFiles
from metaq.saved import PendingOutcome

log = logging.getLogger(__name__)

ASKED_MAX: Final = 64
"""Requests that wait for one cleaning at most."""
TOPICS_MAX: Final = 1000
"""Topics whose queues one request deletes at most."""

Work: TypeAlias = Callable[[Callable[[int | None], None]], None]
"""Begins a cleaning; its argument is called once, in another thread, with the number of files, or None: it has failed."""


class Cleaning:
    """Cleanings of one broker."""

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        deletions: Deletions,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._reader, self._topics, self._deletions = environment.store.reader, tables.topics, deletions
        self._keeper = keeper = environment.store.keeper
        self._call_soon, self._previews = call_soon, 0
        self._expired_files = _Asked("expired log files", keeper.delete_expired, call_soon)
        self._expired_units = _Asked("expired units of queues", keeper.correct_queues, call_soon)

    def expired_files(self) -> PendingOutcome[int]:
        """Delete log files whose time is up, whatever hour it is. Returns the pending number of files.

        At most 200 go, the oldest first, as in RocketMQ. Raises Refused BUSY: too many requests wait for that.
        """
        return self._expired_files.ask()

    def expired_units(self) -> PendingOutcome[int]:
        """Delete what queues have of messages that have left the log. Returns the pending number of files.

        Unlike RocketMQ's, a queue whose messages are all gone stays and goes on counting: groups keep their offsets. Raises
        Refused BUSY: too many requests wait for that.
        """
        return self._expired_units.ask()

    def unused_topics(self) -> PendingOutcome[list[str]]:
        """Delete the queues, with their messages, of topics that are in no table. Returns the pending names, TOPICS_MAX at most.

        There are such only after topics.json was lost or edited, and with restoreLostTopics=false.
        """
        outcome: PendingOutcome[list[str]] = PendingOutcome()
        deletions = [(name, self._deletions.delete(name)) for name in self._unused()]
        left, gone = len(deletions), list[str]()
        if not deletions:
            outcome.succeed(gone)

        def ended(name: str, error: Refused | None) -> None:
            nonlocal left
            left -= 1
            if error is None:
                log.info("the queues of %s, which is no topic here, are deleted", name)
                gone.append(name)
            else:
                log.warning("the queues of %s, which is no topic here, stay: %s", name, error)
            if not left:
                outcome.succeed(gone)

        for name, deletion in deletions:
            deletion.when_done(functools.partial(ended, name))
        return outcome

    def preview(self) -> PendingOutcome[Cleanable]:
        """Return, pending, what these would remove now. Raises Refused BUSY: too many requests wait for that."""
        if self._previews >= ASKED_MAX:
            raise Refused(Reason.BUSY, f"{ASKED_MAX} previews of cleanings are under way")
        self._previews += 1
        outcome: PendingOutcome[Cleanable] = PendingOutcome()
        unused = tuple(self._unused())

        def ended(found: tuple[CleanableFiles, CleanableFiles, CleanableFiles] | None) -> None:
            self._previews -= 1
            if found is None:
                outcome.finish(Refused(Reason.NOT_STORED, "what may go cannot be told: the broker's log says why"))
            else:
                outcome.succeed(Cleanable(found[0], found[1], unused, found[2]))

        self._keeper.preview(unused, lambda found: self._call_soon(lambda: ended(found)))
        return outcome

    def _unused(self) -> list[str]:
        names = sorted({topic for topic, _ in self._reader.queues()})
        return [name for name in names if self._is_unused(name)][:TOPICS_MAX]

    def _is_unused(self, name: str) -> bool:
        topics = self._topics
        return not (topics.get(name) or topics.is_system(name) or topics.saved.pending(name) or name in topics.closing)


class _Asked:
    """Requests for one kind of cleaning: those that come before it begins are answered by it together."""

    def __init__(self, what: str, work: Work, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._what, self._work, self._call_soon = what, work, call_soon
        self._running = 0

    def ask(self) -> PendingOutcome[int]:
        if self._running >= ASKED_MAX:
            raise Refused(Reason.BUSY, f"{self._what} are being deleted, for {ASKED_MAX} requests before this one")
        self._running += 1
        outcome: PendingOutcome[int] = PendingOutcome()
        self._work(lambda files: self._call_soon(lambda: self._ended(outcome, files)))
        return outcome

    def _ended(self, outcome: PendingOutcome[int], files: int | None) -> None:
        self._running -= 1
        if files is None:
            outcome.finish(Refused(Reason.NOT_STORED, f"{self._what} could not be deleted: the broker's log says why"))
        else:
            log.info("%s were deleted by hand: %d files", self._what, files)
            outcome.succeed(files)
