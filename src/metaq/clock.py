"""Time and random numbers, which tests replace. No other module reads the wall clock or draws random numbers."""

from __future__ import annotations

import os
import random
import time
from typing import Protocol


class Clock(Protocol):
    """Source of time and random numbers."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch, UTC. May step back when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never steps back. For time-outs and rates."""
        ...

    def random_below(self, stop: int) -> int:
        """Return a number in [0, stop), for choices that must spread."""
        ...

    def token(self) -> str:
        """Return 32 hex characters that nobody can guess."""
        ...


class SystemClock:
    """The machine's time and random numbers."""

    __slots__ = ("_random",)

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311  spreads load, guards nothing

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # not wrapped: consumers in order ask for each message

    def random_below(self, stop: int) -> int:
        return int(self._random.random() * stop)

    def token(self) -> str:
        return os.urandom(16).hex()  # `secrets` would load OpenSSL


class FakeClock:
    """A clock that stands still until `advance`, with random numbers of a fixed seed. For tests."""

    __slots__ = ("_monotonic", "_now_ms", "_random")

    def __init__(self, now_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0
        self._random = random.Random(seed)  # noqa: S311  a test wants the same numbers

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def random_below(self, stop: int) -> int:
        return self._random.randrange(stop)

    def token(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def advance(self, seconds: float) -> None:
        """Move both the wall clock and the monotonic clock forward."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock alone, as an administrator or NTP would."""
        self._now_ms = now_ms


Chance = random.Random
"""A source of random numbers that can be handed on."""


def seeded(seed: int | str) -> Chance:
    """Return random numbers that are the same for the same seed, also in another process. For repeatable tests."""
    return random.Random(seed)  # noqa: S311  a test wants the same numbers


SYSTEM = SystemClock()
