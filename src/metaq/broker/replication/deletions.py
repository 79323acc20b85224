"""Deletions of a master on its slave: records below a mark are dead, whatever has been made of the topic's name since.

A mark is a LogOffset of the master's log, which is this one's as far as it goes. Until the log is here, the mark waits: saved
earlier it would cover what a new master appends there. Then, as a master deletes (`metaq.broker.deletion`): the log is made
durable up to the mark, the mark is saved, and the queues go that have no record behind it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from metaq.broker.deletion import GROUP, STORE, Deletions
from metaq.broker.environment import Environment
from metaq.broker.tables.topics import Topics
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.log import RateLimitedLog
from metaq.model.topics.topic import check_group, check_partition_topic
from metaq.store.message_store import MessageStore

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Deletions under way together: each looks at all queues."""
_OF_A_PIECE: Final = 100


class FollowedDeletions:
    """Takes over marks and generations. Only on the thread that owns the broker.

    Args:
        forget: called with topics in which progress may be of messages that are gone.
        failed: called when an entry could not be saved, and has to be told again.
        call_soon: brings a call from another thread to this one.
    """

    def __init__(
        self,
        environment: Environment,
        topics: Topics,
        deletions: Deletions,
        forget: Callable[[Collection[str]], None],
        failed: Callable[[Refused | None], None],
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._store: MessageStore = environment.store
        self._topics, self._deletions = topics, deletions
        self._forget, self._failed, self._call_soon = forget, failed, call_soon
        self._waiting: dict[str, int] = {}
        """Topic → the mark that is told and does not hold here yet."""
        self._under_way: set[str] = set()
        self._gone: set[str] = set()
        """Deleted since the last tick: progress in them may be of the messages that are gone."""
        self._faults = RateLimitedLog(log, environment.clock)

    @property
    def waiting(self) -> Collection[str]:
        """Topics that the master has deleted, and that may have records and progress of the time before here."""
        return self._waiting.keys()

    def take(self, told: Mapping[str, int | None]) -> InPieces[None]:
        """Take over entries of the master's generations; None: it has none any more."""
        anew = set[str]()
        for number, (key, place) in enumerate(told.items(), 1):
            try:
                self._check(key, place)
            except Refused as error:
                self._faults.error("wrong", "a deletion of the master is not taken over: %s", error)
                continue
            if GROUP in key or place is None:
                self._deletions.generations.change(key, place).when_done(self._failed)
                self._waiting.pop(key, None)
            elif not self._holds(key, place):
                self._waiting[key] = place
                anew.add(key)
            if not number % _OF_A_PIECE:
                yield
        self._forget(anew)
        self.advance()

    def _check(self, key: str, place: int | None) -> None:
        """Raises Refused: no master says so."""
        if key == STORE:
            return
        topic, at, group = key.partition(GROUP)
        check_partition_topic(topic)
        if at:
            check_group(group)
        if place is not None and place < 0:
            raise Refused(Reason.INVALID, f"{key} is said to be deleted at log offset {place}, which is none")

    def _holds(self, topic: str, place: int) -> bool:
        # The store's own word too: a log that was cut has lowered it.
        return self._deletions.generation(topic) == place and self._store.deleted.get(topic, place) == place

    def keys(self) -> list[str]:
        """Return the keys of all generations here."""
        return list({*self._deletions.generations.coming_keys(), *self._deletions.marks.coming_keys()})

    def advance(self) -> None:
        """Begin the deletions whose mark the log has reached. Called ten times a second."""
        self._faults.tick()
        if self._gone:
            gone, self._gone = self._gone, set()
            self._forget(gone)
        end = self._store.log.end
        for topic, place in list(self._waiting.items()):
            if len(self._under_way) >= AT_ONCE:
                break
            if place > end or topic in self._under_way or topic in self._topics.closing:
                continue
            self._under_way.add(topic)
            if place <= self._store.log.settled_min and topic not in self._deletions.marks.table:
                # The log begins behind it: there is nothing to delete, and nothing to mark.
                done = functools.partial(self._saved, topic, place, marked=False)
                self._deletions.generations.change(topic, place).when_done(done)
            else:
                self._flush(topic, place)

    def _flush(self, topic: str, place: int) -> None:
        mark = functools.partial(self._mark, topic, place)
        if self._store.state.flushed >= place:
            mark(good=True)
        else:
            self._store.flusher.when_flushed(place, lambda good: self._call_soon(lambda: mark(good=good)))

    def _mark(self, topic: str, place: int, *, good: bool) -> None:
        if (
            not good or self._waiting.get(topic) != place
        ):  # the store has failed; or another deletion was told meanwhile
            self._under_way.discard(topic)
            return
        self._deletions.marks.change(topic, place).when_done(functools.partial(self._saved, topic, place))

    def _saved(self, topic: str, place: int, error: Refused | None, *, marked: bool = True) -> None:
        self._under_way.discard(topic)
        if error is not None:  # it waits on, for the next tick
            self._faults.error("save", "the master has deleted the topic %s, which cannot be noted: %s", topic, error)
        elif self._waiting.get(topic) == place:
            del self._waiting[topic]
            self._deletions.is_anew(topic)
            if marked:
                self._delete(topic, place)

    def _delete(self, topic: str, place: int) -> None:
        try:
            self._store.writer.delete_topic(topic, place)
        except OSError as failed:
            # The mark is saved: recovery empties these queues at the next start.
            log.error("the queues of the deleted topic %s stay until the next start: %s", topic, failed)  # noqa: TRY400
        self._gone.add(topic)
        self._topics.replaced(topic)
        log.info("the topic %s was deleted at log offset %d, as at the master", topic, place)

    def settle(self) -> None:
        """Before this broker leads: what the master has deleted is deleted, though this log does not reach to the marks.

        Waits for the disk if there are such.
        """
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        self._store.flusher.flush()
        marks: Mapping[str, int] = {topic: min(place, self._store.log.end) for topic, place in waiting.items()}
        self._deletions.marks.start_with(marks)
        for topic, place in marks.items():
            self._deletions.is_anew(topic)
            self._delete(topic, place)
        self._forget(marks.keys())
