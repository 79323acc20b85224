"""The log file of a server in the background: all that its process says, rotated by size."""

from __future__ import annotations

import logging.handlers
import os
import pathlib
import sys

from metaq.app.runtime import LOG_FORMAT


class RotatedLog(logging.handlers.RotatingFileHandler):
    """Writes a process's log to a file, and standard output and error with it: tracebacks, and what a library prints.

    Args:
        path: the file; older ones are `path.1`, `path.2` and so on.
        bytes_max: size at which a new file is begun; 0: never.
        older: number of older files that are kept.
    """

    def __init__(self, path: pathlib.Path, bytes_max: int, older: int) -> None:
        super().__init__(path, maxBytes=bytes_max, backupCount=older, encoding="utf-8", errors="backslashreplace")
        self._bytes_max = bytes_max
        self.setFormatter(logging.Formatter(LOG_FORMAT))
        self._lead_here()

    def _lead_here(self) -> None:
        assert self.stream is not None, "opened at once, and anew by each rotation"
        for output in (sys.stdout, sys.stderr):
            output.flush()
        for descriptor in (1, 2):
            os.dup2(self.stream.fileno(), descriptor)

    def doRollover(self) -> None:  # noqa: N802  logging's name
        try:
            super().doRollover()
        except OSError as fault:
            # Not at each line again: the file grows by another such part first.
            self.maxBytes += self._bytes_max
            self.stream = self.stream or self._open()
            self.stream.write(f"this log file cannot be rotated, and grows: {fault}\n")
        else:
            self.maxBytes = self._bytes_max
        self._lead_here()
