"""Wall clocks of servers that jump, by libfaketime: Debian's package `libfaketime`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "METAQ_LIBFAKETIME"
"""Environment variable: the library, where it is in none of the usual folders."""
MISSING: Final = f"libfaketime is not installed (Debian: apt install libfaketime), or name its library in {VARIABLE}"
_LIBRARY: Final = "libfaketimeMT.so.1"
_FOLDERS: Final = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")


def find_faketime(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the library, or None where there is none."""
    if named := (os.environ if environ is None else environ).get(VARIABLE):
        return Path(named) if Path(named).is_file() else None
    found = (path for folder in _FOLDERS for path in Path("/").glob(f"{folder[1:]}/{_LIBRARY}"))
    return next(found, None)


class FakedClock:
    """The wall clock of one process, as its environment says it; other clocks run as they do.

    Args:
        library: what `find_faketime` has found.
        file: what the process reads its difference from; made here.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Times of files are those of the disk, which all processes share.
            "NO_FAKE_STAT": "1",
        }
        self.set(0.0)

    def set(self, seconds: float) -> None:
        """Let the clock be so many seconds ahead from now on, or behind (negative)."""
        fresh = self._file.with_name(self._file.name + ".new")
        fresh.write_text(f"{seconds:+.3f}\n", encoding="ascii")
        fresh.replace(self._file)  # whole: the process may read it at any moment
