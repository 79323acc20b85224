"""Folders of pipelines and checkpoints of Spark queries: how far each is, looked at once for all visitors, in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from metaq.clock import Clock
from metaq.dashboard.sampling.series import Histories
from metaq.errors import ConfigError, MetaqError
from metaq.log import RateLimitedLog
from metaq.pipelines.run import STATUS, RunStatus, status_of
from metaq.spark.source.progress import Lag, of_checkpoint

log = logging.getLogger(__name__)

SHOWN_MAX: Final = 200
"""Folders that are shown."""
SCANNED_MAX: Final = 1000
"""Folders in a named one that are looked into."""
FRESH_SECONDS: Final = 1.0
"""A page takes what was seen so long ago."""
CHECKPOINT: Final = "_checkpoint"
"""Of the query, in a pipeline's folder."""


class FolderNotShown(MetaqError):
    """The dashboard was not told of this folder, or there is none."""


class SeenFolder(Struct, frozen=True):
    """A folder as it was seen last.

    `status`: of its pipeline; None: it is the checkpoint of a query that is none, or cannot be read. `query`: at the end of its last
    batch; None: it has finished none, or is no query. `error`: why it cannot be read; "": it can.
    """

    path: str
    status: RunStatus | None
    query: Lag | None
    error: str


class WatchedFolders:
    """Those that the dashboard was told of, and those in them. Args: places: folders of pipelines, or with some in them."""

    def __init__(self, places: Sequence[str], clock: Clock) -> None:
        self._places = [Path(place).expanduser().absolute() for place in places]
        self._clock = clock
        self._faults = RateLimitedLog(log, clock, 60.0)
        self._task: asyncio.Task[None] | None = None
        self._at: float | None = None
        self.folders: list[SeenFolder] = []
        self.left = 0
        """Folders that are not shown: there are too many."""
        self.behind, self.rates = Histories(), Histories()
        """By path: messages that wait, and messages a second."""
        self._sums: dict[str, tuple[float, str, int]] = {}

    @property
    def names(self) -> list[str]:
        return [str(place) for place in self._places]

    def look_soon(self) -> None:
        """Begin to look, unless that is under way."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())

    async def seen(self) -> list[SeenFolder]:
        """Return the folders; looks at them if that is too long ago."""
        if self._at is None or self._clock.monotonic() - self._at > FRESH_SECONDS:
            self.look_soon()
            assert self._task is not None, "it was begun"
            await asyncio.wait({self._task})
        return self.folders

    async def close(self) -> None:
        """Wait for the end of a look that is under way."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        try:
            found, self.left = await asyncio.to_thread(_read_all, self._places)
        except Exception as error:  # noqa: BLE001  the next look may find it well again
            self._faults.warning("folders", "the folders of pipelines cannot be read: %s", error)
            return
        now = self._clock.monotonic()
        self.folders, self._at = found, now
        statuses = [(one.path, one.status) for one in found if one.status is not None]
        self.behind.add((path, None if status.behind is None else float(status.behind)) for path, status in statuses)
        self.rates.add([(path, self._rate(path, status, now)) for path, status in statuses])

    def _rate(self, path: str, status: RunStatus, now: float) -> float | None:
        """Return rows a second since the look before; None: it is not known, as of a run that has just begun."""
        rows = rows_of(status)
        if rows is None:
            return None
        before = self._sums.get(path)
        self._sums[path] = now, status.run, rows
        if before is None or before[1] != status.run or now <= before[0]:
            return None
        return max(0, rows - before[2]) / (now - before[0])


def rows_of(status: RunStatus) -> int | None:
    """Return the messages that a run has processed; None: its figures have no such sum."""
    return next((status.total[name] for name in ("messages", "rows") if name in status.total), None)


def _read_all(places: Sequence[Path]) -> tuple[list[SeenFolder], int]:
    paths = list[Path]()
    for place in places:
        paths += [place] if _is_one(place) else _inside(place)
    found = [_read(path) for path in paths[:SHOWN_MAX]]
    return found, max(0, len(paths) - SHOWN_MAX)


def _inside(place: Path) -> list[Path]:
    try:
        children = sorted(path for path in place.iterdir() if not path.name.startswith("."))[:SCANNED_MAX]
    except OSError:
        return [place]  # shown with the reason
    return [path for path in children if _is_one(path)]


def _is_one(path: Path) -> bool:
    try:
        return (path / STATUS).exists() or _is_checkpoint(path)
    except OSError:
        return True  # shown with the reason


def _is_checkpoint(path: Path) -> bool:
    return (path / "metadata").is_file() and (path / "offsets").is_dir()


def _read(path: Path) -> SeenFolder:
    status, query, error = None, None, ""
    try:
        if not path.is_dir():
            raise ConfigError(f"there is no folder {path}")  # noqa: TRY301  told as all that a folder is not
        status = status_of(path)
        place = path if status is None else path / CHECKPOINT
        if _is_checkpoint(place):
            query = of_checkpoint(str(place))
    except (ConfigError, OSError) as fault:  # of another user, for example
        error = str(fault)
    return SeenFolder(str(path), status, query, error)
