"""What memory this process has reserved."""

from __future__ import annotations

import os
import pathlib
import sys

_STATM = pathlib.Path("/proc/self/statm")
_DATA = 5


def data_bytes() -> int:
    """What RLIMIT_DATA counts: also what is not used, such as the stacks of threads that an import began.

    Where that cannot be known (not Linux), what is used. Raises ImportError where not even that can be.
    """
    try:
        return int(_STATM.read_text("ascii").split()[_DATA]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
