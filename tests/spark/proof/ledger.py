"""What was sent, and what the producers were told of it.

Every send has a number of its own; a message that is sent again by the application, because the send failed, gets another one. The body
says the number and is made of it and the seed, so a body that is not as it was sent shows.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

BODY_BYTES: Final = 100
_FILLERS: Final = 4093

UNSENT, DOUBTFUL, ACKED, REFUSED = range(4)
"""What is known of a send. DOUBTFUL: it may be stored, or not. REFUSED: the producer says that it is not stored."""

Numbers = np.ndarray


class Bodies:
    """number → body and back, for all at once."""

    def __init__(self, seed: int) -> None:
        letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-", np.uint8)
        chosen = np.random.default_rng(seed).integers(0, len(letters), (_FILLERS, BODY_BYTES - 12))
        self._fillers = letters[chosen]

    def make(self, numbers: Numbers) -> Numbers:
        """The bodies as rows of bytes."""
        rows = np.empty((len(numbers), BODY_BYTES), np.uint8)
        left = np.asarray(numbers, np.int64).copy()
        for place in range(11, -1, -1):
            rows[:, place] = 48 + left % 10
            left //= 10
        rows[:, 12:] = self._fillers[numbers % _FILLERS]
        return rows

    def read(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """The numbers that bodies name, and whether each is as it was made."""
        digits = rows[:, :12].astype(np.int64) - 48
        numbers = digits @ (10 ** np.arange(11, -1, -1, dtype=np.int64))
        sound = ((digits >= 0) & (digits <= 9)).all(axis=1)
        sound[sound] = (rows[sound] == self.make(numbers[sound])).all(axis=1)
        return numbers, sound


class Ledger:
    """Thread-safe. Numbers are given out without a gap."""

    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies
        self._busy = threading.Lock()
        self._parts: list[tuple[Numbers, Numbers, Numbers, Numbers, list[str]]] = []
        self.begun = 0
        """How many sends there were."""
        self.acked = 0

    def begin(self, count: int) -> Numbers:
        """Numbers for so many sends. From now on they may be stored."""
        with self._busy:
            first, self.begun = self.begun, self.begun + count
        return np.arange(first, first + count)

    def settle(self, numbers: Numbers, states: Numbers, queues: Numbers, offsets: Numbers, ids: list[str]) -> None:
        """What the producer said of them; of those that are not acknowledged the rest is not looked at."""
        with self._busy:
            self._parts.append((numbers, states, queues, offsets, ids))
            self.acked += int((states == ACKED).sum())

    def columns(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """By number: state, queue, offset, the producer's id of the message. A send that was begun and not settled is DOUBTFUL."""
        states = np.full(self.begun, DOUBTFUL, np.int8)
        queues, offsets = np.full(self.begun, -1), np.full(self.begun, -1)
        names = np.full(self.begun, "", "U32")
        for numbers, told, queue, offset, ids in self._parts:
            states[numbers], queues[numbers], offsets[numbers], names[numbers] = told, queue, offset, ids
        return states, queues, offsets, names
