"""Work that takes longer than a page: one at a time for each subject, with its progress, until the dashboard leaves the cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from metaq.clock import Clock
from metaq.errors import BadRequest, MetaqError

log = logging.getLogger(__name__)

JOBS_MAX: Final = 32
"""Jobs that are remembered; of more, the oldest that are over are forgotten."""
AT_ONCE_MAX: Final = 4
FAILURES_MAX: Final = 10


class Progress:
    """How far a job is. `failures`: the first few, as text."""

    def __init__(self, what: str, total: int, started_ms: int) -> None:
        self.what, self.total, self.started_ms = what, total, started_ms
        self.done = self.failed = 0
        self.failures: list[str] = []
        self.over = self.stopped = False
        self.error = ""

    def fail(self, text: str) -> None:
        """Count a failure."""
        self.failed += 1
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(text)


class JobView(Struct, frozen=True):
    """A job as a page shows it. `error`: why it ended before it was through; "": it goes on, is through, or was stopped."""

    what: str
    total: int
    done: int
    failed: int
    failures: list[str]
    started_ms: int
    over: bool
    stopped: bool
    error: str


Work = Callable[[Progress], Awaitable[None]]


class Jobs:
    """The jobs of one cluster, in the dashboard's loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: dict[str, tuple[Progress, asyncio.Task[None]]] = {}

    def start(self, subject: str, what: str, total: int, work: Work) -> None:
        """Begin. Raises BadRequest: one of the same subject is under way, or too many are."""
        running = [key for key, (progress, _) in self._jobs.items() if not progress.over]
        if subject in running:
            raise BadRequest("this is under way already: wait for its end, or stop it")
        if len(running) >= AT_ONCE_MAX:
            raise BadRequest(f"{AT_ONCE_MAX} such jobs are under way: wait for one of them")
        self._jobs.pop(subject, None)
        for key in [key for key, (one, _) in self._jobs.items() if one.over][: max(0, len(self._jobs) - JOBS_MAX + 1)]:
            del self._jobs[key]
        progress = Progress(what, total, self._clock.now_ms())
        self._jobs[subject] = progress, asyncio.create_task(self._run(progress, work))

    async def _run(self, progress: Progress, work: Work) -> None:
        try:
            await work(progress)
        except asyncio.CancelledError:
            progress.stopped = True
        except MetaqError as error:
            progress.error = str(error)
        except Exception as error:
            progress.error = f"{type(error).__name__}: the dashboard's log has the rest"
            log.exception("%s failed", progress.what)
        finally:
            progress.over = True

    def stop(self, subject: str) -> None:
        """Stop a job behind what it does now. Raises BadRequest: there is none."""
        progress, task = self._jobs.get(subject, (None, None))
        if progress is None or task is None or progress.over:
            raise BadRequest("nothing of the kind is under way")
        task.cancel()

    def of(self, subject: str) -> JobView | None:
        """Return the newest job of a subject; None: there was none."""
        if subject not in self._jobs:
            return None
        one = self._jobs[subject][0]
        return JobView(
            one.what,
            one.total,
            one.done,
            one.failed,
            list(one.failures),
            one.started_ms,
            one.over,
            one.stopped,
            one.error,
        )

    async def close(self) -> None:
        """Stop all."""
        tasks = [task for _, task in self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
