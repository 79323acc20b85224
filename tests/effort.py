"""How often tests repeat what chance decides: a quarter by day, all of it in the night.

Each run draws other examples, so that what a quarter misses the next runs find; and a night runs all.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "METAQ_REPEATS"
"""`all`: nothing is left out. `make nightly` and `make test-all` set it."""
PART: Final = 4


def repeats(whole: int) -> int:
    """How many of so many examples, rounds or seeds are run now."""
    return whole if os.environ.get(VARIABLE) == "all" else -(-whole // PART)
