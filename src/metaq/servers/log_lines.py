"""The last lines of the process's log, for those who look at a server from elsewhere."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from metaq.model.servers.log_line import LogLine

LINES_MAX: Final = 500
"""Lines that are kept: about a megabyte at most."""
CHARS_MAX: Final = 2000
OURS: Final = "metaq"
"""Logger whose lines are kept: a process may have others, which are not ours to show."""


class LastLines(logging.Handler):
    """Keeps the last lines of the log. In force between `open` and `close`."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line. Of any thread."""
        try:
            text = record.getMessage()[:CHARS_MAX]
            self._lines.append(LogLine(round(record.created * 1000), record.levelname, record.name, text))
        except Exception:  # noqa: BLE001  as every handler
            self.handleError(record)

    def open(self) -> None:
        """Begin to keep lines."""
        logging.getLogger(OURS).addHandler(self)

    def close(self) -> None:
        """Keep no more."""
        logging.getLogger(OURS).removeHandler(self)
        super().close()

    def last(self, count: int, level: int = logging.NOTSET) -> list[LogLine]:
        """Return so many of the last lines of at least a level, the oldest first."""
        found = [line for line in list(self._lines) if logging.getLevelNamesMapping().get(line.level, 0) >= level]
        return found[-count:] if count else []
