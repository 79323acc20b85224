"""Messages of some queues before those of others, without starving these (priorities).

Whoever asks for messages gets those of the highest rank that has any ready. While lower ranks wait they get, together, a
share of all that is handed out, in turns. That is no strict order: what was handed out before stays in its taker's
hands, what the brokers still have is unknown here, and members of a group do not wait for each other. What waits is
bounded as ever, by the limits of each queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.orderly import Turn
from metaq.client.consumer.delivery.window import Chunk
from metaq.errors import ConfigError
from metaq.model import MessageQueue, StoredMessage

M = TypeVar("M", bound=StoredMessage)

Ranks = Mapping[str | tuple[str, range], int]
"""Topic, or topic and a range of queue ids, → rank; what is not named has rank 0."""

PIECE_MESSAGES = 32
"""Messages handed out at a time: those of higher rank wait no longer than for these."""


class Ranking:
    """The ranks of queues."""

    def __init__(self, ranks: Ranks) -> None:
        """Raises ConfigError."""
        self._topics: dict[str, int] = {}
        self._ranges: list[tuple[str, range, int]] = []
        for key, rank in ranks.items():
            if not isinstance(rank, int) or isinstance(rank, bool):
                raise ConfigError(f"ranks: the rank of {key!r} is {rank!r}: need a whole number")
            match key:
                case str():
                    self._topics[key] = rank
                case (str(topic), range() as queue_ids) if queue_ids:
                    self._ranges.append((topic, queue_ids, rank))
                case _:
                    raise ConfigError(f"ranks: {key!r} is neither a topic nor (topic, range of queue ids)")

    def topics(self) -> set[str]:
        return {*self._topics, *(topic for topic, _, _ in self._ranges)}

    def of(self, queue: MessageQueue) -> int:
        """The rank of a queue. A range that holds the queue beats its topic's rank."""
        for topic, queue_ids, rank in self._ranges:
            if topic == queue.topic and queue.queue_id in queue_ids:
                return rank
        return self._topics.get(queue.topic, 0)


class RankedHandover(Handover[M], Generic[M]):
    """A handover that heeds ranks. In the base's queue there is a token for every piece that waits here."""

    def __init__(self, ranking: Ranking, low_share: float) -> None:
        """Args: low_share: above 0 and below 1, what lower ranks get of all while the highest has messages as well."""
        super().__init__()
        self._ranking, self._credit_per_message = ranking, low_share / (1 - low_share)
        self._pieces: dict[int, deque[Chunk[M]]] = {}
        self._served: dict[int, int] = {}
        """Rank → number of its last turn."""
        self._turn = 0
        self._credit = 0.0
        """Number of messages that lower ranks may get now."""
        self._choosing = threading.RLock()  # A generator that is collected gives back what it has.
        self._token = cast("Chunk[M]", _Token())

    def put(self, chunk: Chunk[M]) -> None:
        if isinstance(chunk, Turn):  # Of an ordered queue: its taker goes through it.
            self._wait(chunk)
            return
        messages, chunk.messages = chunk.messages, ()  # The pieces hold them now.
        for start in range(0, len(messages), PIECE_MESSAGES):
            self._wait(Chunk(chunk.window, chunk.base, chunk.flags, messages[start : start + PIECE_MESSAGES]))

    def give_back(self, chunk: Chunk[M]) -> None:
        self._wait(chunk, first=True)

    def _wait(self, piece: Chunk[M], *, first: bool = False) -> None:
        if not piece.messages:
            return
        with self._choosing:
            waiting = self._pieces.setdefault(self._ranking.of(piece.window.queue), deque())
            if first:
                waiting.appendleft(piece)
            else:
                waiting.append(piece)
        super().put(self._token)

    def _taken(self, chunk: Chunk[M] | None) -> Chunk[M] | None:
        if chunk is None or self.closed:
            return super()._taken(chunk)
        with self._choosing:
            return self._choose()

    def _choose(self) -> Chunk[M]:
        # A copy of the table: a generator that is collected just here may give back a piece (see `_choosing`).
        highest, *lower = sorted((rank for rank, pieces in list(self._pieces.items()) if pieces), reverse=True)
        self._turn += 1
        if not lower:
            self._credit = 0.0  # A share of what is handed out while they wait; it is not saved up.
            return self._pieces[highest].popleft()
        if self._credit >= 1:
            rank = min(lower, key=lambda one: self._served.get(one, 0))
            self._served[rank] = self._turn
            piece = self._pieces[rank].popleft()
            self._credit -= len(piece.messages)
            return piece
        piece = self._pieces[highest].popleft()
        self._credit += len(piece.messages) * self._credit_per_message
        return piece


class _Token:
    """Stands in the base's queue for a piece of ours."""

    messages: Any = (None,)
