"""Feeds: what many listeners of one queue are to get is read and encoded once.

Who listens at the end of a queue waits for the feed of it, which holds one pull for all of them. A listener that is elsewhere,
because it began earlier or reads slowly, reads by itself until it has come to where the feed is. So a feed keeps no more than
the messages that it has read last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from metaq.broker.requests import PullRequest
from metaq.model.access import Caller
from metaq.options import KIB, MIB
from metaq.servers.http.messages.puller import FeedChannel, Puller
from metaq.wire.http.stored import StoredAsJson

log = logging.getLogger(__name__)

KEPT_BYTES_MAX: Final = 64 * KIB
"""Bytes of events that one feed keeps. What is longer each listener reads by itself, on its connection's account."""
ALL_BYTES_MAX: Final = 64 * MIB
"""The same of all feeds of a server. Then feeds keep nothing, and their listeners read by themselves."""


class Event(NamedTuple):
    """A message of a feed: its offset, and what comes behind its id in the stream."""

    offset: int
    data: bytes


class FeedKey(NamedTuple):
    """What listeners of one feed have in common: the pull, without its offset, and the form of bodies."""

    wanted: PullRequest
    raw: bool


class Feed:
    """Reads one queue on, as long as somebody waits for it.

    `next`: offset behind what has been read. `failed`: it has ended; whoever joins again gets another.

    Args:
        feeds: those of the server.
        key: what it reads.
        caller: whose right its reads have.
        offset: where it begins.
    """

    def __init__(self, feeds: Feeds, key: FeedKey, caller: Caller, offset: int) -> None:
        self._feeds, self.key, self.next, self.failed = feeds, key, offset, False
        self._start, self._kept, self._size = offset, list[Event](), 0
        self.waiting = set[Callable[[], None]]()
        self._channel = FeedChannel(caller, f"a feed of {key.wanted.topic.decode(errors='replace')}")
        self.task = asyncio.ensure_future(self._read())

    def behind(self, offset: int) -> list[Event] | None:
        """Return what is from an offset up to `next`; None: this is to be read from the store."""
        if not self._start <= offset <= self.next:
            return None
        return [event for event in self._kept if event.offset >= offset]

    async def _read(self) -> None:
        puller = self._feeds.puller
        try:
            while True:
                answer = await puller.pull(self._channel, self.key.wanted._replace(offset=self.next))
                events = [event_of(one) for one in puller.objects(answer, raw=self.key.raw)]
                self._keep(events, answer.next_offset)
                self._wake()
        except Exception as error:  # noqa: BLE001  its listeners read by themselves now, and tell their clients what they find
            log.debug("%s has ended: %s", self._channel.remote, error)
        finally:
            self.failed = True
            self._keep([], self.next)
            self._feeds.ended(self)
            self._wake()

    def _keep(self, events: list[Event], behind: int) -> None:
        size = sum(len(event.data) for event in events)
        # An offset that is lower than the one before is of a topic that was made anew.
        keeps = behind >= self.next and size <= KEPT_BYTES_MAX and self._feeds.may_keep(size - self._size)
        self._kept, self._start = (events, self.next) if keeps else ([], behind)
        self._feeds.kept += (size if keeps else 0) - self._size
        self._size, self.next = size if keeps else 0, behind

    def _wake(self) -> None:
        for wake in list(self.waiting):
            wake()


class Feeds:
    """The feeds of one server. `kept`: bytes that they keep. Args: puller: of the server."""

    def __init__(self, puller: Puller) -> None:
        self.puller, self.kept = puller, 0
        self._feeds: dict[FeedKey, Feed] = {}

    def join(self, key: FeedKey, caller: Caller, offset: int, wake: Callable[[], None]) -> Feed:
        """Return the feed of a queue, which calls `wake` each time that it has read.

        Args:
            key: what it reads.
            caller: whose right the reads have if it begins now. Each listener's own right is the listener's business.
            offset: where it begins if it is not there yet.
            wake: raises nothing.
        """
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(self, key, caller, offset)
        feed.waiting.add(wake)
        return feed

    def leave(self, feed: Feed, wake: Callable[[], None]) -> None:
        """End a listener's interest. A feed that nobody waits for ends."""
        feed.waiting.discard(wake)
        if not feed.waiting:
            self.ended(feed)
            feed.task.cancel()

    def ended(self, feed: Feed) -> None:
        """Forget a feed: who joins gets another."""
        if self._feeds.get(feed.key) is feed:
            del self._feeds[feed.key]

    def may_keep(self, more: int) -> bool:
        """Return whether feeds may keep so many bytes more."""
        return self.kept + more <= ALL_BYTES_MAX

    def close(self) -> None:
        """End all."""
        for feed in list(self._feeds.values()):
            feed.task.cancel()


def event_of(message: StoredAsJson) -> Event:
    """Return a message as an event without its id."""
    # JSON has no line break of its own, so that one `data:` line is enough.
    return Event(message.offset, b"\ndata: " + msgspec.json.encode(message) + b"\n\n")
