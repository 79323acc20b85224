"""Which file sizes a store folder was made with: what nobody has set is taken from the files that are there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from metaq.options import MIB, StoreOptions
from metaq.store.index_file import index_file_bytes
from metaq.store.mapped_file import NAME_DIGITS

SMALL: Final = {"mapped_file_size_commit_log": 64 * MIB, "max_hash_slot_num": 500_000, "max_index_num": 2_000_000}
"""For a laptop: the first message reserves 67 MiB and not 1.1 GiB."""

_DEFAULT: Final[dict[str, Any]] = {item.name: item.default for item in fields(StoreOptions)}
_INDEX: Final = ("max_hash_slot_num", "max_index_num")


def sizes_found(options: StoreOptions) -> dict[str, int]:
    """The size options that the folder's files agree with; empty for a folder without files. Reads names and sizes.

    An index file's size does not tell slots and entries apart: it is compared with RocketMQ's default and with `SMALL`.
    """
    root = Path(options.store_path_root_dir).expanduser()
    log = Path(options.store_path_commit_log or root / "commitlog").expanduser()
    queues = Path(options.store_path_consume_queue or root / "consumequeue").expanduser()
    index = Path(options.store_path_index or root / "index").expanduser()
    found: dict[str, int] = {}
    if size := _first_size(log, "*"):
        found["mapped_file_size_commit_log"] = size
    if size := _first_size(queues, "*/*/*"):
        found["mapped_file_size_consume_queue"] = size
    if size := _first_size(index, "*", digits=17):
        for sizes in (_DEFAULT, SMALL):
            if index_file_bytes(*(sizes[name] for name in _INDEX)) == size:
                found |= {name: sizes[name] for name in _INDEX}
    return found


def _first_size(folder: Path, pattern: str, *, digits: int = NAME_DIGITS) -> int:
    try:
        for path in folder.glob(pattern):
            if len(path.name) == digits and path.name.isdecimal() and (size := path.stat().st_size):
                return size
    except OSError:  # whoever opens the folder will say what is wrong with it
        return 0
    return 0


def first_use(options: StoreOptions) -> str:
    """What the first message takes of the disk at once, for whoever starts a broker on this folder."""
    index = index_file_bytes(options.max_hash_slot_num, 0) if options.message_index_enable else 0
    log = options.mapped_file_size_commit_log
    return (
        f"store {options.store_path_root_dir}: log files of {log / MIB:g} MiB (mappedFileSizeCommitLog), reserved whole; "
        f"an empty store takes {(log + index) / MIB:.0f} MiB of the disk at its first message"
    )
