"""How far the opening of a store is: it may read a log of many gigabytes twice, first to check it and then to replay it."""

from __future__ import annotations

import threading
from typing import Final

from msgspec import Struct

from metaq.clock import SYSTEM, Clock
from metaq.errors import MetaqError

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20


class StartStopped(MetaqError):
    """The opening of a store was stopped. Its folder is as after a crash at this moment: the next start begins again."""


class StartMoment(Struct, frozen=True):
    """How far it is. `done`, `total`: bytes of the log, of both passes; 0 of 0: it has not begun to read it. `seconds`: since it
    has begun."""

    what: str
    done: int = 0
    total: int = 0
    seconds: float = 0.0

    @property
    def percent(self) -> int:
        """0 to 100, rounded down."""
        return self.done * 100 // self.total if self.total else 0

    @property
    def seconds_left(self) -> float | None:
        """What is left at the pace so far; None: nothing is known of that yet."""
        if not self.done or self.seconds <= 0:
            return None
        return self.seconds * (self.total - self.done) / self.done

    def text(self) -> str:
        """In words."""
        if not self.total:
            return self.what
        unit, name = (_GIB, "GiB") if self.total >= _GIB else (_MIB, "MiB")
        left = self.seconds_left
        told = f"{self.what} {self.percent} %: {self.done / unit:.1f} of {self.total / unit:.1f} {name}"
        return told if left is None else f"{told}, about {_duration(left)} left"


class StartProgress:
    """Is told of each step by the thread that opens the store, and asked and stopped by any other."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock, self._stopped = clock, threading.Event()
        self._what = "opening the store"
        self._begun: float | None = None
        self._before = self._done = self._start = self._total = 0
        """Bytes of the passes that are over; of this one; where this one began; of all."""

    def stop(self) -> None:
        """Have the opening end at its next step, by StartStopped."""
        self._stopped.set()

    # -- the thread that opens the store

    def check(self, start: int, end: int) -> None:
        """The log is checked from `start` to `end`, LogOffsets, and replayed after that."""
        self._begin("replaying", start)
        # How much of it will be replayed is known when it is checked; usually it is all of it.
        self._total = self._before + 2 * max(0, end - start)

    def replay(self, start: int, end: int) -> None:
        """What was checked is replayed, from `start` to `end`."""
        self._begin("replaying", start)
        self._total = self._before + max(0, end - start)

    def at(self, place: int) -> None:
        """The pass has come to this LogOffset. Raises StartStopped."""
        self._done = max(0, place - self._start)
        if self._stopped.is_set():
            raise StartStopped("the start was stopped while the log was replayed; the next start begins again")

    def secure(self) -> None:
        """All is replayed, and is being made durable."""
        self._what, self._before, self._done, self._total = "making durable what was replayed", 0, 0, 0

    def _begin(self, what: str, start: int) -> None:
        if self._begun is None:
            self._begun = self._clock.monotonic()
        self._before += self._done
        self._what, self._start, self._done = what, start, 0

    # -- whoever asks

    def now(self) -> StartMoment:
        """Return how far it is."""
        begun = self._begun
        seconds = self._clock.monotonic() - begun if begun is not None else 0.0
        return StartMoment(self._what, min(self._before + self._done, self._total), self._total, seconds)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"
