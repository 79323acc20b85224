"""Time and random numbers, which tests replace. No other module reads the wall clock or draws random numbers."""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Final, Protocol

CONFIRMED_SECONDS: Final = 86_400.0
"""Seconds after which a wall clock that was set ahead is believed (`SteadyTime`)."""
_GAIN: Final = 1.5
"""Most seconds that `SteadyTime` goes forward in a second."""


class Clock(Protocol):
    """Source of time and random numbers, which whatever needs one takes as `clock`: in tests a `metaq.testing.FakeClock`, or one's own."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch, UTC. May step back when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never steps back. For time-outs and rates."""
        ...

    def elapsed(self) -> float:
        """Return seconds from an arbitrary start; never steps back, and goes on while the machine is suspended. For leases."""
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

    if sys.platform == "linux":

        def elapsed(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    else:
        elapsed = staticmethod(time.monotonic)

    def random_below(self, stop: int) -> int:
        return int(self._random.random() * stop)

    def token(self) -> str:
        return os.urandom(16).hex()  # `secrets` would load OpenSSL


class SteadyTime:
    """The wall clock, for decisions that something has become too old: it goes forward only as the monotonic clock confirms.

    A wall clock that is set ahead, perhaps for seconds only, makes everything old at once. This one gains on it by half of
    the time that passes, and believes it after CONFIRMED_SECONDS: then it was a correction, or the machine had slept. A wall
    clock that is set back is followed at once, since nothing grows old by it. Not for delivery: that follows the wall clock.
    For one thread.
    """

    __slots__ = ("_agreed_at", "_clock", "_monotonic", "_now_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now_ms, self._monotonic = clock.now_ms(), clock.monotonic()
        self._agreed_at = self._monotonic
        """Time of the last look at which the wall clock was not ahead, monotonic seconds."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch. Call it every few seconds: what passes between two calls is slack."""
        wall, now = self._clock.now_ms(), self._clock.monotonic()
        most = self._now_ms + round((now - self._monotonic) * _GAIN * 1000)
        if wall <= most or now - self._agreed_at >= CONFIRMED_SECONDS:
            self._agreed_at = now
            most = wall
        self._now_ms, self._monotonic = most, now
        return most


class FakeClock:
    """A clock that stands still until `advance`, with random numbers of a fixed seed. For tests: pass it as `clock`.

    Args: now_ms: the wall clock, ms since 1970. seed: of the random numbers.
    """

    __slots__ = ("_monotonic", "_now_ms", "_random")

    def __init__(self, now_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0
        self._random = random.Random(seed)  # noqa: S311  a test wants the same numbers

    def now_ms(self) -> int:
        """Return the wall clock, ms since 1970."""
        return self._now_ms

    def monotonic(self) -> float:
        """Return seconds since the clock was made, by `advance`. `elapsed` is the same."""
        return self._monotonic

    elapsed = monotonic
    """The same as `monotonic`."""

    def random_below(self, stop: int) -> int:
        """Return a number from 0 to `stop` - 1, of the seed's."""
        return self._random.randrange(stop)

    def token(self) -> str:
        """Return 32 hexadecimal digits, of the seed's."""
        return f"{self._random.getrandbits(128):032x}"

    def advance(self, seconds: float) -> None:
        """Move both the wall clock and the monotonic clock forward, by seconds."""
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
