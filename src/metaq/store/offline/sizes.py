"""File sizes of a store folder: options that are not set are taken from the files that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from metaq.options import MIB, StoreOptions
from metaq.store.mapped_file import NAME_DIGITS
from metaq.store.queues.index_file import index_file_bytes

SMALL: Final = {"mapped_file_size_commit_log": 64 * MIB}
"""For a laptop: the first message takes 83 MiB and not 1 GiB.

The index keeps RocketMQ's sizes. It does not notice an index of other sizes than its own, and finds nothing in it.
"""


def sizes_found(options: StoreOptions) -> dict[str, int]:
    """Return the size options by the folder's files; empty for a folder without files. Reads names and sizes only."""
    # A broker refuses files of other sizes than configured, as RocketMQ does: a folder of one opens without its settings so.
    root = Path(options.store_path_root_dir).expanduser()
    log = Path(options.store_path_commit_log or root / "commitlog").expanduser()
    queues = Path(options.store_path_consume_queue or root / "consumequeue").expanduser()
    found: dict[str, int] = {}
    if size := _first_size(log, "*"):
        found["mapped_file_size_commit_log"] = size
    if size := _first_size(queues, "*/*/*"):
        found["mapped_file_size_consume_queue"] = size
    return found


def _first_size(folder: Path, pattern: str) -> int:
    try:
        for path in folder.glob(pattern):
            # An empty file says nothing: a power cut can leave one of a consume queue.
            if len(path.name) == NAME_DIGITS and path.name.isdecimal() and (size := path.stat().st_size):
                return size
    except OSError:  # whoever opens the folder will say what is wrong with it
        return 0
    return 0


def first_use(options: StoreOptions) -> str:
    """Return the text, for the start of a broker, of what the first message reserves on the disk."""
    index = index_file_bytes(options.max_hash_slot_num, 0) if options.message_index_enable else 0
    log = options.mapped_file_size_commit_log
    return (
        f"store {options.store_path_root_dir}: log files of {log / MIB:g} MiB (mappedFileSizeCommitLog), reserved whole; "
        f"an empty store takes {(log + index) / MIB:.0f} MiB of the disk at its first message"
    )
