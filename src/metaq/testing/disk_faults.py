"""How the disk of a broker in another process is steered: what `Cluster` writes and `metaq.testing.steered_broker` reads."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

PROGRAM: Final = f"{__package__}.steered_broker"
"""Not written out: for CI whoever names a module depends on it, and of all who import this only clusters with faulty disks do."""
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
