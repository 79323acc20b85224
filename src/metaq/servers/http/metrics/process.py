"""Figures of the process that an HTTP server is in, a broker's or a name server's."""

from __future__ import annotations

import asyncio
import logging
import platform
import resource
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import metaq
from metaq.errors import Reason
from metaq.histogram import Measured
from metaq.metrics import table
from metaq.metrics.metric import Sample
from metaq.net.budget import Budget
from metaq.servers.tally import UNKNOWN, Tally
from metaq.wire import hot
from metaq.wire.codes import RequestCode

LAG_SECONDS: Final = 0.1
"""Interval of the timer whose lateness is the loop's lag."""
LEVELS: Final = (logging.WARNING, logging.ERROR, logging.CRITICAL)
FAULT: Final = "fault"
"""Label of failures that have no reason."""


class ServerFigures(Protocol):
    """A protocol server, as metrics see it."""

    @property
    def name(self) -> str: ...

    @property
    def connections(self) -> int: ...

    @property
    def refused(self) -> int: ...


class LineCounts(logging.Handler):
    """Counts lines by level, and writes none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.counts = dict.fromkeys(LEVELS, 0)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a line, as one of the highest level that it reaches."""
        level = max((one for one in LEVELS if record.levelno >= one), default=logging.WARNING)
        self.counts[level] += 1


class ProcessFigures:
    """The figures of a process, from `start` on.

    Args:
        servers: returns the protocol servers.
        budget: of what peers make the process keep.
        tally: of the requests.
    """

    def __init__(self, servers: Callable[[], Iterable[ServerFigures]], budget: Budget, tally: Tally) -> None:
        self._servers, self._budget, self._tally = servers, budget, tally
        self._lag, self._lines = Measured(), LineCounts()
        self._timer: asyncio.TimerHandle | None = None
        self._log = logging.getLogger("metaq")

    def start(self) -> None:
        """Measure the loop, and count lines of the log."""
        # Without any handler, Python writes warnings itself; with this one alone, it would not any more.
        if self._log.hasHandlers():
            self._log.addHandler(self._lines)
        self._wait(asyncio.get_running_loop())

    def close(self) -> None:
        """Measure and count no more."""
        self._log.removeHandler(self._lines)
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + LAG_SECONDS
        self._timer = loop.call_at(due, self._late, loop, due)

    def _late(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._lag.add(loop.time() - due)
        self._wait(loop)

    def samples(self, started_ms: int) -> Iterator[Sample]:
        """Yield the samples. Args: started_ms: when the process was ready."""
        code = "native" if hot.NATIVE else "Python"
        yield Sample(table.BUILD, {"version": metaq.__version__, "python": platform.python_version(), "code": code})
        yield Sample(table.START_TIME, started_ms / 1000)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield Sample(table.CPU, usage.ru_utime + usage.ru_stime)
        yield Sample(table.LOOP_LAG, self._lag.value())
        for server in self._servers():
            yield Sample(table.CONNECTIONS, server.connections, (server.name,))
            yield Sample(table.CONNECTIONS_REFUSED, server.refused, (server.name,))
        yield Sample(table.PEER_BYTES, self._budget.bytes)
        for level, count in self._lines.counts.items():
            yield Sample(table.LOG_LINES, count, (logging.getLevelName(level).lower(),))
        yield from self._requests()

    def _requests(self) -> Iterator[Sample]:
        tally = self._tally
        for code, count in sorted(tally.requests.items()):
            yield Sample(table.REQUESTS, count, ("unknown" if code == UNKNOWN else RequestCode(code).name,))
        # All of them, from the start: how much a series that begins with 1 has grown, Prometheus does not know.
        for reason in (None, *Reason):
            yield Sample(table.FAILURES, tally.failures.get(reason, 0), (FAULT if reason is None else name_of(reason),))
        for (operation, status), count in sorted(tally.http.items()):
            yield Sample(table.HTTP_REQUESTS, count, (operation, str(status)))


def name_of(reason: Reason) -> str:
    """Return a reason as labels and problems have it."""
    return reason.name.lower().replace("_", "-")
