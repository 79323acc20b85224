"""How the disk of a broker in another process is steered: what `Cluster` writes and `metaq.testing.steered_broker` reads."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

PROGRAM: Final = "metaq.testing.steered_broker"
SEED: Final = "METAQ_TESTING_DISK_SEED"
"""Environment variable: decides what a power cut leaves. Another one after each cut, which is another boot of the machine."""
CUT: Final = ".cut"
DISK: Final = ".disk"


class DiskFaults(Struct, frozen=True):
    """How a disk is until something else is said."""

    room: int | None = None
    """Bytes that may still be reserved; None: no limit."""
    no_files: bool = False
    """Whether opening fails, for want of room, where it may make a file."""
    sync_seconds: float = 0.0
    """How much longer each sync takes."""
